//! Who takes the first sample of a queue.
//!
//! A sample is decoded on the server of its rank's slab, unless that server cannot do all that waits for it in time
//! and another one is done with it sooner, its way over included. A server whose own samples are late as well keeps to
//! them: two servers that help each other only send bytes, until one of them is steps behind. What is sent is, of
//! samples that are as urgent, the one with the most work for its bytes.

use super::Engine;
use super::dispatch::Head;
use super::queue::Backlog;
use super::rank::Site;
use super::workers::Single;
use crate::proto::options::Policy;
use crate::sched::event::{ServerId, StreamId, Time, WorkerId};

/// Least horizon, nanoseconds: what it takes to hear of an end and to answer it.
const LEAST_HORIZON: u64 = 2_000_000;

/// Steps that a server may be behind another one that is late too before that one helps it.
const LAG: u64 = 4;

/// Samples of a queue that are looked at for one to send.
const LOOK: usize = 16;

/// Whether a sample may be left to the server of its rank's slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// No: whoever would be done with it first is to take it.
    None,
    /// The rank's pace is not known yet: there is no telling, and it is left there.
    Unknown,
    /// Yes, until then: better one idle worker than pixels that cross the box.
    Until(Time),
}

impl Head {
    /// Earliest due first, then by stream; unknown dues last.
    pub(super) fn urgency(&self) -> (Time, StreamId) {
        (self.due.unwrap_or(Time::MAX), self.stream)
    }

    /// Whether it makes no difference which of the two goes first: they are of one step, for whose end all ranks wait, or
    /// the one has to begin before the other is expected to be done.
    fn is_as_urgent_as(&self, first: &Head) -> bool {
        let (mine, its) = (&self.key, &first.key);
        let alike = self.stream == first.stream && (mine.ahead, mine.fresh) == (its.ahead, its.fresh);
        alike && (mine.place == its.place || mine.start <= its.start.saturating_add(first.item.expected))
    }

    fn is_near(&self, server: ServerId) -> bool {
        self.site == Site::Server(server)
    }
}

impl Engine {
    /// Who is to take the first sample of a queue now, if anyone; it may be better to give that worker another one.
    pub(super) fn choose(&self, now: Time, head: &Head, heads: &[Head]) -> Option<(WorkerId, Head)> {
        if self.streams.get(&head.stream)?.run.policy == Policy::Pool {
            return Some((self.workers.longest_idle().or_else(|| self.workers.longest_single())?, *head));
        }
        let Site::Server(home) = head.site else { return None };
        if let Some(worker) = self.workers.idle_on(home) {
            return Some((worker, *head));
        }
        let near = |server| heads.iter().filter(move |h| h.is_near(server));
        if self.patience(now, head, home) == Patience::None {
            return self.help(now, head, home, heads);
        }
        let local = self.workers.idle().find_map(|(s, w)| Some((w, *near(s).next()?)));
        let next = || self.soon(now).find_map(|s| Some((s.worker, *near(s.server).find(|h| self.fits(&s, h))?)));
        local.or_else(next)
    }

    /// Workers that will be free within the horizon. Without one nobody is given work ahead, not even who is expected to be
    /// free at this very moment.
    pub(super) fn soon(&self, now: Time) -> impl Iterator<Item = Single> {
        let horizon = self.horizon();
        self.workers.singles(now, now.saturating_add(horizon)).filter(move |_| horizon > 0)
    }

    /// A ticket must not be caught behind one that may take much longer than expected, unless there is time.
    fn fits(&self, s: &Single, h: &Head) -> bool {
        let in_time = |due| s.latest.saturating_add(h.item.safe) <= due;
        s.latest - s.free <= self.horizon() || h.due.is_some_and(in_time)
    }

