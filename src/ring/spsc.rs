//! A ring for one producer and one consumer, in shared memory that neither trusts.
//!
//! ```text
//! 0      head: how many messages the consumer has taken, published lazily      (alone on 128 bytes)
//! 128    slot 0: sequence u64, seven words │ slot 1 │ … │ slot capacity − 1   (a cache line each)
//! ```
//! Message `n` lives in slot `n mod capacity`, and is there when the slot's sequence is `n + 1`. The sequence
//! travels in the line of the message, so taking one costs one line between cores, and a producer that dies within
//! a publish has published nothing. The ring never waits, never overwrites, and never wakes: see [`super::bell`].
//!
//! Both sides count for themselves. Of what the other writes, each accepts only what an honest peer could have
//! written: a head between the last one seen and the producer's own count, a sequence that is the one expected or
//! the one of the lap before. Anything else is [`Corrupt`], after which the ring must be given up.

use std::sync::Arc;

use super::{
    segment::Segment,
    sync::{Lines, Ordering, point, step},
};

/// What a message carries.
pub type Words = [u64; 7];

const HEAD_BYTES: usize = 128;
const SLOT_BYTES: usize = 64;

/// No honest ring carries more messages; what claims to would make counts overflow.
const MAX_COUNT: u64 = 1 << 62;

/// Bytes that a ring of `capacity` messages takes in its segment.
pub const fn ring_bytes(capacity: u32) -> usize {
    HEAD_BYTES + SLOT_BYTES * capacity as usize
}

/// Why a ring cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The capacity is not a power of two.
    #[error("a ring's capacity is {0}; wanted a power of two")]
    Capacity(u32),
    /// The place is not one of a ring.
    #[error(
        "a ring of {capacity} messages at {offset} is not on a line of 64 bytes inside a segment of {segment} bytes"
    )]
    Place {
        /// Where it should start.
        offset: usize,
        /// How many messages it should hold.
        capacity: u32,
        /// Bytes of the segment.
        segment: usize,
    },
    /// A ring that should be new has been written to.
    #[error("the ring at {offset} has been used before; resume it, or make a new segment")]
    Used {
        /// Where it starts.
        offset: usize,
    },
    /// What the predecessor left fits no count of messages.
    #[error("{0}")]
    Corrupt(#[from] Corrupt),
}

/// A word of the ring that no honest peer can have written there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// The consumer's head.
    #[error("the ring's head is {found}, which is not from {least} to {most}: its consumer is broken or hostile")]
    Head {
        /// What was found.
        found: u64,
        /// The least that it can be.
        least: u64,
        /// The most that it can be.
        most: u64,
    },
    /// A slot's sequence.
    #[error("the ring's slot for message {message} has sequence {found}: its producer is broken or hostile")]
    Sequence {
        /// The message that it should hold next.
        message: u64,
        /// What was found.
        found: u64,
    },
}

/// Why a message was not pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// There is no room until the consumer takes some.
    #[error("the ring is full")]
    Full,
    /// The consumer is broken or hostile.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

/// The head's line and the slots.
struct Ring {
    head: Lines,
    slots: Lines,
    capacity: u64,
}

impl Ring {
    fn new(segment: &Segment, offset: usize, capacity: u32) -> Result<Ring, RingError> {
        if !capacity.is_power_of_two() {
            return Err(RingError::Capacity(capacity));
        }
        if !offset.is_multiple_of(SLOT_BYTES) || !segment.holds(offset, ring_bytes(capacity)) {
            return Err(RingError::Place { offset, capacity, segment: segment.len() });
        }
        Ok(Ring {
            head: segment.lines(offset, 1),
            slots: segment.lines(offset + HEAD_BYTES, capacity as usize),
            capacity: capacity.into(),
        })
    }

    #[inline(always)]
    fn sequence(&self, message: u64, ordering: Ordering) -> u64 {
        self.slots.at(message).count.load(ordering)
    }

    /// The sequence of the last message before `next` in the slot of `message`; 0 if there was none.
    #[inline(always)]
    fn lap_before(&self, next: u64) -> u64 {
        (next + 1).saturating_sub(self.capacity)
    }
}

/// The side that writes messages.
pub struct Producer {
    ring: Ring,
    /// Messages pushed so far, by us and our predecessors.
    tail: u64,
    /// Messages taken, as last seen; at most `tail`, at least `tail - capacity`.
    cached_head: u64,
}

impl Producer {
    /// The first producer of a ring that nobody has written to.
    pub fn fresh(segment: Arc<Segment>, offset: usize, capacity: u32) -> Result<Producer, RingError> {
        let producer = Producer::resume(segment, offset, capacity)?;
        if producer.tail > 0 { Err(RingError::Used { offset }) } else { Ok(producer) }
    }

