//! A writable mapping of a descriptor, shared or private: where pointers come from, and where they end.

use std::{num::NonZeroUsize, os::fd::AsFd, ptr::NonNull};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};

/// `len` bytes of a descriptor, mapped and writable until this is dropped, absent from forked children.
pub(super) struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory, valid in every thread; what may be done to it is its owner's to say.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes. The caller has checked that the file is that long and can never shrink.
    pub(super) fn new(fd: impl AsFd, len: usize) -> nix::Result<Mapping> {
        let size = NonZeroUsize::new(len).ok_or(nix::errno::Errno::EINVAL)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let ptr =
            unsafe { mmap(None, size, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED, fd, 0) }?;
        let map = Mapping { ptr: ptr.cast(), len };
        // SAFETY: the range is the mapping just made. A forked child does not inherit it: touching it there faults.
        unsafe { madvise(ptr, len, MmapAdvise::MADV_DONTFORK) }?;
        Ok(map)
    }

    /// Maps `len` bytes from `offset` on privately: what is written here nobody else sees. The caller has checked that
    /// the file is that long and can never shrink, and that `offset` is on a page of it.
    pub(super) fn private(fd: impl AsFd, offset: usize, len: usize) -> nix::Result<Mapping> {
        let size = NonZeroUsize::new(len).ok_or(nix::errno::Errno::EINVAL)?;
        let offset = i64::try_from(offset).map_err(|_| nix::errno::Errno::EINVAL)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let ptr = unsafe { mmap(None, size, access, MapFlags::MAP_PRIVATE, fd, offset) }?;
        let map = Mapping { ptr: ptr.cast(), len };
        // SAFETY: the range is the mapping just made. A forked child does not inherit it: touching it there faults.
        unsafe { madvise(ptr, len, MmapAdvise::MADV_DONTFORK) }?;
        Ok(map)
    }

    pub(super) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `new` with this length, and unmapped only here. It fails only on bad arguments.
        let _ = unsafe { munmap(self.ptr.cast(), self.len) };
    }
}
