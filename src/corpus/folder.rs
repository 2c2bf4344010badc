//! A folder of clips, made once and found complete from then on.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::encode::{self, PART, Part};
use super::plan::{Item, What, plan};
use super::{CorpusError, Encoder};

/// Counts changes of what the same options make.
const VERSION: u32 = 2;
/// Says what the folder is; written last.
const STAMP: &str = "corpus.json";

/// What a corpus is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorpusOptions {
    /// Whole clips; a handful of damaged files come on top.
    pub clips: u32,
    /// Seeds everything.
    pub seed: u64,
    /// Threads; 0 = one for each core that this process may use.
    #[serde(skip)]
    pub threads: usize,
}

impl Default for CorpusOptions {
    fn default() -> Self {
        CorpusOptions { clips: 80, seed: 0, threads: 0 }
    }
}

impl CorpusOptions {
    /// A name for the folder that tells corpora of different options apart.
    pub fn folder_name(&self) -> String {
        format!("corpus-v{VERSION}-{}-seed{}", self.clips, self.seed)
    }
}

/// A complete corpus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corpus {
    /// Where it is.
    pub dir: PathBuf,
    /// Files in it, damaged ones included.
    pub files: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Files that had to be made; 0 if it was complete before.
    pub made: usize,
    /// Encoders that this FFmpeg lacks; H.264 (or the first at hand) took their place.
    pub missing: Vec<Encoder>,
}

/// How far the making is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Effort spent, in a unit in which clips of all codecs take about equally long.
    pub done: u64,
    /// Effort of everything that has to be made.
    pub total: u64,
    /// Files finished.
    pub files: usize,
    /// Files to be made.
    pub of: usize,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Stamp {
    version: u32,
    options: CorpusOptions,
    /// Name and bytes of each file.
    files: Vec<(String, u64)>,
}

/// Makes a corpus in `dir`, or finds it complete there.
///
/// `progress` is called from several threads, about once a frame; when it says false, [`CorpusError::Stopped`]
/// comes back and the files finished so far are used next time. Another process making the same corpus is waited
/// for. Nothing that others put into the folder is touched.
pub fn make(
    dir: &Path,
    options: &CorpusOptions,
    progress: &(dyn Fn(Progress) -> bool + Sync),
) -> Result<Corpus, CorpusError> {
    fs::create_dir_all(dir).map_err(CorpusError::folder(dir))?;
    let _lock = lock(dir)?;
    let missing: Vec<Encoder> = Encoder::ALL.into_iter().filter(|e| !e.is_available()).collect();
    if let Some(corpus) = complete(dir, options, &missing)? {
        return Ok(corpus);
    }
    remove_parts(dir)?;
    let encoders: Vec<Encoder> = Encoder::ALL.into_iter().filter(|e| !missing.contains(e)).collect();
    if encoders.is_empty() {
        return Err(CorpusError::NoEncoder);
    }
    let items = plan(options.clips, options.seed, &encoders);
    let todo: Vec<&Item> = items.iter().filter(|item| !dir.join(&item.name).exists()).collect();
    make_all(dir, &todo, encoders[0], threads(options), progress)?;

    let size = |item: &Item| {
        let path = dir.join(&item.name);
        Ok((item.name.clone(), fs::metadata(&path).map_err(CorpusError::folder(&path))?.len()))
    };
    let mut files = items.iter().map(size).collect::<Result<Vec<_>, CorpusError>>()?;
    files.sort();
    let stamp = Stamp { version: VERSION, options: options.clone(), files };
    let path = dir.join(STAMP);
    let part = Part::new(&path);
    let text = serde_json::to_vec_pretty(&stamp).expect("a stamp is plain data");
    fs::write(&part.path, text).map_err(CorpusError::folder(&path))?;
    part.finish(&path)?;
    Ok(stamp.corpus(dir, todo.len(), missing))
}

impl Stamp {
    fn corpus(&self, dir: &Path, made: usize, missing: Vec<Encoder>) -> Corpus {
        let bytes = self.files.iter().map(|f| f.1).sum();
        Corpus { dir: dir.to_owned(), files: self.files.len(), bytes, made, missing }
    }
}

