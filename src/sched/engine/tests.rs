//! What the engine promises, whatever happens.

use std::sync::Arc;

use proptest::prelude::*;

use super::rig::{BatchId, Clips, Content, Live, Rig, options, run};
use super::*;
use crate::proto::options::{Balance, RunOptions, StreamOptions};
use crate::proto::transform::{Facts, Span};
use crate::sched::online::margin::tests::Noise;

const POLICIES: [Policy; 3] = [Policy::Helix, Policy::Pool, Policy::Local];

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

/// The step of the batch that each assignment is of, in order.
fn steps(rig: &Rig) -> Vec<(u32, u32)> {
    let assigned = rig.log.iter().filter_map(|(_, d)| match d {
        Decision::Assign { rank, step, .. } => Some((*step, *rank)),
        _ => None,
    });
    assigned.collect()
}

/// Lets the worker that is due first finish, with times as expected, until all is done and nobody consumes.
fn work(rig: &mut Rig) {
    while let Some((&ticket, _)) = rig.live.iter().next() {
        rig.now += 20_000_000;
        rig.end(ticket, 20_000);
    }
}

#[test]
fn a_waiting_ranks_step_goes_first_and_the_longest_within_it() {
    let mut rig = Rig::new(EngineOptions { horizon: 0 });
    rig.slab = 3;
    rig.open(0, options(4, 5), run(Policy::Helix, 0), Clips::new(100, 1));
    for rank in 0..4 {
        rig.start(0, rank, 0, 0, 0);
    }
    rig.worker_up(0, 0);
    work(&mut rig);
    let order = steps(&rig);
    assert_eq!(order.len(), 3 * 20);
    assert!(order.is_sorted_by_key(|(step, _)| *step));
    let costs = rig.log.iter().filter_map(|(_, d)| match *d {
        Decision::Assign { rank, step: 0, slot, .. } => {
            Some(rig.content[&BatchId { stream: StreamId(0), rank, iter: 1, step: 0 }].1[slot as usize].cost)
        }
        _ => None,
    });
    let costs: Vec<f64> = costs.collect();
    assert!(costs.is_sorted_by(|a, b| a >= b), "{costs:?}");
}

#[test]
fn a_sample_that_takes_long_begins_in_time_but_after_what_is_waited_for() {
    let mut rig = Rig::new(EngineOptions { horizon: 0 });
    let clip = |frames| Facts { frames, width: 1280, height: 720, ..Facts::default() };
    let clips = [100, 100, 100, 100, 9000, 100].map(clip).to_vec();
    let options = StreamOptions { shuffle: false, ..options(1, 1) };
    rig.open(0, options, run(Policy::Helix, 0), Arc::new(Clips(clips)));
    rig.start(0, 0, 0, 0, 0);
    rig.worker_up(0, 0);
    work(&mut rig);
    assert!(steps(&rig).into_iter().map(|(step, _)| step).eq([0, 4, 1, 2, 3, 5]));
}

#[test]
fn a_pool_takes_step_rank_and_slot_in_order() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.slab = 2;
    rig.open(0, options(3, 4), run(Policy::Pool, 0), Clips::new(60, 1));
    for rank in 0..3 {
        rig.start(0, rank, (rank % 2) as u16, 0, 0);
    }
    for worker in 0..4 {
        rig.worker_up(worker, worker % 2);
    }
    assert_eq!(rig.live.len(), 8, "each holds one and the next");
    work(&mut rig);
    assert!(steps(&rig).is_sorted());
    let slots =
        rig.log.iter().filter_map(|(_, d)| if let Decision::Assign { slot, .. } = d { Some(*slot) } else { None });
    assert!(slots.eq((0..24).map(|i| i % 4)));
}

