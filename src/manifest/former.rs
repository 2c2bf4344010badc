//! Rows of earlier runs, which need no second look while their files are as they were.

use std::collections::HashMap;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Manifest, Record, probe};

/// Manifests of earlier runs and where in them each part of a file is.
///
/// Only good rows: bad files are looked at again, since they are few and what failed may have been the reading.
#[derive(Default)]
pub(super) struct Former {
    manifests: Vec<Manifest>,
    /// Manifest and row by hash of path and range; what is found is compared in full.
    rows: HashMap<u64, (usize, u64)>,
}

/// A file, or a part of it, as the system shows it now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen<'a> {
    pub(super) path: &'a Path,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) file_len: u64,
    pub(super) mtime_ns: i64,
}

impl Former {
    /// Reads what is there of the manifests; what cannot be used is said.
    pub(super) fn open<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Former {
        let mut former = Former::default();
        for path in paths.into_iter().filter(|path| path.exists()) {
            match Manifest::open(path) {
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
            let d = manifest.descriptor(row);
            self.rows.insert(key(d.path, d.offset, d.len), (which, row));
        }
        self.manifests.push(manifest);
    }

    /// What was found out of it before, if nothing has changed since. The text is another matter: a list may have
    /// changed it.
    pub(super) fn find(&self, now: Seen<'_>) -> Option<Record> {
        let path = now.path.to_str()?;
        let &(which, row) = self.rows.get(&key(path, now.offset, now.len))?;
        let d = self.manifests.get(which)?.descriptor(row);
        let same = (d.path, d.offset, d.len, d.file_len, d.mtime_ns)
            == (path, now.offset, now.len, now.file_len, now.mtime_ns);
        same.then(|| Record::from(&d))
    }
}

fn key(path: &str, offset: u64, len: u64) -> u64 {
    xxh3_64_with_seed(path.as_bytes(), offset ^ len.rotate_left(32))
}

fn made_by_this_version(manifest: &Manifest) -> bool {
    let options: serde_json::Value = serde_json::from_str(manifest.options()).unwrap_or_default();
    options["probe"] == probe::version()
}
