//! Who gets a ticket, and when.

use std::sync::Arc;

use super::super::rig::{Clips, Rig, options, run};
use super::*;
use crate::proto::transform::Facts;

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

/// Two servers of two workers, a rank on each; all clips take as long, and ranks compute for next to nothing, so
/// that nobody is ever in time. Answers how many tickets each server did for the other's rank.
fn two_servers(workers: [u16; 2], link: Option<u64>) -> [usize; 2] {
    let mut rig = Rig::new(EngineOptions { horizon: 0 });
    rig.slab = 12;
    rig.open(0, options(2, 4), run(Policy::Helix, 12), Clips::new(4000, 1));
    if let Some(bytes_per_s) = link {
        for (from, to) in [(0, 1), (1, 0)] {
            let (from, to) = (ServerId(from), ServerId(to));
            rig.tell(Event::Link { from, to, bytes_per_s, latency_ns: 1_000 });
        }
    }
    for (server, count) in (0..).zip(workers) {
        (0..count).for_each(|n| rig.worker_up(2 * n + server, server));
    }
    for rank in 0..2 {
        rig.start(0, rank, rank as u16, 0, 0);
    }
    let mut away = [0, 0];
    for turn in 0..1500 {
        // Whoever was given its ticket first is done first.
        let Some((&ticket, live)) = rig.live.iter().next() else { break };
        let server = usize::from(live.worker.0 % 2);
        away[server] += usize::from(turn > 200 && live.batch.rank as usize != server);
        rig.now += 20_000_000 / rig.live.len() as u64;
        rig.end(ticket, 20_000);
        while let [Some(one), Some(two)] = [0, 1].map(|rank| rig.ready(StreamId(0), rank)) {
            for batch in [one, two] {
                rig.end_step(batch, 1_000);
                rig.release(batch);
            }
        }
    }
    rig.drain();
    away
}

#[test]
fn servers_that_are_both_late_do_not_exchange_samples() {
    let away = two_servers([3, 3], None);
    assert!(away[0] + away[1] <= 26, "{away:?} of 1300");
}

#[test]
fn a_server_that_falls_behind_is_helped_and_helps_nobody() {
    let [short, long] = two_servers([1, 5], None);
    // Of six workers' work the rank of the lone one has half.
    assert!(short <= 13 && long >= 350, "{short} and {long} of 1300");
}

#[test]
fn what_would_come_later_over_a_link_than_it_is_made_at_home_is_not_sent() {
    // A sample is 2.4 megabytes: four minutes on the way, in which the lone worker makes all that it has.
    assert_eq!(two_servers([1, 5], Some(10_000)), [0, 0]);
    let [short, long] = two_servers([1, 5], Some(1_000_000_000));
    assert!(short <= 13 && long >= 350, "{short} and {long} of 1300");
}