#[test]
fn rank_local_workers_take_whole_batches_in_turn_two_ahead() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.open(0, options(2, 3), run(Policy::Local, 0), Clips::new(120, 1));
    for worker in 0..5 {
        rig.worker_up(worker, 0);
    }
    for rank in 0..2 {
        rig.start(0, rank, 0, 0, 0);
    }
    work(&mut rig);
    let mut by: BTreeMap<(u32, u32), BTreeSet<u16>> = BTreeMap::new();
    for (_, decision) in &rig.log {
        if let Decision::Assign { worker, rank, step, .. } = decision {
            by.entry((*rank, *step)).or_default().insert(worker.0);
        }
    }
    // Rank 0 has workers 0, 2, 4 and rank 1 has 1, 3. Batch 0 counts as delivered, being wanted and complete.
    for (rank, own) in [(0, vec![0, 2, 4]), (1, vec![1, 3])] {
        let wanted: Vec<_> = (0..1 + 2 * own.len()).map(|k| BTreeSet::from([own[k % own.len()]])).collect();
        let found: Vec<_> = by.range((rank, 0)..(rank + 1, 0)).map(|(_, w)| w.clone()).collect();
        assert_eq!(found, wanted, "rank {rank}");
    }
    // The next delivery lets the worker whose batch it was have its third.
    let batch = rig.ready(StreamId(0), 1).expect("batch 0 is ready");
    rig.end_step(batch, 1_000);
    let last = rig.live.values().map(|l| (l.worker.0, l.batch.step)).collect::<BTreeSet<_>>();
    assert_eq!(last, BTreeSet::from([(3, 5)]));
}

#[test]
fn a_waiting_rank_is_served_before_any_lookahead() {
    let mut rig = Rig::new(EngineOptions { horizon: 0 });
    rig.slab = 4;
    rig.open(0, options(2, 4), run(Policy::Helix, 0), Clips::new(200, 1));
    rig.start(0, 0, 0, 0, 0);
    rig.worker_up(0, 0);
    // Far ahead in the order, but it stands still; rank 0 has lookahead queued.
    rig.start(0, 1, 0, 0, 20);
    work(&mut rig);
    let first_of_one = steps(&rig).iter().position(|(_, rank)| *rank == 1);
    assert!(first_of_one.is_some_and(|at| at <= 4), "{:?}", steps(&rig));
}

#[test]
fn a_second_stream_is_served_while_the_first_is_overloaded() {
    for policy in POLICIES {
        let mut rig = Rig::new(EngineOptions::default());
        rig.slab = 50;
        rig.open(0, options(1, 4), run(policy, 0), Clips::new(400, 1));
        rig.open(1, options(1, 4), run(policy, 0), Clips::new(400, 2));
        rig.worker_up(0, 0);
        rig.start(0, 0, 0, 0, 0);
        for _ in 0..40 {
            let ticket = *rig.live.keys().next().expect("there is work");
            rig.now += 50_000_000;
            rig.end(ticket, 50_000);
            if let Some(batch) = rig.ready(StreamId(0), 0) {
                rig.end_step(batch, 1_000_000);
                rig.release(batch);
            }
        }
        rig.start(1, 0, 0, 0, 0);
        let mut turns = 0;
        while rig.ready(StreamId(1), 0).is_none() {
            turns += 1;
            assert!(turns < 12, "{policy:?}");
            let ticket = *rig.live.keys().next().expect("there is work");
            rig.now += 50_000_000;
            rig.end(ticket, 50_000);
            if let Some(batch) = rig.ready(StreamId(0), 0) {
                rig.end_step(batch, 1_000_000);
                rig.release(batch);
            }
        }
    }
}

/// A clip of 9000 frames and so many key frames, among short ones: the rank waits for it.
fn waits_for_a_long_clip(keyframes: u32, split_ms: u32) -> Rig {
    let mut rig = Rig::new(EngineOptions { horizon: 0 });
    let clip = |frames, keyframes| Facts { frames, keyframes, width: 1280, height: 720, ..Facts::default() };
    let clips = vec![clip(9000, keyframes), clip(100, 1), clip(100, 1)];
    let options = StreamOptions { shuffle: false, ..options(1, 3) };
    rig.open(0, options, RunOptions { split_ms, ..run(Policy::Helix, 0) }, Arc::new(Clips(clips)));
    for worker in 0..6 {
        rig.worker_up(worker, 0);
    }
    rig.start(0, 0, 0, 0, 0);
    rig
}

fn parts_at_work(rig: &Rig) -> Vec<Span> {
    rig.live.values().filter(|l| l.slot == 0).filter_map(|l| l.part).collect()
}

