//! Receiving from many lanes: four ways to wait, one way to look.
//!
//! | way | call | who waits | a message costs, beside the ring |
//! |---|---|---|---|
//! | polling | [`Receiver::try_recv`] | nobody: the caller comes again | no system call |
//! | blocking | [`Receiver::recv`] | the thread, in the kernel, after a spin | none while it is awake; four to be woken |
//! | timed | [`Receiver::recv_timeout`] | the same, for so long at most | the same |
//! | async | `AsyncReceiver::recv` (feature `tokio`) | the task, in the runtime's epoll | the same, shared with all tasks |
//!
//! An event loop of another kind (asyncio, io_uring) waits on [`super::bell::Sleeper::fd`] between
//! [`super::bell::Sleeper::park`] and [`super::bell::Sleeper::unpark`], as `AsyncSleeper` does.
//!
//! Every way trusts the hints only as far as they go: each lane is looked at once every [`RELOOK`] whatever they say.
//! A lane whose ring is corrupt is reported once, with its number, and left alone from then on.

#[cfg(feature = "tokio")]
mod asynchronous;

use std::{
    collections::VecDeque,
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
    /// Those that may have news, in the order of their turns.
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
}

impl Lanes {
    fn new(rings: impl IntoIterator<Item = (usize, Consumer)>) -> Lanes {
        let lane = |(number, ring)| Lane { number, ring, queued: false, broken: false };
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
            while let Some(&first) = self.queue.front() {
                if self.turn == 0 {
                    self.look(sleeper);
                    self.queue.rotate_left(1);
                    self.turn = TURN;
                    continue;
                }
                let lane = &mut self.rings[usize::from(first)];
                let popped = lane.ring.pop();
                if let Ok(Some(words)) = popped {
                    self.turn -= 1;
                    return Ok(Some((lane.number, words)));
                }
                lane.queued = false;
                let number = lane.number;
                lane.broken = popped.is_err();
                self.queue.pop_front();
                self.turn = TURN;
                if let Err(corrupt) = popped {
                    return Err(Broken { lane: number, corrupt });
                }
            }
            self.look(sleeper);
            if self.queue.is_empty() {
                return Ok(None);
            }
        }
    }

    /// Queues the lanes that claim news, and from time to time all.
    fn look(&mut self, sleeper: &Sleeper) {
        sleeper.take(|number| {
            // A bit that is none of ours was set by a peer that is not honest.
            if let Some(i) = self.place[number] {
                Lanes::queue(&mut self.queue, &mut self.rings[usize::from(i)], i);
            }
        });
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).map_or(Duration::MAX, Duration::from);
        if now.saturating_sub(self.all) >= RELOOK {
            self.all = now;
            for (i, lane) in self.rings.iter_mut().enumerate() {
                Lanes::queue(&mut self.queue, lane, i as u16);
            }
        }
    }

    fn queue(queue: &mut VecDeque<u16>, lane: &mut Lane, i: u16) {
        if !lane.queued && !lane.broken {
            lane.queued = true;
            queue.push_back(i);
        }
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
            self.sleeper.wait(RELOOK, self.spin);
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
            self.sleeper.wait(left.min(RELOOK), self.spin);
        }
    }
}

#[cfg(test)]
mod tests;
