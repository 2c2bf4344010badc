//! The workers: who holds what, and when each is expected to be free.

use std::collections::{BTreeMap, BTreeSet};

use crate::sched::event::{ServerId, TicketId, Time, WorkerId};

/// Tickets that a worker holds at most: the one it decodes, and the next, whose reads are in flight.
pub(super) const DEPTH: usize = 2;

/// A ticket that a worker holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub ticket: TicketId,
    /// Expected nanoseconds.
    pub expected: u64,
    /// Nanoseconds that it will hardly exceed.
    pub safe: u64,
}

/// A worker that can be given its next ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Single {
    pub worker: WorkerId,
    pub server: ServerId,
    /// When it is expected to be free.
    pub free: Time,
    /// When it will hardly not be.
    pub latest: Time,
}

/// A worker.
#[derive(Debug)]
struct Worker {
    server: ServerId,
    /// In the order they were given.
    tickets: Vec<Held>,
    /// When it began the first of them.
    begun: Time,
    /// Counts assignments and endings: who has been in its state longest has the least.
    turn: u64,
}

impl Worker {
    fn free(&self) -> Time {
        self.tickets.iter().fold(self.begun, |t, held| t.saturating_add(held.expected))
    }

    fn latest(&self) -> Time {
        self.tickets.iter().fold(self.begun, |t, held| t.saturating_add(held.safe))
    }
}

/// The workers of one server.
#[derive(Debug, Default)]
struct Server {
    count: u64,
    idle: BTreeSet<WorkerId>,
    busy: BTreeSet<(Time, WorkerId)>,
}

/// All workers, indexed by what is asked about them.
#[derive(Debug, Default)]
pub(super) struct Workers {
    all: BTreeMap<WorkerId, Worker>,
    servers: BTreeMap<ServerId, Server>,
    idle_by_turn: BTreeSet<(u64, WorkerId)>,
    single_by_free: BTreeSet<(Time, WorkerId)>,
    single_by_turn: BTreeSet<(u64, WorkerId)>,
    turns: u64,
    /// Most that may be at work; 0 for all.
    limit: usize,
}

impl Workers {
    /// Adds a worker. False if it is there already.
    pub(super) fn up(&mut self, id: WorkerId, server: ServerId) -> bool {
        if self.all.contains_key(&id) {
            return false;
        }
        self.turns += 1;
        self.all.insert(id, Worker { server, tickets: Vec::new(), begun: 0, turn: self.turns });
        self.servers.entry(server).or_default().count += 1;
        self.index(id);
        true
    }

    /// Removes a worker and answers the tickets it held.
    pub(super) fn down(&mut self, id: WorkerId) -> Vec<TicketId> {
        self.unindex(id);
        let Some(worker) = self.all.remove(&id) else { return Vec::new() };
        if let Some(server) = self.servers.get_mut(&worker.server) {
            server.count -= 1;
            if server.count == 0 {
                self.servers.remove(&worker.server);
            }
        }
        worker.tickets.into_iter().map(|held| held.ticket).collect()
    }

    /// Gives a worker a ticket behind what it holds.
    pub(super) fn give(&mut self, id: WorkerId, ticket: Held, now: Time) {
        self.change(id, |worker| {
            if worker.tickets.is_empty() {
                worker.begun = now;
            }
            worker.tickets.push(ticket);
        });
    }

    /// Takes back a ticket that has ended.
    pub(super) fn end(&mut self, id: WorkerId, ticket: TicketId, now: Time) {
        self.change(id, |worker| {
            worker.tickets.retain(|held| held.ticket != ticket);
            worker.begun = now;
        });
    }

    /// When a worker has taken twice what its tickets should hardly exceed.
    pub(super) fn overdue(&self, id: WorkerId) -> Time {
        let Some(worker) = self.all.get(&id) else { return 0 };
        worker.latest().saturating_add(worker.latest().saturating_sub(worker.begun))
    }

    fn change(&mut self, id: WorkerId, how: impl FnOnce(&mut Worker)) {
        self.unindex(id);
        self.turns += 1;
        if let Some(worker) = self.all.get_mut(&id) {
            how(worker);
            worker.turn = self.turns;
        }
        self.index(id);
    }

    fn index(&mut self, id: WorkerId) {
        let Some(worker) = self.all.get(&id) else { return };
        let server = self.servers.entry(worker.server).or_default();
        match worker.tickets.len() {
            0 => {
                server.idle.insert(id);
                self.idle_by_turn.insert((worker.turn, id));
            }
            n => {
                server.busy.insert((worker.free(), id));
                if n < DEPTH {
                    self.single_by_free.insert((worker.free(), id));
                    self.single_by_turn.insert((worker.turn, id));
                }
            }
        }
    }

