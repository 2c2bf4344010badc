//! Who decodes what: tickets are given to workers as late as can be.

use super::queue::{Item, Key};
use super::rank::{Site, State};
use super::workers::DEPTH;
use super::{Engine, Flight};
use crate::proto::options::Policy;
use crate::sched::event::{Decision, ServerId, StreamId, TicketId, Time, WorkerId};

/// Least horizon, nanoseconds: what it takes to hear of an end and to answer it.
const LEAST_HORIZON: u64 = 2_000_000;

/// Batches that a worker of a rank's own may have under way: PyTorch's `prefetch_factor`.
const OWN_BATCHES: usize = 2;

/// A sample at the head of a queue.
#[derive(Debug, Clone, Copy)]
struct Head {
    stream: StreamId,
    site: Site,
    key: Key,
    item: Item,
    due: Option<Time>,
}

impl Head {
    /// Earliest due first, then by stream; unknown dues last.
    fn urgency(&self) -> (Time, StreamId) {
        (self.due.unwrap_or(Time::MAX), self.stream)
    }
}

impl Engine {
    pub(super) fn dispatch(&mut self, now: Time, out: &mut Vec<Decision>) {
        self.dispatch_own(now, out);
        while let Some(head) = self.shared_head(now, None) {
            let Some((worker, chosen)) = self.choose(now, head) else {
                self.wish(now, &head, out);
                break;
            };
            self.assign(now, worker, &chosen, out);
        }
    }

    /// The first sample that any worker may take, or the first whose rank's slab is on one server.
    fn shared_head(&self, now: Time, only: Option<ServerId>) -> Option<Head> {
        let heads = self.streams.iter().filter_map(|(&stream, s)| {
            let queues = s.shared.iter().filter(|(server, _)| only.is_none_or(|o| o == **server));
            let firsts = queues.filter_map(|(&server, backlog)| Some((backlog.first()?, server)));
            let ((key, item), server) = firsts.min_by_key(|((key, _), _)| *key)?;
            let due = s.ranks.get(key.rank as usize)?.due(item.step, now);
            Some(Head { stream, site: Site::Server(server), key, item, due })
        });
        heads.min_by_key(Head::urgency)
    }

    /// The first sample that was bound to this worker.
    fn own_head(&self, now: Time, worker: WorkerId) -> Option<Head> {
        let heads = self.streams.iter().filter_map(|(&stream, s)| {
            let (key, item) = s.bound.get(&worker)?.first()?;
            let due = s.ranks.get(key.rank as usize)?.due(item.step, now);
            Some(Head { stream, site: Site::Worker(worker), key, item, due })
        });
        heads.min_by_key(Head::urgency)
    }

    /// Serves the workers that have batches of their own to do; what is shared comes between when it is due before.
    fn dispatch_own(&mut self, now: Time, out: &mut Vec<Decision>) {
        while let Some(worker) = self.roused.pop_first() {
            while self.workers.contains(worker)
                && self.workers.held(worker) < DEPTH
                && let Some(own) = self.own_head(now, worker)
            {
                let shared = self.shared_head(now, None).filter(|s| s.urgency() < own.urgency());
                self.assign(now, worker, &shared.unwrap_or(own), out);
            }
        }
    }

    /// Who is to take a shared sample now, if anyone; it may be better to give that worker another one.
    fn choose(&self, now: Time, head: Head) -> Option<(WorkerId, Head)> {
        if self.streams.get(&head.stream)?.run.policy == Policy::Pool {
            return Some((self.workers.longest_idle().or_else(|| self.workers.longest_single())?, head));
        }
        let Site::Server(home) = head.site else { return None };
        if let Some(worker) = self.workers.idle_on(home) {
            return Some((worker, head));
        }
        if let Some(idle) = self.workers.idlest() {
            let near = || self.workers.idle().find_map(|(s, w)| Some((w, self.shared_head(now, Some(s))?)));
            let local = if self.can_wait(now, &head, home) { near() } else { None };
            return Some(local.unwrap_or((idle, head)));
        }
        let (free, worker) = self.workers.soonest_single(now)?;
        if free > now.saturating_add(self.horizon()) {
            return None;
        }
        let server = self.workers.server(worker)?;
        if server != home && self.can_wait(now, &head, home) {
            return Some((worker, self.shared_head(now, Some(server)).unwrap_or(head)));
        }
        Some((worker, head))
    }

