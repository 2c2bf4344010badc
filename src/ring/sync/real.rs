//! The atomics of the machine, over a shared mapping.

use std::{os::fd::OwnedFd, ptr::NonNull, sync::Arc};

use nix::sys::memfd::MFdFlags;

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Created;
pub use crate::ring::eventfd::{EventFd, Watch};
use crate::ring::{mapping::Mapping, memfd};

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

/// The same right after an atomic read-modify-write of this thread's. On x86 that is a locked instruction, across
/// which no access moves (Intel SDM, 3A 9.2.3.9): a second full barrier would cost as much again and order nothing.
#[inline(always)]
pub(crate) fn fence_after_rmw(name: &str) {
    if cfg!(target_arch = "x86_64") {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    } else {
        fence(name);
    }
}

/// A step after which a model, or a crash test of whole processes, may let its process die.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub(crate) const fn step(_name: &str) {}
#[cfg(feature = "crash-points")]
pub(crate) use crate::crash::point as step;

/// A cache line of shared words: a count, and a body that the count guards.
#[repr(C, align(64))]
pub(crate) struct Line {
    pub(crate) count: AtomicU64,
    body: [AtomicU64; 7],
}

impl Line {
    /// Stores the body in no order of its own: the store of `count` that follows gives it one.
    #[inline(always)]
    pub(crate) fn store(&self, words: &[u64; 7]) {
        for (to, from) in self.body.iter().zip(words) {
            to.store(*from, Ordering::Relaxed);
        }
    }

    /// Loads the body; a hostile peer may have torn it, an honest one cannot, `count` having been seen.
    #[inline(always)]
    pub(crate) fn load(&self) -> [u64; 7] {
        std::array::from_fn(|i| self.body[i].load(Ordering::Relaxed))
    }
}

/// Shared words, mapped for as long as this lives.
pub(crate) struct Memory {
    map: Mapping,
}

impl Memory {
    /// New memory and the memfd behind it, or the step that failed.
    pub(crate) fn create(name: &str, bytes: usize) -> Created {
        let fd = memfd::create(name, bytes, MFdFlags::empty()).map_err(|errno| ("memfd_create", errno))?;
        let memory = Memory::open(&fd, bytes).map_err(|errno| ("mmap", errno))?;
        Ok((memory, Some(fd)))
    }

    /// The memory behind a memfd that is long enough, and stays so.
    pub(crate) fn open(fd: &OwnedFd, bytes: usize) -> nix::Result<Arc<Memory>> {
        Ok(Arc::new(Memory { map: Mapping::new(fd, bytes)? }))
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
