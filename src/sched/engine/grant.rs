//! Memory: it is asked for in the order of steps, as deep as there is room.

use super::Engine;
use super::rank::Site;
use crate::proto::options::Policy;
use crate::sched::cost::Work;
use crate::sched::event::{Decision, ServerId, StreamId, Time};
use crate::sched::plan::{Planned, StepPlan};

impl Engine {
    /// Begins an iteration of a rank.
    pub(super) fn start(&mut self, stream: StreamId, rank: u32, server: ServerId, at: (u32, u32, u32), now: Time) {
        let Some(s) = self.streams.get_mut(&stream) else { return };
        let Some(r) = s.ranks.get_mut(rank as usize).filter(|r| at.0 > r.iter) else { return };
        self.unanswered -= u32::from(r.asked.is_some());
        let past = r.start(server, at, now);
        s.forget(past);
        self.stirred.insert((stream, rank));
    }

    /// Asks for the memory of a rank's next batch, or tells that there is none.
    pub(super) fn ask(&mut self, stream: StreamId, rank: u32, out: &mut Vec<Decision>) {
        let Some(s) = self.streams.get_mut(&stream) else { return };
        let most = s.run.max_batches as usize;
        let Some(epoch) = s.ranks.get(rank as usize).map(|r| r.epoch) else { return };
        let steps = s.steps(epoch);
        let Some(r) = s.ranks.get_mut(rank as usize).filter(|r| r.active && r.asked.is_none()) else { return };
        let (iter, step) = (r.iter, r.next);
        if step >= steps {
            if !std::mem::replace(&mut r.told_end, true) {
                out.push(Decision::End { stream, rank, iter, step: steps });
            }
            return;
        }
        if r.full || (most > 0 && r.held.len() >= most) {
            return;
        }
        r.asked = Some(step);
        self.unanswered += 1;
        let plan = s.plan(epoch, step);
        let places = plan.ranks[rank as usize].iter().map(|p: &Planned| p.place).collect();
        let StepPlan { samples: global, mean_cost, tokens, bins, .. } = *plan;
        out.push(Decision::Grant { stream, rank, iter, epoch, step, places, global, mean_cost, tokens, bins });
    }

    /// There is memory: the batch's samples may be given to workers.
    pub(super) fn granted(&mut self, stream: StreamId, rank: u32, iter: u32, step: u32) {
        let Some(s) = self.streams.get_mut(&stream) else { return };
        let asked = |r: &&mut super::rank::Rank| r.active && r.iter == iter && r.asked == Some(step);
        let Some(r) = s.ranks.get_mut(rank as usize).filter(asked) else { return };
        let (epoch, cores, pace) = (r.epoch, self.workers.usable().max(1), r.model.clone());
        // A step lasts as long as its compute or its decoding, whichever is longer.
        let lasts = |plan: &StepPlan| {
            let work: u64 = plan.ranks.iter().flatten().map(|p| self.decode.expected(&p.work)).sum();
            pace.predict(1, plan.max_cost).max(work / cores as u64)
        };
        let (wanted, plan) = s.take(epoch, step, lasts);
        let r = &mut s.ranks[rank as usize];
        let server = r.server;
        let estimate = |work: &Work| (self.decode.expected(work), self.decode.safe(work, server));
        r.granted(&plan.ranks[rank as usize], plan.max_cost, wanted, estimate);
        let site = Site::Server(r.server);
        if s.run.policy != Policy::Local {
            s.enqueue_batch(rank, step, site);
        }
        self.unanswered -= 1;
        self.stirred.insert((stream, rank));
    }

    /// There is none: the same grant is asked for again when something was released.
    pub(super) fn no_room(&mut self, stream: StreamId, rank: u32) {
        let Some(r) = self.streams.get_mut(&stream).and_then(|s| s.ranks.get_mut(rank as usize)) else { return };
        if r.asked.take().is_some() {
            r.full = true;
            self.unanswered -= 1;
        }
    }

    /// A batch's memory is free again.
    pub(super) fn released(&mut self, stream: StreamId, rank: u32, at: (u32, u32), now: Time) {
        let Some(s) = self.streams.get_mut(&stream) else { return };
        let Some(r) = s.ranks.get_mut(rank as usize).filter(|r| r.active) else { return };
        // Also when the batch is unknown: then it is of a time before this engine's, and there is room all the same.
        r.full = false;
        self.stirred.insert((stream, rank));
        if !r.held.remove(&at) || r.iter != at.0 {
            return;
        }
        let unfinished = r.batches.get(&at.1).is_some_and(|b| b.left > 0);
        if unfinished && let Some(batch) = r.batches.remove(&at.1) {
            s.forget([(at.1, batch)].into());
        }
        let r = &mut s.ranks[rank as usize];
        let moved = r.released(at.1, now);
        r.settle(now);
        if moved {
            s.hurry(rank);
        }
    }
}
