//! Tickets that do not end, and second attempts at them.

use super::super::rig::{Clips, Rig, options, run};
use super::*;
use crate::proto::options::RunOptions;

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
