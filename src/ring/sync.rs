//! The only place that knows loom: atomics, fences and the memory they live in.
//!
//! In production a [`Memory`] is a shared mapping. Under the feature `loom` it is a heap of loom's atomics, so that
//! the models run the very code of the ring and the bell. [`point`] and [`fence`] carry a name: under loom the
//! environment variable `HELIX_MUTANT` weakens the one so named, and a model must fail. In production both are
//! nothing but their ordering.

#[cfg(not(feature = "loom"))]
pub use real::*;

#[cfg(feature = "loom")]
pub use model::*;

#[cfg(not(feature = "loom"))]
mod real {
    use std::{ptr::NonNull, sync::Arc};

    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    pub use crate::ring::eventfd::EventFd;
    use crate::ring::mapping::Mapping;

    /// Body words that a ring slot carries.
    pub(crate) const BODY: usize = 7;
    /// Words of bitmap that a bell looks at.
    pub(crate) const BITMAP: usize = 15;

    /// An ordering that a model proves necessary.
    #[inline(always)]
    pub(crate) const fn point(_name: &str, ordering: Ordering) -> Ordering {
        ordering
    }

    /// A sequentially consistent fence that a model proves necessary.
    #[inline(always)]
    pub(crate) fn fence(_name: &str) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// A cache line of shared words.
    #[repr(C, align(64))]
    pub(crate) struct Line(pub(crate) [AtomicU64; 8]);

    /// Shared words, mapped for as long as this lives.
    pub(crate) struct Memory {
        map: Mapping,
    }

    impl Memory {
        pub(crate) fn new(map: Mapping) -> Arc<Memory> {
            Arc::new(Memory { map })
        }

        pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
            assert!(offset.is_multiple_of(8) && offset < self.map.len() && self.map.len() - offset >= 8);
            // SAFETY: aligned (a map starts on a page) and inside a map that lives as long as `self`; any bits are
            // an integer, and everybody who maps this memory treats it as atomics only.
            unsafe { AtomicU64::from_ptr(self.map.ptr().as_ptr().add(offset).cast()) }
        }

        pub(crate) fn flag(&self, offset: usize) -> &AtomicU32 {
            assert!(offset.is_multiple_of(4) && offset < self.map.len() && self.map.len() - offset >= 4);
            // SAFETY: as in `word`.
            unsafe { AtomicU32::from_ptr(self.map.ptr().as_ptr().add(offset).cast()) }
        }

        /// `count` lines from `offset` on, a power of two; they keep the memory mapped.
        pub(crate) fn lines(self: &Arc<Memory>, offset: usize, count: usize) -> Lines {
            assert!(count.is_power_of_two() && offset.is_multiple_of(64) && offset <= self.map.len());
            assert!((self.map.len() - offset) / 64 >= count);
            // SAFETY: `offset` is inside the map.
            let base = unsafe { self.map.ptr().add(offset) }.cast();
            Lines { base, mask: count - 1, _memory: Arc::clone(self) }
        }
    }

    /// A checked run of lines, found by position modulo their number without looking at the bounds again.
    pub(crate) struct Lines {
        base: NonNull<Line>,
        mask: usize,
        _memory: Arc<Memory>,
    }

    // SAFETY: the pointer is into memory that `_memory` keeps mapped, and the lines are atomics.
    unsafe impl Send for Lines {}
    // SAFETY: as above.
    unsafe impl Sync for Lines {}

    impl Lines {
        #[inline(always)]
        pub(crate) fn at(&self, position: u64) -> &Line {
            // SAFETY: `Memory::lines` checked that `mask + 1` lines from `base` on are mapped and aligned.
            unsafe { self.base.add(position as usize & self.mask).as_ref() }
        }
    }
}

#[cfg(feature = "loom")]
mod model {
    use std::{
        os::fd::{BorrowedFd, OwnedFd},
        sync::OnceLock,
        time::Duration,
    };

    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use loom::sync::{Condvar, Mutex};

    use crate::ring::mapping::Mapping;

    /// Two words show a torn message as well as seven, in far fewer interleavings.
    pub(crate) const BODY: usize = 2;
    /// Two words of bitmap: the second shows that each is treated as the first.
    pub(crate) const BITMAP: usize = 2;

    fn mutated(name: &str) -> bool {
        static MUTANT: OnceLock<Option<String>> = OnceLock::new();
        MUTANT.get_or_init(|| std::env::var("HELIX_MUTANT").ok()).as_deref() == Some(name)
    }

    pub(crate) fn point(name: &str, ordering: Ordering) -> Ordering {
        if mutated(name) { Ordering::Relaxed } else { ordering }
    }

    pub(crate) fn fence(name: &str) {
        if !mutated(name) {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    pub(crate) struct Line(pub(crate) [AtomicU64; 8]);

    /// Words and flags on the heap. A place is used as one or as the other, never as both.
    pub(crate) struct Memory {
        lines: Vec<Line>,
        flags: Vec<AtomicU32>,
    }

    impl Memory {
        pub(crate) fn new(map: Mapping) -> std::sync::Arc<Memory> {
            let lines = map.len() / 64;
            std::sync::Arc::new(Memory {
                lines: (0..lines).map(|_| Line(std::array::from_fn(|_| AtomicU64::new(0)))).collect(),
                flags: (0..lines).map(|_| AtomicU32::new(0)).collect(),
            })
        }

        pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
            assert!(offset.is_multiple_of(8));
            &self.lines[offset / 64].0[offset % 64 / 8]
        }

        pub(crate) fn flag(&self, offset: usize) -> &AtomicU32 {
            assert!(offset.is_multiple_of(64), "the model keeps one flag a line");
            &self.flags[offset / 64]
        }

        pub(crate) fn lines(self: &std::sync::Arc<Memory>, offset: usize, count: usize) -> Lines {
            assert!(count.is_power_of_two() && offset.is_multiple_of(64));
            assert!(self.lines.len() >= offset / 64 + count);
            Lines { memory: std::sync::Arc::clone(self), first: offset / 64, mask: count - 1 }
        }
    }

    pub(crate) struct Lines {
        memory: std::sync::Arc<Memory>,
        first: usize,
        mask: usize,
    }

    impl Lines {
        pub(crate) fn at(&self, position: u64) -> &Line {
            &self.memory.lines[self.first + (position as usize & self.mask)]
        }
    }

    /// An eventfd whose sleep loom can see: a wake-up that is lost is a deadlock, which loom reports.
    #[derive(Clone)]
    pub struct EventFd {
        real: crate::ring::eventfd::EventFd,
        state: std::sync::Arc<(Mutex<u64>, Condvar)>,
    }

    impl From<crate::ring::eventfd::EventFd> for EventFd {
        fn from(real: crate::ring::eventfd::EventFd) -> EventFd {
            EventFd { real, state: std::sync::Arc::new((Mutex::new(0), Condvar::new())) }
        }
    }

    impl From<OwnedFd> for EventFd {
        fn from(fd: OwnedFd) -> EventFd {
            crate::ring::eventfd::EventFd::from(fd).into()
        }
    }

    impl EventFd {
        pub fn signal(&self) {
            *self.state.0.lock().unwrap() += 1;
            self.state.1.notify_one();
        }

        pub fn drain(&self) {
            *self.state.0.lock().unwrap() = 0;
        }

        pub fn wait(&self, _timeout: Duration) {
            let mut count = self.state.0.lock().unwrap();
            while *count == 0 {
                count = self.state.1.wait(count).unwrap();
            }
        }

        pub fn fd(&self) -> BorrowedFd<'_> {
            self.real.fd()
        }
    }
}
