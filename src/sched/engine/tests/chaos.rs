//! Whatever happens, and in whatever order.

use proptest::prelude::*;

use super::super::rig::{BatchId, Clips, Content, Rig, options, run};
use super::*;
use crate::proto::options::{Balance, RunOptions, StreamOptions};
use crate::sched::online::margin::tests::Noise;

/// One thing that may happen at any moment.
#[derive(Debug, Clone)]
enum Chaos {
    Start {
        stream: u16,
        rank: u32,
        epoch: u32,
        step: u32,
    },
    Leave {
        stream: u16,
        rank: u32,
    },
    Close {
        stream: u16,
    },
    Up {
        worker: u16,
    },
    Down {
        worker: u16,
    },
    Done {
        which: usize,
        failed: bool,
    },
    Consume {
        which: usize,
    },
    Refuse,
    Tick,
    /// Nothing happens for a long time.
    Stall,
    Stale {
        what: u8,
        id: u16,
    },
}

fn chaos() -> impl Strategy<Value = Chaos> {
    prop_oneof![
        2 => (0u16..3, 0u32..4, 0u32..3, 0u32..6)
            .prop_map(|(stream, rank, epoch, step)| Chaos::Start { stream, rank, epoch, step }),
        1 => (0u16..3, 0u32..4).prop_map(|(stream, rank)| Chaos::Leave { stream, rank }),
        1 => (0u16..40).prop_map(|s| Chaos::Close { stream: s }),
        3 => (0u16..6).prop_map(|worker| Chaos::Up { worker }),
        2 => (0u16..6).prop_map(|worker| Chaos::Down { worker }),
        25 => (any::<usize>(), proptest::bool::weighted(0.1)).prop_map(|(which, failed)| Chaos::Done { which, failed }),
        12 => any::<usize>().prop_map(|which| Chaos::Consume { which }),
        2 => Just(Chaos::Refuse),
        2 => Just(Chaos::Tick),
        1 => Just(Chaos::Stall),
        2 => (0u8..6, any::<u16>()).prop_map(|(what, id)| Chaos::Stale { what, id }),
    ]
}

/// Events about things that are not there.
fn stale(what: u8, id: u16) -> Event {
    let (stream, worker, ticket) = (StreamId(50 + id % 50), WorkerId(100 + id % 100), TicketId(u64::MAX - 1));
    match what {
        0 => Event::WorkerDown { worker },
        1 => Event::TicketDone { ticket, measured: Measured::default() },
        2 => Event::Granted { stream: StreamId(id % 3), rank: 0, iter: 9_999, step: 0 },
        3 => Event::Released { stream, rank: 7, iter: 1, step: 1 },
        4 => Event::StepEnded { stream: StreamId(id % 3), rank: 1, iter: 9_999, step: 3, wait_ns: 0, busy_ns: 1 },
        _ => Event::RankLeft { stream: StreamId(id % 3), rank: u32::from(id).max(4) },
    }
}

impl Rig {
    fn happen(&mut self, what: &Chaos) {
        self.now += 300_000;
        match *what {
            Chaos::Start { stream, rank, epoch, step } => self.start(stream, rank, (rank % 2) as u16, epoch, step),
            Chaos::Leave { stream, rank } => self.leave(StreamId(stream), rank),
            Chaos::Close { stream } => self.close(StreamId(stream)),
            Chaos::Up { worker } => self.worker_up(worker, worker % 2),
            Chaos::Down { worker } => self.worker_down(WorkerId(worker)),
            Chaos::Done { which, failed } => {
                let ticket = self.live.keys().nth(which % self.live.len().max(1)).copied();
                if let Some(ticket) = ticket {
                    self.end(ticket, if failed { 0 } else { 1 + (which % 50_000) as u32 });
                }
            }
            Chaos::Consume { which } => self.consume(which),
            Chaos::Refuse => self.refuse.push_back(true),
            Chaos::Tick => self.tick(),
            Chaos::Stall => {
                self.now += 60_000_000_000;
                self.tick();
            }
            Chaos::Stale { what, id } => self.tell(stale(what, id)),
        }
    }

    /// Ends a step of a rank that can, or releases a batch that it is done with, sometimes before, sometimes after.
    fn consume(&mut self, which: usize) {
        let ranks: Vec<_> = self.ranks.keys().copied().collect();
        let ready: Vec<BatchId> = ranks.iter().filter_map(|(s, r)| self.ready(*s, *r)).collect();
        let past = |b: &&BatchId| {
            let view = &self.ranks[&(b.stream, b.rank)];
            b.iter < view.iter || b.step < view.position
        };
        let past: Vec<BatchId> = self.rooms.keys().filter(past).copied().collect();
        if which.is_multiple_of(2) && !past.is_empty() {
            self.release(past[which / 2 % past.len()]);
        } else if !ready.is_empty() {
            let batch = ready[which / 2 % ready.len()];
            if which.is_multiple_of(5) {
                self.release(batch); // let go before the step's end
            }
            self.end_step(batch, 1 + (which % 9_000_000) as u64);
        }
    }
}

