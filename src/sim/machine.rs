//! A box under a virtual clock: workers decode, ranks compute and wait for each other at the end of each step.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use super::job::{Job, Sample};
use super::metrics::{Bounds, Outcome, Placed, RankStep, Share};
use super::setup::{Contention, Setup, System};
use crate::proto::options::{Balance, Policy, RunOptions, StreamOptions};
use crate::proto::transform::Span;
use crate::sched::event::{
    Decision, Event, Measured, Place, Scheduler, ServerId, StreamId, TicketId, Time, WorkerId,
};
use crate::sched::record::Line;
use crate::sched::second::{self, How, Item, Site, Terms};
use crate::sched::{Engine, EngineOptions};

/// Pieces that a decode is cut into when neighbours may slow it: each goes at the pace of its beginning.
const PIECES: u32 = 8;
const STREAM: StreamId = StreamId(0);
const ITER: u32 = 1;

/// Seconds to virtual nanoseconds.
fn ns(seconds: f64) -> Time {
    (seconds * 1e9) as Time
}

enum Wake {
    Piece {
        worker: WorkerId,
        ticket: TicketId,
        left: u32,
    },
    /// A sample has come over the link.
    Arrived {
        ticket: TicketId,
        wall_us: u32,
    },
    Computed {
        rank: usize,
    },
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
    /// By sample, the first frames of what is there: a second attempt at it changes nothing.
    there: BTreeSet<(usize, u16)>,
    /// Samples left.
    left: usize,
}

struct Rank {
    batches: VecDeque<Batch>,
    asked: Time,
    got: Option<Time>,
    computed: Option<Time>,
}

struct Worker {
    server: u16,
    tickets: VecDeque<TicketId>,
}

struct Machine<'a> {
    setup: Setup,
    job: &'a Job,
    engine: Engine,
    now: Time,
    clock: BinaryHeap<Reverse<(Time, u64)>>,
    wakes: BTreeMap<u64, Wake>,
    numbers: u64,
    /// Server of each rank.
    homes: Vec<u16>,
    workers: BTreeMap<WorkerId, Worker>,
    tickets: BTreeMap<TicketId, Ticket>,
    /// Workers of each server that are at work.
    busy: Vec<u32>,
    /// When each server's link is free to send, and to take in.
    links: Vec<[Time; 2]>,
    ranks: Vec<Rank>,
    steps: Vec<Vec<RankStep>>,
    outcome: Outcome,
    /// What a daemon would have recorded, if that was asked for.
    lines: Option<Vec<Line>>,
}

/// Runs a job on a machine, and says what came of it.
pub fn simulate(job: &Job, bounds: &Bounds, setup: Setup) -> Outcome {
    run(job, bounds, setup, None).0
}

/// As [`simulate`], with the lines that a daemon would have recorded.
pub fn simulate_recorded(job: &Job, bounds: &Bounds, setup: Setup) -> (Outcome, Vec<Line>) {
    let (outcome, lines) = run(job, bounds, setup, Some(Vec::new()));
    (outcome, lines.unwrap_or_default())
}

fn run(job: &Job, bounds: &Bounds, setup: Setup, lines: Option<Vec<Line>>) -> (Outcome, Option<Vec<Line>>) {
    let whole = if setup.system == (System::Pool { batches: true }) { Some(job.in_batches()) } else { None };
    let job = whole.as_ref().unwrap_or(job);
    let mut machine = Machine { lines, ..Machine::new(job, setup) };
    machine.open();
    while machine.steps.len() < job.steps as usize && machine.turn() {}
    let Machine { steps, mut outcome, lines, .. } = machine;
    if !steps.is_empty() {
        outcome.count(&steps, job.warmup, bounds);
    }
    (outcome, lines)
}

impl<'a> Machine<'a> {
    fn new(job: &'a Job, setup: Setup) -> Self {
        let rank = || Rank { batches: VecDeque::new(), asked: 0, got: None, computed: None };
        let (world, servers) = (job.options.world, usize::from(setup.layout.servers()));
        let workers = match setup.system {
            System::Native { workers } => setup.layout.own(world, workers, job.cores),
            _ => setup.layout.shared(job.cores),
        };
        let worker = |(id, server)| (WorkerId(id), Worker { server, tickets: VecDeque::new() });
        Machine {
            engine: Engine::new(EngineOptions::default()),
            now: 0,
            clock: BinaryHeap::new(),
            wakes: BTreeMap::new(),
            numbers: 0,
            homes: setup.layout.ranks(world),
            workers: workers.into_iter().map(worker).collect(),
            tickets: BTreeMap::new(),
            busy: vec![0; servers],
            links: vec![[0; 2]; servers],
            ranks: (0..world).map(|_| rank()).collect(),
            steps: Vec::new(),
            outcome: Outcome { servers: vec![Share::default(); servers], ..Outcome::default() },
            lines: None,
            setup,
            job,
        }
    }

    /// The server that the scheduler is told.
    fn told(&self, server: u16) -> ServerId {
        ServerId(if self.setup.locality { server } else { 0 })
    }

