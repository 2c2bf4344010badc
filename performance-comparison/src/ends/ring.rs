//! Our ring alone.

use helix_shm::ring::spsc::{Consumer, Producer, RingError, Words};

use super::End;
use crate::shared::{CAPACITY, Shared, Side, ring_at};

/// A ring in each direction.
pub struct Ring {
    to: Producer,
    from: Consumer,
}

impl Ring {
    /// Over rings `first` (A to B) and `first + 1` (B to A).
    pub fn new(shared: &Shared, first: usize) -> Result<Ring, RingError> {
        let (to, from) = if shared.side() == Side::A { (first, first + 1) } else { (first + 1, first) };
        Ok(Ring {
            to: Producer::fresh(shared.words.clone(), ring_at(to), CAPACITY)?,
            from: Consumer::new(shared.words.clone(), ring_at(from), CAPACITY)?,
        })
    }
}

impl End for Ring {
    #[inline(always)]
    fn send(&mut self, message: &Words) -> bool {
        self.to.push(message).is_ok()
    }

    #[inline(always)]
    fn recv(&mut self) -> Option<Words> {
        self.from.pop().expect("the other side is honest")
    }
}
