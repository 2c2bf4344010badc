//! What `helix index` is given, as a list of samples to be: folders, media files, tars, and lists of files.
//!
//! [`gather`] turns paths into [`Item`]s in an order that is the same on every run; nothing is decoded or probed here.
//! A line or a member that cannot be a sample is an item too, with its fault, so that it ends as a bad row and does not
//! vanish. The files are [`walk`] for folders, [`webdataset`] for tars, [`table`] for CSV and [`jsonl`]; [`caption`]
//! reads the texts that lie in members of tars.

mod caption;
mod jsonl;
mod table;
mod walk;
mod webdataset;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub(super) use caption::Caption;

/// A sample to be.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    /// Absolute.
    pub(super) path: Arc<Path>,
    pub(super) place: Place,
    pub(super) text: Text,
    /// Why it cannot be a sample, if that is known before a look at its bytes.
    pub(super) fault: Option<Box<str>>,
}

/// Where in its file a sample is, and how it was come upon.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Place {
    /// All of a file that the user named.
    Named,
    /// All of a file that was found in a folder.
    Walked,
    /// All of a file that a list names, or a line of the list itself when it names none.
    Listed,
    /// Bytes that a list names; without a length, up to the end.
    Range(u64, Option<u64>),
    /// A member of a tar.
    Member {
        /// Its name there.
        name: Box<str>,
        /// Its first byte in the tar.
        offset: u64,
        /// Its bytes.
        len: u64,
    },
}

/// What is said of a sample.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Text {
    /// Nothing.
    #[default]
    None,
    /// This.
    Given(Box<str>),
    /// What a member of the sample's tar says.
    Member(Box<Caption>),
}

impl Item {
    fn file(path: PathBuf, place: Place) -> Item {
        Item { path: path.into(), place, text: Text::None, fault: None }
    }

    fn bad(path: &Arc<Path>, fault: String) -> Item {
        Item { path: path.clone(), place: Place::Listed, text: Text::None, fault: Some(fault.into()) }
    }

    /// First byte and number of bytes in the file, if it is a part of it.
    pub(super) fn range(&self) -> (u64, Option<u64>) {
        match self.place {
            Place::Named | Place::Walked | Place::Listed => (0, None),
            Place::Range(offset, len) => (offset, len),
            Place::Member { offset, len, .. } => (offset, Some(len)),
        }
    }

    /// Whether it is there as a file of sound beside others, where it is no fault that it has no video: it was not
    /// asked for by its name, and its name promises no video.
    pub(super) fn may_lack_video(&self) -> bool {
        match &self.place {
            Place::Walked => !walk::promises_video(&self.path),
            Place::Member { name, .. } => !walk::promises_video(Path::new(&**name)),
            Place::Named | Place::Listed | Place::Range(..) => false,
        }
    }

    /// A reason, with what the path does not tell of the place.
    pub(super) fn explain(&self, reason: impl std::fmt::Display) -> String {
        match &self.place {
            Place::Member { name, .. } => format!("member {name} {reason}"),
            Place::Range(offset, _) if *offset > 0 => format!("(at byte {offset}) {reason}"),
            _ => reason.to_string(),
        }
    }
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// In the order of the paths given; within a folder by name, within a tar or a list as it is there.
    pub(super) items: Vec<Item>,
    /// Files and members that are no media and belong to no sample.
    pub(super) others: u64,
    /// What could not be read, with the reason.
    pub(super) unreadable: Vec<(PathBuf, String)>,
    /// What is odd about an input and stops nothing.
    pub(super) notes: Vec<(PathBuf, String)>,
}

/// Why there is no list of samples.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// A path that was given cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A list of files is not one of those that are known.
    #[error("cannot take {}: {reason}", path.display())]
    List {
        /// The list.
        path: PathBuf,
        /// What was found, and what was wanted.
        reason: String,
    },
}

impl InputError {
    fn path(path: &Path, source: io::Error) -> InputError {
        InputError::Path { path: path.to_owned(), source }
    }
}