    /// Continues where a dead predecessor stopped, or starts a new ring. The caller knows that the predecessor is
    /// dead. A message that it did not finish was never published, and will be overwritten; one that it finished may
    /// lack its ring of the bell: see [`super::bell::Ringer::ring_anyway`].
    pub fn resume(segment: Arc<Segment>, offset: usize, capacity: u32) -> Result<Producer, RingError> {
        let ring = Ring::new(&segment, offset, capacity)?;
        let sequences = || (0..ring.capacity).map(|slot| (slot, ring.sequence(slot, Ordering::Acquire)));
        // `fits`: a sequence s belongs to message s - 1, whose slot is (s - 1) mod capacity.
        let fits = |&(slot, s): &(u64, u64)| s > 0 && (s - 1) & (ring.capacity - 1) == slot;
        let tail = sequences().filter(fits).map(|(_, s)| s).max().unwrap_or(0);
        if tail > MAX_COUNT {
            return Err(Corrupt::Sequence { message: tail - 1, found: tail }.into());
        }
        // Then every slot must hold the last message before `tail` that belongs there.
        for (slot, found) in sequences() {
            let message = tail + (slot.wrapping_sub(tail) & (ring.capacity - 1));
            if found != ring.lap_before(message) {
                return Err(Corrupt::Sequence { message, found }.into());
            }
        }
        let mut producer = Producer { cached_head: tail.saturating_sub(ring.capacity), ring, tail };
        producer.refresh()?;
        Ok(producer)
    }

    /// Publishes a message: the consumer that sees it sees everything written before.
    #[inline]
    pub fn push(&mut self, words: &Words) -> Result<(), PushError> {
        if self.tail - self.cached_head == self.ring.capacity {
            self.refresh()?;
            if self.tail - self.cached_head == self.ring.capacity {
                return Err(PushError::Full);
            }
        }
        step("push.start");
        let slot = self.ring.slots.at(self.tail);
        slot.store(words);
        step("push.words");
        self.tail += 1;
        // Pairs with the consumer's load in `look`: who sees the sequence sees the words.
        slot.count.store(self.tail, point("push.publish", Ordering::Release));
        step("push.published");
        Ok(())
    }

    /// How many messages have room now.
    pub fn free_slots(&mut self) -> Result<u32, Corrupt> {
        self.refresh()?;
        Ok((self.ring.capacity - (self.tail - self.cached_head)) as u32)
    }

    /// Messages pushed in the life of the ring.
    pub fn pushed(&self) -> u64 {
        self.tail
    }

    #[cold]
    fn refresh(&mut self) -> Result<(), Corrupt> {
        // Pairs with `publish_head`: the consumer is done with the words of every slot that we now overwrite.
        let found = self.ring.head.at(0).count.load(point("push.head", Ordering::Acquire));
        if found < self.cached_head || found > self.tail {
            return Err(Corrupt::Head { found, least: self.cached_head, most: self.tail });
        }
        self.cached_head = found;
        Ok(())
    }
}

/// The side that takes messages.
pub struct Consumer {
    ring: Ring,
    /// Messages taken so far.
    head: u64,
    /// What the producer has been told of `head`.
    published: u64,
    /// Taken messages after which the producer is told even if more wait.
    stride: u64,
}

impl Consumer {
    /// The consumer of a ring that nobody has taken from.
    pub fn new(segment: Arc<Segment>, offset: usize, capacity: u32) -> Result<Consumer, RingError> {
        let ring = Ring::new(&segment, offset, capacity)?;
        // A quarter: the producer never waits for long while we drain, and the head's line travels rarely.
        let stride = (ring.capacity / 4).max(1);
        Ok(Consumer { ring, head: 0, published: 0, stride })
    }

    /// Continues after a dead consumer from the head that it published. That is not where it stopped: up to a
    /// quarter of the capacity is seen again, so messages must bear repetition. Where they do not, make a new ring.
    pub fn resume(segment: Arc<Segment>, offset: usize, capacity: u32) -> Result<Consumer, RingError> {
        let mut consumer = Consumer::new(segment, offset, capacity)?;
        let found = consumer.ring.head.at(0).count.load(Ordering::Acquire);
        if found > MAX_COUNT {
            return Err(Corrupt::Head { found, least: 0, most: MAX_COUNT }.into());
        }
        (consumer.head, consumer.published) = (found, found);
        consumer.look()?;
        Ok(consumer)
    }

    /// Takes the next message, if there is one. Who drains until `None` has told the producer of all the room.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<Words>, Corrupt> {
        if !self.look()? {
            if self.published != self.head {
                self.publish_head();
            }
            return Ok(None);
        }
        let words = self.ring.slots.at(self.head).load();
        self.head += 1;
        if self.head - self.published >= self.stride {
            self.publish_head();
        }
        Ok(Some(words))
    }

    /// Whether there is nothing to take now. A corrupt ring is not empty: [`Consumer::pop`] says what it is.
    pub fn is_empty(&self) -> bool {
        matches!(self.look(), Ok(false))
    }

    /// Messages taken in the life of the ring.
    pub fn popped(&self) -> u64 {
        self.head
    }

    /// Whether the next message is there.
    #[inline(always)]
    fn look(&self) -> Result<bool, Corrupt> {
        // Pairs with the store in `push`.
        let found = self.ring.sequence(self.head, point("pop.sequence", Ordering::Acquire));
        if found == self.head + 1 {
            Ok(true)
        } else if found == self.ring.lap_before(self.head) {
            Ok(false)
        } else {
            Err(Corrupt::Sequence { message: self.head, found })
        }
    }

    fn publish_head(&mut self) {
        self.published = self.head;
        // Pairs with `refresh`: our loads of the words come before the producer's next stores to them.
        self.ring.head.at(0).count.store(self.head, point("pop.head", Ordering::Release));
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
