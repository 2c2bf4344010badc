//! The one poll policy: look, `pause`, look again. Ours, the peers and the floor are all polled by this.

use std::hint::spin_loop;
use std::thread::yield_now;

/// Looks after which the other side is taken for dead: tens of seconds.
const PATIENCE: u32 = 1 << 30;

/// Polls until there is something.
///
/// # Panics
/// When there is nothing for very long: the other side is dead, or a message was lost.
#[inline(always)]
pub fn poll<T>(mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..PATIENCE {
        if let Some(found) = look() {
            return found;
        }
        spin_loop();
    }
    panic!("the other side does not answer");
}

/// Polls until something holds, with `pause` between two looks or, for a floor to compare with, without.
#[inline(always)]
pub fn poll_until<const PAUSE: bool>(mut holds: impl FnMut() -> bool) {
    for _ in 0..PATIENCE {
        if holds() {
            return;
        }
        if PAUSE {
            spin_loop();
        }
    }
    panic!("the other side does not answer");
}

/// As [`poll`], where more threads than cores take part: a thread that finds nothing 64 times lets another have the core.
#[inline(always)]
pub fn poll_sharing_a_core<T>(mut look: impl FnMut() -> Option<T>) -> T {
    for tries in 1..PATIENCE {
        if let Some(found) = look() {
            return found;
        }
        if tries % 64 == 0 { yield_now() } else { spin_loop() }
    }
    panic!("the other side does not answer");
}
