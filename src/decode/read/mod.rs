//! Reading ahead: the byte ranges of the next sample come in while the current one is decoded.
//!
//! One io_uring a worker, in batches; where the kernel or a sandbox refuses it, `pread` with the kernel's own
//! read-ahead asked for, which is said once ([`Reader::notice`]). Either way the same bytes come.
//!
//! **Memory.** A read holds at most [`MAX_PREFETCH`] bytes. A worker keeps two under way (the sample that it decodes
//! and the next); buffers given back with [`Reader::recycle`] are used again, and at most twice
//! [`MAX_PREFETCH`] bytes wait for that.

mod pool;
mod uring;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, PosixFadviseAdvice, fcntl, posix_fadvise};
use pool::Pool;
use uring::{Job, Ring};

use super::input::{Input, MAX_PREFETCH, Part, read_full};
use super::{SampleError, Stage};
use crate::manifest::descriptor::Descriptor;

/// Which way of reading is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// io_uring where it works, else `pread`.
    #[default]
    Auto,
    /// `pread`.
    Pread,
}

/// A sample's place in storage, as it was when it was indexed.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The file.
    pub path: &'a Path,
    /// Bytes of the file.
    pub file_len: u64,
    /// Where the sample starts in it, bytes.
    pub offset: u64,
    /// Bytes of the sample.
    pub len: u64,
    /// Modification time of the file, nanoseconds since 1970.
    pub mtime_ns: i64,
}

impl<'a> From<&Descriptor<'a>> for Source<'a> {
    fn from(d: &Descriptor<'a>) -> Source<'a> {
        Source { path: Path::new(d.path), file_len: d.file_len, offset: d.offset, len: d.len, mtime_ns: d.mtime_ns }
    }
}

/// A read under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReadId(u64);

/// Reads samples ahead. It belongs to one thread.
#[derive(Debug)]
pub struct Reader {
    ring: Option<Ring>,
    notice: Option<String>,
    /// Reads for `pread`, done when they are asked for.
    later: Vec<(ReadId, Job)>,
    /// What each read is of: the sample's start and length in its file.
    extents: Vec<(ReadId, Range<u64>)>,
    pool: Pool,
    next: u64,
}

impl Reader {
    /// A reader. Never fails: what the system refuses is replaced and told by [`Reader::notice`].
    pub fn new(mode: Mode) -> Reader {
        match mode {
            Mode::Auto => Reader::with(Ring::new()),
            Mode::Pread => {
                Reader { ring: None, notice: None, ..Reader::with(Err(io::ErrorKind::Unsupported.into())) }
            }
        }
    }

    fn with(ring: io::Result<Ring>) -> Reader {
        let notice = ring.as_ref().err().map(refusal);
        Reader { ring: ring.ok(), notice, later: Vec::new(), extents: Vec::new(), pool: Pool::default(), next: 0 }
    }

    /// Why it reads with `pread` though io_uring was wanted, and what to change: one line.
    pub fn notice(&self) -> Option<String> {
        self.notice.clone()
    }

