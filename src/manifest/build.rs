//! From folders, tars and lists of media to a manifest: gather, probe in parallel, write in order.

use std::collections::BTreeMap;
use std::io::BufWriter;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, mpsc};

pub use super::drift::{Drift, check};
use super::former::{Former, Seen};
pub use super::input::InputError;
use super::input::{self, Found, Item, Text};
use super::probe::{self, ProbeError};
use super::{AtomicFile, Record, WriteError, Writer, Written};

/// Files that may be probed ahead of the first one that is not written: what a slow file can hold up. A record is
/// a few KiB, so this bounds the memory to some hundred MB.
const WINDOW: usize = 1 << 16;

/// What to build.
#[derive(Debug, Clone)]
pub struct Build {
    /// Folders, media files, tars, and lists of files (CSV, JSONL).
    pub paths: Vec<PathBuf>,
    /// Where the files are that a CSV names; the CSV's own folder if not given.
    pub root: Option<PathBuf>,
    /// Where the manifest is to be.
    pub output: PathBuf,
    /// Files probed at a time; 0 = one for each core that the process may use.
    pub jobs: usize,
    /// Whether rows of a former manifest at `output` are kept where path, length and time of a file are the same.
    pub reuse: bool,
    /// Whether files of sound alone are samples too.
    pub sound: bool,
}

/// What was built.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Samples with a row, good and bad.
    pub files: u64,
    /// Rows that can be delivered.
    pub good: u64,
    /// Bad files with their reasons, in the order of rows.
    pub bad: Vec<(PathBuf, String)>,
    /// Folders and entries that could not be read, with the reason.
    pub unreadable: Vec<(PathBuf, String)>,
    /// What is odd about an input and stopped nothing.
    pub notes: Vec<(PathBuf, String)>,
    /// Files that are no media: not in the manifest.
    pub others: u64,
    /// Files of sound, without video, that were come upon and not asked for: not in the manifest.
    pub no_video: u64,
    /// Rows taken over from a former manifest.
    pub reused: u64,
    /// Frames of the good files.
    pub frames: u64,
    /// Seconds of the good files.
    pub seconds: f64,
    /// Bytes of the good files.
    pub bytes: u64,
    /// See [`fingerprint`](super::Manifest::fingerprint).
    pub fingerprint: String,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Samples looked into.
    pub done: u64,
    /// Samples to look into.
    pub total: u64,
    /// Bad ones so far.
    pub bad: u64,
}

/// Why nothing was built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// What was given cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// No media in the paths given.
    #[error("no media file in {paths} ({others} other files)")]
    Nothing {
        /// The paths.
        paths: String,
        /// Files that are no media.
        others: u64,
    },
    /// There are media, all bad. The manifest is not written, so that a former one stays.
    #[error("none of {} media files is good, so {} is not written; the first: {}: {}", .bad.len(), output.display(), .bad[0].0.display(), .bad[0].1)]
    AllBad {
        /// Where it would have been.
        output: PathBuf,
        /// The files and their reasons; not empty.
        bad: Vec<(PathBuf, String)>,
    },
    /// It was asked to stop. What was done is kept.
    #[error("stopped after {done} of {total} files, kept in {}; the same command goes on from there", partial.display())]
    Stopped {
        /// Rows kept.
        done: u64,
        /// Rows there would have been.
        total: u64,
        /// Where they are.
        partial: PathBuf,
    },
    /// The manifest cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// What became of an item.
enum Outcome {
    Good {
        record: Box<Record>,
        /// Whether it is taken over from a former manifest.
        reused: bool,
    },
    Bad {
        len: u64,
        mtime_ns: i64,
        reason: String,
    },
    /// It is one of sound, of which a folder of video may have some.
    NoVideo,
}

