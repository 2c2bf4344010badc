//! A box under a virtual clock: workers decode, ranks compute and wait for each other at the end of each step.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use super::metrics::{Outcome, RankStep};
use super::workload::{Trace, Workload};
use crate::proto::options::{Balance, OnError, Policy, Profile, RunOptions, StreamOptions};
use crate::proto::transform::Transform;
use crate::sched::event::{
    Decision, Event, Measured, Place, Scheduler, ServerId, StreamId, TicketId, Time, WorkerId,
};
use crate::sched::{Engine, EngineOptions};

/// A system to be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// PyTorch's `DataLoader` a rank, with so many workers each.
    Native {
        /// Workers of a rank.
        workers: u16,
    },
    /// One first-come-first-served pool, a task a sample, as with Ray actors.
    Pool,
    /// This scheduler.
    Helix {
        /// Whether samples move between ranks to even their costs.
        balance: bool,
    },
}

/// The machine and what runs on it.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// The system.
    pub system: System,
    /// Cores that may decode; [`System::Native`] uses no more than its workers.
    pub cores: u16,
    /// NUMA nodes; cores and ranks are spread over them evenly.
    pub servers: u16,
    /// Batches that a rank may hold, the one in use included.
    pub depth: u32,
    /// How workers of a server slow each other: with `n` at work each takes `1 + α(n−1) + βn(n−1)` times as long.
    pub contention: Option<(f64, f64)>,
    /// Seed of the trace and of its order.
    pub seed: u64,
}

impl Setup {
    /// All cores of the workload's machine, as many batches in flight as PyTorch has with twelve workers.
    pub fn new(workload: &Workload, system: System, seed: u64) -> Self {
        let depth = if let System::Native { workers } = system { 2 * u32::from(workers) + 1 } else { 25 };
        Setup { system, cores: workload.cores, servers: 4, depth, contention: None, seed }
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
    sample: u64,
    begun: Time,
}

struct Rank {
    /// Batches granted and not ended: step, samples left, samples.
    batches: VecDeque<(u32, usize, Vec<u64>)>,
    asked: Time,
    got: Option<Time>,
    computed: Option<Time>,
}

struct Machine<'a> {
    setup: Setup,
    workload: &'a Workload,
    trace: Arc<Trace>,
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

/// Runs a workload under a set-up for so many steps, and says what came of it.
///
/// # Panics
/// When the workload is one that [`Workload::unsupported`] names.
pub fn simulate(workload: &Workload, setup: Setup, steps: u32) -> Outcome {
    assert!(workload.unsupported().is_none(), "{}: {:?}", workload.name, workload.unsupported());
    // As the stream does not end within the measurement, nobody idles for want of work at its end.
    let trace = Arc::new(workload.trace(setup.seed, steps + setup.depth));
    let mut machine = Machine::new(workload, setup, trace);
    machine.open();
    while machine.steps.len() < steps as usize && machine.turn() {}
    let Machine { steps, mut outcome, .. } = machine;
    outcome.count(&steps, workload);
    outcome
}

impl<'a> Machine<'a> {
    fn new(workload: &'a Workload, setup: Setup, trace: Arc<Trace>) -> Self {
        let rank = || Rank { batches: VecDeque::new(), asked: 0, got: None, computed: None };
        Machine {
            engine: Engine::new(EngineOptions::default()),
            now: 0,
            clock: BinaryHeap::new(),
            wakes: BTreeMap::new(),
            numbers: 0,
            queues: vec![VecDeque::new(); setup.cores as usize],
            tickets: BTreeMap::new(),
            busy: vec![0; setup.servers as usize],
            ranks: (0..workload.ranks).map(|_| rank()).collect(),
            steps: Vec::new(),
            outcome: Outcome::default(),
            setup,
            workload,
            trace,
        }
    }

    /// The server of a worker or of a rank, of so many: they are spread evenly.
    fn server(&self, index: usize, of: usize) -> u16 {
        (index * self.setup.servers as usize / of.max(1)) as u16
    }

