//! A slab: the bulk memory of a rank, into which its workers write pixels once.
//!
//! Who may touch which bytes is the region protocol's to say (`docs/protocol.md`, "The life of a region"); a slab
//! only guarantees that the bytes are there, of the size that was promised, and stay.

use std::{
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{errno::Errno, sys::memfd::MFdFlags};

use super::{
    mapping::Mapping,
    memfd::{self, Unfit},
    pages,
    reserve::{Reservation, Short},
};

pub use super::pages::Pages;

/// How a slab's memory is to be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlabOptions {
    /// Touch every page now. The first write to a page costs ten times a later one, and a machine that lacks the
    /// memory says so now, as an error, and not in the middle of a run, by killing.
    pub prefault: bool,
    /// Use huge pages where they can be had. Fewer misses of the address cache when copying and uploading.
    pub huge: bool,
    /// The NUMA node to take the memory from, as far as it has some.
    pub node: Option<u32>,
}

impl Default for SlabOptions {
    fn default() -> Self {
        SlabOptions { prefault: true, huge: true, node: None }
    }
}

/// Why there is no slab.
#[derive(Debug, thiserror::Error)]
pub enum SlabError {
    /// The machine or a cgroup does not leave that much.
    #[error(
        "a slab of {wanted} bytes does not fit: {} leaves {available} bytes; set the option `slab_bytes` to at most \
         {available} (a lower `batch_size` or smaller frames need less), or {}",
        by.display(),
        raise(by, wanted - available)
    )]
    Budget {
        /// Bytes wanted.
        wanted: u64,
        /// Bytes that there are.
        available: u64,
        /// The file that says so.
        by: PathBuf,
    },
    /// The kernel refused a step of making it.
    #[error("slab of {bytes} bytes: {step} failed: {errno}")]
    System {
        /// Bytes wanted.
        bytes: usize,
        /// The step.
        step: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The descriptor that a peer handed over will not do.
    #[error("a descriptor received as a slab of {bytes} bytes will not do: {unfit}")]
    Unfit {
        /// Bytes wanted.
        bytes: usize,
        /// What is wrong with it.
        unfit: Unfit,
    },
}

/// What else than a smaller slab would help.
fn raise(by: &Path, missing: u64) -> String {
    if by.ends_with("proc/meminfo") {
        format!("free {missing} bytes of the machine's memory")
    } else {
        format!("raise that limit by {missing}")
    }
}

/// A place that is not in the slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset} are not inside a slab of {slab} bytes")]
pub struct Outside {
    /// Where it starts.
    pub offset: u64,
    /// Its length.
    pub len: u64,
    /// Bytes of the slab.
    pub slab: usize,
}

/// How far pre-faulting has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are there.
    pub done: usize,
    /// Bytes of the slab.
    pub total: usize,
    /// Time taken so far.
    pub elapsed: Duration,
}

/// Bulk memory. Share it by `Arc`.
pub struct Slab {
    map: Mapping,
    len: usize,
    fd: Option<OwnedFd>,
    pages: Pages,
}

impl Slab {
    /// A new slab of `bytes`: a memfd of mode 0600, sealed against any change of size, absent from children. It
    /// says through `tracing` how far it is when pre-faulting takes over a second.
    pub fn create(name: &str, bytes: usize, options: SlabOptions) -> Result<Slab, SlabError> {
        Slab::create_under(Path::new("/"), name, bytes, options, |p| {
            let (done, total) = (p.done >> 20, p.total >> 20);
            tracing::info!("touching the slab's memory: {done} of {total} MiB after {:.1?}", p.elapsed);
        })
    }

    /// As [`Slab::create`], with limits read below `root` (`/proc` and `/sys` of a fixture), and with `progress`
    /// called once a second while pre-faulting.
    pub fn create_under(
        root: &Path,
        name: &str,
        bytes: usize,
        options: SlabOptions,
        mut progress: impl FnMut(Progress),
    ) -> Result<Slab, SlabError> {
        let SlabOptions { prefault, huge, node } = options;
        let mut reservation = Reservation::none();
        // Huge pages come from a pool that was paid for already; all others count.
        let reserved = huge.then(|| Slab::map(name, bytes, Pages::Huge).ok()).flatten();
        let slab = match reserved {
            Some(slab) => slab,
            None => {
                reservation = Slab::reserve(root, bytes)?;
                Slab::map(name, bytes, if huge { Pages::Transparent } else { Pages::Small })?
            }
        };
        if let Some(node) = node
            && let Err(errno) = pages::prefer_node(&slab.map, node)
        {
            tracing::warn!(
                "the slab is not bound to NUMA node {node}: mbind failed: {errno}; its memory may be remote"
            );
        }
        if prefault {
            slab.touch(&mut progress, |done| reservation.reached(done as u64))?;
        }
        Ok(slab.settle_pages(huge, prefault))
    }

