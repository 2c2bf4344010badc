//! Queues for the threads of one process: rtrb and crossbeam's `ArrayQueue`.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use helix_shm::ring::spsc::Words;

use super::End;
use crate::shared::CAPACITY;

/// A message on a cache line of its own, as ours are.
#[repr(align(64))]
struct Line(Words);

/// rtrb, one ring in each direction.
pub struct Rtrb {
    to: rtrb::Producer<Line>,
    from: rtrb::Consumer<Line>,
}

impl Rtrb {
    /// Both ends.
    pub fn pair() -> (Rtrb, Rtrb) {
        let (to_b, from_a) = rtrb::RingBuffer::new(CAPACITY as usize);
        let (to_a, from_b) = rtrb::RingBuffer::new(CAPACITY as usize);
        (Rtrb { to: to_b, from: from_b }, Rtrb { to: to_a, from: from_a })
    }
}

impl End for Rtrb {
    #[inline(always)]
    fn send(&mut self, message: &Words) -> bool {
        self.to.push(Line(*message)).is_ok()
    }

    #[inline(always)]
    fn recv(&mut self) -> Option<Words> {
        self.from.pop().ok().map(|line| line.0)
    }
}

/// `ArrayQueue`, one in each direction. Its slots have a stamp beside the message: 64 bytes together.
pub struct Array {
    to: Arc<ArrayQueue<Words>>,
    from: Arc<ArrayQueue<Words>>,
}

impl Array {
    /// Both ends.
    pub fn pair() -> (Array, Array) {
        let [there, back] = [(); 2].map(|()| Arc::new(ArrayQueue::new(CAPACITY as usize)));
        (Array { to: there.clone(), from: back.clone() }, Array { to: back, from: there })
    }
}

impl End for Array {
    #[inline(always)]
    fn send(&mut self, message: &Words) -> bool {
        self.to.push(*message).is_ok()
    }

    #[inline(always)]
    fn recv(&mut self) -> Option<Words> {
        self.from.pop()
    }
}
