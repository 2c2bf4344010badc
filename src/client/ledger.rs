//! The rank's private account of the blocks it holds, and the only place that sends a Release.
//!
//! A block comes in with its Batch message and goes out when its [`Lease`] is dropped, wherever that happens: in
//! the table when an iteration is abandoned, in the queue, or on a user's thread much later. Hence exactly one
//! Release a block. While there is no daemon a block that goes is merely forgotten; what remains is what the rank
//! states as `held` when it joins the next one.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Zeroable;

use crate::proto::handover::{Dealt, Disagreement, Known};
use crate::proto::message::{Body, Feedback, Head, Words, kind};
use crate::proto::session::Lent;
use crate::ring::spsc::Corrupt;

/// Where feedback goes: the ring to the daemon, or a list in a test.
pub(crate) trait Outlet: Send {
    /// Publishes a message and wakes the daemon if it sleeps. `Ok(false)` when there is no room now, an error when
    /// the ring is broken.
    fn push(&mut self, words: &Words) -> Result<bool, Corrupt>;
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub(crate) fn monotonic() -> u64 {
    // The call cannot fail on Linux with this clock.
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

/// What a rank states when it joins a daemon.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// The blocks of its own slab: (grant, offset, length).
    pub(crate) blocks: Vec<(u32, u64, u64)>,
    /// What it reads of other ranks' slabs.
    pub(crate) loans: Vec<Lent>,
    /// How steps were balanced after decoding; empty if none was.
    pub(crate) steps: Vec<u8>,
}

/// A block that overlaps one that the rank still holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overlap {
    /// The grant of the block that is in the way.
    pub(crate) with: u32,
}

/// See the head of the file.
pub(crate) struct Ledger {
    inner: Mutex<Inner>,
    pid: u32,
}

#[derive(Default)]
struct Inner {
    line: Line,
    /// Counts the daemons joined: a block or a step of an earlier one is told apart by it.
    generation: u32,
    /// By offset; no two overlap.
    blocks: BTreeMap<u64, Block>,
    /// What found the ring full, or fell between Join and Opened.
    backlog: VecDeque<Feedback>,
    broken: Option<Corrupt>,
    /// What is read of other ranks' slabs, by the number of the loan.
    loans: BTreeMap<u64, Lent>,
    next_loan: u64,
    /// How steps were balanced after decoding.
    known: Known,
    /// Kept open as long as there are loans, when the rank has left: its end gives them back.
    open: Option<Box<dyn Any + Send>>,
    copied: u64,
    /// How much of `copied` the daemon knows.
    copied_told: u64,
}

#[derive(Default)]
enum Line {
    /// No daemon.
    #[default]
    Down,
    /// The held blocks were stated in a Join that is not answered yet.
    Joining,
    /// Joined.
    Up { session: u16, outlet: Box<dyn Outlet> },
}

struct Block {
    len: u64,
    id: Grant,
}

/// What a Release and a StepEnd name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) grant: u32,
    pub(crate) iter: u32,
    pub(crate) step: u32,
    generation: u32,
}

impl Ledger {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Ledger { inner: Mutex::default(), pid: std::process::id() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No step below can panic half-way, so a poisoned lock still guards a whole account.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a block in; its lease gives it back.
    pub(crate) fn take(
        self: &Arc<Self>,
        (offset, len): (u64, u64),
        (grant, iter, step): (u32, u32, u32),
    ) -> Result<Lease, Overlap> {
        let mut inner = self.lock();
        let before = inner.blocks.range(..=offset).next_back().filter(|(o, b)| **o + b.len > offset);
        let behind = || inner.blocks.range(offset..).next().filter(|(o, _)| **o < offset + len);
        if let Some((_, block)) = before.or_else(behind) {
            return Err(Overlap { with: block.id.grant });
        }
        let id = Grant { grant, iter, step, generation: inner.generation };
        inner.blocks.insert(offset, Block { len, id });
        Ok(Lease { ledger: Arc::clone(self), offset, id, wait_ns: 0 })
    }

    /// Takes in a block of another rank's slab of which this rank reads now.
    pub(crate) fn borrow(self: &Arc<Self>, lent: Lent) -> Loan {
        let mut inner = self.lock();
        let number = inner.next_loan;
        inner.next_loan += 1;
        inner.loans.insert(number, lent);
        Loan { ledger: Arc::clone(self), number }
    }

    fn give_back(&self, number: u64) {
        if self.pid != std::process::id() {
            return;
        }
        let mut inner = self.lock();
        let Some(Lent { rank, grant, .. }) = inner.loans.remove(&number) else { return };
        if inner.loans.is_empty() {
            inner.open = None;
        }
        if matches!(inner.line, Line::Down) {
            return;
        }
        let id = Grant { grant, iter: 0, step: 0, generation: inner.generation };
        crate::crash::point("return.unsaid");
        inner.send(Feedback { also: rank, ..feedback(kind::RETURN, id) });
        crate::crash::point("return.said");
    }

    /// The rank leaves: what it has borrowed is given back by the end of this, when the last of it is let go.
    pub(crate) fn keep_open(&self, line: Box<dyn Any + Send>) {
        let mut inner = self.lock();
        inner.open = (!inner.loans.is_empty()).then_some(line);
    }

