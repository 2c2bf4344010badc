//! Receiving from many lanes: four ways to wait, one way to look.
//!
//! | way | call | who waits | a message costs, beside the ring |
//! |---|---|---|---|
//! | polling | [`Receiver::try_recv`] | nobody: the caller comes again | no system call |
//! | blocking | [`Receiver::recv`] | the thread, in the kernel, after a spin | none while it is awake; two to be woken |
//! | timed | [`Receiver::recv_timeout`] | the same, for so long at most | the same |
//! | async | `AsyncReceiver::recv` (feature `tokio`) | the task, in the runtime's epoll | the same, shared with all tasks |
//!
//! An event loop of another kind (asyncio, io_uring) waits on [`super::bell::Sleeper::fd`] between
//! [`super::bell::Sleeper::park`] and [`super::bell::Sleeper::unpark`], as `AsyncSleeper` does.
//!
//! A lane that has given a message is *warm*: its bit in the hints stays set and its ring is looked at in turn, so that
//! neither side writes to the hints while messages flow. After 64 looks in vain, and before a sleep, it cools.
//!
//! Every way trusts the hints only as far as they go: each lane is looked at once every [`RELOOK`] whatever they say.
//! A lane whose ring is corrupt is reported once, with its number, and left alone from then on.

#[cfg(feature = "tokio")]
mod asynchronous;

use std::{
    collections::VecDeque,
    hint::spin_loop,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};

use super::{
    bell::{LANES, RELOOK, Sleeper},
    spsc::{Consumer, Corrupt, Words},
};

#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncError, AsyncReceiver, AsyncSleeper};

/// Messages that a lane gives before another one has its turn: enough that a turn costs little, few enough that a
/// lane which is never empty does not starve the others.
const TURN: u32 = 64;

/// Looks in vain after which a warm lane cools. Producers that write all the time are never so late; a lane that is
/// done costs its receiver little more than this many cache hits.
const PATIENCE: u32 = 64;

/// A lane's ring that can no longer be used. Whoever writes it is broken or hostile; the other lanes go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("lane {lane} is given up: {corrupt}")]
pub struct Broken {
    /// Its number.
    pub lane: usize,
    /// What was found.
    pub corrupt: Corrupt,
}

/// The rings of one consumer, each with the number of its lane, and which of them may have news.
struct Lanes {
    rings: Vec<Lane>,
    /// Where in `rings` a lane is.
    place: Vec<Option<u16>>,
    /// The warm ones, in the order of their turns.
    queue: VecDeque<u16>,
    /// What is left of the first one's turn.
    turn: u32,
    /// When all of them were last looked at, by a clock that ticks every few milliseconds and costs five nanoseconds.
    all: Duration,
}

struct Lane {
    number: usize,
    ring: Consumer,
    queued: bool,
    broken: bool,
    /// Looks in vain since it gave a message.
    vain: u32,
}

impl Lanes {
    fn new(rings: impl IntoIterator<Item = (usize, Consumer)>) -> Lanes {
        let lane = |(number, ring)| Lane { number, ring, queued: false, broken: false, vain: 0 };
        let rings: Vec<Lane> = rings.into_iter().map(lane).collect();
        let mut place = vec![None; LANES];
        for (i, lane) in rings.iter().enumerate() {
            assert!(lane.number < LANES, "lane {} has no bit in the hints", lane.number);
            let before = place[lane.number].replace(i as u16);
            assert!(before.is_none(), "lane {} has two rings", lane.number);
        }
        // The first look is at all of them.
        Lanes { queue: VecDeque::with_capacity(rings.len()), rings, place, turn: TURN, all: Duration::ZERO }
    }

    #[inline]
    fn try_recv(&mut self, sleeper: &Sleeper) -> Result<Option<(usize, Words)>, Broken> {
        loop {
            // Each warm lane once, the one whose turn it is first.
            for _ in 0..self.queue.len() {
                if self.turn == 0 {
                    self.look(sleeper);
                    self.rotate();
                }
                if let Some(message) = self.first(sleeper)? {
                    return Ok(Some(message));
                }
            }
            if !self.look(sleeper) {
                return Ok(None);
            }
        }
    }

    fn rotate(&mut self) {
        self.queue.rotate_left(1);
        self.turn = TURN;
    }

    /// The next message of the first warm lane. Without one another lane is the first, and this one may have cooled.
    #[inline]
    fn first(&mut self, sleeper: &Sleeper) -> Result<Option<(usize, Words)>, Broken> {
        let Some(&first) = self.queue.front() else { return Ok(None) };
        let lane = &mut self.rings[usize::from(first)];
        match lane.ring.pop() {
            Ok(Some(words)) => {
                self.turn -= 1;
                lane.vain = 0;
                Ok(Some((lane.number, words)))
            }
            Ok(None) => {
                lane.vain += 1;
                if lane.vain < PATIENCE || !lane.cool(sleeper) {
                    self.rotate();
                } else {
                    self.drop_first();
                }
                Ok(None)
            }
            Err(corrupt) => {
                lane.broken = true;
                let lane = lane.number;
                sleeper.forget(lane);
                self.drop_first();
                Err(Broken { lane, corrupt })
            }
        }
    }

