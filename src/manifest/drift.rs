//! What has become of the files of a manifest.

use std::collections::HashSet;
use std::path::Path;

use super::Manifest;
use super::build::stat;

/// What has become of a manifest's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drift {
    /// It cannot be found or read.
    Missing(String),
    /// Its length or its time is another.
    Changed(String),
}

/// Compares the files of the good rows with what they were: names those that are missing or changed, each once, with
/// the first row that needs it. A tar is one file, however many rows it has.
pub fn check(manifest: &Manifest, mut drift: impl FnMut(u64, &str, Drift)) {
    let mut told = HashSet::new();
    // The members of a tar come one after another: a million of them are not a million looks.
    let mut last = "";
    let mut now = Ok((0, 0));
    for i in 0..manifest.good() {
        let row = manifest.good_row(i);
        let d = manifest.descriptor(row);
        if last != d.path {
            last = d.path;
            now = stat(Path::new(last));
        }
        let found = match &now {
            Err(e) => Drift::Missing(e.clone()),
            Ok((len, _)) if *len != d.file_len => Drift::Changed(format!("{len} bytes; {} when indexed", d.file_len)),
            Ok((_, mtime_ns)) if *mtime_ns != d.mtime_ns => Drift::Changed("modified since it was indexed".into()),
            Ok(_) => continue,
        };
        if told.insert(d.path) {
            drift(row, d.path, found);
        }
    }
}
