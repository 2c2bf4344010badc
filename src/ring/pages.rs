//! What a slab's memory is made of, and from which node: huge pages, pre-faulting, NUMA.

use std::{fs, ops::Range, os::fd::AsFd, sync::Once};

use nix::{
    errno::Errno,
    sys::{
        memfd::MFdFlags,
        mman::{MmapAdvise, madvise},
        statfs::{HUGETLBFS_MAGIC, fstatfs},
    },
};

use super::mapping::Mapping;

/// What memory is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Pages of 2 MiB from the pool of `vm.nr_hugepages`.
    Huge,
    /// Pages of 2 MiB put together by the kernel, as `/proc/self/smaps` proves for half of it at least.
    Transparent,
    /// Pages of the usual size.
    Small,
}

pub(super) const HUGE_FLAGS: MFdFlags = MFdFlags::MFD_HUGETLB.union(MFdFlags::MFD_HUGE_2MB);

const HUGE_BYTES: usize = 2 << 20;

/// `bytes` in whole pages of the kind that must be mapped whole.
pub(super) fn round_up(bytes: usize, pages: Pages) -> Option<usize> {
    if pages == Pages::Huge { bytes.checked_next_multiple_of(HUGE_BYTES) } else { Some(bytes) }
}

/// What a file that a peer made consists of.
pub(super) fn of_file(fd: impl AsFd) -> nix::Result<Pages> {
    Ok(if fstatfs(fd)?.filesystem_type() == HUGETLBFS_MAGIC { Pages::Huge } else { Pages::Small })
}

/// Asks for transparent huge pages; where the kernel has none this changes nothing.
pub(super) fn advise_huge(map: &Mapping) {
    // SAFETY: the range is a mapping of ours; the advice does not change its contents.
    let _ = unsafe { madvise(map.ptr().cast(), map.len(), MmapAdvise::MADV_HUGEPAGE) };
}

/// Whether most of the mapping is made of huge pages.
pub(super) fn are_huge(map: &Mapping) -> bool {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    huge_bytes(&smaps, map.ptr().as_ptr() as usize) >= map.len() / 2
}

/// Bytes in huge pages that `smaps` shows for the mapping that starts at `address`.
fn huge_bytes(smaps: &str, address: usize) -> usize {
    let start = format!("{address:x}-");
    let mapping = smaps.lines().skip_while(|line| !line.starts_with(&start)).skip(1);
    // The next mapping starts with a line whose first word is no `Name:`.
    let fields = mapping.map(str::split_whitespace).map_while(|mut words| {
        let name = words.next()?.strip_suffix(':')?;
        Some((name.to_owned(), words.next().and_then(|n| n.parse::<usize>().ok()).unwrap_or(0)))
    });
    fields.filter(|(name, _)| name == "ShmemPmdMapped" || name == "FilePmdMapped").map(|(_, kib)| kib * 1024).sum()
}

/// Says why there are no huge pages, and what would change that; once a process.
pub(super) fn say_small_once() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let read = |path| fs::read_to_string(path).unwrap_or_else(|_| "unreadable".to_owned()).trim().to_owned();
        let free = read("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
        let shmem = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        tracing::warn!(
            "the slab has pages of the usual size: {free} huge pages are free, and transparent ones for shared \
             memory are set to `{shmem}`; raise vm.nr_hugepages, or write `advise` to \
             /sys/kernel/mm/transparent_hugepage/shmem_enabled"
        );
    });
}

/// Makes the pages of `range` be there, writable, without changing what they hold.
pub(super) fn populate(map: &Mapping, range: Range<usize>) -> nix::Result<()> {
    assert!(range.start <= range.end && range.end <= map.len());
    // SAFETY: the range was checked to be inside the mapping.
    let start = unsafe { map.ptr().add(range.start) };
    loop {
        // SAFETY: the range is ours; populating changes no contents.
        match Errno::result(unsafe { libc::madvise(start.as_ptr().cast(), range.len(), libc::MADV_POPULATE_WRITE) }) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            // Before Linux 5.14.
            Err(Errno::EINVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    for offset in (0..range.len()).step_by(4096) {
        // SAFETY: inside the mapping; an atomic that adds nothing changes nothing, whoever else maps it.
        unsafe { std::sync::atomic::AtomicU8::from_ptr(start.add(offset).as_ptr()) }
            .fetch_or(0, std::sync::atomic::Ordering::Relaxed);
    }
    Ok(())
}

/// Takes the mapping's pages from `node`, as long as it has some. To be called before they are touched.
pub(super) fn prefer_node(map: &Mapping, node: u32) -> nix::Result<()> {
    const MPOL_PREFERRED: libc::c_int = 1;
    const WORD: usize = libc::c_ulong::BITS as usize;
    let mut mask = [0 as libc::c_ulong; 1024 / WORD];
    let word = mask.get_mut(node as usize / WORD).ok_or(Errno::EINVAL)?;
    *word |= 1 << (node as usize % WORD);
    // SAFETY: the range is a mapping of ours, the mask is ours and as long as the call is told (bits, plus one: the
    // kernel leaves the last one out).
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            map.ptr().as_ptr(),
            map.len(),
            MPOL_PREFERRED,
            mask.as_ptr(),
            mask.len() * WORD + 1,
            0,
        )
    };
    Errno::result(done).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_is_read_for_one_mapping_alone() {
        let smaps = "7f0000000000-7f0000400000 rw-s 00000000 00:01 5  /memfd:a (deleted)\nRss:  4096 kB\n\
                     ShmemPmdMapped:     4096 kB\nFilePmdMapped:  0 kB\nVmFlags: rd wr sh\n\
                     7f0000400000-7f0000800000 rw-s 00000000 00:01 6  /memfd:b (deleted)\nShmemPmdMapped:  2048 kB\n";
        assert_eq!(huge_bytes(smaps, 0x7f00_0000_0000), 4 << 20);
        assert_eq!(huge_bytes(smaps, 0x7f00_0040_0000), 2 << 20);
        assert_eq!(huge_bytes(smaps, 0x7f00_0080_0000), 0);
    }
}
