//! One rank of a stream: the batches it was granted, and where it is in time.

use std::collections::{BTreeMap, BTreeSet};

use super::queue::Key;
use crate::proto::transform::Span;
use crate::sched::cost::Work;
use crate::sched::event::{ServerId, TicketId, Time, WorkerId};
use crate::sched::online::step::StepModel;
use crate::sched::plan::Planned;

/// Where a queued ticket lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Site {
    /// Any worker may take it; the rank's slab is on this server.
    Server(ServerId),
    /// This worker is to take it.
    Worker(WorkerId),
}

/// What became of a piece of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It waits for its batch to be given to a worker.
    Unbound,
    /// It is in a queue.
    Queued(Site, Key),
    /// A worker has it.
    Flying(TicketId),
    /// It is done or has failed for good.
    Ended,
}

/// A sample of a batch, or a part of one.
#[derive(Debug)]
pub(super) struct Piece {
    /// Place in the batch.
    pub slot: u16,
    /// Row in the manifest.
    pub sample: u64,
    /// Which part; `None` for all of the sample.
    pub part: Option<Span>,
    pub work: Work,
    /// Expected nanoseconds on the mean server.
    pub expected: u64,
    /// Nanoseconds that it will hardly exceed.
    pub safe: u64,
    /// How long before it is wanted it is to be begun: of a part, what the whole would have needed.
    pub lead: u64,
    /// Attempts made so far.
    pub attempts: u16,
    pub state: State,
    /// The second attempt, while the first is under way.
    pub hedge: Option<TicketId>,
}

impl Piece {
    /// A piece that nobody has: place, row and part; work; expected and safe nanoseconds, and lead.
    pub(super) fn new(
        (slot, sample, part): (u16, u64, Option<Span>),
        work: Work,
        (expected, safe, lead): (u64, u64, u64),
    ) -> Piece {
        Piece { slot, sample, part, work, expected, safe, lead, attempts: 0, state: State::Unbound, hedge: None }
    }
}

/// A batch that was granted.
#[derive(Debug)]
pub(super) struct Batch {
    /// The samples in their order; behind them the parts of those that were cut, except for each one's first part.
    pub pieces: Vec<Piece>,
    /// Pieces that have not ended.
    pub left: usize,
    /// When it is wanted on the stream's timeline.
    pub wanted: u64,
    /// Cost of the step's heaviest rank.
    pub cost: f64,
    /// Sum of `cost` over the iteration's steps before this one.
    pub before: f64,
    /// Whether the rank has let it go.
    pub released: bool,
}

/// A rank.
#[derive(Debug, Default)]
pub(super) struct Rank {
    /// Whether it iterates.
    pub active: bool,
    pub server: ServerId,
    pub iter: u32,
    pub epoch: u32,
    /// The next step to ask memory for.
    pub next: u32,
    /// Whether its end has been told.
    pub told_end: bool,
    /// The step that memory was asked for, until the answer.
    pub asked: Option<u32>,
    /// Whether the last answer was that there is no room.
    pub full: bool,
    /// What it was granted and has not released: (iteration, step). Past iterations count too, as their memory is
    /// still in use.
    pub held: BTreeSet<(u32, u32)>,
    /// The iteration's batches by step, until released and behind `position`.
    pub batches: BTreeMap<u32, Batch>,
    /// Sum of costs of all steps granted in the iteration.
    pub granted_cost: f64,
    /// The latest time on the stream's timeline at which a granted step is wanted.
    pub wanted: u64,
    /// The first step that the rank has not ended.
    pub position: u32,
    /// When the rank asked for it, or when it began.
    pub asked_at: Time,
    /// When it got it, once it has.
    pub since: Option<Time>,
    pub model: StepModel,
    pub own: Own,
}

/// A rank's own workers and the batches given to them, for the rank-local policy.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// Batches given to a worker and not yet delivered.
    pub bound: BTreeMap<u32, WorkerId>,
    /// Batches whose worker has died.
    pub lost: BTreeSet<u32>,
    /// The next step to give to a worker.
    pub next: u32,
    /// Who got the last one.
    pub last: Option<WorkerId>,
    /// The first step that was not delivered.
    pub delivered: u32,
}

impl Rank {
    /// Begins an iteration, and answers the batches of the one before.
    pub(super) fn start(&mut self, server: ServerId, at: (u32, u32, u32), now: Time) -> BTreeMap<u32, Batch> {
        let (iter, epoch, step) = at;
        *self = Rank {
            active: true,
            server,
            iter,
            epoch,
            next: step,
            position: step,
            asked_at: now,
            held: std::mem::take(&mut self.held),
            batches: std::mem::take(&mut self.batches),
            model: std::mem::take(&mut self.model),
            own: Own { next: step, delivered: step, ..Own::default() },
            ..Rank::default()
        };
        std::mem::take(&mut self.batches)
    }

