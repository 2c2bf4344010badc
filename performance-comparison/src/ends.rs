//! The queues under comparison, each with one end here and one on the other side, and the bursts that drive them.
//!
//! Every queue holds as many messages, every message is 56 bytes, and every message is checked by who takes it.

pub mod iceoryx;
pub mod posix;
pub mod ring;
pub mod slab;
pub mod threads;

use std::sync::atomic::Ordering;

use helix_shm::ring::segment::Segment;
use helix_shm::ring::spsc::Words;

use crate::poll::poll;
use crate::shared::word;
use crate::windows::{ROUND_TRIPS, STREAM, Windows};

/// One end of a pair of queues, one in each direction.
pub trait End {
    /// Sends a message; `false` if there is no room now.
    fn send(&mut self, message: &Words) -> bool;
    /// Takes a message, if there is one.
    fn recv(&mut self) -> Option<Words>;
}

/// Message `n`: no word of it is the same in the message before or in the next word.
#[inline(always)]
pub fn message(n: u64) -> Words {
    std::array::from_fn(|i| n ^ ((i as u64 + 1) << 56))
}

/// Whether this is message `n`. In registers: a comparison of arrays would wait for stores to reach memory.
#[inline(always)]
pub fn is_message(words: &Words, n: u64) -> bool {
    words.iter().zip(message(n)).fold(0, |wrong, (found, wanted)| wrong | (found ^ wanted)) == 0
}

/// The four halves of the two bursts. They are called once a burst, so that nothing in a burst is dispatched. Those
/// that measure return nanoseconds an operation.
pub trait Bursts {
    /// Sends and awaits the answer, `n` times.
    fn ping(&mut self, n: u64) -> f64;
    /// Answers, `n` times.
    fn echo(&mut self, n: u64);
    /// Sends `n` messages, as fast as there is room, and waits until all are taken.
    fn produce(&mut self, n: u64, words: &Segment) -> f64;
    /// Takes `n` messages.
    fn consume(&mut self, n: u64, words: &Segment);
}

impl<E: End> Bursts for E {
    fn ping(&mut self, n: u64) -> f64 {
        let mut windows = Windows::new(n, ROUND_TRIPS);
        for i in 0..n {
            let sent = message(i);
            poll(|| self.send(&sent).then_some(()));
            let taken = poll(|| self.recv());
            assert!(is_message(&taken, i));
            windows.done(i);
        }
        windows.median() / 2.0
    }

    fn echo(&mut self, n: u64) {
        for i in 0..n {
            let taken = poll(|| self.recv());
            assert!(is_message(&taken, i));
            poll(|| self.send(&taken).then_some(()));
        }
    }

    fn produce(&mut self, n: u64, words: &Segment) -> f64 {
        let mut windows = Windows::new(n, STREAM);
        for i in 0..n {
            let sent = message(i);
            poll(|| self.send(&sent).then_some(()));
            windows.done(i);
        }
        poll(|| (words.word(word::TAKEN).load(Ordering::Acquire) == n).then_some(()));
        words.word(word::TAKEN).store(0, Ordering::Release);
        windows.median()
    }

    fn consume(&mut self, n: u64, words: &Segment) {
        for i in 0..n {
            let taken = poll(|| self.recv());
            assert!(is_message(&taken, i));
        }
        words.word(word::TAKEN).store(n, Ordering::Release);
    }
}