    /// Whether a sample can be left to the workers of its rank's server and still be done when it is due, with all
    /// that is due with it. Nothing is known of the due times of a rank's first steps: then it need not hurry.
    fn can_wait(&self, now: Time, head: &Head, home: ServerId) -> bool {
        let Some(due) = head.due else { return head.key.ahead };
        let Some((free, workers)) = self.workers.outlook(home, now) else { return false };
        let Some(s) = self.streams.get(&head.stream) else { return false };
        let Some(batch) = s.ranks.get(head.key.rank as usize).and_then(|r| r.batches.get(&head.item.step)) else {
            return false;
        };
        let Some(slot) = batch.slots.get(head.key.slot as usize) else { return false };
        let work = s.shared.get(&home).map_or(0, |b| b.first_work()) / workers.max(1);
        free.saturating_add(work).saturating_add(self.decode.safe(&slot.work, home)) <= due
    }

    fn horizon(&self) -> u64 {
        (LEAST_HORIZON + 2 * self.decode.read()).min(self.options.horizon)
    }

    /// Asks to be woken when the next worker comes into the horizon.
    fn wish(&mut self, now: Time, head: &Head, out: &mut Vec<Decision>) {
        if self.streams.get(&head.stream).is_none_or(|s| s.run.policy != Policy::Helix) {
            return;
        }
        let Some((free, _)) = self.workers.soonest_single(now) else { return };
        let wish = free.saturating_sub(self.horizon()).max(now.saturating_add(1));
        if self.wake != Some(wish) {
            self.wake = Some(wish);
            out.push(Decision::WakeAt(wish));
        }
    }

    fn assign(&mut self, now: Time, worker: WorkerId, head: &Head, out: &mut Vec<Decision>) {
        let Some(server) = self.workers.server(worker) else { return };
        let Some(s) = self.streams.get_mut(&head.stream) else { return };
        let (rank, step, slot) = (head.key.rank, head.item.step, head.key.slot);
        s.dequeue(rank, step, slot);
        let r = &mut s.ranks[rank as usize];
        let (iter, epoch) = (r.iter, r.epoch);
        let Some(entry) = r.batches.get_mut(&step).and_then(|b| b.slots.get_mut(slot as usize)) else { return };
        self.last_ticket += 1;
        let ticket = TicketId(self.last_ticket);
        entry.state = State::Flying(ticket);
        let attempt = entry.attempt;
        let expected = (self.decode.expected(&entry.work) as f64 * self.decode.slowness(server)) as u64;
        let work = entry.work;
        self.workers.give(worker, ticket, expected, now);
        let stream = head.stream;
        self.flights.insert(ticket, Flight { stream, rank, iter, step, slot, worker, server, work, expected });
        let due = head.due;
        out.push(Decision::Assign { worker, ticket, stream, rank, iter, epoch, step, slot, attempt, due });
    }

    /// Gives a rank's batches to workers of its own, in turn, as many ahead as PyTorch would.
    pub(super) fn bind(&mut self, stream: StreamId, rank: u32) {
        let Some(s) = self.streams.get_mut(&stream).filter(|s| s.run.policy == Policy::Local) else { return };
        let world = s.options.world;
        loop {
            let Some(r) = s.ranks.get_mut(rank as usize).filter(|r| r.active) else { return };
            let lost = r.own.lost.first().copied();
            let step = lost.unwrap_or(r.own.next);
            if !r.batches.contains_key(&step) {
                return;
            }
            let own = self.workers.own(rank, world);
            let next = own.iter().find(|w| r.own.last.is_none_or(|last| **w > last)).or(own.first());
            let Some(&worker) = next else { return };
            if r.own.bound.values().filter(|w| **w == worker).count() >= OWN_BATCHES {
                return;
            }
            r.own.bound.insert(step, worker);
            r.own.last = Some(worker);
            if lost.is_some() {
                r.own.lost.remove(&step);
            } else {
                r.own.next += 1;
            }
            s.enqueue_batch(rank, step, Site::Worker(worker));
            self.roused.insert(worker);
        }
    }

    /// Takes back the batches that were given to a worker that has died.
    pub(super) fn lose_bound(&mut self, worker: WorkerId) {
        for s in self.streams.values_mut().filter(|s| s.run.policy == Policy::Local) {
            for rank in 0..s.options.world {
                let r = &mut s.ranks[rank as usize];
                let steps: Vec<u32> = r.own.bound.iter().filter(|(_, w)| **w == worker).map(|(s, _)| *s).collect();
                for step in steps {
                    let r = &mut s.ranks[rank as usize];
                    r.own.bound.remove(&step);
                    r.own.lost.insert(step);
                    let slots = r.batches.get(&step).map_or(0, |b| b.slots.len()) as u16;
                    for slot in 0..slots {
                        s.dequeue(rank, step, slot);
                    }
                }
            }
        }
    }
}