/// The corpus, if the stamp is of these options and every file is there with its size.
fn complete(dir: &Path, options: &CorpusOptions, missing: &[Encoder]) -> Result<Option<Corpus>, CorpusError> {
    let path = dir.join(STAMP);
    let Ok(text) = fs::read(&path) else { return Ok(None) };
    let wanted = CorpusOptions { threads: 0, ..options.clone() };
    let stamp = match serde_json::from_slice::<Stamp>(&text) {
        Ok(stamp) if stamp.version == VERSION && stamp.options == wanted => stamp,
        other => {
            let found = match other {
                Ok(s) => {
                    format!("a corpus of {} clips, seed {}, version {}", s.options.clips, s.options.seed, s.version)
                }
                Err(_) => format!("a {STAMP} that is not ours"),
            };
            let wanted = format!("{} clips, seed {}, version {VERSION}", options.clips, options.seed);
            return Err(CorpusError::Occupied { path: dir.to_owned(), found, wanted });
        }
    };
    let whole = stamp.files.iter().all(|(name, size)| fs::metadata(dir.join(name)).is_ok_and(|m| m.len() == *size));
    Ok(whole.then(|| stamp.corpus(dir, 0, missing.to_vec())))
}

/// Held while a corpus is made or looked at; a folder can be locked itself, so no lock file is left.
fn lock(dir: &Path) -> Result<Flock<File>, CorpusError> {
    let folder = File::open(dir).map_err(CorpusError::folder(dir))?;
    Flock::lock(folder, FlockArg::LockExclusive).map_err(|(_, e)| CorpusError::folder(dir)(e.into()))
}

/// Removes what a killed run left; with the lock held nobody else is at work here.
fn remove_parts(dir: &Path) -> Result<(), CorpusError> {
    for entry in fs::read_dir(dir).map_err(CorpusError::folder(dir))?.flatten() {
        if entry.path().extension().is_some_and(|e| e == PART) {
            fs::remove_file(entry.path()).map_err(CorpusError::folder(entry.path()))?;
        }
    }
    Ok(())
}

fn threads(options: &CorpusOptions) -> usize {
    match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    }
}

/// Makes the items, the longest first, so that no thread ends with a long one while the others have nothing to do.
fn make_all(
    dir: &Path,
    todo: &[&Item],
    encoder: Encoder,
    threads: usize,
    progress: &(dyn Fn(Progress) -> bool + Sync),
) -> Result<(), CorpusError> {
    let total = todo.iter().map(|item| item.effort()).sum();
    let (next, files, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicU64::new(0));
    let (stop, failed) = (AtomicBool::new(false), Mutex::new(None));
    let tell = |effort| {
        let done = done.fetch_add(effort, Ordering::Relaxed) + effort;
        let go_on = progress(Progress { done, total, files: files.load(Ordering::Relaxed), of: todo.len() });
        go_on && !stop.load(Ordering::Relaxed)
    };
    let work = || {
        while let Some(item) = todo.get(next.fetch_add(1, Ordering::Relaxed)) {
            let path = dir.join(&item.name);
            let made = match &item.what {
                What::Clip(spec) => encode::clip_with(&path, spec, &tell),
                What::Damaged(damage, seed) => damage.make(&path, encoder, *seed),
            };
            if let Err(error) = made {
                stop.store(true, Ordering::Relaxed);
                // The first error is the reason; the other threads then only stop.
                failed.lock().expect("no holder panics").get_or_insert(error);
                return;
            }
            files.fetch_add(1, Ordering::Relaxed);
            if stop.load(Ordering::Relaxed) {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.min(todo.len()) {
            scope.spawn(work);
        }
    });
    failed.into_inner().expect("no holder panics").map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_is_made_once_completed_when_damaged_and_never_mixed() {
        let dir = tempfile::tempdir().unwrap();
        let options = CorpusOptions { clips: 1, seed: 5, threads: 2 };
        let Ok(first) = make(dir.path(), &options, &|_| true) else { panic!("no encoder here") };
        assert_eq!((first.files, first.made), (6, 6));
        assert_eq!(make(dir.path(), &options, &|_| true).unwrap().made, 0);

        fs::remove_file(dir.path().join("bad-text.mp4")).unwrap();
        fs::write(dir.path().join("x.mp4.1.part"), "left by a killed run").unwrap();
        fs::write(dir.path().join("mine.txt"), "of the user").unwrap();
        assert_eq!(make(dir.path(), &options, &|_| true).unwrap().made, 1);
        assert!(!dir.path().join("x.mp4.1.part").exists());
        assert!(dir.path().join("mine.txt").exists());

        let other = CorpusOptions { seed: 6, ..options };
        assert!(matches!(make(dir.path(), &other, &|_| true), Err(CorpusError::Occupied { .. })));
    }

    #[test]
    fn stopping_keeps_what_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let options = CorpusOptions { clips: 1, seed: 5, threads: 1 };
        assert!(matches!(make(dir.path(), &options, &|_| false), Err(CorpusError::Stopped)));
        assert!(!dir.path().join(STAMP).exists());
        assert!(make(dir.path(), &options, &|_| true).is_ok());
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = make(&file.path().join("corpus"), &CorpusOptions::default(), &|_| true).unwrap_err();
        assert!(error.to_string().contains(file.path().to_str().unwrap()), "{error}");
    }
}