impl Build {
    /// Walks, probes and writes; `stop` ends it early, `progress` is told of every row.
    pub fn run(&self, stop: &AtomicBool, mut progress: impl FnMut(Progress)) -> Result<Summary, BuildError> {
        let out = AtomicFile::create(&self.output)?;
        let Found { items, others, unreadable, notes } = input::gather(&self.paths, self.root.as_deref(), stop)?;
        let partial = partial_path(&self.output);
        let total = items.len() as u64;
        if stop.load(Ordering::Relaxed) {
            return Err(BuildError::Stopped { done: 0, total, partial });
        }
        if items.is_empty() {
            return Err(BuildError::Nothing { paths: list(&self.paths), others });
        }
        let former = if self.reuse { Former::open([&*self.output, &partial]) } else { Former::default() };
        let mut sum = Summary { others, unreadable, notes, ..Summary::default() };
        let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, out), &self.options())?;
        let mut failed = None;
        let mut done = 0;
        probe_all(&items, (self.jobs(), self.sound), stop, &former, |item, outcome| {
            if let Err(e) = sum.add(&mut writer, item, outcome) {
                failed = Some(e);
                return false;
            }
            done += 1;
            progress(Progress { done, total, bad: sum.bad.len() as u64 });
            true
        });
        if let Some(e) = failed {
            return Err(e.into());
        }
        let (written, out) = writer.finish_into()?;
        let mut out = out.into_inner().map_err(|e| WriteError::Io(e.into_error()))?;
        if done < total {
            // Rows taken over are where they were; without a new one there is nothing to keep.
            if sum.files > sum.reused {
                out.rename(partial.file_name().unwrap_or_default());
                out.commit()?;
            }
            return Err(BuildError::Stopped { done: sum.files, total, partial });
        }
        self.place(out, written, sum)
    }

    fn place(&self, out: AtomicFile, w: Written, mut sum: Summary) -> Result<Summary, BuildError> {
        if sum.files == 0 {
            return Err(BuildError::Nothing { paths: list(&self.paths), others: sum.others + sum.no_video });
        }
        if w.good == 0 {
            return Err(BuildError::AllBad { output: self.output.clone(), bad: sum.bad });
        }
        out.commit()?;
        let partial = partial_path(&self.output);
        if partial.exists()
            && let Err(e) = std::fs::remove_file(&partial)
        {
            tracing::warn!("cannot remove {}: {e}; remove it by hand", partial.display());
        }
        sum.fingerprint = w.fingerprint;
        Ok(sum)
    }

    fn jobs(&self) -> usize {
        match self.jobs {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        }
    }

    fn options(&self) -> String {
        let tool = concat!("helix index ", env!("CARGO_PKG_VERSION"));
        let paths: Vec<_> = self.paths.iter().map(|p| p.to_string_lossy()).collect();
        let root = self.root.as_ref().map(|r| r.to_string_lossy());
        serde_json::json!({ "tool": tool, "probe": probe::version(), "paths": paths, "root": root, "sound": self.sound }).to_string()
    }
}

impl Summary {
    fn add<W: std::io::Write>(&mut self, w: &mut Writer<W>, item: &Item, outcome: Outcome) -> Result<(), WriteError> {
        let (record, reused) = match outcome {
            Outcome::Good { record, reused } => (*record, reused),
            Outcome::Bad { len, mtime_ns, reason } => {
                // A path that is not UTF-8 is a bad file, and its row has the nearest text.
                w.push_bad(&item.path.to_string_lossy(), len, mtime_ns, &reason)?;
                self.files += 1;
                self.bad.push((item.path.to_path_buf(), reason));
                return Ok(());
            }
            Outcome::NoVideo => {
                self.no_video += 1;
                return Ok(());
            }
        };
        w.push(&record.descriptor(0))?;
        self.files += 1;
        self.reused += u64::from(reused);
        self.good += 1;
        self.bytes += record.len;
        self.frames += u64::from(record.frames);
        let (num, den) = record.time_base;
        self.seconds += record.duration.max(0) as f64 * f64::from(num) / f64::from(den);
        Ok(())
    }
}

/// Probes on `jobs` threads; `sink` gets the outcomes in the order of the items, and says whether to go on.
fn probe_all(
    items: &[Item],
    (jobs, sound): (usize, bool),
    stop: &AtomicBool,
    former: &Former,
    mut sink: impl FnMut(&Item, Outcome) -> bool,
) {
    let next = AtomicUsize::new(0);
    let ended = AtomicBool::new(false);
    let (written, moved) = (Mutex::new(0), Condvar::new());
    // Bounded, so that no more is probed than can be written, and a stop takes effect at once.
    let (send, receive) = mpsc::sync_channel(2 * jobs);
    let work = |send: mpsc::SyncSender<(usize, Outcome)>| {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(i) else { return };
            let mut done = written.lock().unwrap_or_else(PoisonError::into_inner);
            while i >= *done + WINDOW && !ended.load(Ordering::Relaxed) {
                done = moved.wait(done).unwrap_or_else(PoisonError::into_inner);
            }
            drop(done);
            if stop.load(Ordering::Relaxed)
                || ended.load(Ordering::Relaxed)
                || send.send((i, one(item, former, sound))).is_err()
            {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(items.len()) {
            let send = send.clone();
            scope.spawn(|| work(send));
        }
        drop(send);
        let mut waiting = BTreeMap::new();
        let mut at = 0;
        for (i, outcome) in receive {
            waiting.insert(i, outcome);
            while let Some(outcome) = waiting.remove(&at) {
                at += 1;
                if !ended.load(Ordering::Relaxed) && !sink(&items[at - 1], outcome) {
                    ended.store(true, Ordering::Relaxed);
                }
            }
            *written.lock().unwrap_or_else(PoisonError::into_inner) = at;
            moved.notify_all();
        }
    });
}

