use std::fs;

use super::*;
use crate::ring::fixture::tree;

const PLAIN: SlabOptions = SlabOptions { prefault: true, huge: false, node: None };

#[test]
fn what_one_process_writes_another_mapping_reads() {
    let slab = Slab::create("test", 1 << 20, PLAIN).unwrap();
    let other = Slab::open(slab.fd().unwrap().try_clone_to_owned().unwrap(), 1 << 20).unwrap();
    let range = slab.range(4096, 5).unwrap();
    // SAFETY: nobody else knows this slab.
    unsafe { slab.slice_mut(range.start, range.len()) }.copy_from_slice(b"hello");
    // SAFETY: the slice above is gone.
    assert_eq!(unsafe { other.slice(range.start, range.len()) }, b"hello");
    assert!(other.fd().is_none());
}

#[test]
fn a_range_outside_is_an_error_value() {
    let slab = Slab::create("test", 8192, PLAIN).unwrap();
    assert_eq!(slab.range(0, 8192), Ok(0..8192));
    assert_eq!(slab.range(8192, 0), Ok(8192..8192));
    for (offset, len) in [(0, 8193), (8192, 1), (u64::MAX, 2), (1, u64::MAX)] {
        assert_eq!(slab.range(offset, len), Err(Outside { offset, len, slab: 8192 }));
    }
}

#[test]
fn a_slab_that_does_not_fit_names_both_numbers_and_the_option() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("proc")).unwrap();
    fs::write(root.path().join("proc/meminfo"), "MemAvailable: 1 kB\n").unwrap();
    let error = Slab::create_under(root.path(), "test", 4096, PLAIN, |_| ()).err().unwrap().to_string();
    assert!(error.contains("4096 bytes does not fit"), "{error}");
    assert!(error.contains("`slab_bytes` to at most 1024 ") && error.contains("free 3072 bytes"), "{error}");
}

#[test]
fn a_group_whose_limit_is_too_low_is_named_with_the_number_it_lacks() {
    let root = tree(&[
        ("proc/meminfo", "MemAvailable: 1000 kB\n"),
        ("proc/self/cgroup", "0::/job\n"),
        ("sys/fs/cgroup/job/memory.max", "9000\n"),
        ("sys/fs/cgroup/job/memory.current", "8000\n"),
    ]);
    let error = Slab::create_under(root.path(), "test", 4096, PLAIN, |_| ()).err().unwrap().to_string();
    let file = root.path().join("sys/fs/cgroup/job/memory.max");
    assert!(error.contains(file.to_str().unwrap()) && error.contains("raise that limit by 3096"), "{error}");
}

#[test]
fn a_file_that_can_shrink_is_refused() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    let refused = Slab::open(file.into(), 8192).err().unwrap();
    assert!(matches!(refused, SlabError::Unfit { .. }), "{refused}");
}

#[test]
fn huge_pages_or_not_the_slab_is_there() {
    let options = SlabOptions { prefault: true, huge: true, node: Some(0) };
    let slab = Slab::create("test", 3 << 20, options).unwrap();
    assert_eq!(slab.len(), 3 << 20);
    let other = Slab::open(slab.fd().unwrap().try_clone_to_owned().unwrap(), slab.len()).unwrap();
    assert_eq!(other.len(), slab.len());
}

/// What the kernel says of a mapping of ours: the sum of the fields so named, in bytes.
fn smaps(slab: &Slab, names: &[&str]) -> usize {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", slab.as_ptr() as usize);
    let mapping = smaps.lines().skip_while(|line| !line.starts_with(&start)).skip(1);
    let fields = mapping.take_while(|line| line.split_whitespace().next().is_some_and(|name| name.ends_with(':')));
    let kib = fields.filter(|line| names.contains(&line.split(':').next().unwrap()));
    kib.map(|line| line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024).sum()
}

const HUGE: SlabOptions = SlabOptions { prefault: true, huge: true, node: None };

#[test]
fn pages_of_the_pool_are_huge_as_the_kernel_sees_them() {
    let free = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").unwrap_or_default();
    if free.trim().parse::<u64>().unwrap_or(0) < 8 {
        eprintln!("skipped: fewer than 8 huge pages are free; vm.nr_hugepages sets how many there are");
        return;
    }
    let slab = Slab::create("test", 5 << 20, HUGE).unwrap();
    if slab.pages() != Pages::Huge {
        eprintln!("skipped: others took the huge pages first");
        return;
    }
    // Whole pages, all of them there.
    assert_eq!(smaps(&slab, &["Shared_Hugetlb", "Private_Hugetlb"]), 6 << 20);
    assert_eq!(smaps(&slab, &["KernelPageSize"]), 2 << 20);
    let other = Slab::open(slab.fd().unwrap().try_clone_to_owned().unwrap(), slab.len()).unwrap();
    assert_eq!(other.pages(), Pages::Huge);
    // SAFETY: nobody else knows this slab.
    unsafe { slab.slice_mut((5 << 20) - 1, 1) }.fill(7);
    // SAFETY: the slice above is gone.
    assert_eq!(unsafe { other.slice((5 << 20) - 1, 1) }, [7]);
}

#[test]
fn transparent_huge_pages_are_claimed_only_where_the_kernel_shows_them() {
    let slab = Slab::create("test", 16 << 20, HUGE).unwrap();
    let shown = smaps(&slab, &["ShmemPmdMapped", "FilePmdMapped"]);
    match slab.pages() {
        Pages::Transparent => assert!(shown >= 8 << 20, "{shown}"),
        Pages::Small => assert!(shown < 8 << 20, "{shown}"),
        Pages::Huge => return eprintln!("skipped: the pool of huge pages comes first"),
    }
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
    if setting.is_empty() || setting.contains("[never]") || setting.contains("[deny]") {
        assert_eq!(slab.pages(), Pages::Small);
        eprintln!("skipped half: transparent huge pages for shared memory are off ({})", setting.trim());
    }
}

#[test]
fn pages_that_nobody_touched_prove_nothing() {
    let slab = Slab::create("test", 4 << 20, SlabOptions { prefault: false, ..HUGE }).unwrap();
    assert_ne!(slab.pages(), Pages::Transparent);
}
