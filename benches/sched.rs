//! What the coordinator's thinking costs: planning a step, shuffling an epoch, and a ticket's whole way through the
//! engine at 8 ranks and 96 workers.

use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use std::{cmp::Reverse, hint::black_box};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use helix_shm::proto::options::{Balance, OnError, Policy, Profile, RunOptions, StreamOptions};
use helix_shm::proto::transform::{Codec, Facts, Transform};
use helix_shm::sched::event::{Catalog, Decision, Event, Measured, Scheduler, ServerId, StreamId, Time, WorkerId};
use helix_shm::sched::order::Permutation;
use helix_shm::sched::plan::StepPlan;
use helix_shm::sched::second::{self, Counts, Site, Terms};
use helix_shm::sched::units::Units;
use helix_shm::sched::{Engine, EngineOptions};

/// Clips computed from their number.
struct Clips(u64);

impl Catalog for Clips {
    fn len(&self) -> u64 {
        self.0
    }
    fn row(&self, i: u64) -> u64 {
        i
    }
    fn facts(&self, i: u64) -> Facts {
        let mixed = i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let frames = 50 + (mixed >> 40) as u32 % 800;
        let (width, height) = [(640, 360), (1280, 720), (1920, 1080), (3840, 2160)][(mixed >> 62) as usize];
        let bytes = u64::from(frames) * 10_000;
        Facts { bytes, frames, duration_ms: frames * 40, width, height, keyframes: frames / 50, codec: Codec::H264 }
    }
}

fn options(batch_size: u32) -> StreamOptions {
    StreamOptions {
        world: 8,
        batch_size,
        seed: 1,
        shuffle: true,
        drop_last: true,
        balance: Balance::Cost,
        profile: Profile::Decode,
        on_error: OnError::Skip,
        transform: Transform::default(),
        micro_batch: 1,
        regroup: 1,
        weigh: Default::default(),
        mix: Vec::new(),
        rebalance: Default::default(),
    }
}

/// A virtual machine of the smallest kind: tickets take as long as is expected of them, ranks a fixed time a step.
struct Machine {
    engine: Engine,
    now: Time,
    ends: BinaryHeap<Reverse<(Time, u16, u64)>>,
    holds: Vec<VecDeque<u64>>,
    left: Vec<VecDeque<(u32, usize)>>,
    places: std::collections::BTreeMap<u64, (u32, u32)>,
    wake: Option<Time>,
    tickets: u64,
}

const BATCH: u32 = 16;
const STREAM: StreamId = StreamId(0);

impl Machine {
    fn new(policy: Policy) -> Self {
        let mut machine = Machine {
            engine: Engine::new(EngineOptions::default()),
            now: 0,
            ends: BinaryHeap::new(),
            holds: vec![VecDeque::new(); 96],
            left: vec![VecDeque::new(); 8],
            places: std::collections::BTreeMap::new(),
            wake: None,
            tickets: 0,
        };
        let run = RunOptions { policy, max_batches: 8, ..RunOptions::default() };
        let catalog = Arc::new(Clips(1 << 20));
        machine.tell(Event::StreamOpened { stream: STREAM, options: Arc::new(options(BATCH)), run, catalog });
        for worker in 0..96 {
            machine.tell(Event::WorkerUp { worker: WorkerId(worker), server: ServerId(worker % 2) });
        }
        for rank in 0..8 {
            let server = ServerId((rank % 2) as u16);
            machine.tell(Event::RankStarted { stream: STREAM, rank, server, iter: 1, epoch: 0, step: 0 });
        }
        machine
    }

    fn tell(&mut self, event: Event) {
        let mut out = Vec::new();
        let mut todo = VecDeque::from([event]);
        while let Some(event) = todo.pop_front() {
            self.engine.handle(self.now, event, &mut out);
            for decision in out.drain(..) {
                match decision {
                    Decision::Grant { stream, rank, iter, step, places, .. } => {
                        self.left[rank as usize].push_back((step, places.len()));
                        todo.push_back(Event::Granted { stream, rank, iter, step });
                    }
                    Decision::Assign { worker, ticket, rank, step, .. } => {
                        self.places.insert(ticket.0, (rank, step));
                        self.holds[worker.0 as usize].push_back(ticket.0);
                        if self.holds[worker.0 as usize].len() == 1 {
                            self.begin(worker.0);
                        }
                    }
                    Decision::WakeAt(at) => self.wake = Some(at),
                    Decision::End { .. } => {}
                }
            }
        }
    }

