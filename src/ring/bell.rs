//! Doorbells: how a producer wakes a consumer that sleeps, and tells it which lanes have news.
//!
//! ```text
//! entry i at 128·i:  parked u32, padding to 8, then 15 words of lane bitmap
//! ```
//! The producer publishes its message, sets the lane's bit, and then looks whether the consumer is parked; the
//! consumer sets `parked`, and then looks whether a bit is set. A fence on each side between the two steps makes it
//! impossible that both look too early, so no wake-up is lost between honest peers, and an awake consumer costs its
//! producers no system call. A bit that is still set is not set again.
//!
//! Anyone in the job can scribble over hints. So they are only hints: a bit may be missing or false, a wake-up may
//! never come. Whoever sleeps looks at its rings again within 100 ms ([`RELOOK`]).

use std::{
    os::fd::BorrowedFd,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use super::{
    segment::Segment,
    sync::{self, BITMAP, Ordering, fence, fence_after_rmw, step},
};

pub use super::{eventfd::Guard, sync::EventFd};

/// No sleep is longer: by then a sleeper looks at every ring, whatever its hints say.
pub const RELOOK: Duration = Duration::from_millis(100);

/// Lanes that an entry has bits for.
pub const LANES: usize = 15 * 64;

const ENTRY_BYTES: usize = 128;

/// Bytes of a hints segment with so many entries.
pub const fn hints_bytes(entries: usize) -> usize {
    ENTRY_BYTES * entries
}

/// Why there is no bell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("hints entry {entry} is outside a segment of {segment} bytes")]
pub struct NoEntry {
    /// The entry wanted.
    pub entry: usize,
    /// Bytes of the segment.
    pub segment: usize,
}

/// A new eventfd, for a bell: non-blocking, closed on exec.
pub fn eventfd() -> std::io::Result<EventFd> {
    EventFd::new()
}

/// A process's entry in the hints, and its eventfd.
struct Bell {
    hints: Arc<Segment>,
    at: usize,
    fd: EventFd,
}

impl Bell {
    fn new(hints: Arc<Segment>, entry: usize, fd: EventFd) -> Result<Bell, NoEntry> {
        match entry.checked_mul(ENTRY_BYTES) {
            Some(at) if hints.holds(at, ENTRY_BYTES) => Ok(Bell { hints, at, fd }),
            _ => Err(NoEntry { entry, segment: hints.len() }),
        }
    }

    fn parked(&self) -> &sync::AtomicU32 {
        self.hints.flag(self.at)
    }

    fn bits(&self, word: usize) -> &sync::AtomicU64 {
        self.hints.word(self.at + 8 + 8 * word)
    }
}

/// Rings another process's bell. Any number of them, in any process, may ring the same one.
pub struct Ringer {
    bell: Bell,
}

impl Ringer {
    /// Of the process that has entry `entry` and sleeps on `fd`.
    pub fn new(hints: Arc<Segment>, entry: usize, fd: EventFd) -> Result<Ringer, NoEntry> {
        Ok(Ringer { bell: Bell::new(hints, entry, fd)? })
    }

    /// Whether the process, or another that has its eventfd, has tried to make us wait (see [`Guard`]). That takes
    /// intent: end its job.
    pub fn tampered(&self) -> bool {
        self.bell.fd.tampered()
    }

    /// Says that `lane` has news, and wakes the sleeper if it sleeps. Call it after the push.
    ///
    /// # Panics
    /// If `lane` is not below [`LANES`].
    pub fn ring(&self, lane: usize) {
        let (word, bit) = self.bit(lane);
        // Pairs with the fence in `take`: if the bit that we see is yet to be taken, then whoever takes it sees our
        // message. Its setter has seen, or will see, whether there is anybody to wake. So a busy consumer costs its
        // producers no write to a line that all of them share.
        fence("ring.look");
        if word.load(Ordering::Relaxed) & bit != 0 {
            return;
        }
        word.fetch_or(bit, Ordering::Relaxed);
        step("ring.bit");
        // Pairs with the fence in `park`.
        fence_after_rmw("ring.fence");
        let parked = self.bell.parked();
        // The swap lets one of several producers pay for the system call.
        if parked.load(Ordering::Relaxed) != 0 && parked.swap(0, Ordering::Release) != 0 {
            step("ring.claimed");
            self.bell.fd.signal();
        }
    }

    /// As [`Ringer::ring`], but wakes whether the sleeper is parked or not. To be used once after the death of another
    /// producer, which may have died between claiming the wake-up and making it: the next ones would leave it to it.
    ///
    /// # Panics
    /// If `lane` is not below [`LANES`].
    pub fn ring_anyway(&self, lane: usize) {
        let (word, bit) = self.bit(lane);
        // Pairs with the fence in `take`, like the one that `ring` starts with.
        fence("ring_anyway.fence");
        word.fetch_or(bit, Ordering::Relaxed);
        self.bell.fd.signal();
    }

    fn bit(&self, lane: usize) -> (&sync::AtomicU64, u64) {
        assert!(lane < LANES, "lane {lane} has no bit in the hints");
        step("ring.start");
        (self.bell.bits(lane / 64), 1 << (lane % 64))
    }
}

/// The process that the bell belongs to. One thread at a time sleeps on it.
pub struct Sleeper {
    bell: Bell,
    /// For [`Sleeper::wait`] alone; made when it first sleeps.
    watch: OnceLock<sync::Watch>,
}

impl Sleeper {
    /// With entry `entry`, sleeping on `fd`.
    pub fn new(hints: Arc<Segment>, entry: usize, fd: EventFd) -> Result<Sleeper, NoEntry> {
        Ok(Sleeper { bell: Bell::new(hints, entry, fd)?, watch: OnceLock::new() })
    }

    /// Visits each lane that has news, and forgets that it had. Drain the lane's ring after, not before: what is
    /// pushed later sets the bit again. The number is a peer's: lanes that are not ours must be skipped.
    pub fn take(&self, mut visit: impl FnMut(usize)) {
        for word in 0..BITMAP {
            let bits = self.bell.bits(word);
            // A plain look first: most words are 0, and a swap would take their line away from the producers.
            if bits.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut rest = bits.swap(0, Ordering::Relaxed);
            // Pairs with the first fence in `ring`: whoever saw its bit set, or set it, did so after its push, and we
            // look into its ring after this.
            fence_after_rmw("take.fence");
            while rest != 0 {
                visit(word * 64 + rest.trailing_zeros() as usize);
                rest &= rest - 1;
            }
        }
    }

    /// Visits each lane that has news or is being watched, and leaves its bit set where `visit` says so: while it is,
    /// the lane's producers pay for no more than a look at it. Who keeps a bit must drain the lane's ring again and
    /// again, and [`Sleeper::forget`] the lane before it stops to.
    pub fn watch(&self, mut visit: impl FnMut(usize) -> bool) {
        for word in 0..BITMAP {
            let bits = self.bell.bits(word);
            let mut rest = bits.load(Ordering::Relaxed);
            while rest != 0 {
                if !visit(word * 64 + rest.trailing_zeros() as usize) {
                    bits.fetch_and(!(rest & rest.wrapping_neg()), Ordering::Relaxed);
                }
                rest &= rest - 1;
            }
        }
    }

    /// Forgets that a lane has news. Look into its ring once more after: what came before is not told again.
    ///
    /// # Panics
    /// If `lane` is not below [`LANES`].
    pub fn forget(&self, lane: usize) {
        assert!(lane < LANES, "lane {lane} has no bit in the hints");
        self.bell.bits(lane / 64).fetch_and(!(1 << (lane % 64)), Ordering::Relaxed);
        // Pairs with the first fence in `ring`, as the one in `take` does.
        fence_after_rmw("forget.fence");
    }

    /// Whether any lane claims news.
    pub fn has_news(&self) -> bool {
        (0..BITMAP).any(|word| self.bell.bits(word).load(Ordering::Relaxed) != 0)
    }

    /// Every write to `parked` is a swap, and ours acquire those of the producers: so they have one order that the
    /// memory model (and loom, which sees no order in relaxed writes) cannot doubt. It costs only who goes to sleep.
    fn set_parked(&self, value: u32) {
        self.bell.parked().swap(value, Ordering::Acquire);
    }

    /// Announces a sleep. `true`: sleep now, until [`Sleeper::fd`] is readable or [`RELOOK`] has passed, then
    /// [`Sleeper::unpark`]. `false`: there is news, and we are not parked.
    #[must_use = "whether one may sleep"]
    pub fn park(&self) -> bool {
        self.set_parked(1);
        // Pairs with the fence in `ring`: either it sees `parked`, or we see its bit.
        fence_after_rmw("park.fence");
        if self.has_news() {
            self.set_parked(0);
            return false;
        }
        true
    }

    /// Ends a sleep: from now on producers do not write to the descriptor, which is unreadable again. A producer that
    /// is just about to may still make the next sleep a short one.
    pub fn unpark(&self) {
        self.set_parked(0);
        self.bell.fd.drain();
    }

    /// Readable when rung; for epoll, asyncio and io_uring.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.fd.fd()
    }

    /// Waits for news: looks for `spin`, then sleeps until rung or `timeout` has passed. Returns whether there is
    /// news; either way, look at every ring once `timeout`, at most [`RELOOK`], has passed. Spin (20–50 µs) only
    /// where the producer has another core to run on, else it is kept from its work; else give zero.
    pub fn wait(&self, timeout: Duration, spin: Duration) -> bool {
        if self.has_news() {
            return true;
        }
        if !spin.is_zero() {
            let until = Instant::now() + spin.min(timeout);
            while Instant::now() < until {
                for _ in 0..16 {
                    sync::spin_loop();
                }
                if self.has_news() {
                    return true;
                }
            }
        }
        if self.park() {
            self.watch.get_or_init(|| sync::Watch::new(&self.bell.fd)).wait(timeout);
            self.set_parked(0);
        }
        self.has_news()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
