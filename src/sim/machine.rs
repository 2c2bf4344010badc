//! A box under a virtual clock: workers decode, ranks compute and wait for each other at the end of each step.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use super::job::Job;
use super::metrics::{Bounds, Outcome, RankStep};
use crate::proto::options::{Balance, Policy, RunOptions, StreamOptions};
use crate::proto::transform::Span;
use crate::sched::event::{
    Decision, Event, Measured, Place, Scheduler, ServerId, StreamId, TicketId, Time, WorkerId,
};
use crate::sched::{Engine, EngineOptions};

/// A system to be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// PyTorch's `DataLoader` a rank, with so many workers each: a whole batch a worker, in turn.
    Native {
        /// Workers of a rank.
        workers: u16,
    },
    /// One first-come-first-served pool for all ranks, as with Ray actors.
    Pool {
        /// Whether a task is a whole batch; else a sample.
        batches: bool,
    },
    /// This scheduler.
    Helix {
        /// Whether samples move between ranks to even their costs.
        balance: bool,
        /// Steps that share their samples.
        regroup: u32,
    },
}

impl System {
    /// This scheduler as it is meant to be used, without regrouping.
    pub const HELIX: System = System::Helix { balance: true, regroup: 1 };
}

/// The machine.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// The system.
    pub system: System,
    /// NUMA nodes; cores and ranks are spread over them evenly.
    pub servers: u16,
    /// Batches that a rank may hold, the one in use included.
    pub depth: u32,
    /// Milliseconds of decoding from which on this scheduler may cut a clip; 0 = never.
    pub split_ms: u32,
    /// Whether this scheduler finds out by itself how many of the cores to use.
    pub scale: bool,
    /// How workers of a server slow each other: with `n` at work each takes `1 + α(n−1) + βn(n−1)` times as long.
    pub contention: Option<(f64, f64)>,
}

impl Setup {
    /// As many batches in flight as PyTorch has with twelve workers, or with fewer, if a rank has fewer.
    pub fn new(system: System) -> Self {
        let depth = if let System::Native { workers } = system { 2 * u32::from(workers) + 1 } else { 25 };
        let split_ms = RunOptions::default().split_ms;
        Setup { system, servers: 4, depth, split_ms, scale: false, contention: None }
    }
}

/// Pieces that a decode is cut into when neighbours may slow it: each goes at the pace of its beginning.
const PIECES: u32 = 8;
const STREAM: StreamId = StreamId(0);
const ITER: u32 = 1;

/// Seconds to virtual nanoseconds.
fn ns(seconds: f64) -> Time {
    (seconds * 1e9) as Time
}

enum Wake {
    Piece { worker: WorkerId, ticket: TicketId, left: u32 },
    Computed { rank: usize },
    Tick,
}

struct Ticket {
    rank: usize,
    step: u32,
    slot: usize,
    sample: u64,
    /// Which part; all of the sample if there is none.
    part: Option<Span>,
    begun: Time,
}

/// A batch that was granted and has not ended.
struct Batch {
    step: u32,
    samples: Vec<u64>,
    /// By sample, the chunks that are left to decode.
    chunks: Vec<u16>,
    /// What is done, by sample and first chunk: what was made twice counts once.
    done: BTreeSet<(usize, u16)>,
    /// Samples left.
    left: usize,
}

struct Rank {
    batches: VecDeque<Batch>,
    asked: Time,
    got: Option<Time>,
    computed: Option<Time>,
}

struct Machine<'a> {
    setup: Setup,
    job: &'a Job,
    engine: Engine,
    now: Time,
    clock: BinaryHeap<Reverse<(Time, u64)>>,
    wakes: BTreeMap<u64, Wake>,
    numbers: u64,
    queues: Vec<VecDeque<TicketId>>,
    tickets: BTreeMap<TicketId, Ticket>,
    busy: Vec<u32>,
    ranks: Vec<Rank>,
    steps: Vec<Vec<RankStep>>,
    outcome: Outcome,
}

/// Runs a job on a machine, and says what came of it.
pub fn simulate(job: &Job, bounds: &Bounds, setup: Setup) -> Outcome {
    let whole = if setup.system == (System::Pool { batches: true }) { Some(job.in_batches()) } else { None };
    let job = whole.as_ref().unwrap_or(job);
    let mut machine = Machine::new(job, setup);
    machine.open();
    while machine.steps.len() < job.steps as usize && machine.turn() {}
    let Machine { steps, mut outcome, .. } = machine;
    if !steps.is_empty() {
        outcome.count(&steps, job.warmup, bounds);
    }
    outcome
}

