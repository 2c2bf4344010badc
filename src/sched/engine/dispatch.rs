//! Who decodes what: tickets are given to workers as late as can be.

use super::choose::Patience;
use super::queue::{Item, Key, bytes_of};
use super::rank::{Piece, Site, State};
use super::workers::{DEPTH, Held};
use super::{Engine, Flight};
use crate::proto::options::Policy;
use crate::sched::event::{Decision, StreamId, TicketId, Time, WorkerId};

/// Batches that a worker of a rank's own may have under way: PyTorch's `prefetch_factor`.
const OWN_BATCHES: usize = 2;

/// A sample, or a part of one, at the head of a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub stream: StreamId,
    pub site: Site,
    pub key: Key,
    pub item: Item,
    pub due: Option<Time>,
}

/// A piece of a batch, and when its rank wants it.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub stream: StreamId,
    pub rank: u32,
    pub step: u32,
    pub piece: u32,
    pub due: Option<Time>,
}

impl Engine {
    pub(super) fn dispatch(&mut self, now: Time, out: &mut Vec<Decision>) {
        self.find_stuck(now);
        self.hedge(now, false, out);
        self.dispatch_own(now, out);
        loop {
            let heads = if self.anyone_free(now) { self.heads(now) } else { Vec::new() };
            let Some((worker, chosen)) = heads.iter().find_map(|head| self.choose(now, head, &heads)) else {
                self.hedge(now, true, out);
                self.wish(now, &heads, out);
                return;
            };
            // Its parts take its place, and the first of them is chosen next.
            if !self.split(now, &chosen) {
                self.assign(now, worker, &chosen, out);
            }
        }
    }

    /// Whether any worker may be given something now. Most events find all of them busy, each with its next ticket.
    fn anyone_free(&self, now: Time) -> bool {
        let pools = || self.streams.values().any(|s| s.run.policy == Policy::Pool);
        let soon = || self.soon(now).next().is_some();
        self.workers.idlest().is_some() || soon() || (pools() && self.workers.longest_single().is_some())
    }

    /// The first sample of each queue that any worker may serve; the stream whose first is due first comes first.
    fn heads(&self, now: Time) -> Vec<Head> {
        let mut heads = Vec::new();
        let mut order = Vec::new();
        for (&stream, s) in self.streams.iter().filter(|(_, s)| !s.shared.is_empty()) {
            let from = heads.len();
            heads.extend(s.shared.iter().filter_map(|(&server, backlog)| {
                let (key, item) = backlog.first()?;
                let due = s.ranks.get(key.rank as usize)?.due(item.step, now);
                Some(Head { stream, site: Site::Server(server), key, item, due })
            }));
            heads[from..].sort_unstable_by_key(|h| h.key);
            order.extend(heads.get(from).map(|h| (h.urgency(), from..heads.len())));
        }
        if order.len() <= 1 {
            return heads;
        }
        order.sort_unstable_by_key(|(urgency, _)| *urgency);
        order.into_iter().flat_map(|(_, range)| heads[range].to_vec()).collect()
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
                let shared = self.heads(now).first().copied().filter(|s| s.urgency() < own.urgency());
                self.assign(now, worker, &shared.unwrap_or(own), out);
            }
        }
    }

    /// Asks to be woken when the next worker comes into the horizon, when a sample can wait no longer, and when a
    /// ticket is long overdue.
    fn wish(&mut self, now: Time, heads: &[Head], out: &mut Vec<Decision>) {
        let overdue = self.next_overdue().map(|at| at.max(now.saturating_add(1)));
        let Some(wish) = self.wish_of(now, heads) else {
            // There is no hurry: one who is woken too early looks again.
            if let Some(overdue) = overdue.filter(|at| self.wake.is_none_or(|wake| wake > *at)) {
                self.wake = Some(overdue);
                out.push(Decision::WakeAt(overdue));
            }
            return;
        };
        let wish = wish.max(now.saturating_add(1)).min(overdue.unwrap_or(Time::MAX));
        if self.wake != Some(wish) {
            self.wake = Some(wish);
            out.push(Decision::WakeAt(wish));
        }
    }

    fn wish_of(&self, now: Time, heads: &[Head]) -> Option<Time> {
        if self.streams.values().all(|s| s.shared.is_empty()) {
            return None;
        }
        let horizon = self.horizon();
        let next = self.workers.singles(now.saturating_add(horizon), Time::MAX).next().map(|s| s.free - horizon);
        let idle = self.workers.idlest().is_some();
        let patience = |h: &Head| match h.site {
            Site::Server(home) if idle => self.patience(now, h, home),
            _ => Patience::None,
        };
        let late =
            heads.iter().filter_map(|h| if let Patience::Until(late) = patience(h) { Some(late) } else { None });
        late.chain(next).min()
    }

    fn assign(&mut self, now: Time, worker: WorkerId, head: &Head, out: &mut Vec<Decision>) {
        let Some(s) = self.streams.get_mut(&head.stream) else { return };
        let (stream, rank, step, piece) = (head.stream, head.key.rank, head.item.step, head.key.piece);
        s.dequeue(rank, step, piece);
        self.give(now, worker, &At { stream, rank, step, piece, due: head.due }, false, out);
    }

    /// Hands a piece to a worker; `hedge` says that another one has it already.
    pub(super) fn give(&mut self, now: Time, worker: WorkerId, at: &At, hedge: bool, out: &mut Vec<Decision>) {
        let &At { stream, rank, step, piece, due } = at;
        let Some(server) = self.workers.server(worker) else { return };
        let Some(s) = self.streams.get_mut(&stream) else { return };
        let Some(r) = s.ranks.get_mut(rank as usize) else { return };
        let (iter, epoch, home) = (r.iter, r.epoch, r.server);
        let hedges = s.run.hedge && s.run.policy == Policy::Helix;
        let Some(entry) = r.batches.get_mut(&step).and_then(|b| b.pieces.get_mut(piece as usize)) else { return };
        self.last_ticket += 1;
        let ticket = TicketId(self.last_ticket);
        if hedge {
            entry.hedge = Some(ticket);
        } else {
            entry.state = State::Flying(ticket);
        }
        entry.attempts = entry.attempts.saturating_add(1);
        let Piece { slot, part, attempts: attempt, work, .. } = *entry;
        let expected = (self.decode.expected(&work) as f64 * self.decode.slowness(server)) as u64;
        let sending = self.transfer.sending(server, home, bytes_of(&work));
        self.transfer.send(home, sending);
        let safe = self.decode.safe(&work, server).max(expected).saturating_add(sending);
        self.workers.give(worker, Held { ticket, expected, safe }, now);
        let flight = Flight { stream, rank, iter, step, piece, worker, server, work, expected, safe, home, sending };
        self.flights.insert(ticket, flight);
        if hedges {
            self.watch(ticket, now);
        }
        out.push(Decision::Assign {
            worker,
            ticket,
            stream,
            rank,
            iter,
            epoch,
            step,
            slot,
            part,
            attempt,
            hedge,
            due,
        });
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
                    let pieces = r.batches.get(&step).map_or(0, |b| b.pieces.len()) as u32;
                    for piece in 0..pieces {
                        s.dequeue(rank, step, piece);
                    }
                }
            }
        }
    }
}
