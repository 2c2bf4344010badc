//! Stuck tickets: a second attempt elsewhere, with a place of its own; the first that is done wins.
//!
//! A ticket is looked at again when it has run for twice what it should hardly exceed. If its rank stands still for it
//! then, or soon will, a worker that has nothing else to do makes a second attempt, and if none has for as long again,
//! the next one that is free: it may be that the ticket is merely long, and a worker is dear. There is one at a time:
//! when it is lost too, the ticket is looked at again.

use super::dispatch::At;
use super::rank::State;
use super::{Engine, Flight};
use crate::sched::event::{Decision, ServerId, TicketId, Time};

/// A ticket is given this long at least, nanoseconds: what a busy machine may well do to a process.
const LEAST: u64 = 1_000_000_000;

impl Engine {
    /// Remembers when a ticket that was just given will be long overdue.
    pub(super) fn watch(&mut self, ticket: TicketId, now: Time) {
        let Some(flight) = self.flights.get(&ticket) else { return };
        let late = self.workers.overdue(flight.worker).max(now.saturating_add(LEAST));
        self.watched.insert((late, ticket));
    }

    /// When the first ticket that is still under way will be long overdue.
    pub(super) fn next_overdue(&mut self) -> Option<Time> {
        while let Some(&(at, ticket)) = self.watched.first() {
            if self.flights.contains_key(&ticket) {
                return Some(at);
            }
            self.watched.pop_first();
        }
        None
    }

    /// Finds the tickets that are overdue by now and whose ranks have no time to lose.
    pub(super) fn find_stuck(&mut self, now: Time) {
        while let Some(&(at, ticket)) = self.watched.first()
            && at <= now
        {
            self.watched.pop_first();
            let Some(flight) = self.flights.get(&ticket) else { continue };
            let (step, safe) = (flight.step, flight.safe);
            let due = |s: &super::Stream, rank: u32| s.ranks.get(rank as usize).and_then(|r| r.due(step, now));
            let due = self.streams.get(&flight.stream).and_then(|s| due(s, flight.rank));
            match due {
                Some(due) if due <= now.saturating_add(safe) => {
                    self.stuck.insert(ticket, now.saturating_add(safe.max(LEAST)));
                }
                Some(due) => drop(self.watched.insert((due.saturating_sub(safe), ticket))),
                None => drop(self.watched.insert((now.saturating_add(LEAST), ticket))),
            }
        }
    }

    /// Gives second attempts to workers that are idle: those alone that have waited for long, or all.
    pub(super) fn hedge(&mut self, now: Time, all: bool, out: &mut Vec<Decision>) {
        let waiting: Vec<TicketId> =
            self.stuck.iter().filter(|(_, urgent)| all || **urgent <= now).map(|(ticket, _)| *ticket).collect();
        for stuck in waiting {
            if let Some((at, home)) = self.hedgeable(stuck, now) {
                // Whoever is idle is not the one that is stuck.
                let Some(worker) = self.workers.idle_on(home).or_else(|| self.workers.spare()) else { return };
                self.give(now, worker, &at, true, out);
            }
            self.stuck.remove(&stuck);
        }
    }

    /// The piece of a ticket and the server of its rank, if a second attempt at it is of any use.
    fn hedgeable(&self, ticket: TicketId, now: Time) -> Option<(At, ServerId)> {
        let &Flight { stream, rank, iter, step, piece, .. } = self.flights.get(&ticket)?;
        let r = self.streams.get(&stream)?.ranks.get(rank as usize).filter(|r| r.active && r.iter == iter)?;
        let of = r.batches.get(&step)?.pieces.get(piece as usize)?;
        let wanted = of.state == State::Flying(ticket) && of.hedge.is_none();
        wanted.then_some((At { stream, rank, step, piece, due: r.due(step, now) }, r.server))
    }

    /// There is no room for a second attempt: it is thought of again later.
    pub(super) fn unassigned(&mut self, ticket: TicketId, now: Time) {
        let Some(flight) = self.land(ticket) else { return };
        self.workers.end(flight.worker, ticket, now);
        let Some(s) = self.streams.get_mut(&flight.stream) else { return };
        let r = &mut s.ranks[flight.rank as usize];
        let batch = r.batches.get_mut(&flight.step).filter(|_| r.iter == flight.iter);
        let Some(piece) = batch.and_then(|b| b.pieces.get_mut(flight.piece as usize)) else { return };
        if piece.hedge == Some(ticket) {
            piece.hedge = None;
            piece.attempts -= 1;
            self.watch_again(flight, now);
        }
    }

    /// The second attempt of a piece is over, and the first still under way.
    pub(super) fn watch_again(&mut self, flight: Flight, now: Time) {
        let r = self.streams.get(&flight.stream).and_then(|s| s.ranks.get(flight.rank as usize));
        let batch = r.and_then(|r| r.batches.get(&flight.step));
        if let Some(State::Flying(first)) = batch.and_then(|b| Some(b.pieces.get(flight.piece as usize)?.state)) {
            self.watched.insert((now.saturating_add(LEAST), first));
        }
    }
}
