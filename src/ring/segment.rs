//! A segment: shared memory for control words, reached as atomics only.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use nix::errno::Errno;

pub use super::memfd::Unfit;
use super::{
    memfd,
    sync::{AtomicU32, AtomicU64, Lines, Memory},
};

/// Why there is no segment.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The kernel refused a step of making or mapping it.
    #[error("segment `{name}` of {bytes} bytes: {step} failed: {errno}")]
    System {
        /// Name of the segment, or `received`.
        name: String,
        /// Bytes wanted.
        bytes: usize,
        /// The system call.
        step: &'static str,
        /// Its answer.
        errno: Errno,
    },
    /// The descriptor that a peer handed over will not do.
    #[error("a descriptor received as a segment of {bytes} bytes will not do: {unfit}")]
    Unfit {
        /// Bytes wanted.
        bytes: usize,
        /// What is wrong with it.
        unfit: Unfit,
    },
}

/// Shared words. Share it by `Arc`; it is unmapped when the last part of it is dropped.
pub struct Segment {
    memory: Arc<Memory>,
    len: usize,
    fd: Option<OwnedFd>,
}

impl Segment {
    /// A new segment of `bytes` zeros: a memfd of mode 0600, sealed against any change of size, gone in children.
    /// `name` shows in `/proc/*/maps` only.
    pub fn create(name: &str, bytes: usize) -> Result<Segment, SegmentError> {
        let failed = |(step, errno)| SegmentError::System { name: name.to_owned(), bytes, step, errno };
        let (memory, fd) = Memory::create(name, bytes).map_err(failed)?;
        Ok(Segment { memory, len: bytes, fd })
    }

    /// Maps the first `bytes` of a segment that a peer handed over, and closes `fd`.
    pub fn open(fd: OwnedFd, bytes: usize) -> Result<Segment, SegmentError> {
        let failed = |step| move |errno| SegmentError::System { name: "received".to_owned(), bytes, step, errno };
        memfd::check(&fd, bytes).map_err(failed("fstat"))?.map_err(|unfit| SegmentError::Unfit { bytes, unfit })?;
        let memory = Memory::open(&fd, bytes).map_err(failed("mmap"))?;
        Ok(Segment { memory, len: bytes, fd: None })
    }

    /// The descriptor to hand over; none in a segment that was opened, or after [`Segment::take_fd`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// The descriptor, given away; the mapping stays.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fd.take()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The word at `offset`. Offsets are the caller's own arithmetic, never a peer's.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8 inside the segment.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.memory.word(offset)
    }

    /// The half word at `offset`. Offsets are the caller's own arithmetic, never a peer's.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 4 inside the segment.
    pub fn flag(&self, offset: usize) -> &AtomicU32 {
        self.memory.flag(offset)
    }

    /// Whether `bytes` bytes at `offset` lie inside.
    pub(super) fn holds(&self, offset: usize, bytes: usize) -> bool {
        offset <= self.len && self.len - offset >= bytes
    }

    /// `count` lines (a power of two) from `offset`; the caller has asked [`Segment::holds`].
    pub(super) fn lines(&self, offset: usize, count: usize) -> Lines {
        self.memory.lines(offset, count)
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("len", &self.len).field("fd", &self.fd).finish()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::atomic::Ordering;

    use nix::{
        fcntl::{FcntlArg, SealFlag, fcntl},
        sys::{
            memfd::{MFdFlags, memfd_create},
            stat::fstat,
        },
        unistd::ftruncate,
    };

    use super::*;

    #[test]
    fn what_one_mapping_stores_the_other_loads() {
        let mut ours = Segment::create("test", 4096).unwrap();
        let fd = ours.take_fd().unwrap();
        assert!(ours.fd().is_none());
        assert_eq!(fstat(&fd).unwrap().st_mode & 0o777, 0o600);
        let theirs = Segment::open(fd, 4000).unwrap();
        ours.word(8).store(7 << 32, Ordering::Relaxed);
        assert_eq!(theirs.word(8).load(Ordering::Relaxed), 7 << 32);
        assert_eq!(theirs.flag(12).load(Ordering::Relaxed), 7);
        assert_eq!(theirs.len(), 4000);
    }

    #[test]
    fn its_size_is_sealed() {
        let segment = Segment::create("test", 4096).unwrap();
        let fd = segment.fd().unwrap();
        assert_eq!(ftruncate(fd, 0), Err(Errno::EPERM));
        assert_eq!(ftruncate(fd, 1 << 20), Err(Errno::EPERM));
        assert_eq!(fcntl(fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)), Err(Errno::EPERM));
    }

    #[test]
    fn what_could_shrink_or_is_too_small_or_no_memfd_is_refused() {
        let unfit = |fd, bytes| match Segment::open(fd, bytes) {
            Err(SegmentError::Unfit { unfit, .. }) => unfit,
            other => panic!("{other:?}"),
        };
        let open = memfd_create(c"open", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&open, 4096).unwrap();
        assert_eq!(unfit(open, 4096), Unfit::Unsealed { found: 0 });
        let sealed = Segment::create("test", 4096).unwrap().take_fd().unwrap();
        assert_eq!(unfit(sealed, 4097), Unfit::Small { wanted: 4097, found: 4096 });
        let (reader, _writer) = nix::unistd::pipe().unwrap();
        assert_eq!(unfit(reader, 4096), Unfit::NoMemfd);
    }

    #[test]
    #[should_panic]
    fn a_word_across_the_end_is_a_bug_of_ours() {
        Segment::create("test", 4096).unwrap().word(4096);
    }
}
