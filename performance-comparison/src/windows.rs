//! A burst in windows, of which the median counts: who loses its core for a while spoils a window, not the burst.

use std::time::Instant;

/// Operations of a window of messages that go there and back.
pub const ROUND_TRIPS: u64 = 64;
/// Of a stream: several times what a queue holds, so that a full and an empty queue are both in it.
pub const STREAM: u64 = 2048;
/// Of wake-ups.
pub const WAKES: u64 = 8;

/// The windows so far.
pub struct Windows {
    size: u64,
    start: Instant,
    took: Vec<u64>,
}

impl Windows {
    /// For a burst of `n` operations, in windows of `size`, a power of two. The first starts now.
    pub fn new(n: u64, size: u64) -> Windows {
        let took = Vec::with_capacity((n / size) as usize);
        Windows { size, start: Instant::now(), took }
    }

    /// Operation `i` is done.
    #[inline(always)]
    pub fn done(&mut self, i: u64) {
        if (i + 1) & (self.size - 1) == 0 {
            let now = Instant::now();
            self.took.push((now - self.start).as_nanos() as u64);
            self.start = now;
        }
    }

    /// The next window starts now, whatever was done since the last one ended.
    #[inline(always)]
    pub fn restart(&mut self) {
        self.start = Instant::now();
    }

    /// Nanoseconds an operation, in the median window.
    pub fn median(mut self) -> f64 {
        self.took.sort_unstable();
        let middle = self.took.get(self.took.len() / 2).expect("a burst has a window at least");
        *middle as f64 / self.size as f64
    }
}
