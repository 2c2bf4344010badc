//! Any bytes as a manifest: rows or an error; and rows that are scribbled over after the file was opened.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use helix_shm::manifest::{Manifest, guard};
use nix::sys::memfd::{MFdFlags, memfd_create};

fn walk(manifest: &Manifest) {
    for i in 0..manifest.good() {
        let row = manifest.good_row(i);
        let (facts, descriptor) = (manifest.facts(row), manifest.descriptor(row));
        std::hint::black_box((facts, descriptor.facts(), descriptor.path.len(), descriptor.pts.last()));
    }
    for row in manifest.bad_rows() {
        std::hint::black_box(manifest.error(*row));
    }
    let _ = manifest.verify();
}

/// The last bytes say what is written where after opening: pairs of a place and a byte.
const LATER: usize = 32;

/// One input.
pub fn run(bytes: &[u8]) {
    guard::install();
    let (file, later) = bytes.split_at(bytes.len().saturating_sub(LATER));
    let fd = memfd_create(c"fuzz", MFdFlags::MFD_CLOEXEC).unwrap();
    let mut memory = std::fs::File::from(fd);
    memory.write_all(file).unwrap();
    let fd: OwnedFd = memory.try_clone().unwrap().into();
    let Ok(manifest) = Manifest::from_fd(fd, Path::new("fuzz")) else { return };
    walk(&manifest);
    for change in later.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % file.len();
        memory.write_all_at(&change[2..], at as u64).unwrap();
    }
    walk(&manifest);
    memory.set_len(file.len() as u64 / 2).unwrap();
    walk(&manifest);
}
