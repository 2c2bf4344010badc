//! A place in the slab of another rank, mapped privately: what is written to it here is this process's own copy.

use std::os::fd::AsFd;

use nix::errno::Errno;

use super::SlabError;
use crate::ring::mapping::Mapping;
use crate::ring::memfd;
use crate::ring::pages::{self, Pages};

/// The usual size of a page.
const PAGE: usize = 4096;
/// Size of a page of a file of huge ones.
const HUGE: usize = 2 << 20;

/// Whether a descriptor will do as another rank's slab of so many bytes.
pub fn check_lent(fd: impl AsFd, bytes: usize) -> Result<(), SlabError> {
    let failed = |errno| SlabError::System { bytes, step: "fstat", errno };
    memfd::check(fd, bytes).map_err(failed)?.map_err(|unfit| SlabError::Unfit { bytes, unfit })?;
    Ok(())
}

/// See the head of the file. The memory stays when the other rank dies; who lent it vouches that nobody writes there.
///
/// It is mapped for each loan anew: a page that was written to here would never show again what comes there later.
pub struct Lent {
    map: Mapping,
    /// Where in the mapping it begins, and its length.
    at: usize,
    len: usize,
}

impl Lent {
    /// Maps `len` bytes at `offset` of a slab that [`check_lent`] has found fit.
    pub fn open(fd: impl AsFd, offset: u64, len: usize) -> Result<Lent, SlabError> {
        let failed = |step| move |errno| SlabError::System { bytes: len, step, errno };
        let pages = pages::of_file(&fd).map_err(failed("fstatfs"))?;
        let page = if pages == Pages::Huge { HUGE } else { PAGE };
        let offset = usize::try_from(offset).map_err(|_| failed("mmap")(Errno::EINVAL))?;
        let at = offset % page;
        let end = offset.checked_add(len).ok_or(Errno::EINVAL).map_err(failed("mmap"))?;
        memfd::check(&fd, end).map_err(failed("fstat"))?.map_err(|unfit| SlabError::Unfit { bytes: end, unfit })?;
        let size = (at + len).next_multiple_of(page);
        let map = Mapping::private(&fd, offset - at, size).map_err(failed("mmap"))?;
        Ok(Lent { map, at, len })
    }

    /// The bytes.
    ///
    /// # Safety
    /// While the slice lives no honest process writes there: the caller holds the loan of the place.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: inside the mapping, which lives as long as `self` and which nobody can shrink; the caller vouches that
        // nobody writes.
        unsafe { std::slice::from_raw_parts(self.map.ptr().as_ptr().add(self.at), self.len) }
    }

    /// The bytes, to be written to; the other rank's stay as they are.
    ///
    /// # Safety
    /// As for [`Lent::bytes`].
    pub unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` says that no other slice of it is alive.
        unsafe { std::slice::from_raw_parts_mut(self.map.ptr().as_ptr().add(self.at), self.len) }
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::slab::{Slab, SlabOptions};

    #[test]
    fn what_is_written_to_a_loan_its_owner_does_not_see_and_the_next_loan_is_fresh() {
        let options = SlabOptions { prefault: false, huge: false, node: None };
        let slab = Slab::create("test", 3 * 4096, options).unwrap();
        // SAFETY: nobody else uses this slab.
        let own = unsafe { slab.slice_mut(0, 3 * 4096) };
        own.fill(1);
        check_lent(slab.fd().unwrap(), 3 * 4096).unwrap();
        let mut lent = Lent::open(slab.fd().unwrap(), 4000, 200).unwrap();
        // SAFETY: nobody writes there now.
        unsafe {
            assert_eq!((lent.bytes(), lent.len()), (&[1; 200][..], 200));
            lent.bytes_mut().fill(9);
            assert_eq!(lent.bytes(), [9; 200]);
        }
        assert!(own.iter().all(|b| *b == 1));
        own.fill(2);
        drop(lent);
        let next = Lent::open(slab.fd().unwrap(), 4000, 200).unwrap();
        // The memory outlives its owner.
        drop(slab);
        // SAFETY: as above.
        assert_eq!(unsafe { next.bytes() }, [2; 200]);
    }

    #[test]
    fn what_lies_outside_is_refused() {
        let options = SlabOptions { prefault: false, huge: false, node: None };
        let slab = Slab::create("test", 4096, options).unwrap();
        for (offset, len) in [(0, 4097), (4096, 1), (u64::MAX, 1)] {
            assert!(Lent::open(slab.fd().unwrap(), offset, len).is_err(), "{offset}+{len}");
        }
        assert!(check_lent(slab.fd().unwrap(), 4097).is_err());
    }
}
