//! What goes first, under each policy.

use std::sync::Arc;

use super::super::rig::{BatchId, Clips, Rig, options, run};
use super::*;
use crate::proto::options::StreamOptions;
use crate::proto::transform::Facts;

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
