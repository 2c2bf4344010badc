//! Another sample in the place of one that cannot be made.

use super::Engine;
use super::rank::{Piece, Site};
use crate::proto::options::Policy;
use crate::sched::cost::Work;
use crate::sched::event::StreamId;

impl Engine {
    /// A place of a batch has another sample: one more piece, which waits for a worker.
    pub(super) fn replaced(
        &mut self,
        (stream, rank): (StreamId, u32),
        (iter, step): (u32, u32),
        (slot, sample): (u16, u64),
        work: Work,
    ) {
        let Some(s) = self.streams.get_mut(&stream) else { return };
        let policy = s.run.policy;
        let Some(r) = s.ranks.get_mut(rank as usize).filter(|r| r.active && r.iter == iter) else { return };
        let (server, bound) = (r.server, r.own.bound.get(&step).copied());
        let Some(batch) = r.batches.get_mut(&step).filter(|batch| !batch.released) else { return };
        let (expected, safe) = (self.decode.expected(&work), self.decode.safe(&work, server));
        let piece = batch.pieces.len() as u32;
        batch.pieces.push(Piece::new((slot, sample, None), work, (expected, safe, safe)));
        batch.left += 1;
        // It may have seemed complete when its last ticket had failed.
        if step == r.position {
            r.since = None;
        }
        match (policy, bound) {
            (Policy::Local, Some(worker)) => {
                s.enqueue(rank, step, piece, Site::Worker(worker));
                self.roused.insert(worker);
            }
            // Its worker is dead: it goes with its batch to another one.
            (Policy::Local, None) if r.own.lost.contains(&step) => {}
            _ => s.enqueue(rank, step, piece, Site::Server(server)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig::{Clips, Rig, options, run};
    use crate::proto::options::{Policy, RunOptions, StreamOptions};
    use crate::sched::cost::Work;
    use crate::sched::event::{Decision, Event, StreamId, TicketId};

    /// Slots assigned so far, with their tickets.
    fn assigned(rig: &Rig) -> Vec<(u16, TicketId)> {
        let of = |d: &Decision| match d {
            Decision::Assign { slot, ticket, .. } => Some((*slot, *ticket)),
            _ => None,
        };
        rig.log.iter().filter_map(|(_, d)| of(d)).collect()
    }

    #[test]
    fn a_place_with_another_sample_is_given_out_again_under_every_policy() {
        for policy in [Policy::Helix, Policy::Pool, Policy::Local] {
            let mut rig = Rig::new(Default::default());
            let options = StreamOptions { shuffle: false, ..options(1, 2) };
            rig.open(0, options, RunOptions { hedge: false, ..run(policy, 1) }, Clips::new(40, 1));
            rig.worker_up(0, 0);
            rig.worker_up(1, 0);
            rig.start(0, 0, 0, 0, 0);
            let first = assigned(&rig);
            assert_eq!(first.len(), 2, "{policy:?}");
            let (slot, ticket) = first[0];
            let work = Work { frames: 10.0, ..Work::default() };
            let stream = StreamId(0);
            rig.forget(ticket);
            rig.tell(Event::Replaced { stream, rank: 0, iter: 1, step: 0, slot, sample: 9, work });
            rig.tell(Event::TicketFailed { ticket });
            rig.end(first[1].1, 100);
            let again: Vec<_> = assigned(&rig)[2..].to_vec();
            assert_eq!(again.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [slot], "{policy:?}");
            // Of an iteration that is over, or a batch that is gone, it is nobody's.
            rig.tell(Event::Replaced { stream, rank: 0, iter: 0, step: 0, slot, sample: 9, work });
            rig.tell(Event::Replaced { stream, rank: 0, iter: 1, step: 5, slot, sample: 9, work });
            assert_eq!(assigned(&rig).len(), 3, "{policy:?}");
        }
    }
}