impl<'a> Machine<'a> {
    fn new(job: &'a Job, setup: Setup) -> Self {
        let rank = || Rank { batches: VecDeque::new(), asked: 0, got: None, computed: None };
        Machine {
            engine: Engine::new(EngineOptions::default()),
            now: 0,
            clock: BinaryHeap::new(),
            wakes: BTreeMap::new(),
            numbers: 0,
            queues: vec![VecDeque::new(); job.cores as usize],
            tickets: BTreeMap::new(),
            busy: vec![0; setup.servers as usize],
            ranks: (0..job.options.world).map(|_| rank()).collect(),
            steps: Vec::new(),
            outcome: Outcome::default(),
            setup,
            job,
        }
    }

    /// The server of a worker or of a rank, of so many: they are spread evenly.
    fn server(&self, index: usize, of: usize) -> u16 {
        (index * self.setup.servers as usize / of.max(1)) as u16
    }

    fn open(&mut self) {
        let world = self.job.options.world;
        let base = self.job.options.clone();
        let as_dealt = StreamOptions { balance: Balance::None, regroup: 1, ..base.clone() };
        let cores = self.job.cores;
        let (policy, workers, options) = match self.setup.system {
            System::Native { workers } => (Policy::Local, workers.saturating_mul(world as u16), as_dealt),
            System::Pool { .. } => (Policy::Pool, cores, as_dealt),
            System::Helix { balance, regroup } => {
                let balance = if balance { base.balance } else { Balance::None };
                (Policy::Helix, cores, StreamOptions { balance, regroup, ..base })
            }
        };
        let Setup { depth: max_batches, split_ms, scale, .. } = self.setup;
        let run = RunOptions { policy, max_batches, split_ms, scale, ..RunOptions::default() };
        let catalog = self.job.trace.clone();
        self.tell(Event::StreamOpened { stream: STREAM, options: Arc::new(options), run, catalog });
        let workers = workers.min(cores);
        for worker in 0..workers {
            // A rank's own workers, numbered in turn, are on its server.
            let place = if policy == Policy::Local { worker as usize % world as usize } else { worker as usize };
            let of = if policy == Policy::Local { world as usize } else { workers as usize };
            let server = ServerId(self.server(place, of));
            self.tell(Event::WorkerUp { worker: WorkerId(worker), server });
        }
        for rank in 0..world {
            let server = ServerId(self.server(rank as usize, world as usize));
            self.tell(Event::RankStarted { stream: STREAM, rank, server, iter: ITER, epoch: 0, step: 0 });
        }
    }

    fn at(&mut self, time: Time, what: Wake) {
        self.numbers += 1;
        self.clock.push(Reverse((time, self.numbers)));
        self.wakes.insert(self.numbers, what);
    }

    fn turn(&mut self) -> bool {
        let Some(Reverse((time, number))) = self.clock.pop() else { return false };
        let Some(what) = self.wakes.remove(&number) else { return true };
        self.now = time;
        match what {
            Wake::Piece { worker, ticket, left: 0 } => self.done(worker, ticket),
            Wake::Piece { worker, ticket, left } => self.piece(worker, ticket, left),
            Wake::Computed { rank } => self.computed(rank),
            Wake::Tick => self.tell(Event::Tick),
        }
        true
    }

    fn tell(&mut self, event: Event) {
        let mut todo = VecDeque::from([event]);
        let mut out = Vec::new();
        while let Some(event) = todo.pop_front() {
            self.engine.handle(self.now, event, &mut out);
            for decision in out.drain(..) {
                match decision {
                    Decision::Grant { stream, rank, iter, step, places, .. } => {
                        self.granted(rank as usize, step, &places);
                        todo.push_back(Event::Granted { stream, rank, iter, step });
                    }
                    Decision::Assign { worker, ticket, rank, step, slot, part, .. } => {
                        self.assigned(worker, ticket, rank as usize, step, (slot.into(), part));
                    }
                    Decision::WakeAt(time) => self.at(time, Wake::Tick),
                    Decision::End { .. } => {}
                }
            }
        }
    }

    fn granted(&mut self, rank: usize, step: u32, places: &[Place]) {
        let samples: Vec<u64> = places.iter().map(|p| p.sample).collect();
        let chunks = samples.iter().map(|s| self.job.trace.samples[*s as usize].chunks).collect();
        self.ranks[rank].batches.push_back(Batch {
            step,
            left: samples.len(),
            samples,
            chunks,
            done: BTreeSet::new(),
        });
    }

    fn assigned(
        &mut self,
        worker: WorkerId,
        ticket: TicketId,
        rank: usize,
        step: u32,
        (slot, part): (usize, Option<Span>),
    ) {
        let batch = self.ranks[rank].batches.iter().find(|b| b.step == step);
        let Some(&sample) = batch.and_then(|b| b.samples.get(slot)) else { return };
        self.tickets.insert(ticket, Ticket { rank, step, slot, sample, part, begun: 0 });
        self.queues[worker.0 as usize].push_back(ticket);
        if self.queues[worker.0 as usize].len() == 1 {
            self.begin(worker);
        }
    }