    /// Remembers how a step was balanced.
    pub(crate) fn learn(&self, epoch: u32, step: u32, dealt: Arc<Dealt>) -> Result<(), Disagreement> {
        self.lock().known.learn(epoch, step, dealt)
    }

    /// Says that the step which used a batch has ended. Steps of a daemon that is gone interest nobody.
    pub(crate) fn step_end(&self, id: Grant, wait_ns: u64, busy_ns: u64, plan: u32) {
        let mut inner = self.lock();
        if id.generation == inner.generation {
            let body = Feedback { wait_ns, busy_ns, also: plan, ..feedback(kind::STEP_END, id) };
            inner.send(body);
        }
    }

    /// Counts bytes that the host copied after decoding.
    pub(crate) fn copied(&self, bytes: u64) {
        self.lock().copied += bytes;
    }

    /// All bytes counted by [`Self::copied`].
    pub(crate) fn copied_total(&self) -> u64 {
        self.lock().copied
    }

    /// The daemon is gone, or the session is over: from now on blocks are forgotten without a word.
    pub(crate) fn down(&self) {
        let mut inner = self.lock();
        inner.line = Line::Down;
        inner.backlog.clear();
    }

    /// What to state in a Join. From here to [`Self::up`] releases are kept.
    pub(crate) fn joining(&self) -> Held {
        let mut inner = self.lock();
        inner.line = Line::Joining;
        inner.backlog.clear();
        inner.generation += 1;
        let blocks = inner.blocks.iter().map(|(offset, b)| (b.id.grant, *offset, b.len)).collect();
        Held { blocks, loans: inner.loans.values().copied().collect(), steps: inner.known.state() }
    }

    /// The session is open; releases go to `outlet`.
    pub(crate) fn up(&self, session: u16, outlet: Box<dyn Outlet>) {
        let mut inner = self.lock();
        (inner.line, inner.broken) = (Line::Up { session, outlet }, None);
        inner.flush();
    }

    /// Tries again what found no room; says whether anything is left.
    pub(crate) fn flush(&self) -> Result<bool, Corrupt> {
        let mut inner = self.lock();
        inner.flush();
        inner.broken.map_or(Ok(!inner.backlog.is_empty()), Err)
    }

    fn release(&self, offset: u64, wait_ns: u64) {
        if self.pid != std::process::id() {
            return; // a fork()ed child owns nothing, and its copy of the lock may be held for ever
        }
        let mut inner = self.lock();
        let Some(block) = inner.blocks.remove(&offset) else { return };
        if matches!(inner.line, Line::Down) {
            return;
        }
        // Only the number of a block brought along from an earlier daemon means anything to this one.
        let mut id = block.id;
        if id.generation != inner.generation {
            (id.iter, id.step) = (0, 0);
        }
        crate::crash::point("release.unsaid");
        inner.send(Feedback { wait_ns, ..feedback(kind::RELEASE, id) });
        crate::crash::point("release.said");
    }
}

fn feedback(kind: u16, id: Grant) -> Feedback {
    let head = Head { kind, session: 0, attempt: 0, slot: 0 };
    Feedback { head, grant: id.grant, iter: id.iter, step: id.step, at: monotonic(), ..Feedback::zeroed() }
}

impl Inner {
    fn send(&mut self, mut body: Feedback) {
        body.copied = self.copied - self.copied_told;
        self.copied_told = self.copied;
        self.backlog.push_back(body);
        self.flush();
    }

    fn flush(&mut self) {
        let Line::Up { session, outlet } = &mut self.line else { return };
        while let Some(body) = self.backlog.front_mut() {
            body.head.session = *session;
            match outlet.push(&body.words()) {
                Ok(true) => self.backlog.pop_front(),
                Ok(false) => return,
                Err(corrupt) => {
                    self.broken = Some(corrupt);
                    return;
                }
            };
        }
    }
}

/// A block while someone in this process may read it. Dropping it sends the block's one Release.
pub(crate) struct Lease {
    ledger: Arc<Ledger>,
    offset: u64,
    id: Grant,
    wait_ns: u64,
}

impl Lease {
    pub(crate) fn id(&self) -> Grant {
        self.id
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Notes how long `next()` waited for the batch.
    pub(crate) fn waited(&mut self, ns: u64) {
        self.wait_ns = ns;
    }

    pub(crate) fn wait_ns(&self) -> u64 {
        self.wait_ns
    }
}

/// A block of another rank's slab while this process reads of it. Dropping it sends the one Return.
pub(crate) struct Loan {
    ledger: Arc<Ledger>,
    number: u64,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.ledger.give_back(self.number);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.ledger.release(self.offset, self.wait_ns);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A ring to nowhere with room for `room` messages.
    pub(crate) struct Listed {
        pub(crate) sender: mpsc::Sender<Feedback>,
        pub(crate) room: usize,
    }

    impl Outlet for Listed {
        fn push(&mut self, words: &Words) -> Result<bool, Corrupt> {
            let Some(room) = self.room.checked_sub(1) else { return Ok(false) };
            self.room = room;
            Ok(self.sender.send(Feedback::parse(words).unwrap()).is_ok())
        }
    }

