//! From folders of media to a manifest: walk, probe in parallel, write in order.

use std::collections::{BTreeMap, HashMap};
use std::io::BufWriter;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, mpsc};

use super::probe::{self, ProbeError};
use super::walk::{Found, walk};
use super::{AtomicFile, Manifest, Record, WriteError, Writer, Written};

/// Files that may be probed ahead of the first one that is not written: what a slow file can hold up. A record is
/// a few KiB, so this bounds the memory to some hundred MB.
const WINDOW: usize = 1 << 16;

/// What to build.
#[derive(Debug, Clone)]
pub struct Build {
    /// Folders and files.
    pub paths: Vec<PathBuf>,
    /// Where the manifest is to be.
    pub output: PathBuf,
    /// Files probed at a time; 0 = one for each core that the process may use.
    pub jobs: usize,
    /// Whether rows of a former manifest at `output` are kept where path, length and time of a file are the same.
    pub reuse: bool,
}

/// What was built.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Files with a row.
    pub files: u64,
    /// Rows that can be delivered.
    pub good: u64,
    /// Bad files with their reasons, in the order of rows.
    pub bad: Vec<(PathBuf, String)>,
    /// Folders and entries that could not be read, with the reason.
    pub unreadable: Vec<(PathBuf, String)>,
    /// Files that are no media: not in the manifest.
    pub others: u64,
    /// Rows taken over from a former manifest.
    pub reused: u64,
    /// Frames of the good files.
    pub frames: u64,
    /// Seconds of the good files.
    pub seconds: f64,
    /// Bytes of the good files.
    pub bytes: u64,
    /// See [`Manifest::fingerprint`].
    pub fingerprint: String,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Rows written.
    pub done: u64,
    /// Rows to write.
    pub total: u64,
    /// Bad ones among the written.
    pub bad: u64,
}

/// Why nothing was built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A path that was given cannot be read.
    #[error("{0}")]
    Path(std::io::Error),
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

/// A file's row to be.
type Outcome = (Result<Record, (u64, i64, String)>, bool);

impl Build {
    /// Walks, probes and writes; `stop` ends it early, `progress` is told of every row.
    pub fn run(&self, stop: &AtomicBool, mut progress: impl FnMut(Progress)) -> Result<Summary, BuildError> {
        let out = AtomicFile::create(&self.output)?;
        let Found { files, others, unreadable } = walk(&self.paths).map_err(BuildError::Path)?;
        if files.is_empty() {
            return Err(BuildError::Nothing { paths: list(&self.paths), others });
        }
        let former = if self.reuse { Former::open(&self.output) } else { Former::default() };
        let mut sum = Summary { others, unreadable, ..Summary::default() };
        let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, out), &self.options())?;
        let total = files.len() as u64;
        let mut failed = None;
        probe_all(&files, self.jobs(), stop, &former, |path, outcome| {
            if let Err(e) = sum.add(&mut writer, path, outcome) {
                failed = Some(e);
                return false;
            }
            progress(Progress { done: sum.files, total, bad: sum.bad.len() as u64 });
            true
        });
        if let Some(e) = failed {
            return Err(e.into());
        }
        let (written, out) = writer.finish_into()?;
        let out = out.into_inner().map_err(|e| WriteError::Io(e.into_error()))?;
        self.place(out, written, sum, total)
    }

    fn place(&self, mut out: AtomicFile, w: Written, mut sum: Summary, total: u64) -> Result<Summary, BuildError> {
        let partial = partial_path(&self.output);
        if sum.files < total {
            // Rows taken over are where they were; without a new one there is nothing to keep.
            if sum.files > sum.reused {
                out.rename(partial.file_name().unwrap_or_default());
                out.commit()?;
            }
            return Err(BuildError::Stopped { done: sum.files, total, partial });
        }
        if w.good == 0 {
            return Err(BuildError::AllBad { output: self.output.clone(), bad: sum.bad });
        }
        out.commit()?;
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
        serde_json::json!({ "tool": tool, "probe": probe::version(), "paths": &self.paths }).to_string()
    }
}

impl Summary {
    fn add<W: std::io::Write>(&mut self, w: &mut Writer<W>, path: &Path, outcome: Outcome) -> Result<(), WriteError> {
        self.files += 1;
        self.reused += u64::from(outcome.1);
        let record = match outcome.0 {
            Ok(record) => record,
            Err((len, mtime_ns, reason)) => {
                // A path that is not UTF-8 is a bad file, and its row has the nearest text.
                w.push_bad(&path.to_string_lossy(), len, mtime_ns, &reason)?;
                self.bad.push((path.to_owned(), reason));
                return Ok(());
            }
        };
        w.push(&record.descriptor(0))?;
        self.good += 1;
        self.bytes += record.len;
        self.frames += u64::from(record.frames);
        let (num, den) = record.time_base;
        self.seconds += record.duration.max(0) as f64 * f64::from(num) / f64::from(den);
        Ok(())
    }
}

