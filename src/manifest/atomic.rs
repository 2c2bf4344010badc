//! A file that appears whole or not at all.

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

    /// Puts the file in its place, over a former one.
    pub fn commit(mut self) -> Result<(), WriteError> {
        let done = self.file.sync_all().and_then(|()| self.take_place());
        done.map_err(|e| self.explain(e))
    }

    /// Says what of a failed write the user has to know.
    pub fn explain(&self, source: io::Error) -> WriteError {
        let free = nix::sys::statvfs::statvfs(&self.folder).map_or_else(
            |_| "unknown bytes".into(),
            |s| format!("{} bytes", s.blocks_available() * s.fragment_size()),
        );
        WriteError::Write { path: self.path.clone(), written: self.written, free, source }
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
        let n = self.file.write(bytes)?;
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