    /// Who takes a sample that its own server cannot make in time, or something of their own that is as late.
    fn help(&self, now: Time, head: &Head, home: ServerId, heads: &[Head]) -> Option<(WorkerId, Head)> {
        let mut idle: Vec<Single> = self.workers.idle_singles(now).collect();
        // Who is done first, far ones with the way; of equals the server that has most idle workers.
        idle.sort_by_key(|s| self.arrival(now, s, head, home));
        idle.into_iter().chain(self.soon(now)).find_map(|helper| {
            let Single { worker, server, .. } = helper;
            if server == home {
                return self.fits(&helper, head).then_some((worker, *head));
            }
            let own = heads.iter().find(|h| h.is_near(server));
            if let Some(own) = own.filter(|own| own.is_as_urgent_as(head) || !self.spares(now, own, server, head)) {
                return self.fits(&helper, own).then_some((worker, *own));
            }
            if !self.fits(&helper, head) {
                return None;
            }
            Some((worker, self.worth_sending(now, head, home, &helper)?))
        })
    }

    /// Whether a server can leave its own first sample for another's.
    fn spares(&self, now: Time, own: &Head, server: ServerId, other: &Head) -> bool {
        let behind = own.key.place.saturating_sub(other.key.place) > LAG;
        own.stream != other.stream || behind || self.patience(now, own, server) != Patience::None
    }

    /// The sample of a queue that a worker of another server is to make: the one with the most work for its bytes of
    /// those that are as urgent as the first. None, if the server itself is done with all that waits before that.
    fn worth_sending(&self, now: Time, head: &Head, home: ServerId, helper: &Single) -> Option<Head> {
        let s = self.streams.get(&head.stream)?;
        let backlog = s.shared.get(&home)?;
        let alone = self.alone(now, backlog, head, home);
        let sooner = |h: &Head| alone.is_none_or(|alone| self.arrival(now, helper, h, home) < alone);
        let heads = backlog.iter().take(LOOK).map(|(key, item)| Head { key, item, ..*head });
        let worth = |h: &Head| h.item.expected as f64 / h.item.bytes.max(1) as f64;
        let best = heads.filter(|h| h.is_as_urgent_as(head) && sooner(h));
        // The first of equals.
        best.reduce(|best, h| if worth(&h) > worth(&best) { h } else { best })
    }

    /// When a server's own workers are expected to have made all that waits for them; `None` if it has none.
    fn alone(&self, now: Time, backlog: &Backlog, head: &Head, home: ServerId) -> Option<Time> {
        let free = self.workers.next_free(home, now)?;
        let (_, workers) = self.workers.outlook(home, now)?;
        let work = (backlog.work() / workers.max(1)).max(head.item.expected);
        Some(free.saturating_add((work as f64 * self.decode.slowness(home)) as u64))
    }

    /// When a sample would be in its rank's memory if this worker made it.
    fn arrival(&self, now: Time, worker: &Single, head: &Head, home: ServerId) -> Time {
        let Single { server, free, .. } = *worker;
        let made = free.saturating_add((head.item.expected as f64 * self.decode.slowness(server)) as u64);
        self.transfer.arrival((server, home), head.item.bytes, now, made)
    }

    /// Whether a sample can be left to the workers of its rank's server: if they can do all that waits for them
    /// before even the first of it has to begin. With less in hand nobody may stand idle, or a lead once lost would never
    /// be won back where decoding is the bottleneck.
    pub(super) fn patience(&self, now: Time, head: &Head, home: ServerId) -> Patience {
        let Some((free, workers)) = self.workers.outlook(home, now) else { return Patience::None };
        let Some(due) = head.due else {
            return if head.key.ahead { Patience::Unknown } else { Patience::None };
        };
        let Some(s) = self.streams.get(&head.stream) else { return Patience::None };
        let waiting = s.shared.get(&home).map_or(0, Backlog::work);
        // A quarter more, as workers never share work evenly.
        let share = waiting.saturating_add(waiting / 4) / workers.max(1);
        let done = free.saturating_add(share).saturating_add(head.item.safe);
        due.checked_sub(done).map_or(Patience::None, |slack| Patience::Until(now.saturating_add(slack)))
    }

    pub(super) fn horizon(&self) -> u64 {
        (LEAST_HORIZON + 2 * self.decode.read()).min(self.options.horizon)
    }
}