fn chaotic(seed: u64, events: &[Chaos], policies: [Policy; 3], (max, split_ms): (u32, u32), slab: usize) -> Rig {
    let mut rig = Rig::new(EngineOptions::default());
    rig.slab = slab;
    for (stream, policy) in (0..).zip(policies) {
        let options = StreamOptions { drop_last: stream == 1, ..options(4, 1 + u32::from(stream)) };
        let run = RunOptions { split_ms, ..run(policy, max) };
        rig.open(stream, options, run, Clips::new(30, seed + u64::from(stream)));
    }
    for event in events {
        rig.happen(event);
    }
    rig.worker_up(5, 1);
    rig.drain();
    rig
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_every_batch_is_made_once_and_nothing_hangs(
        seed: u64,
        events in proptest::collection::vec(chaos(), 0..300),
        policies in proptest::sample::select(vec![
            [Policy::Helix; 3], [Policy::Pool; 3], [Policy::Local; 3], POLICIES,
        ]),
        max in 0u32..5,
        split_ms in 0u32..3,
        slab in 1usize..6,
    ) {
        let seed = seed % 1000;
        let one = chaotic(seed, &events, policies, (max, 40 * split_ms), slab);
        let two = chaotic(seed, &events, policies, (max, 40 * split_ms), slab);
        prop_assert_eq!(one.log, two.log, "the same events gave other decisions");
    }
}

/// A whole epoch with this many workers, these times and this policy.
fn epoch(options: StreamOptions, policy: Policy, workers: u16, seed: u64, slab: usize, from: u32) -> Content {
    let mut rig = Rig::new(EngineOptions::default());
    let mut noise = Noise::new(seed);
    rig.slab = slab;
    let world = options.world;
    let run = RunOptions { split_ms: if slab % 2 == 1 { 1 } else { 0 }, ..run(policy, 0) };
    rig.open(0, options, run, Clips::new(101, 3));
    for worker in 0..workers {
        rig.worker_up(worker, worker % 2);
    }
    for rank in 0..world {
        rig.start(0, rank, (rank % 2) as u16, 2, from);
    }
    for _ in 0..2000 {
        let which = noise.next() as usize;
        match noise.next() % 10 {
            0 => rig.happen(&Chaos::Down { worker: (which % 6) as u16 }),
            1 => rig.happen(&Chaos::Up { worker: (which % usize::from(workers)) as u16 }),
            2..5 => rig.happen(&Chaos::Consume { which }),
            _ => rig.happen(&Chaos::Done { which, failed: false }),
        }
    }
    rig.worker_up(0, 0);
    rig.drain();
    rig.content
}

#[test]
fn the_stream_does_not_depend_on_workers_times_crashes_or_policy() {
    let modes = [(Balance::None, 1), (Balance::Cost, 1), (Balance::Free { most: 6 }, 1), (Balance::Cost, 3)];
    for (balance, regroup) in modes {
        let options = StreamOptions { balance, regroup, ..options(4, 3) };
        let first = epoch(options.clone(), Policy::Helix, 1, 1, 2, 0);
        assert_eq!(first.len(), 9 * 4);
        for (seed, policy) in (2..).zip(POLICIES) {
            assert_eq!(first, epoch(options.clone(), policy, 6, seed, 5, 0));
        }
        let rest = epoch(options, Policy::Helix, 3, 9, 3, 4);
        assert!(first.iter().filter(|(b, _)| b.step >= 4).eq(rest.iter()), "resuming gives the same rest");
    }
}

#[test]
fn an_epoch_has_every_sample_and_pads_from_its_start() {
    let rows = |content: &Content, steps: std::ops::Range<u32>| {
        let within = content.iter().filter(|(b, _)| steps.contains(&b.step));
        let mut rows: Vec<u64> = within.flat_map(|(_, (_, places, ..))| places.iter().map(|p| p.sample)).collect();
        rows.sort_unstable();
        rows
    };
    let all: Vec<u64> = (0..101).map(|i| i + i / 2).collect();
    let dealt = epoch(StreamOptions { balance: Balance::None, ..options(4, 3) }, Policy::Helix, 2, 1, 2, 0);
    let balanced = epoch(options(4, 3), Policy::Helix, 2, 1, 2, 0);
    let mut unique = rows(&dealt, 0..9);
    unique.dedup();
    assert_eq!(unique, all);
    for step in 0..9 {
        assert_eq!(rows(&dealt, step..step + 1), rows(&balanced, step..step + 1), "balance moves within a step only");
    }
    // 108 places for 101 samples: the last step ends with the epoch's first seven, in order.
    let place = |step: u32, position: usize| {
        let id = BatchId { stream: StreamId(0), rank: (position / 3) as u32, iter: 1, step };
        dealt[&id].1[position % 3].sample
    };
    for i in 0..7 {
        assert_eq!(place(8, 5 + i), place(0, i));
    }
    let dropped = epoch(StreamOptions { drop_last: true, ..options(4, 3) }, Policy::Helix, 2, 1, 2, 0);
    assert_eq!(dropped.len(), 8 * 4);
}

#[test]
fn a_batch_keeps_the_samplers_order_and_tells_its_home() {
    let content = epoch(options(4, 3), Policy::Helix, 2, 1, 2, 0);
    for (batch, (_, places, global, _)) in &content {
        assert_eq!((places.len(), *global), (3, 12));
        assert!(places.is_sorted_by_key(|p| p.home_rank), "{batch:?}");
        assert!(places.iter().all(|p| p.bytes == 16 * 3 * 224 * 224 && p.cost > 20.0));
    }
    assert!(content.iter().any(|(b, (_, p, ..))| p.iter().any(|p| p.home_rank != b.rank)), "something moved");
}