    fn open(&mut self) {
        let world = self.workload.ranks;
        let (policy, workers, balance) = match self.setup.system {
            System::Native { workers } => (Policy::Local, workers * world as u16, false),
            System::Pool => (Policy::Pool, self.setup.cores, false),
            System::Helix { balance } => (Policy::Helix, self.setup.cores, balance && self.workload.may_move()),
        };
        let options = StreamOptions {
            world,
            batch_size: self.workload.per_rank(),
            seed: self.setup.seed,
            shuffle: true,
            drop_last: true,
            balance: if balance { Balance::Cost } else { Balance::None },
            // The trace appraises its samples itself; any profile but `Equal` asks for it.
            profile: Profile::Decode,
            on_error: OnError::Raise,
            transform: Transform::default(),
        };
        let run = RunOptions { policy, max_batches: self.setup.depth, ..RunOptions::default() };
        let catalog = self.trace.clone();
        self.tell(Event::StreamOpened { stream: STREAM, options: Arc::new(options), run, catalog });
        let workers = workers.min(self.setup.cores);
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
                    Decision::Assign { worker, ticket, rank, step, slot, .. } => {
                        self.assigned(worker, ticket, rank as usize, step, slot as usize);
                    }
                    Decision::WakeAt(time) => self.at(time, Wake::Tick),
                    Decision::End { .. } => {}
                }
            }
        }
    }

    fn granted(&mut self, rank: usize, step: u32, places: &[Place]) {
        let samples = places.iter().map(|p| p.sample).collect();
        self.ranks[rank].batches.push_back((step, places.len(), samples));
    }

    fn assigned(&mut self, worker: WorkerId, ticket: TicketId, rank: usize, step: u32, slot: usize) {
        let batch = self.ranks[rank].batches.iter().find(|b| b.0 == step);
        let Some(&sample) = batch.and_then(|b| b.2.get(slot)) else { return };
        self.tickets.insert(ticket, Ticket { rank, step, sample, begun: 0 });
        self.queues[worker.0 as usize].push_back(ticket);
        if self.queues[worker.0 as usize].len() == 1 {
            self.begin(worker);
        }
    }

    fn server_of(&self, worker: WorkerId) -> usize {
        match self.setup.system {
            System::Native { .. } => {
                let world = self.workload.ranks as usize;
                self.server(worker.0 as usize % world, world).into()
            }
            _ => self.server(worker.0.into(), self.setup.cores.into()).into(),
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
                self.outcome.cross_bytes += self.trace.samples[t.sample as usize].out_bytes();
            }
        }
        let pieces = if self.setup.contention.is_some() { PIECES } else { 1 };
        self.piece(worker, ticket, pieces);
    }

    /// Decodes one piece more; `left` of them are left, this one included.
    fn piece(&mut self, worker: WorkerId, ticket: TicketId, left: u32) {
        let Some(t) = self.tickets.get(&ticket) else { return };
        let alone = self.trace.samples[t.sample as usize].decode_s;
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
        self.outcome.decode_s += (self.now - t.begun) as f64 / 1e9;
        let wall_us = ((self.now - t.begun) / 1_000).max(1) as u32;
        // The next ticket is begun before the scheduler hears of the end, as on a live worker.
        self.begin(worker);
        let measured = Measured { wall_us, cpu_us: wall_us, ..Measured::default() };
        self.tell(Event::TicketDone { ticket, measured });
        if let Some(batch) = self.ranks[t.rank].batches.iter_mut().find(|b| b.0 == t.step) {
            batch.1 -= 1;
        }
        self.deliver(t.rank);
    }

    /// A rank that waits takes its batch, if that is complete, and computes.
    fn deliver(&mut self, rank: usize) {
        let r = &mut self.ranks[rank];
        let Some((_, 0, samples)) = r.batches.front().filter(|_| r.got.is_none()) else { return };
        let compute: f64 = samples.iter().map(|s| self.trace.samples[*s as usize].compute_s).sum();
        r.got = Some(self.now);
        self.at(self.now + ns(self.workload.step_base() + compute), Wake::Computed { rank });
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
            let Some((step, _, samples)) = r.batches.pop_front() else { return };
            row.push(RankStep { asked: r.asked, got, computed, end: now, samples: samples.len() as u32 });
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