    /// Maps the first `bytes` of a slab that its rank handed over, and closes `fd`.
    pub fn open(fd: OwnedFd, bytes: usize) -> Result<Slab, SlabError> {
        let failed = |step| move |errno| SlabError::System { bytes, step, errno };
        let size =
            memfd::check(&fd, bytes).map_err(failed("fstat"))?.map_err(|unfit| SlabError::Unfit { bytes, unfit })?;
        // A file of huge pages is mapped in whole ones.
        let pages = pages::of_file(&fd).map_err(failed("fstatfs"))?;
        let mapped = pages::round_up(bytes, pages).ok_or(Errno::ENOMEM).map_err(failed("mmap"))?.min(size);
        let map = Mapping::new(&fd, mapped).map_err(failed("mmap"))?;
        Ok(Slab { map, len: bytes, fd: None, pages })
    }

    /// The descriptor to hand over; none in a slab that was opened.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What its memory is made of, as far as is known.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Its first byte; for registering it with a device.
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.ptr().as_ptr()
    }

    /// `len` bytes at `offset` as a range, if they are inside. Both may be a peer's.
    pub fn range(&self, offset: u64, len: u64) -> Result<Range<usize>, Outside> {
        let outside = Outside { offset, len, slab: self.len };
        let end = offset.checked_add(len).filter(|&end| end <= self.len as u64).ok_or(outside)?;
        Ok(offset as usize..end as usize)
    }

    /// Bytes to read.
    ///
    /// # Safety
    /// While the slice lives no honest process writes there: the caller holds a Ready for the region and has not
    /// released its batch. (A hostile worker of the same job can still change the bytes; whatever reads them must
    /// accept any bytes, twice different ones too.)
    ///
    /// # Panics
    /// If the place is not inside: ask [`Slab::range`] first where it is a peer's.
    pub unsafe fn slice(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: inside the mapping, which lives as long as `self`; the caller vouches that nobody writes.
        unsafe { std::slice::from_raw_parts(self.as_ptr().add(offset), len) }
    }

    /// Bytes to write.
    ///
    /// # Safety
    /// While the slice lives nobody else reads or writes there, in this process or, among honest ones, in another:
    /// the caller holds the ticket for the region and has neither published its Done nor another slice of it.
    ///
    /// # Panics
    /// If the place is not inside: ask [`Slab::range`] first where it is a peer's.
    #[expect(clippy::mut_from_ref, reason = "regions are disjoint; the caller vouches that this one is its own")]
    pub unsafe fn slice_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: inside the mapping, which lives as long as `self`; the caller vouches that it is alone.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().add(offset), len) }
    }

    /// Touches every page, a piece at a time, and calls `progress` once a second. The contents stay. A worker may
    /// want it too: the memory is there already then, but its own page tables are not.
    pub fn prefault(&self, progress: impl FnMut(Progress)) -> Result<(), SlabError> {
        self.touch(progress, |_| ())
    }

    /// The same, and `reached` hears after each piece how many bytes are there.
    fn touch(&self, mut progress: impl FnMut(Progress), mut reached: impl FnMut(usize)) -> Result<(), SlabError> {
        const PIECE: usize = 64 << 20;
        let (start, total) = (Instant::now(), self.map.len());
        let mut said = start;
        for done in (0..total).step_by(PIECE) {
            if said.elapsed() >= Duration::from_secs(1) {
                said = Instant::now();
                progress(Progress { done, total, elapsed: start.elapsed() });
            }
            pages::populate(&self.map, done..total.min(done + PIECE)).map_err(|errno| SlabError::System {
                bytes: self.len,
                step: "pre-faulting",
                errno,
            })?;
            reached(total.min(done + PIECE));
        }
        if said > start {
            progress(Progress { done: total, total, elapsed: start.elapsed() });
        }
        Ok(())
    }

    fn reserve(root: &Path, bytes: usize) -> Result<Reservation, SlabError> {
        let wanted = bytes as u64;
        Reservation::take(root, wanted).map_err(|Short { available, by }| SlabError::Budget { wanted, available, by })
    }

    fn map(name: &str, bytes: usize, pages: Pages) -> Result<Slab, SlabError> {
        let failed = |step| move |errno| SlabError::System { bytes, step, errno };
        let size = pages::round_up(bytes, pages).ok_or(Errno::ENOMEM).map_err(failed("memfd_create"))?;
        let flags = if pages == Pages::Huge { pages::HUGE_FLAGS } else { MFdFlags::empty() };
        let fd = memfd::create(name, size, flags).map_err(failed("memfd_create"))?;
        // Mapping huge pages reserves them, or fails: they cannot run out later.
        let map = Mapping::new(&fd, size).map_err(failed("mmap"))?;
        if pages == Pages::Transparent {
            pages::advise_huge(&map);
        }
        Ok(Slab { map, len: bytes, fd: Some(fd), pages })
    }

    /// Believes in transparent huge pages only when the kernel shows them.
    fn settle_pages(mut self, wanted: bool, touched: bool) -> Slab {
        if self.pages == Pages::Transparent && !(touched && pages::are_huge(&self.map)) {
            self.pages = Pages::Small;
        }
        if wanted && self.pages == Pages::Small {
            pages::say_small_once();
        }
        self
    }
}

mod lent;
pub use lent::{Lent, check_lent};

#[cfg(test)]
mod tests;