fn one(item: &Item, former: &Former, sound: bool) -> Outcome {
    let path = &*item.path;
    let seen = stat(path);
    let (file_len, mtime_ns) = *seen.as_ref().unwrap_or(&(0, 0));
    let (offset, len) = item.range();
    let now = Seen { path, offset, len: len.unwrap_or(file_len.saturating_sub(offset)), file_len, mtime_ns };
    let bad = |reason| Outcome::Bad { len: now.len, mtime_ns, reason: item.explain(reason) };
    if let Some(fault) = &item.fault {
        return bad(fault.to_string());
    }
    let text = match &item.text {
        Text::None => String::new(),
        Text::Given(text) => text.to_string(),
        Text::Member(caption) => match caption.read(path) {
            Ok(text) => text,
            Err(reason) => return bad(reason),
        },
    };
    if let Some(record) = former.find(now).filter(|record| sound || record.frames > 0) {
        return Outcome::Good { record: Box::new(Record { text, ..record }), reused: true };
    }
    let probed = match (crate::object::is_url(path), seen) {
        (false, _) => match probe::probe_part(path, offset, len) {
            Err(ProbeError::NoVideo(_)) if sound => probe::probe_sound(path, offset, len),
            probed => probed,
        },
        (true, Err(reason)) => return bad(reason),
        (true, Ok(stamp)) => match copy(path, stamp) {
            Err(reason) => return bad(reason),
            Ok(file) => match probe::probe_open(&file, path, (offset, len), false) {
                Err(ProbeError::NoVideo(_)) if sound => probe::probe_open(&file, path, (offset, len), true),
                probed => probed,
            }
            .map(|record| Record { mtime_ns, ..record }),
        },
    };
    match probed {
        Ok(record) => Outcome::Good { record: Box::new(Record { text, ..record }), reused: false },
        Err(ProbeError::NoVideo(_)) if item.may_lack_video() => Outcome::NoVideo,
        Err(e) => bad(e.to_string()),
    }
}

/// Length and time of a file, or of an object in a store, as a manifest has them; else the reason.
pub(super) fn stat(path: &Path) -> Result<(u64, i64), String> {
    match path.to_str().filter(|_| crate::object::is_url(path)) {
        Some(url) => stat_object(url),
        None => std::fs::metadata(path).map(|about| stamp(&about)).map_err(|e| e.to_string()),
    }
}

#[cfg(feature = "object-store")]
fn stat_object(url: &str) -> Result<(u64, i64), String> {
    crate::object::store::stat(url).map(|now| (now.len, now.mtime_ns))
}

#[cfg(feature = "object-store")]
fn copy(path: &Path, (len, mtime_ns): (u64, i64)) -> Result<std::fs::File, String> {
    crate::object::store::download(path.to_str().unwrap_or_default(), crate::object::store::Stamp { len, mtime_ns })
}

#[cfg(not(feature = "object-store"))]
fn stat_object(_: &str) -> Result<(u64, i64), String> {
    Err(crate::object::MISSING.into())
}

#[cfg(not(feature = "object-store"))]
fn copy(_: &Path, _: (u64, i64)) -> Result<std::fs::File, String> {
    Err(crate::object::MISSING.into())
}

/// Length and time of a file, as a manifest has them.
fn stamp(about: &std::fs::Metadata) -> (u64, i64) {
    (about.len(), about.mtime().saturating_mul(1_000_000_000).saturating_add(about.mtime_nsec()))
}

/// What a stopped run leaves.
fn partial_path(output: &Path) -> PathBuf {
    let mut name = output.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    output.with_file_name(name)
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
    names.join(", ")
}