/// What a path is taken for, by its extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Media,
    Tar,
    Csv,
    Jsonl,
    Packed,
}

impl Kind {
    fn of(path: &Path) -> Kind {
        match path.extension().and_then(OsStr::to_str).unwrap_or_default().to_ascii_lowercase().as_str() {
            "tar" => Kind::Tar,
            "csv" => Kind::Csv,
            "jsonl" | "ndjson" => Kind::Jsonl,
            "tgz" | "gz" | "zst" | "bz2" | "xz" | "zip" => Kind::Packed,
            _ => Kind::Media,
        }
    }
}

/// Lists the samples of the paths, in their order. The files that a CSV names are looked for below `root`, or below
/// the folder that the CSV is in. `stop` ends it early.
pub(super) fn gather(paths: &[PathBuf], root: Option<&Path>, stop: &AtomicBool) -> Result<Found, InputError> {
    let mut found = Found::default();
    for path in paths {
        if crate::object::is_url(path) {
            objects(path, &mut found)?;
            continue;
        }
        let refuse = |e| InputError::path(path, e);
        let absolute = std::path::absolute(path).map_err(refuse)?;
        let kind = std::fs::metadata(&absolute).map_err(refuse)?;
        match Kind::of(&absolute) {
            _ if kind.is_dir() => walk::walk(&absolute, &mut found),
            Kind::Media => found.items.push(Item::file(absolute, Place::Named)),
            // A pipe, say: the probe says what is wrong with it.
            _ if !kind.is_file() => found.items.push(Item::file(absolute, Place::Named)),
            Kind::Tar => found.items.push(Item::file(absolute, Place::Named)),
            Kind::Csv => table::read(path, &absolute, root, &mut found)?,
            Kind::Jsonl => jsonl::read(path, &absolute, &mut found)?,
            Kind::Packed => {
                let reason = "samples are read in place, and it is compressed or a zip: unpack it".to_owned();
                return Err(InputError::List { path: path.clone(), reason });
            }
        }
    }
    let given = std::mem::take(&mut found.items);
    found.items = webdataset::open_all(once(given), stop, &mut found.others, &mut found.notes);
    Ok(found)
}

/// A URL: an object, or with a slash at its end all media whose keys begin with it.
#[cfg(feature = "object-store")]
fn objects(path: &Path, found: &mut Found) -> Result<(), InputError> {
    let refuse = |reason: String| InputError::List { path: path.to_owned(), reason };
    let url = path.to_str().unwrap_or_default();
    match Kind::of(path) {
        Kind::Media if !url.ends_with('/') => found.items.push(Item::file(path.to_owned(), Place::Named)),
        Kind::Media => {
            for url in crate::object::store::list(url).map_err(refuse)? {
                let path = PathBuf::from(url);
                match walk::medium(&path).is_some() {
                    true => found.items.push(Item::file(path, Place::Walked)),
                    false => found.others += 1,
                }
            }
        }
        _ => return Err(refuse("of a store only media can be taken: copy the list or the tar to a disk".into())),
    }
    Ok(())
}

#[cfg(not(feature = "object-store"))]
fn objects(path: &Path, _: &mut Found) -> Result<(), InputError> {
    Err(InputError::List { path: path.to_owned(), reason: crate::object::MISSING.into() })
}

/// Drops files that are reached twice by walking or naming; one that was named anywhere was asked for. The rows of a
/// list are kept as they are: two of them may say different things of one file.
fn once(items: Vec<Item>) -> Vec<Item> {
    let mut places: HashMap<Arc<Path>, usize> = HashMap::new();
    let mut out: Vec<Item> = Vec::with_capacity(items.len());
    for item in items {
        if !matches!(item.place, Place::Listed | Place::Range(..)) {
            if let Some(&former) = places.get(&item.path) {
                if item.place == Place::Named {
                    out[former].place = Place::Named;
                }
                continue;
            }
            places.insert(item.path.clone(), out.len());
        }
        out.push(item);
    }
    out
}

#[cfg(test)]
mod tests;