    fn unindex(&mut self, id: WorkerId) {
        let Some(worker) = self.all.get(&id) else { return };
        if let Some(server) = self.servers.get_mut(&worker.server) {
            server.idle.remove(&id);
            server.busy.remove(&(worker.free(), id));
        }
        self.idle_by_turn.remove(&(worker.turn, id));
        self.single_by_free.remove(&(worker.free(), id));
        self.single_by_turn.remove(&(worker.turn, id));
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// How many may be at work at once.
    pub(super) fn usable(&self) -> usize {
        if self.limit == 0 { self.all.len() } else { self.limit.min(self.all.len()) }
    }

    /// From now on no more than so many are given work while they are idle; 0 for all.
    pub(super) fn limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Whether one that is idle may be given work.
    fn may_wake(&self) -> bool {
        self.all.len() - self.idle_by_turn.len() < self.usable()
    }

    pub(super) fn contains(&self, id: WorkerId) -> bool {
        self.all.contains_key(&id)
    }

    /// Tickets that the worker holds.
    pub(super) fn held(&self, id: WorkerId) -> usize {
        self.all.get(&id).map_or(0, |w| w.tickets.len())
    }

    pub(super) fn server(&self, id: WorkerId) -> Option<ServerId> {
        self.all.get(&id).map(|w| w.server)
    }

    /// Each server with the number of its workers, and of those that are idle.
    pub(super) fn counts(&self) -> impl Iterator<Item = (ServerId, u64, usize)> {
        self.servers.iter().map(|(id, server)| (*id, server.count, server.idle.len()))
    }

    /// An idle worker of this server.
    pub(super) fn idle_on(&self, server: ServerId) -> Option<WorkerId> {
        if !self.may_wake() {
            return None;
        }
        self.servers.get(&server)?.idle.first().copied()
    }

    /// Servers with idle workers, each with one of them.
    pub(super) fn idle(&self) -> impl Iterator<Item = (ServerId, WorkerId)> {
        let some = self.servers.iter().filter(|_| self.may_wake());
        some.filter_map(|(id, server)| Some((*id, *server.idle.first()?)))
    }

    /// As [`Workers::idle`], as workers that are free now; the server that has most idle ones comes first.
    pub(super) fn idle_singles(&self, now: Time) -> impl Iterator<Item = Single> {
        let mut servers: Vec<_> = self.idle().collect();
        servers.sort_by_key(|(id, _)| std::cmp::Reverse(self.servers.get(id).map_or(0, |s| s.idle.len())));
        servers.into_iter().map(move |(server, worker)| Single { worker, server, free: now, latest: now })
    }

    /// When the first worker of a server is expected to be free. One that takes longer than was expected takes as long
    /// again, for all that is known; so that one that is stuck is less and less counted on.
    pub(super) fn next_free(&self, server: ServerId, now: Time) -> Option<Time> {
        let server = self.servers.get(&server)?;
        if !server.idle.is_empty() {
            return Some(now);
        }
        let overdue = server.busy.range(..(now, WorkerId(0))).filter_map(|(_, id)| self.all.get(id));
        let again = overdue.map(|w| now.saturating_add(now.saturating_sub(w.begun)));
        again.chain(server.busy.range((now, WorkerId(0))..).next().map(|(free, _)| *free)).min()
    }

    /// An idle worker of the server that has most.
    pub(super) fn idlest(&self) -> Option<WorkerId> {
        if self.may_wake() { self.spare() } else { None }
    }

    /// As [`Workers::idlest`], even if no more may be at work: for what a worker is stuck in.
    pub(super) fn spare(&self) -> Option<WorkerId> {
        // The first of equals: `max_by_key` alone would take the last.
        let server = self.servers.values().rev().max_by_key(|s| s.idle.len())?;
        server.idle.first().copied()
    }

    /// The worker that has been idle longest.
    pub(super) fn longest_idle(&self) -> Option<WorkerId> {
        self.idle_by_turn.first().map(|(_, id)| *id).filter(|_| self.may_wake())
    }

    /// Of the workers with room for a next ticket, the one whose present ticket was given first.
    pub(super) fn longest_single(&self) -> Option<WorkerId> {
        self.single_by_turn.first().map(|(_, id)| *id)
    }

    /// Workers with room for a next ticket that are expected to be free within these times, the soonest first.
    /// One that is overdue is never among them if `from` is now: nobody knows when it will be free.
    pub(super) fn singles(&self, from: Time, to: Time) -> impl Iterator<Item = Single> {
        let range = self.single_by_free.range((from, WorkerId(0))..=(to, WorkerId(u16::MAX)));
        range.filter_map(|&(free, worker)| {
            let w = self.all.get(&worker)?;
            Some(Single { worker, server: w.server, free, latest: w.latest() })
        })
    }

    /// When the first worker of a server is expected to be free, and how many it has.
    pub(super) fn outlook(&self, server: ServerId, now: Time) -> Option<(Time, u64)> {
        let server = self.servers.get(&server)?;
        let free = if server.idle.is_empty() { server.busy.first().map_or(now, |(t, _)| (*t).max(now)) } else { now };
        // Of those that may be at work the server has its share.
        let usable = (server.count * self.usable() as u64).div_ceil(self.all.len().max(1) as u64);
        Some((free, usable))
    }

    /// The workers that serve a rank when each rank has workers of its own: worker `w` belongs to rank `w mod
    /// world`. A rank that has none so shares one of the others': the `rank mod workers`-th.
    pub(super) fn own(&self, rank: u32, world: u32) -> Vec<WorkerId> {
        let last = self.all.last_key_value().map_or(0, |(id, _)| u32::from(id.0));
        let mine = (rank..=last).step_by(world.max(1) as usize).filter_map(|w| u16::try_from(w).ok().map(WorkerId));
        let mine: Vec<_> = mine.filter(|w| self.contains(*w)).collect();
        if !mine.is_empty() || self.all.is_empty() {
            return mine;
        }
        self.all.keys().nth(rank as usize % self.all.len()).copied().into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(n: u16) -> Workers {
        let mut workers = Workers::default();
        for w in 0..n {
            assert!(workers.up(WorkerId(w), ServerId(w % 2)));
        }
        workers
    }

    #[test]
    fn each_rank_has_workers_of_its_own() {
        let own = |n, rank, world| workers(n).own(rank, world).iter().map(|w| w.0).collect::<Vec<_>>();
        assert_eq!(own(8, 1, 3), [1, 4, 7]);
        assert_eq!(own(8, 2, 3), [2, 5]);
        // Fewer workers than ranks: worker w serves the ranks that leave w when divided by their number.
        assert_eq!(own(2, 0, 5), [0]);
        assert_eq!(own(2, 3, 5), [1]);
        assert_eq!(own(2, 4, 5), [0]);
        assert!(own(0, 0, 2).is_empty());
    }

    #[test]
    fn no_more_are_woken_than_may_be_at_work() {
        let mut w = workers(4);
        w.limit(2);
        let held = |ticket| Held { ticket: TicketId(ticket), expected: 50, safe: 80 };
        w.give(WorkerId(0), held(1), 100);
        assert!(w.idle_on(ServerId(0)).is_some() && w.idle().count() == 2);
        w.give(WorkerId(1), held(2), 100);
        assert_eq!((w.idle_on(ServerId(0)), w.idlest(), w.longest_idle(), w.idle().count()), (None, None, None, 0));
        assert!(w.spare().is_some());
        assert_eq!(w.outlook(ServerId(0), 0).map(|(_, count)| count), Some(1));
        w.end(WorkerId(0), TicketId(1), 150);
        assert_eq!(w.idlest(), Some(WorkerId(0)));
        w.limit(0);
        assert_eq!(w.usable(), 4);
    }

    #[test]
    fn the_indexes_follow() {
        let mut w = workers(3);
        let held = |ticket| Held { ticket: TicketId(ticket), expected: 50, safe: 80 };
        let single = |free, latest| Single { worker: WorkerId(0), server: ServerId(0), free, latest };
        w.give(WorkerId(0), held(1), 100);
        assert_eq!(w.longest_idle(), Some(WorkerId(1)));
        assert_eq!(w.singles(100, 150).next(), Some(single(150, 180)));
        assert_eq!(w.singles(151, 900).next(), None, "overdue");
        assert_eq!(w.idle_on(ServerId(0)), Some(WorkerId(2)));
        w.give(WorkerId(0), held(2), 110);
        assert_eq!(w.singles(100, 900).next(), None);
        w.end(WorkerId(0), TicketId(1), 140);
        assert_eq!(w.singles(100, 900).next(), Some(single(190, 220)));
        assert_eq!(w.outlook(ServerId(0), 140), Some((140, 2)));
        assert_eq!(w.down(WorkerId(0)), [TicketId(2)]);
        assert_eq!(w.down(WorkerId(0)), []);
        assert!(w.single_by_free.is_empty() && w.single_by_turn.is_empty());
        assert_eq!(w.idlest(), Some(WorkerId(2)));
    }
}