    fn drop_first(&mut self) {
        if let Some(first) = self.queue.pop_front() {
            self.rings[usize::from(first)].queued = false;
        }
        self.turn = TURN;
    }

    /// Queues the lanes that claim news, and from time to time all. Whether there is one that was not queued.
    fn look(&mut self, sleeper: &Sleeper) -> bool {
        let before = self.queue.len();
        // A bit that is none of ours was set by a peer that is not honest.
        sleeper.watch(|number| self.place[number].is_some_and(|i| self.warm(i, 0)));
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).map_or(Duration::MAX, Duration::from);
        if now.saturating_sub(self.all) >= RELOOK {
            self.all = now;
            for i in 0..self.rings.len() {
                // Nothing claims that it has news: one look is enough.
                self.warm(i as u16, PATIENCE - 1);
            }
        }
        self.queue.len() > before
    }

    /// Queues lane `i` as one that was looked at in vain so often, if it is not queued; whether it is now.
    fn warm(&mut self, i: u16, vain: u32) -> bool {
        let lane = &mut self.rings[usize::from(i)];
        if !lane.queued && !lane.broken {
            (lane.queued, lane.vain) = (true, vain);
            self.queue.push_back(i);
        }
        lane.queued
    }

    /// Lets every lane cool, so that one can sleep. `false`: one of them has a message.
    fn cool(&mut self, sleeper: &Sleeper) -> bool {
        while let Some(&first) = self.queue.front() {
            if !self.rings[usize::from(first)].cool(sleeper) {
                return false;
            }
            self.drop_first();
        }
        true
    }
}

impl Lane {
    /// From now on its producer says when there is news. `false`: there is some already.
    fn cool(&mut self, sleeper: &Sleeper) -> bool {
        sleeper.forget(self.number);
        self.vain = 0;
        self.ring.is_empty()
    }
}

/// Receives from many lanes in a thread of its own.
pub struct Receiver {
    sleeper: Sleeper,
    lanes: Lanes,
    spin: Duration,
}

impl Receiver {
    /// Of the rings given, each with the number of its lane; producers ring `sleeper`'s bell. Before it sleeps it
    /// looks for `spin`: 20–50 µs where producers run on other cores, else zero.
    ///
    /// # Panics
    /// If a lane is not below [`LANES`], or has two rings.
    pub fn new(sleeper: Sleeper, rings: impl IntoIterator<Item = (usize, Consumer)>, spin: Duration) -> Receiver {
        Receiver { sleeper, lanes: Lanes::new(rings), spin }
    }

    /// The next message and its lane, if there is one.
    #[inline]
    pub fn try_recv(&mut self) -> Result<Option<(usize, Words)>, Broken> {
        self.lanes.try_recv(&self.sleeper)
    }

    /// The next message and its lane, however long it takes.
    pub fn recv(&mut self) -> Result<(usize, Words), Broken> {
        loop {
            if let Some(message) = self.try_recv()? {
                return Ok(message);
            }
            if let Some(message) = self.spin(self.spin)? {
                return Ok(message);
            }
            self.sleep(RELOOK);
        }
    }

    /// The next message and its lane, if one comes within `timeout`.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Option<(usize, Words)>, Broken> {
        // A limit that no clock reaches is none.
        let Some(until) = Instant::now().checked_add(timeout) else { return self.recv().map(Some) };
        loop {
            let message = self.try_recv()?;
            let left = until.saturating_duration_since(Instant::now());
            if message.is_some() || left.is_zero() {
                return Ok(message);
            }
            if let Some(message) = self.spin(self.spin.min(left))? {
                return Ok(Some(message));
            }
            self.sleep(left.min(RELOOK));
        }
    }

    /// Looks into the warm lanes for so long.
    fn spin(&mut self, long: Duration) -> Result<Option<(usize, Words)>, Broken> {
        if long.is_zero() {
            return Ok(None);
        }
        let until = Instant::now() + long;
        while Instant::now() < until {
            for _ in 0..16 {
                if let Some(message) = self.try_recv()? {
                    return Ok(Some(message));
                }
                spin_loop();
            }
        }
        Ok(None)
    }

    fn sleep(&mut self, limit: Duration) {
        if self.lanes.cool(&self.sleeper) {
            self.sleeper.wait(limit, Duration::ZERO);
        }
    }
}

#[cfg(test)]
mod tests;