    fn open(&mut self) {
        let world = self.job.options.world;
        let base = self.job.options.clone();
        let as_dealt = StreamOptions { balance: Balance::None, regroup: 1, ..base.clone() };
        let (policy, options) = match self.setup.system {
            System::Native { .. } => (Policy::Local, as_dealt),
            System::Pool { .. } => (Policy::Pool, as_dealt),
            System::Helix { balance, regroup } => {
                let balance = if balance { base.balance } else { Balance::None };
                let policy = if self.setup.deadlines { Policy::Helix } else { Policy::Pool };
                (policy, StreamOptions { balance, regroup, ..base })
            }
        };
        let Setup { depth: max_batches, split_ms, scale, .. } = self.setup;
        let run = RunOptions { policy, max_batches, split_ms, scale, ..RunOptions::default() };
        let catalog = self.job.trace.clone();
        self.tell(Event::StreamOpened { stream: STREAM, options: Arc::new(options), run, catalog });
        let workers: Vec<(WorkerId, u16)> = self.workers.iter().map(|(id, w)| (*id, w.server)).collect();
        for (worker, server) in workers {
            self.tell(Event::WorkerUp { worker, server: self.told(server) });
        }
        self.tell_links();
        for rank in 0..world {
            let server = self.told(self.homes[rank as usize]);
            self.tell(Event::RankStarted { stream: STREAM, rank, server, iter: ITER, epoch: 0, step: 0 });
        }
    }

    /// Says what lies between the servers.
    fn tell_links(&mut self) {
        let Some(link) = self.setup.link.filter(|_| self.setup.locality) else { return };
        let servers = self.setup.layout.servers();
        for (from, to) in (0..servers).flat_map(|a| (0..servers).map(move |b| (a, b))).filter(|(a, b)| a != b) {
            let (from, to) = (ServerId(from), ServerId(to));
            let (bytes_per_s, latency_ns) = (link.bandwidth as u64, ns(link.latency));
            self.tell(Event::Link { from, to, bytes_per_s, latency_ns });
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
            Wake::Arrived { ticket, wall_us } => self.arrived(ticket, wall_us),
            Wake::Computed { rank } => self.computed(rank),
            Wake::Tick => self.tell(Event::Tick),
        }
        true
    }

    fn record(&mut self, line: impl FnOnce() -> Option<Line>) {
        if let Some(lines) = &mut self.lines {
            lines.extend(line());
        }
    }