    fn begin(&mut self, worker: u16) {
        if let Some(&ticket) = self.holds[worker as usize].front() {
            // Sooner or later than expected, as the ticket's number has it.
            let expected = self.engine.predicted(helix_shm::sched::event::TicketId(ticket)).unwrap_or(1_000);
            let time = expected * (70 + ticket * 37 % 61) / 100;
            self.ends.push(Reverse((self.now + time, worker, ticket)));
        }
    }

    /// One ticket ends; a rank whose batch is complete takes it at once.
    fn step(&mut self) {
        let Some(&Reverse((at, worker, ticket))) = self.ends.peek() else { return };
        if let Some(wake) = self.wake.filter(|&w| w < at) {
            self.wake = None;
            self.now = self.now.max(wake);
            self.tell(Event::Tick);
            return;
        }
        self.ends.pop();
        self.now = at;
        self.holds[worker as usize].pop_front();
        self.begin(worker);
        self.tickets += 1;
        let measured = Measured { wall_us: 50_000, read_us: 500, ..Measured::default() };
        self.tell(Event::TicketDone { ticket: helix_shm::sched::event::TicketId(ticket), measured });
        let Some((rank, step)) = self.places.remove(&ticket) else { return };
        let batches = &mut self.left[rank as usize];
        if let Some(batch) = batches.iter_mut().find(|(s, _)| *s == step) {
            batch.1 -= 1;
        }
        while self.left[rank as usize].front().is_some_and(|b| b.1 == 0) {
            let Some((step, _)) = self.left[rank as usize].pop_front() else { return };
            let (stream, iter) = (STREAM, 1);
            self.tell(Event::StepEnded { stream, rank, iter, step, wait_ns: 0, busy_ns: 400_000_000 });
            self.tell(Event::Released { stream, rank, iter, step });
        }
    }
}

/// CPU time of this process: what else runs on the machine does not count.
fn cpu_time() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// The driver's own share is in these figures too.
fn engine(c: &mut Criterion) {
    let mut group = c.benchmark_group("a ticket, 8 ranks, 96 workers");
    group.throughput(Throughput::Elements(1));
    for policy in [Policy::Helix, Policy::Pool, Policy::Local] {
        let mut machine = Machine::new(policy);
        group.bench_function(format!("{policy:?}"), |b| {
            b.iter_custom(|tickets| {
                if machine.tickets > 700_000 {
                    machine = Machine::new(policy);
                }
                let (begin, goal) = (cpu_time(), machine.tickets + tickets);
                while machine.tickets < goal {
                    machine.step();
                    if machine.ends.is_empty() {
                        machine = Machine::new(policy);
                        break;
                    }
                }
                cpu_time() - begin
            });
        });
    }
    group.finish();
}

fn planning(c: &mut Criterion) {
    let mut group = c.benchmark_group("an epoch of a million");
    group.sample_size(10);
    group.bench_function("shuffle", |b| b.iter(|| Permutation::shuffled(1_000_000, black_box(1), 0)));
    for batch in [8, 64] {
        let options = options(batch);
        let catalog = Clips(1_000_000);
        group.bench_function(format!("shuffle, appraise and balance, batch 8×{batch}"), |b| {
            b.iter_batched(
                || (),
                |()| {
                    let order = Permutation::shuffled(1_000_000, 1, 0);
                    let units = Units::new(&options, &catalog, order, 0);
                    for step in 0..units.steps(&options) {
                        black_box(StepPlan::new(&options, &catalog, &units, 0, step));
                    }
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// Balancing after decode: 8 ranks × 64 samples whose costs turn out otherwise than predicted.
fn second(c: &mut Criterion) {
    let mut group = c.benchmark_group("balance after decode, 8 ranks of 64");
    let item = |n: u32| {
        let mixed = u64::from(n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let cost = 1e-3 * (1.0 + f64::from((mixed >> 40) as u32 % 1000) / 100.0);
        let site = if n.is_multiple_of(2) { Site::Host } else { Site::Device };
        second::Item { rank: n / 64, slot: n % 64, cost, bytes: 2 << 20, site }
    };
    let items: Vec<second::Item> = (0..512).map(item).collect();
    for (name, counts) in [("equal counts", Counts::Kept), ("free counts", Counts::Free { most: 128 })] {
        let terms = Terms { counts, ..Terms::BOX };
        group.bench_function(name, |b| b.iter(|| second::plan(black_box(&items), 8, &terms)));
    }
    group.finish();
}

criterion_group!(benches, planning, second, engine);
criterion_main!(benches);