#[test]
fn a_long_clip_that_is_waited_for_is_decoded_by_several_workers() {
    let mut rig = waits_for_a_long_clip(16, 2000);
    let spans: Vec<(u16, u16)> = parts_at_work(&rig).iter().map(|p| (p.first, p.frames)).collect();
    assert_eq!(spans, [(0, 3), (3, 3), (6, 3), (9, 3), (12, 3), (15, 1)]);
    let expected = |rig: &Rig| rig.live.values().map(|l| l.expected).max().unwrap_or(0);
    let whole = waits_for_a_long_clip(16, 0);
    assert!(4 * expected(&rig) < expected(&whole), "{} of {}", expected(&rig), expected(&whole));
    rig.drain();
}

#[test]
fn a_clip_is_not_cut_without_key_frames_or_against_the_users_wish() {
    for (keyframes, split_ms) in [(1, 2000), (16, 0), (16, 1_000_000)] {
        let mut rig = waits_for_a_long_clip(keyframes, split_ms);
        assert!(parts_at_work(&rig).is_empty() && rig.live.len() == 3, "{keyframes} {split_ms}");
        rig.drain();
    }
}

#[test]
fn a_dead_workers_part_alone_is_done_again_and_a_bad_part_fails_the_sample_once() {
    let mut rig = waits_for_a_long_clip(16, 2000);
    let (_, lost) = rig.live.iter().next().map(|(t, l)| (*t, *l)).expect("all work");
    let others: Vec<TicketId> = rig.live.iter().filter(|(_, l)| l.worker != lost.worker).map(|(t, _)| *t).collect();
    rig.worker_down(lost.worker);
    rig.worker_up(lost.worker.0, 0);
    let again: Vec<Live> = rig.live.iter().filter(|(t, _)| !others.contains(t)).map(|(_, l)| *l).collect();
    assert_eq!(again.iter().map(|l| (l.slot, l.part)).collect::<Vec<_>>(), [(lost.slot, lost.part)]);
    // Two parts fail, the others finish: the batch is complete when its other two samples are.
    let parts: Vec<TicketId> = rig.live.iter().filter(|(_, l)| l.part.is_some()).map(|(t, _)| *t).collect();
    for (nth, ticket) in parts.into_iter().enumerate() {
        rig.end(ticket, if nth % 2 == 1 { 0 } else { 1000 });
    }
    assert_eq!(rig.rooms.values().next().map(|room| room.ended.clone()), Some(BTreeSet::from([0])));
    rig.drain();
}

/// One rank waits for a batch of two; worker 0 is stuck in the first sample, and the other is done.
fn stuck(hedge: bool) -> (Rig, TicketId) {
    let mut rig = Rig::new(EngineOptions { horizon: 0 });
    rig.slab = 1;
    rig.open(0, options(1, 2), RunOptions { hedge, ..run(Policy::Helix, 0) }, Clips::new(60, 1));
    rig.worker_up(0, 0);
    rig.worker_up(1, 0);
    rig.start(0, 0, 0, 0, 0);
    let (&first, _) = rig.live.iter().next().expect("both work");
    let (&other, _) = rig.live.iter().next_back().expect("both work");
    rig.end(other, 1_000);
    (rig, first)
}

impl Rig {
    /// Lets so much time pass as the engine wants to, and no more than an hour.
    fn sleep(&mut self) {
        let end = self.now + 3_600_000_000_000;
        while let Some(wake) = self.wake.filter(|wake| *wake <= end && self.hedged.is_empty()) {
            self.now = wake;
            self.tick();
        }
    }
}

#[test]
fn a_stuck_ticket_is_given_to_a_second_worker_and_the_first_that_is_done_wins() {
    for first_wins in [true, false] {
        let (mut rig, first) = stuck(true);
        let begun = rig.now;
        rig.sleep();
        assert!(rig.now >= begun + 1_000_000_000, "not before it is long overdue");
        let second = *rig.live.keys().find(|t| **t != first).expect("it is made twice");
        assert_eq!((rig.live[&first].slot, rig.live[&first].part), (rig.live[&second].slot, rig.live[&second].part));
        assert_ne!(rig.live[&first].worker, rig.live[&second].worker);
        let (winner, loser) = if first_wins { (first, second) } else { (second, first) };
        rig.end(winner, 1_000);
        let batch = rig.ready(StreamId(0), 0).expect("one is enough");
        rig.end_step(batch, 1_000_000);
        rig.release(batch);
        rig.end(loser, 1_000_000);
        rig.drain();
    }
}

