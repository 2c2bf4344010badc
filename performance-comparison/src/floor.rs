//! The floor: one word on one cache line that goes there and back, polled as everything else is.
//!
//! A queue cannot quite reach it. On a line that both sides write, whoever has read it may own it already; a queue's
//! line is written by one side alone, which must take it back from its reader before every message. Two lines, one for
//! each direction, show what that costs.

use std::sync::atomic::Ordering;

use helix_shm::ring::segment::Segment;

use crate::poll::{poll, poll_until};
use crate::shared::word::{FLOOR, LANES};
use crate::windows::{ROUND_TRIPS, Windows};

/// Sends the line and awaits it, `n` times; nanoseconds one way. `PAUSE`: whether both sides poll by the one policy;
/// published figures are often ratios to a floor whose sides do not pause.
pub fn ping<const PAUSE: bool>(words: &Segment, n: u64) -> f64 {
    let mut windows = Windows::new(n, ROUND_TRIPS);
    let line = words.word(FLOOR);
    for i in 0..n {
        line.store(2 * i + 1, Ordering::Release);
        poll_until::<PAUSE>(|| line.load(Ordering::Acquire) == 2 * i + 2);
        windows.done(i);
    }
    line.store(0, Ordering::Release);
    windows.median() / 2.0
}

/// Answers, `n` times.
pub fn echo<const PAUSE: bool>(words: &Segment, n: u64) {
    let line = words.word(FLOOR);
    for i in 0..n {
        poll_until::<PAUSE>(|| line.load(Ordering::Acquire) == 2 * i + 1);
        line.store(2 * i + 2, Ordering::Release);
    }
}

/// The same over a line for each direction.
pub fn ping_two_lines(words: &Segment, n: u64) -> f64 {
    let mut windows = Windows::new(n, ROUND_TRIPS);
    let [there, back] = LANES.map(|at| words.word(at));
    for i in 1..=n {
        there.store(i, Ordering::Release);
        poll(|| (back.load(Ordering::Acquire) == i).then_some(()));
        windows.done(i - 1);
    }
    there.store(0, Ordering::Release);
    windows.median() / 2.0
}

/// Answers, `n` times.
pub fn echo_two_lines(words: &Segment, n: u64) {
    let [there, back] = LANES.map(|at| words.word(at));
    for i in 1..=n {
        poll(|| (there.load(Ordering::Acquire) == i).then_some(()));
        back.store(i, Ordering::Release);
    }
}
