//! Several manifests made into one, whose parts follow each other: what a mix draws from.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::error::{ManifestError, WriteError};
use super::file::Manifest;
use super::writer::Writer;

/// Manifests that cannot be joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A row does not fit into a manifest any more.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// What was written cannot be read.
    #[error(transparent)]
    Read(#[from] ManifestError),
    /// The system refused memory for it.
    #[error(
        "cannot make a memory file for the joined manifest: {0}; join them once, into a file, with manifest::join_into"
    )]
    Memory(#[from] std::io::Error),
}

/// Writes the rows of all manifests, one after the other, bad ones included, so that row numbers of a part are its own
/// plus the rows before it.
pub fn join_into<W: std::io::Write>(manifests: &[Manifest], out: W) -> Result<W, WriteError> {
    let names: Vec<String> = manifests.iter().map(|m| m.path().display().to_string()).collect();
    let options = serde_json::json!({ "joined": names }).to_string();
    let mut writer = Writer::new(out, &options)?;
    for manifest in manifests {
        let mut bad = manifest.bad_rows().iter().copied().peekable();
        for row in 0..manifest.len() {
            let d = manifest.descriptor(row);
            if bad.next_if_eq(&row).is_some() {
                writer.push_bad(d.path, d.len, d.mtime_ns, manifest.error(row).unwrap_or("it is bad"))?;
            } else {
                writer.push(&d)?;
            }
        }
    }
    Ok(writer.finish_into()?.1)
}

/// Joins manifests in memory. It takes as much as the files, in every process that does it.
pub fn join(manifests: &[Manifest]) -> Result<Manifest, JoinError> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create(c"helix-manifest", flags).map_err(std::io::Error::from)?;
    let file = join_into(manifests, File::from(fd))?;
    // Workers and daemon get this very file: nobody is to change it under them.
    let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(file.as_fd(), FcntlArg::F_ADD_SEALS(seals)).map_err(std::io::Error::from)?;
    let shown: Vec<String> = manifests.iter().map(|m| m.path().display().to_string()).collect();
    Ok(Manifest::from_fd(file.into(), &PathBuf::from(shown.join(" + ")))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Record;

    fn manifest(dir: &std::path::Path, name: &str, rows: u32) -> Manifest {
        let path = dir.join(name);
        let mut writer = Writer::new(File::create(&path).expect("a file"), "{}").expect("a manifest");
        for row in 0..rows {
            let path = format!("/data/{name}/{row}.mp4");
            if row % 3 == 1 {
                writer.push_bad(&path, 7, 0, "it is empty").expect("a bad row");
                continue;
            }
            let clip = Record { path, frames: 10 + row, coded_width: 64, coded_height: 48, ..Record::default() };
            writer.push(&clip.descriptor(0)).expect("a row");
        }
        writer.finish().expect("a manifest");
        Manifest::open(&path).expect("a manifest")
    }

    #[test]
    fn rows_follow_each_other_and_bad_ones_keep_their_place() {
        let dir = tempfile::tempdir().expect("a folder");
        let parts = [manifest(dir.path(), "a", 5), manifest(dir.path(), "b", 4)];
        let joined = join(&parts).expect("they can be joined");
        assert_eq!((joined.len(), joined.good()), (9, parts[0].good() + parts[1].good()));
        assert_eq!(joined.bad_rows(), [1, 4, 6]);
        assert_eq!(joined.error(6), Some("it is empty"));
        assert_eq!(joined.descriptor(7).path, "/data/b/2.mp4");
        assert_eq!(joined.facts(7), parts[1].facts(2));
        joined.verify().expect("it is what it says");
        let again = join(&parts).expect("they can be joined");
        assert_eq!(joined.fingerprint(), again.fingerprint(), "all ranks come to the same");
    }
}