#[test]
fn no_second_attempt_is_made_against_the_users_wish_or_while_nobody_waits() {
    let (mut rig, _) = stuck(false);
    rig.sleep();
    assert!(rig.hedged.is_empty());
    // The rank has its batch and takes a year for it.
    let mut rig = three_at_work(1 << 55);
    let other = *rig.live.keys().next_back().expect("three work");
    rig.end(other, 1_000);
    rig.sleep();
    assert!(rig.hedged.is_empty());
}

#[test]
fn when_either_worker_dies_the_other_attempt_goes_on() {
    for kill_first in [true, false] {
        let (mut rig, first) = stuck(true);
        rig.sleep();
        let second = *rig.live.keys().find(|t| **t != first).expect("it is made twice");
        let (dead, left) = if kill_first { (first, second) } else { (second, first) };
        rig.worker_down(rig.live[&dead].worker);
        rig.worker_up(7, 0);
        assert_eq!(rig.live.keys().collect::<Vec<_>>(), [&left], "nothing is made a third time at once");
        // The one that is left is as good as the first: it may be stuck too.
        rig.hedged.clear();
        rig.sleep();
        assert_eq!(rig.live.len(), 2);
        rig.drain();
    }
}

#[test]
fn without_room_a_second_attempt_is_made_later() {
    let (mut rig, first) = stuck(true);
    rig.refuse.extend([true, true, false]);
    rig.sleep();
    assert!(rig.refuse.is_empty() && rig.live.len() == 2 && rig.live.contains_key(&first));
    rig.drain();
}

#[test]
fn what_a_dead_worker_held_goes_first_with_a_new_attempt() {
    let mut rig = Rig::new(EngineOptions { horizon: 0 });
    rig.slab = 2;
    rig.open(0, options(1, 6), run(Policy::Helix, 0), Clips::new(60, 1));
    rig.start(0, 0, 0, 0, 0);
    rig.worker_up(0, 0);
    rig.worker_up(1, 0);
    let (lost, _) = rig.live.iter().next().map(|(t, l)| (*t, *l)).expect("both work");
    let lost = rig.live[&lost];
    rig.worker_down(lost.worker);
    let other = *rig.live.keys().next().expect("one works");
    rig.end(other, 1_000);
    let again = rig.live.values().next().expect("it goes on");
    assert_eq!((again.batch, again.slot), (lost.batch, lost.slot));
    assert_eq!(rig.rooms[&again.batch].attempts[&(again.slot, None)], 2);
    rig.drain();
}

/// Three workers decode eight samples, of which the rank will want the first in a very long time.
fn three_at_work(pace_ns: u64) -> Rig {
    let mut rig = Rig::new(EngineOptions::default());
    rig.open(0, options(1, 8), run(Policy::Helix, 3), Clips::new(80, 1));
    rig.start(0, 0, 0, 0, 0);
    for worker in 0..3 {
        rig.worker_up(worker, 0);
    }
    work(&mut rig);
    let batch = rig.ready(StreamId(0), 0).expect("all is done");
    rig.end_step(batch, pace_ns);
    rig.release(batch);
    assert_eq!(rig.live.len(), 3);
    rig
}

#[test]
fn a_next_ticket_is_bound_only_to_the_worker_that_is_free_soonest_and_just_before() {
    let mut rig = three_at_work(1 << 50);
    let soonest = rig.live.values().min_by_key(|l| l.expected).copied().expect("three work");
    let free = rig.now + soonest.expected;
    let wake = rig.wake.expect("it wants to be woken");
    assert!(wake < free && wake + 5_000_000 > free, "{wake} before {free}");
    rig.now = wake;
    rig.tick();
    let next: Vec<_> = rig.live.values().skip(3).collect();
    assert_eq!(next.len(), 1);
    assert_eq!(next[0].worker, soonest.worker);
}

#[test]
fn a_ticket_that_is_due_is_not_bound_behind_one_that_may_take_long() {
    let mut rig = three_at_work(1);
    rig.now = rig.wake.expect("it wants to be woken");
    rig.tick();
    assert_eq!(rig.live.len(), 3, "it waits for whoever is free first");
}