    fn server_of(&self, worker: WorkerId) -> usize {
        match self.setup.system {
            System::Native { .. } => {
                let world = self.job.options.world as usize;
                self.server(worker.0 as usize % world, world).into()
            }
            _ => self.server(worker.0.into(), self.job.cores.into()).into(),
        }
    }

    fn begin(&mut self, worker: WorkerId) {
        let Some(&ticket) = self.queues[worker.0 as usize].front() else { return };
        let server = self.server_of(worker);
        self.busy[server] += 1;
        let home = self.server(self.tickets.get(&ticket).map_or(0, |t| t.rank), self.ranks.len());
        if let Some(t) = self.tickets.get_mut(&ticket) {
            t.begun = self.now;
            if server != home as usize {
                let sample = &self.job.trace.samples[t.sample as usize];
                self.outcome.cross_bytes += (sample.out_bytes as f64 * sample.share(t.part)) as u64;
            }
        }
        let pieces = if self.setup.contention.is_some() { PIECES } else { 1 };
        self.piece(worker, ticket, pieces);
    }

    /// Decodes one piece more; `left` of them are left, this one included.
    fn piece(&mut self, worker: WorkerId, ticket: TicketId, left: u32) {
        let Some(t) = self.tickets.get(&ticket) else { return };
        let alone = self.job.trace.samples[t.sample as usize].part_s(t.part);
        let time = match self.setup.contention {
            None => alone,
            Some((alpha, beta)) => {
                let n = f64::from(self.busy[self.server_of(worker)]);
                alone / f64::from(PIECES) * (1.0 + alpha * (n - 1.0) + beta * n * (n - 1.0))
            }
        };
        self.at(self.now + ns(time), Wake::Piece { worker, ticket, left: left - 1 });
    }

    fn done(&mut self, worker: WorkerId, ticket: TicketId) {
        let server = self.server_of(worker);
        self.busy[server] -= 1;
        self.queues[worker.0 as usize].pop_front();
        let Some(t) = self.tickets.remove(&ticket) else { return };
        self.outcome.tickets += 1;
        self.outcome.decode_s += (self.now - t.begun) as f64 / 1e9;
        let wall_us = ((self.now - t.begun) / 1_000).max(1) as u32;
        // The next ticket is begun before the scheduler hears of the end, as on a live worker.
        self.begin(worker);
        let measured = Measured { wall_us, cpu_us: wall_us, ..Measured::default() };
        self.tell(Event::TicketDone { ticket, measured });
        let batch = self.ranks[t.rank].batches.iter_mut().find(|b| b.step == t.step);
        if let Some(batch) = batch
            && batch.done.insert((t.slot, t.part.map_or(0, |part| part.first)))
        {
            let left = &mut batch.chunks[t.slot];
            *left -= t.part.map_or(*left, |part| part.frames.min(*left));
            batch.left -= usize::from(*left == 0);
        }
        self.deliver(t.rank);
    }

    /// A rank that waits takes its batch, if that is complete, and computes.
    fn deliver(&mut self, rank: usize) {
        let r = &mut self.ranks[rank];
        let Some(Batch { left: 0, samples, .. }) = r.batches.front().filter(|_| r.got.is_none()) else { return };
        let compute: f64 = samples.iter().map(|s| self.job.trace.samples[*s as usize].compute_s).sum();
        r.got = Some(self.now);
        self.at(self.now + ns(self.job.step_base + compute), Wake::Computed { rank });
    }

    /// The step ends when the last rank has computed.
    fn computed(&mut self, rank: usize) {
        self.ranks[rank].computed = Some(self.now);
        if self.ranks.iter().any(|r| r.computed.is_none()) {
            return;
        }
        let now = self.now;
        let mut row = Vec::new();
        for rank in 0..self.ranks.len() {
            let r = &mut self.ranks[rank];
            let (Some(got), Some(computed)) = (r.got.take(), r.computed.take()) else { return };
            let Some(Batch { step, samples, .. }) = r.batches.pop_front() else { return };
            let samples = samples.iter().map(|s| self.job.trace.samples[*s as usize].count).sum();
            row.push(RankStep { asked: r.asked, got, computed, end: now, samples });
            let (wait_ns, busy_ns) = (got - r.asked, now - got);
            r.asked = now;
            let (stream, rank, iter) = (STREAM, rank as u32, ITER);
            self.tell(Event::StepEnded { stream, rank, iter, step, wait_ns, busy_ns });
            self.tell(Event::Released { stream, rank, iter, step });
        }
        self.steps.push(row);
        (0..self.ranks.len()).for_each(|rank| self.deliver(rank));
    }
}
