use std::fs;

use super::*;

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
    assert!(error.contains("4096") && error.contains("1024") && error.contains("slab_bytes"), "{error}");
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