    /// The memory for the next step is there; `estimate` gives expected and safe nanoseconds.
    pub(super) fn granted(
        &mut self,
        planned: &[Planned],
        cost: f64,
        wanted: u64,
        estimate: impl Fn(&Work) -> (u64, u64),
    ) {
        let piece = |(slot, p): (u16, &Planned)| {
            let (expected, safe) = estimate(&p.work);
            Piece::new((slot, p.place.sample, None), p.work, (expected, safe, safe))
        };
        let pieces: Vec<Piece> = (0..).zip(planned).map(piece).collect();
        self.wanted = self.wanted.max(wanted);
        let (wanted, before) = (self.wanted, self.granted_cost);
        let batch = Batch { left: pieces.len(), pieces, wanted, cost, before, released: false };
        self.granted_cost += cost;
        self.held.insert((self.iter, self.next));
        self.batches.insert(self.next, batch);
        self.asked = None;
        self.next += 1;
    }

    fn complete(&self, step: u32) -> bool {
        self.batches.get(&step).is_some_and(|b| b.left == 0)
    }

    /// Whether the rank stands still for want of this step.
    pub(super) fn waits_for(&self, step: u32) -> bool {
        self.since.is_none() && step == self.position
    }

    /// Notes a delivery that has become possible.
    pub(super) fn settle(&mut self, now: Time) {
        if self.since.is_none() && self.complete(self.position) {
            self.since = Some(now.max(self.asked_at));
        }
        while self.own.delivered <= self.position && self.complete(self.own.delivered) {
            self.deliver(self.own.delivered);
        }
    }

    fn deliver(&mut self, step: u32) {
        self.own.delivered = self.own.delivered.max(step.saturating_add(1));
        self.own.bound = self.own.bound.split_off(&self.own.delivered);
        self.own.lost = self.own.lost.split_off(&self.own.delivered);
        self.own.next = self.own.next.max(self.own.delivered);
    }

    /// The rank is at `step` now, or beyond.
    pub(super) fn reach(&mut self, step: u32, now: Time) -> bool {
        if step <= self.position {
            return false;
        }
        self.position = step;
        self.asked_at = now;
        self.since = None;
        self.batches.retain(|s, b| *s >= step || !b.released);
        true
    }

    /// The rank has let a batch of this iteration go: so it has got it, and has ended the step before.
    pub(super) fn released(&mut self, step: u32, now: Time) -> bool {
        if let Some(batch) = self.batches.get_mut(&step) {
            batch.released = true;
        }
        let moved = self.reach(step, now);
        self.deliver(step);
        self.batches.retain(|s, b| *s >= self.position || !b.released);
        moved
    }

    /// When the rank is predicted to want a step that it was granted; `None` while its pace is not known.
    pub(super) fn due(&self, step: u32, now: Time) -> Option<Time> {
        if step <= self.position {
            return Some(self.asked_at);
        }
        if !self.model.known() {
            return None;
        }
        let from = self.since.unwrap_or(now.max(self.asked_at));
        let cost = self.batches.get(&step)?.before - self.batches.get(&self.position)?.before;
        Some(from.saturating_add(self.model.predict(step - self.position, cost)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank_with(steps: u32) -> Rank {
        let mut rank = Rank::default();
        rank.start(ServerId(0), (1, 0, 0), 100);
        for _ in 0..steps {
            rank.granted(&[], 2.0, 0, |_| (0, 0));
        }
        rank
    }

    #[test]
    fn deadlines_are_cumulative_and_rebased_at_step_ends() {
        let mut rank = rank_with(4);
        assert_eq!(rank.due(0, 150), Some(100), "it wants its first batch from the start");
        assert_eq!(rank.due(1, 150), None, "its pace is not known");
        rank.settle(200);
        rank.model.learn(2.0, 1_000_000);
        assert_eq!(rank.due(1, 250), Some(200 + 1_000_000));
        assert_eq!(rank.due(3, 250), Some(200 + 3_000_000));
        rank.reach(1, 5_000_000);
        rank.settle(5_000_000);
        assert_eq!(rank.due(2, 5_000_000), Some(6_000_000));
    }

    #[test]
    fn a_late_batch_moves_what_follows() {
        let mut rank = rank_with(2);
        rank.model.learn(2.0, 1000);
        if let Some(batch) = rank.batches.get_mut(&0) {
            batch.left = 1;
        }
        assert!(rank.waits_for(0) && !rank.waits_for(1));
        assert_eq!(rank.due(1, 7000), Some(8000));
    }

    #[test]
    fn a_release_tells_that_the_step_before_has_ended() {
        let mut rank = rank_with(3);
        rank.settle(100);
        assert!(rank.released(1, 300));
        assert_eq!((rank.position, rank.own.delivered), (1, 2));
        assert!(rank.batches.contains_key(&1), "its cost is wanted at the step's end");
        rank.reach(2, 400);
        assert!(!rank.batches.contains_key(&1));
        assert!(rank.batches.contains_key(&0), "held until released");
    }
}