    fn tell(&mut self, event: Event) {
        let mut todo = VecDeque::from([event]);
        let mut out = Vec::new();
        while let Some(event) = todo.pop_front() {
            let now = self.now;
            self.record(|| Line::of_event(now, &event));
            self.engine.handle(self.now, event, &mut out);
            for decision in out.drain(..) {
                self.record(|| Line::of_decision(now, &decision));
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
            there: BTreeSet::new(),
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
        let Some(w) = self.workers.get_mut(&worker) else { return };
        w.tickets.push_back(ticket);
        if w.tickets.len() == 1 {
            self.begin(worker);
        }
    }

    fn server_of(&self, worker: WorkerId) -> usize {
        self.workers.get(&worker).map_or(0, |w| w.server.into())
    }

    fn begin(&mut self, worker: WorkerId) {
        let Some(&ticket) = self.workers.get(&worker).and_then(|w| w.tickets.front()) else { return };
        let server = self.server_of(worker);
        self.busy[server] += 1;
        let home = self.home_of(ticket);
        if let Some(t) = self.tickets.get_mut(&ticket) {
            t.begun = self.now;
            let sample = &self.job.trace.samples[t.sample as usize];
            let (bytes, work_s) = ((sample.out_bytes as f64 * sample.share(t.part)) as u64, sample.part_s(t.part));
            self.outcome.bytes += bytes;
            if server != home {
                self.outcome.cross_bytes += bytes;
                self.outcome.servers[server].sent_bytes += bytes;
                self.outcome.servers[home].taken_bytes += bytes;
            }
            if self.setup.trace {
                let (home, server) = (home as u16, server as u16);
                self.outcome.placed.push(Placed { step: t.step, home, server, bytes, work_s });
            }
        }
        let pieces = if self.setup.contention.is_some() { PIECES } else { 1 };
        self.piece(worker, ticket, pieces);
    }

    /// Decodes one piece more; `left` of them are left, this one included.
    fn piece(&mut self, worker: WorkerId, ticket: TicketId, left: u32) {
        let Some(t) = self.tickets.get(&ticket) else { return };
        let alone = self.job.trace.samples[t.sample as usize].part_s(t.part);
        let slowed = |alpha: f64, beta: f64, n: f64| {
            alone / f64::from(PIECES) * (1.0 + alpha * (n - 1.0) + beta * n * (n - 1.0))
        };
        let time = match self.setup.contention {
            None => alone,
            Some(Contention::Workers { alpha, beta }) => {
                slowed(alpha, beta, f64::from(self.busy[self.server_of(worker)]))
            }
            Some(Contention::Servers { alpha, beta }) => {
                let each = f64::from(self.job.cores) / f64::from(self.setup.layout.servers());
                slowed(alpha, beta, (self.busy.iter().sum::<u32>() as f64 / each).max(1.0))
            }
        };
        self.at(self.now + ns(time), Wake::Piece { worker, ticket, left: left - 1 });
    }

    fn done(&mut self, worker: WorkerId, ticket: TicketId) {
        let server = self.server_of(worker);
        self.busy[server] -= 1;
        if let Some(w) = self.workers.get_mut(&worker) {
            w.tickets.pop_front();
        }
        let Some(t) = self.tickets.get(&ticket) else { return };
        self.outcome.tickets += 1;
        let took = (self.now - t.begun) as f64 / 1e9;
        self.outcome.decode_s += took;
        self.outcome.servers[server].decode_s += took;
        let wall_us = ((self.now - t.begun) / 1_000).max(1) as u32;
        let sample = &self.job.trace.samples[t.sample as usize];
        let bytes = (sample.out_bytes as f64 * sample.share(t.part)) as u64;
        // The next ticket is begun before the scheduler hears of the end, as on a live worker.
        self.begin(worker);
        let home = self.home_of(ticket);
        match self.setup.link {
            Some(link) if server != home => {
                // It is sent while the worker goes on.
                let from = self.links[server][0].max(self.links[home][1]).max(self.now);
                let end = from + ns(bytes as f64 / link.bandwidth);
                (self.links[server][0], self.links[home][1]) = (end, end);
                self.at(end + ns(link.latency), Wake::Arrived { ticket, wall_us });
            }
            _ => self.arrived(ticket, wall_us),
        }
    }

    /// The server of the rank that a ticket is for.
    fn home_of(&self, ticket: TicketId) -> usize {
        let rank = self.tickets.get(&ticket).map_or(0, |t| t.rank);
        self.homes[rank].into()
    }

    /// A sample is in its rank's memory.
    fn arrived(&mut self, ticket: TicketId, wall_us: u32) {
        let Some(t) = self.tickets.remove(&ticket) else { return };
        let measured = Measured { wall_us, cpu_us: wall_us, ..Measured::default() };
        self.tell(Event::TicketDone { ticket, measured });
        if let Some(batch) = self.ranks[t.rank].batches.iter_mut().find(|b| b.step == t.step) {
            let first = t.part.map_or(0, |part| part.first);
            if batch.there.insert((t.slot, first)) {
                let left = &mut batch.chunks[t.slot];
                *left -= t.part.map_or(*left, |part| part.frames.min(*left));
                batch.left -= usize::from(*left == 0);
            }
        }
        self.deliver(t.rank);
    }

    /// A rank that waits takes its batch, if that is complete, and computes.
    fn deliver(&mut self, rank: usize) {
        let r = &mut self.ranks[rank];
        let Some(Batch { left: 0, samples, .. }) = r.batches.front().filter(|_| r.got.is_none()) else { return };
        let compute: f64 = samples.iter().map(|s| self.job.trace.samples[*s as usize].compute_s).sum();
        r.got = Some(self.now);
        match self.setup.second {
            None => self.at(self.now + ns(self.job.step_base + compute), Wake::Computed { rank }),
            Some(terms) if self.ranks.iter().all(|r| r.got.is_some()) => self.even_out(&terms),
            Some(_) => {}
        }
    }

    /// All ranks have their batches: what they really cost is known, and they are evened out before they are computed.
    fn even_out(&mut self, terms: &Terms) {
        let last = self.now;
        let mut items = Vec::new();
        for (rank, r) in (0..).zip(&self.ranks) {
            let Some(Batch { samples, .. }) = r.batches.front() else { return };
            // Who had to wait for the others has uploaded in the meantime; who came last has not.
            let site = if r.got == Some(last) { Site::Host } else { Site::Device };
            for (slot, unit) in (0..).zip(self.job.units_in(samples)) {
                let of = |value: fn(&Sample) -> f64| {
                    unit.iter().map(|s| value(&self.job.trace.samples[*s as usize])).sum()
                };
                let (cost, bytes): (f64, f64) = (of(|s| s.compute_s), of(|s| s.out_bytes as f64));
                items.push(Item { rank, slot, cost, bytes: bytes as u64, site });
            }
        }
        let plan = second::plan(&items, self.ranks.len() as u32, terms);
        self.outcome.moved_bytes += plan.moves.iter().filter(|m| m.how == How::Copy).map(|m| m.bytes).sum::<u64>();
        self.outcome.plans += u32::from(!plan.is_empty());
        let mut loads = vec![self.job.step_base + plan.transfer; self.ranks.len()];
        for item in &items {
            let moved = plan.moves.iter().find(|m| (m.from, m.slot) == (item.rank, item.slot));
            loads[moved.map_or(item.rank, |m| m.to) as usize] += item.cost;
        }
        for (rank, load) in loads.into_iter().enumerate() {
            self.at(last + ns(load), Wake::Computed { rank });
        }
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
