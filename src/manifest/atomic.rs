//! A file that appears whole or not at all.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::error::WriteError;

/// Writes next to the place where the file is to be, and takes the place when all is on the disk.
///
/// The file has no name until then where the file system can do that (`O_TMPFILE`), so that even `kill -9` leaves
/// nothing behind; elsewhere it has a hidden name, removed on drop.
pub struct AtomicFile {
    file: File,
    path: PathBuf,
    folder: PathBuf,
    /// The hidden name, if it has one yet.
    hidden: Option<PathBuf>,
    written: u64,
}

impl AtomicFile {
    /// Begins a file that is to be at `path`. Its folder must exist.
    pub fn create(path: &Path) -> Result<Self, WriteError> {
        let refuse = |at: &Path, source| WriteError::Create { path: at.to_owned(), source };
        let folder = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
            _ => PathBuf::from("."),
        };
        if path.is_dir() {
            return Err(refuse(path, io::Error::new(io::ErrorKind::IsADirectory, "it is a folder; name a file")));
        }
        if !folder.is_dir() {
            let source = io::Error::new(io::ErrorKind::NotFound, "there is no such folder; make it first");
            return Err(refuse(&folder, source));
        }
        let mut options = OpenOptions::new();
        options.write(true).read(true).mode(0o644);
        match options.clone().custom_flags(libc::O_TMPFILE).open(&folder) {
            Ok(file) => Ok(AtomicFile { file, path: path.to_owned(), folder, hidden: None, written: 0 }),
            // What file systems without O_TMPFILE say (open(2), "BUGS").
            Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT)) => {
                let hidden = hidden_name(path, &folder);
                let file = options.create_new(true).open(&hidden).map_err(|e| refuse(path, e))?;
                Ok(AtomicFile { file, path: path.to_owned(), folder, hidden: Some(hidden), written: 0 })
            }
            Err(e) => Err(refuse(path, e)),
        }
    }

    /// Another name in the same folder for when it is whole.
    pub fn rename(&mut self, name: &OsStr) {
        self.path = self.folder.join(name);
    }

    /// Puts the file in its place, over a former one.
    pub fn commit(mut self) -> Result<(), WriteError> {
        let done = self.file.sync_all().and_then(|()| self.take_place());
        Ok(done.map_err(|e| self.explain(0, e))?)
    }

    /// What of a failed write the user has to know.
    fn explain(&self, wanted: usize, e: io::Error) -> io::Error {
        let free = nix::sys::statvfs::statvfs(&self.folder).map(|s| s.blocks_available() * s.fragment_size());
        let free = free.map_or_else(|_| "an unknown number".into(), |n| n.to_string());
        let (path, written) = (self.path.display(), self.written);
        let text = format!(
            "cannot write {path}: {e} ({written} bytes are written, {wanted} more were wanted, {free} are free there)"
        );
        io::Error::new(e.kind(), text)
    }

    fn take_place(&mut self) -> io::Result<()> {
        if self.hidden.is_none() {
            let hidden = hidden_name(&self.path, &self.folder);
            let proc = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let here = nix::fcntl::AT_FDCWD;
            nix::unistd::linkat(here, proc.as_str(), here, &hidden, nix::fcntl::AtFlags::AT_SYMLINK_FOLLOW)?;
            self.hidden = Some(hidden);
        }
        if let Some(hidden) = &self.hidden {
            std::fs::rename(hidden, &self.path)?;
            self.hidden = None;
        }
        // The name is on the disk once the folder is. Not every file system can do that, and the content is safe.
        File::open(&self.folder).and_then(|f| f.sync_all()).or_else(|e| match e.raw_os_error() {
            Some(libc::EINVAL | libc::EROFS) => Ok(()),
            _ => Err(e),
        })
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write(bytes).map_err(|e| match e.kind() {
            io::ErrorKind::Interrupted => e,
            _ => self.explain(bytes.len(), e),
        })?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden
            && let Err(e) = std::fs::remove_file(hidden)
        {
            tracing::warn!("cannot remove {}: {e}; remove it by hand", hidden.display());
        }
    }
}

fn hidden_name(path: &Path, folder: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    folder.join(format!(".{name}.{}.tmp", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, b"old").unwrap();
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!((std::fs::read(&path).unwrap().as_slice(), names()), (b"old".as_slice(), 1));
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert_eq!((std::fs::read(&path).unwrap().as_slice(), names()), (b"new".as_slice(), 1));
        let mut file = AtomicFile::create(&path).unwrap();
        file.rename(OsStr::new("y"));
        file.commit().unwrap();
        assert_eq!((std::fs::read(&path).unwrap().as_slice(), names()), (b"new".as_slice(), 2));
    }

    #[test]
    fn a_place_that_cannot_be_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = |path: &Path| AtomicFile::create(path).err().unwrap().to_string();
        assert!(error(&folder.path().join("none/x")).contains("no such folder"));
        assert!(error(folder.path()).contains("it is a folder"));
    }
}
