//! What `next()` costs a rank: on a batch that is ready, and from a worker's last Ready to the batch in hand.
//!
//! The daemon is the scripted one of the tests, in this process; rings, bells, slab and socket are real. Each figure
//! is of `next()` alone, with the StepEnd that it sends; the bound that the project sets itself is 20 µs.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use helix_shm::Loader;
use helix_shm::results::{self, Row};
use support::{BATCH, Fake, Peer};

/// A loader, its daemon, and how far they are.
struct Rig {
    loader: Loader,
    peer: Peer,
    step: u32,
    _fake: Fake,
}

impl Rig {
    fn new() -> Rig {
        let fake = Fake::new();
        let (mut loader, peer) = fake.pair();
        loader.start(0, 0).unwrap();
        assert_eq!(peer.started(), (1, 0, 0));
        Rig { loader, peer, step: 0, _fake: fake }
    }

    /// Sums what `timed` says over the steps; each batch is given back before the next.
    fn run(&mut self, steps: u64, timed: fn(&mut Rig) -> Duration) -> Duration {
        let mut sum = Duration::ZERO;
        for _ in 0..steps {
            sum += timed(self);
            self.step += 1;
            self.peer.released();
            self.peer.step_ends.clear();
        }
        sum
    }

    fn next(&mut self) -> Duration {
        let asked = Instant::now();
        let batch = self.loader.next();
        let took = asked.elapsed();
        drop(batch.unwrap().unwrap());
        took
    }
}

fn ready(rig: &mut Rig) -> Duration {
    rig.peer.serve(rig.step + 1, 1, 0, rig.step);
    while !rig.loader.is_ready() {
        std::thread::yield_now();
    }
    rig.next()
}

fn last_sample(rig: &mut Rig) -> Duration {
    let plan = rig.peer.grant(rig.step + 1, 1, 0, rig.step);
    (1..BATCH).for_each(|slot| rig.peer.make(&plan, slot));
    let made = Instant::now();
    rig.peer.make(&plan, 0);
    rig.next();
    made.elapsed()
}

fn next(c: &mut Criterion) {
    let mut rig = Rig::new();
    let mut group = c.benchmark_group("next");
    group.bench_function("on a ready batch", |b| b.iter_custom(|steps| rig.run(steps, ready)));
    group.bench_function("from the last Ready, and its drop", |b| b.iter_custom(|steps| rig.run(steps, last_sample)));
    group.finish();
}

/// The row, from a run of its own: criterion keeps its figures to itself.
fn row(_: &mut Criterion) {
    let mut rig = Rig::new();
    let mut took: Vec<Duration> = (0..2_000).map(|_| rig.run(1, ready)).collect();
    took.sort_unstable();
    let median = took[took.len() / 2].as_secs_f64() * 1e6;
    let row = Row::new("client.next_ready_us", median, "us", "<= 20", "make bench-ring");
    println!("{:<40} {:>8.2}  {:<8} {}", row.name, row.value, row.target, if row.holds { "holds" } else { "MISSED" });
    results::write("target/results/client.json".as_ref(), &[row]).unwrap();
}

criterion_group!(benches, next, row);
criterion_main!(benches);