#[test]
fn tickets_stay_on_the_server_of_their_ranks_slab_when_time_allows() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.open(0, options(2, 4), run(Policy::Helix, 4), Clips::new(400, 1));
    for worker in 0..4 {
        rig.worker_up(worker, worker % 2);
    }
    for rank in 0..2 {
        rig.start(0, rank, rank as u16, 0, 0);
    }
    let (mut local, mut all) = (0, 0);
    for step in 0..40 {
        work(&mut rig);
        for rank in 0..2 {
            let batch = rig.ready(StreamId(0), rank).expect("all is done");
            rig.now += 4_000_000_000; // compute is slow: decoding is never late
            rig.end_step(batch, 8_000_000_000);
            rig.release(batch);
        }
        let before = rig.live.len();
        assert!(before > 0);
        if step >= 10 {
            local += rig.live.values().filter(|l| u32::from(l.worker.0 % 2) == l.batch.rank).count();
            all += before;
        }
    }
    assert!(local * 10 >= all * 9, "{local} of {all}");
}

/// Lets workers finish in the order of time, each ticket in the time that `takes` says, and a rank consume at once,
/// until the epoch is over.
fn run_epoch(rig: &mut Rig, takes: impl Fn(WorkerId) -> u64) {
    let mut at_work: BTreeMap<WorkerId, (Time, TicketId)> = BTreeMap::new();
    loop {
        for (worker, queue) in &rig.queues {
            if let Some(ticket) = queue.front() {
                at_work.entry(*worker).or_insert((rig.now + takes(*worker), *ticket));
            }
        }
        let Some((&worker, &(end, ticket))) = at_work.iter().min_by_key(|(_, end)| **end) else { return };
        if let Some(wake) = rig.wake.filter(|wake| *wake < end) {
            rig.now = wake;
            rig.tick();
            continue;
        }
        at_work.remove(&worker);
        rig.now = end;
        rig.end(ticket, (takes(worker) / 1_000) as u32);
        while let Some(batch) = rig.ready(StreamId(0), 0) {
            rig.end_step(batch, 1_000);
            rig.release(batch);
        }
    }
}

#[test]
fn a_server_ten_times_slower_than_predicted_gets_a_tenth_of_the_work() {
    let mut rig = Rig::new(EngineOptions::default());
    let clip = Facts { frames: 100, keyframes: 1, width: 1280, height: 720, ..Facts::default() };
    rig.slab = 12;
    rig.open(0, options(1, 4), run(Policy::Helix, 0), Arc::new(Clips(vec![clip; 600])));
    // The rank's own server is the slow one, so that all that is known beforehand speaks for it.
    for worker in 0..4 {
        rig.worker_up(worker, worker % 2);
    }
    rig.start(0, 0, 0, 0, 0);
    let (begun, fast) = (rig.now, 50_000_000);
    run_epoch(&mut rig, |worker| if worker.0 % 2 == 0 { 10 * fast } else { fast });
    // Two and two tenths of a worker, if nobody ever waited for a slow one.
    let (took, ideal) = (rig.now - begun, 600 * fast * 10 / 22);
    assert!(took < ideal * 6 / 5, "{took} ns, {ideal} at best");
    let expected = |worker: u16| {
        let server = ServerId(worker % 2);
        rig.engine.decode.safe(&Work::of(&clip, &options(1, 4).transform), server)
    };
    assert!(expected(0) > 5 * expected(1), "{} and {}", expected(0), expected(1));
    rig.drain();
}

#[test]
fn an_empty_or_impossible_iteration_ends_at_once() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.open(0, options(1, 4), run(Policy::Helix, 0), Clips::new(0, 1));
    rig.open(1, options(1, 4), run(Policy::Helix, 0), Clips::new(16, 1));
    rig.worker_up(0, 0);
    rig.start(0, 0, 0, 0, 0);
    rig.start(1, 0, 0, 0, 9);
    let ends: Vec<_> = rig.log.iter().map(|(_, d)| d.clone()).collect();
    let end = |stream, step| Decision::End { stream: StreamId(stream), rank: 0, iter: 1, step };
    assert_eq!(ends, [end(0, 0), end(1, 4)]);
}
