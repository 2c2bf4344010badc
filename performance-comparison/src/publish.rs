//! What a producer pays to publish to a consumer that is awake, beside the least that it could pay: to store a flag,
//! to fence, and to look whether anybody sleeps.
//!
//! Either is timed in runs of [`RUN`], between which the consumer catches up: so nobody waits for room. The consumer
//! is on the other core and looks all the time (`busy`), or it is this thread and looks between the runs (`idle`).

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use helix_shm::ring::bell::{Ringer, Sleeper};
use helix_shm::ring::receive::Receiver;
use helix_shm::ring::segment::Segment;
use helix_shm::ring::spsc::{Consumer, Producer};

use crate::ends::{is_message, message};
use crate::poll::poll;
use crate::shared::{CAPACITY, Shared, ring_at, word};
use crate::windows::Windows;

const RUN: u64 = 64;
const LANE: usize = 3;
/// The child's ring, and ours for when nobody looks.
const RINGS: [usize; 2] = [10, 11];
const ENTRIES: [usize; 2] = [2, 3];

/// How a run is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumes {
    /// The other process, all the time.
    Busy,
    /// This thread, between the runs.
    Idle,
}

/// The producer's side, and the consumer for when it is idle.
pub struct Publisher {
    words: Arc<Segment>,
    busy: (Producer, Ringer),
    idle: (Producer, Ringer),
    here: Taker,
}

/// The consumer.
pub struct Taker {
    words: Arc<Segment>,
    lanes: Receiver,
}

fn ringer(shared: &Shared, which: usize) -> std::io::Result<Ringer> {
    Ringer::new(shared.hints.clone(), ENTRIES[which], shared.publish_bell()?.into()).map_err(std::io::Error::other)
}

fn producer(shared: &Shared, which: usize) -> std::io::Result<Producer> {
    Producer::fresh(shared.words.clone(), ring_at(RINGS[which]), CAPACITY).map_err(std::io::Error::other)
}

impl Taker {
    fn new(shared: &Shared, which: usize) -> std::io::Result<Taker> {
        let ring = Consumer::new(shared.words.clone(), ring_at(RINGS[which]), CAPACITY);
        let sleeper = Sleeper::new(shared.hints.clone(), ENTRIES[which], shared.publish_bell()?.into());
        Ok(Taker {
            words: shared.words.clone(),
            lanes: Receiver::new(
                sleeper.map_err(std::io::Error::other)?,
                [(LANE, ring.map_err(std::io::Error::other)?)],
                Duration::ZERO,
            ),
        })
    }

    /// The other process's.
    pub fn other(shared: &Shared) -> std::io::Result<Taker> {
        Taker::new(shared, 0)
    }

    /// Takes `n` messages, through the receiver that everybody uses.
    pub fn take(&mut self, n: u64) {
        for taken in 0..n {
            let (_, words) = poll(|| self.lanes.try_recv().expect("the other side is honest"));
            assert!(is_message(&words, taken));
            if (taken + 1) % RUN == 0 || taken + 1 == n {
                self.words.word(word::TAKEN).store(taken + 1, Ordering::Release);
            }
        }
        // It finds the ring empty, and says so to the producer.
        assert_eq!(self.lanes.try_recv(), Ok(None));
    }

    /// Looks at the flag until it has been stored `n` times.
    pub fn watch(&self, n: u64) {
        let mut seen = 0;
        while seen < n {
            seen = poll(|| {
                let found = self.words.word(word::FLAG).load(Ordering::Acquire);
                (found != seen && found <= n).then_some(found)
            });
            self.words.word(word::TAKEN).store(seen, Ordering::Release);
        }
    }
}

impl Publisher {
    /// For the process that measures.
    pub fn new(shared: &Shared) -> std::io::Result<Publisher> {
        Ok(Publisher {
            words: shared.words.clone(),
            busy: (producer(shared, 0)?, ringer(shared, 0)?),
            idle: (producer(shared, 1)?, ringer(shared, 1)?),
            here: Taker::new(shared, 1)?,
        })
    }

    /// Publishes `n` messages, whole runs; nanoseconds of the publishing itself.
    pub fn publish(&mut self, n: u64, consumes: Consumes) -> f64 {
        let (producer, ringer) = if consumes == Consumes::Busy { &mut self.busy } else { &mut self.idle };
        let mut windows = Windows::new(n, RUN);
        for first in (0..n).step_by(RUN as usize) {
            let end = n.min(first + RUN);
            windows.restart();
            for i in first..end {
                producer.push(&message(i)).expect("room for a run");
                ringer.ring(LANE);
                windows.done(i);
            }
            match consumes {
                Consumes::Busy => self.words.await_taken(end),
                Consumes::Idle => {
                    for i in first..end {
                        assert_eq!(self.here.lanes.try_recv(), Ok(Some((LANE, message(i)))));
                    }
                    // It has found the ring empty, and says so to the producer.
                    assert_eq!(self.here.lanes.try_recv(), Ok(None));
                }
            }
        }
        self.words.word(word::TAKEN).store(0, Ordering::Release);
        windows.median()
    }

    /// Stores the flag `n` times, each with a fence and a look at who sleeps; nanoseconds of one.
    pub fn flag(&mut self, n: u64, consumes: Consumes) -> f64 {
        let (flag, parked) = (self.words.word(word::FLAG), self.words.word(word::PARKED));
        let mut windows = Windows::new(n, RUN);
        let mut sleepers = 0;
        for first in (0..n).step_by(RUN as usize) {
            let end = n.min(first + RUN);
            windows.restart();
            for i in first..end {
                flag.store(i + 1, Ordering::Release);
                fence(Ordering::SeqCst);
                sleepers += parked.load(Ordering::Relaxed);
                windows.done(i);
            }
            if consumes == Consumes::Busy {
                self.words.await_taken(end);
            }
        }
        assert_eq!(sleepers, 0);
        flag.store(0, Ordering::Release);
        self.words.word(word::TAKEN).store(0, Ordering::Release);
        windows.median()
    }
}

trait Taken {
    fn await_taken(&self, n: u64);
}

impl Taken for Segment {
    fn await_taken(&self, n: u64) {
        poll(|| (self.word(word::TAKEN).load(Ordering::Acquire) == n).then_some(()));
    }
}