    pub(crate) fn listed(room: usize) -> (Box<Listed>, mpsc::Receiver<Feedback>) {
        let (sender, receiver) = mpsc::channel();
        (Box::new(Listed { sender, room }), receiver)
    }

    fn opened(room: usize) -> (Arc<Ledger>, mpsc::Receiver<Feedback>) {
        let ledger = Ledger::new();
        assert_eq!(ledger.joining(), Held::default());
        let (outlet, sent) = listed(room);
        ledger.up(7, outlet);
        (ledger, sent)
    }

    #[test]
    fn a_lease_is_released_once() {
        let (ledger, sent) = opened(9);
        let mut lease = ledger.take((64, 64), (1, 2, 3)).unwrap();
        lease.waited(5);
        ledger.copied(11);
        drop(lease);
        let got: Vec<_> = sent.try_iter().collect();
        assert_eq!(got.len(), 1);
        let f = got[0];
        assert_eq!((f.head.kind, f.head.session), (kind::RELEASE, 7));
        assert_eq!((f.grant, f.iter, f.step, f.wait_ns, f.copied), (1, 2, 3, 5, 11));
        assert!(f.at > 0);
    }

    #[test]
    fn a_loan_is_given_back_once_and_stated_to_another_daemon() {
        let (ledger, sent) = opened(9);
        let lent = Lent { rank: 3, grant: 8, offset: 0, len: 64, slab: 77 };
        let (one, other) = (ledger.borrow(lent), ledger.borrow(lent));
        drop(one);
        let back = sent.try_iter().next().unwrap();
        assert_eq!((back.head.kind, back.grant, back.also), (kind::RETURN, 8, 3));
        ledger.down();
        assert_eq!(ledger.joining().loans, [lent]);
        drop(other);
        let (outlet, second) = listed(9);
        ledger.up(5, outlet);
        assert_eq!(second.try_iter().map(|f| (f.head.kind, f.grant)).collect::<Vec<_>>(), [(kind::RETURN, 8)]);
    }

    #[test]
    fn who_leaves_keeps_its_line_open_while_it_reads_of_others() {
        let (ledger, _sent) = opened(9);
        let (teller, told) = mpsc::channel::<()>();
        let loan = ledger.borrow(Lent { rank: 3, grant: 8, offset: 0, len: 64, slab: 77 });
        ledger.keep_open(Box::new(teller));
        ledger.down();
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty));
        drop(loan);
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Disconnected));
        let (teller, told) = mpsc::channel::<()>();
        ledger.keep_open(Box::new(teller));
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    }

    #[test]
    fn blocks_stand_apart() {
        let (ledger, _sent) = opened(9);
        let middle = ledger.take((100, 100), (1, 1, 0)).unwrap();
        for span in [(100, 100), (199, 1), (50, 51), (0, 500), (150, 10)] {
            assert_eq!(ledger.take(span, (2, 1, 1)).err(), Some(Overlap { with: 1 }), "{span:?}");
        }
        let _sides = (ledger.take((0, 100), (2, 1, 1)).unwrap(), ledger.take((200, 1), (3, 1, 2)).unwrap());
        drop(middle);
        assert!(ledger.take((100, 100), (4, 1, 3)).is_ok());
    }

    #[test]
    fn a_full_ring_delays_a_release_and_loses_none() {
        let (ledger, sent) = opened(1);
        drop((ledger.take((0, 1), (1, 1, 0)).unwrap(), ledger.take((1, 1), (2, 1, 1)).unwrap()));
        assert_eq!(sent.try_iter().map(|f| f.grant).collect::<Vec<_>>(), [1]);
        assert_eq!(ledger.flush(), Ok(true));
        let (outlet, sent) = listed(9);
        ledger.up(7, outlet);
        assert_eq!(ledger.flush(), Ok(false));
        assert_eq!(sent.try_iter().map(|f| f.grant).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn what_is_held_over_a_daemons_death_is_stated_and_released_to_its_successor() {
        let (ledger, first) = opened(9);
        let kept = ledger.take((0, 8), (5, 1, 4)).unwrap();
        let gone = ledger.take((8, 8), (6, 1, 5)).unwrap();
        let late = ledger.take((16, 8), (7, 1, 6)).unwrap();
        let step = late.id();
        ledger.down();
        drop(gone);
        assert_eq!(ledger.joining().blocks, [(5, 0, 8), (7, 16, 8)]);
        drop(late); // between Join and Opened: the new daemon believes that it is held
        let (outlet, second) = listed(9);
        ledger.up(3, outlet);
        ledger.step_end(step, 1, 1, 0); // a step of the dead one
        drop(kept);
        assert_eq!(first.try_iter().count(), 0);
        let got: Vec<_> = second.try_iter().map(|f| (f.head.kind, f.head.session, f.grant, f.iter, f.step)).collect();
        assert_eq!(got, [(kind::RELEASE, 3, 7, 0, 0), (kind::RELEASE, 3, 5, 0, 0)]);
    }
}