    /// Whether reads go through io_uring.
    pub fn uses_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Starts to read ranges of a file (absolute, ascending, apart, inside the sample, at most [`MAX_PREFETCH`] bytes
    /// together) and returns while that goes on. An error here is the sample's: [`Stage::Open`].
    pub fn submit(&mut self, source: &Source<'_>, ranges: &[Range<u64>]) -> Result<ReadId, SampleError> {
        let extent = check_ranges(source, ranges)?;
        let file = Arc::new(open(source)?);
        let parts = ranges
            .iter()
            .map(|r| {
                let len = (r.end - r.start) as usize;
                Part { start: r.start - source.offset, buffer: self.pool.take(len), len }
            })
            .collect();
        let job = Job::new(file, source.offset, parts);
        let id = ReadId(self.next);
        self.next += 1;
        self.extents.push((id, extent));
        let started = match &mut self.ring {
            Some(ring) => ring.start(id.0, job).map_err(|(job, e)| (job, Some(e))),
            None => Err((job, None)),
        };
        let Err((job, broken)) = started else { return Ok(id) };
        if let Some(e) = broken {
            self.leave_ring(&e);
        }
        job.advise();
        self.later.push((id, job));
        Ok(id)
    }

    /// Waits for a read and gives its bytes.
    pub fn finish(&mut self, id: ReadId) -> Result<Input, SampleError> {
        let known = self.extents.iter().position(|&(i, _)| i == id);
        let known = known.ok_or_else(|| SampleError::new(Stage::Read, format!("no read {} is under way", id.0)))?;
        if let Some(Err(e)) = self.ring.as_mut().map(|ring| ring.wait(id.0)) {
            self.leave_ring(&e);
        }
        let job = match self.later.iter().position(|&(i, _)| i == id) {
            Some(i) => self.later.swap_remove(i).1.read_now(),
            None => self.ring.as_mut().and_then(|ring| ring.take(id.0)).expect("a read is the ring's or for later"),
        };
        let (_, extent) = self.extents.swap_remove(known);
        let Job { file, parts, error, .. } = job;
        match error {
            None => Ok(Input::new(extent.start, extent.end - extent.start, parts, file)),
            Some(e) => {
                parts.into_iter().for_each(|p| self.pool.give(p.buffer));
                Err(SampleError::new(Stage::Read, e.to_string()))
            }
        }
    }

    /// Goes on with `pread`, also for what is under way.
    fn leave_ring(&mut self, error: &io::Error) {
        let notice = refusal(error);
        tracing::warn!("{notice}");
        self.notice = Some(notice);
        let mut again = self.ring.as_ref().map(Ring::copies).unwrap_or_default();
        // What the kernel may still write to stays with the ring.
        self.ring = None;
        again.retain(|(id, _)| self.extents.iter().any(|(known, _)| known.0 == *id));
        self.later.extend(again.into_iter().map(|(id, job)| (ReadId(id), job)));
    }

    /// Gives up a read. Its buffers come back when the kernel has let go of them.
    pub fn cancel(&mut self, id: ReadId) {
        self.extents.retain(|&(i, _)| i != id);
        if let Some(i) = self.later.iter().position(|&(i, _)| i == id) {
            let (_, job) = self.later.swap_remove(i);
            job.parts.into_iter().for_each(|p| self.pool.give(p.buffer));
        } else if let Some(ring) = &mut self.ring {
            ring.cancel(id.0);
        }
    }

    /// Takes back the buffers of a sample that is decoded.
    pub fn recycle(&mut self, input: Input) {
        input.parts.into_iter().for_each(|p| self.pool.give(p.buffer));
        if let Some(ring) = &mut self.ring {
            ring.cancelled().for_each(|buffer| self.pool.give(buffer));
        }
    }
}

/// The sample's extent, when the ranges are ones that can be read.
fn check_ranges(source: &Source<'_>, ranges: &[Range<u64>]) -> Result<Range<u64>, SampleError> {
    let bad = |what: &str| Err(SampleError::new(Stage::Open, format!("byte ranges {what}; index the file again")));
    let in_file = |&end: &u64| end <= source.file_len && i64::try_from(end).is_ok();
    let Some(end) = source.offset.checked_add(source.len).filter(in_file) else {
        return bad("lie beyond the file");
    };
    let mut at = source.offset;
    let mut total = 0;
    for range in ranges {
        if range.start < at || range.end < range.start || range.end > end {
            return bad("overlap or leave the sample");
        }
        at = range.end;
        total += range.end - range.start;
    }
    if total > MAX_PREFETCH {
        return bad(&format!("of {total} bytes are more than the {MAX_PREFETCH} that are read ahead"));
    }
    Ok(source.offset..end)
}

/// Opens a sample's file and makes sure that it is the one that was indexed.
fn open(source: &Source<'_>) -> Result<File, SampleError> {
    let fail = |reason: String| SampleError::new(Stage::Open, reason);
    // O_NONBLOCK so that a pipe in a file's place does not hang the worker.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(source.path)
        .map_err(|e| fail(e.to_string()))?;
    let found = file.metadata().map_err(|e| fail(e.to_string()))?;
    if !found.is_file() {
        return Err(fail("it is not a regular file".into()));
    }
    // With O_NONBLOCK an io_uring read of what is not in the page cache would fail with EAGAIN.
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty())).map_err(|e| fail(e.to_string()))?;
    let mtime = i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec());
    if found.len() != source.file_len || mtime != i128::from(source.mtime_ns) {
        return Err(fail(format!(
            "the file has changed since it was indexed (then {} bytes, modified at {} ns; now {} bytes, modified at \
             {mtime} ns): run `helix index` again",
            source.file_len,
            source.mtime_ns,
            found.len(),
        )));
    }
    Ok(file)
}

/// The line that explains a refused io_uring.
fn refusal(error: &io::Error) -> String {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile, or set \
             kernel.io_uring_disabled=0"
        }
        Some(libc::ENOSYS) => "a kernel from 5.6 on has it, unless a seccomp profile hides it",
        Some(libc::ENOMEM) => "raise the limit of locked memory (ulimit -l)",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
        _ => "a kernel from 5.6 on has all that is needed",
    };
    format!("reading with pread, since io_uring is refused ({error}); to read faster: {remedy}")
}

impl Job {
    /// Tells the kernel what will be read, so that it starts now.
    fn advise(&self) {
        for part in &self.parts {
            let (at, len) = ((self.base + part.start) as i64, part.len as i64);
            // Advice: nothing is lost if it fails.
            let _ = posix_fadvise(&self.file, at, len, PosixFadviseAdvice::POSIX_FADV_WILLNEED);
        }
    }

    fn read_now(mut self) -> Job {
        for part in &mut self.parts {
            let at = self.base + part.start;
            match read_full(&self.file, &mut part.buffer[..part.len], at) {
                Ok(n) if n == part.len => {}
                Ok(n) => self.error = Some(uring::ended(at + n as u64)),
                Err(e) => self.error = Some(e),
            }
        }
        self
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one range is meant")]
mod tests;