/// Probes on `jobs` threads; `sink` gets the outcomes in the order of the files, and says whether to go on.
fn probe_all(
    files: &[PathBuf],
    jobs: usize,
    stop: &AtomicBool,
    former: &Former,
    mut sink: impl FnMut(&Path, Outcome) -> bool,
) {
    let next = AtomicUsize::new(0);
    let ended = AtomicBool::new(false);
    let (written, moved) = (Mutex::new(0), Condvar::new());
    // Bounded, so that no more is probed than can be written, and a stop takes effect at once.
    let (send, receive) = mpsc::sync_channel(2 * jobs);
    let work = |send: mpsc::SyncSender<(usize, Outcome)>| {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = files.get(i) else { return };
            let mut done = written.lock().unwrap_or_else(PoisonError::into_inner);
            while i >= *done + WINDOW && !ended.load(Ordering::Relaxed) {
                done = moved.wait(done).unwrap_or_else(PoisonError::into_inner);
            }
            drop(done);
            if stop.load(Ordering::Relaxed)
                || ended.load(Ordering::Relaxed)
                || send.send((i, one(path, former))).is_err()
            {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(files.len()) {
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
                if !ended.load(Ordering::Relaxed) && !sink(&files[at - 1], outcome) {
                    ended.store(true, Ordering::Relaxed);
                }
            }
            *written.lock().unwrap_or_else(PoisonError::into_inner) = at;
            moved.notify_all();
        }
    });
}

fn one(path: &Path, former: &Former) -> Outcome {
    let about = std::fs::metadata(path);
    let (len, mtime_ns) = about.as_ref().map_or((0, 0), stamp);
    if let Some(record) = former.find(path, len, mtime_ns) {
        return (Ok(record), true);
    }
    (probe::probe(path).map_err(|e: ProbeError| (len, mtime_ns, e.to_string())), false)
}

/// Length and time of a file, as a manifest has them.
fn stamp(about: &std::fs::Metadata) -> (u64, i64) {
    (about.len(), about.mtime().saturating_mul(1_000_000_000).saturating_add(about.mtime_nsec()))
}

/// Manifests of earlier runs, whose good rows need no second look. Bad files are looked at again: they are few, and
/// what failed may have been the reading.
#[derive(Default)]
struct Former {
    manifests: Vec<Manifest>,
    rows: HashMap<String, (usize, u64)>,
}

impl Former {
    fn open(output: &Path) -> Former {
        let mut former = Former::default();
        for path in [output.to_owned(), partial_path(output)] {
            if !path.exists() {
                continue;
            }
            match Manifest::open(&path) {
                Ok(m) if made_by_this_version(&m) => former.add(m),
                Ok(_) => tracing::warn!("{} is of another version: its rows are not reused", path.display()),
                Err(e) => tracing::warn!("rows are not reused: {e}"),
            }
        }
        former
    }

    fn add(&mut self, manifest: Manifest) {
        let which = self.manifests.len();
        for i in 0..manifest.good() {
            let row = manifest.good_row(i);
            self.rows.insert(manifest.descriptor(row).path.to_owned(), (which, row));
        }
        self.manifests.push(manifest);
    }

    fn find(&self, path: &Path, len: u64, mtime_ns: i64) -> Option<Record> {
        let &(which, row) = self.rows.get(path.to_str()?)?;
        let d = self.manifests.get(which)?.descriptor(row);
        (d.offset == 0 && d.len == len && d.mtime_ns == mtime_ns).then(|| Record::from(&d))
    }
}

fn made_by_this_version(manifest: &Manifest) -> bool {
    let options: serde_json::Value = serde_json::from_str(manifest.options()).unwrap_or_default();
    options["probe"] == probe::version()
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

/// What has become of a manifest's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drift {
    /// It cannot be found or read.
    Missing(String),
    /// Its length or its time is another.
    Changed(String),
}

/// Compares each good row with its file: names what is missing or changed, by row.
pub fn check(manifest: &Manifest, mut drift: impl FnMut(u64, &str, Drift)) {
    for i in 0..manifest.good() {
        let row = manifest.good_row(i);
        let d = manifest.descriptor(row);
        match std::fs::metadata(d.path) {
            Err(e) => drift(row, d.path, Drift::Missing(e.to_string())),
            Ok(about) => {
                let (len, mtime_ns) = stamp(&about);
                // A member of an archive has a length of its own, within the archive's.
                let fits = if d.offset == 0 { len == d.len } else { d.offset.saturating_add(d.len) <= len };
                if !fits {
                    drift(row, d.path, Drift::Changed(format!("{len} bytes; {} when indexed", d.len)));
                } else if mtime_ns != d.mtime_ns {
                    drift(row, d.path, Drift::Changed("modified since it was indexed".into()));
                }
            }
        }
    }
}
