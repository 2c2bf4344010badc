//! What has become of the files of a manifest.

use std::collections::HashSet;

use super::Manifest;
use super::build::stamp;

/// Length and modification time of a file.
type Stamp = (u64, i64);

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
    let mut last: Option<(&str, Result<Stamp, String>)> = None;
    for i in 0..manifest.good() {
        let row = manifest.good_row(i);
        let d = manifest.descriptor(row);
        // The members of a tar come one after another: a million of them are not a million looks.
        if last.as_ref().is_none_or(|(path, _)| *path != d.path) {
            let now = std::fs::metadata(d.path).map(|about| stamp(&about)).map_err(|e| e.to_string());
            last = Some((d.path, now));
        }
        let found = match &last {
            Some((_, Ok((len, _)))) if *len != d.file_len => {
                Drift::Changed(format!("{len} bytes; {} when indexed", d.file_len))
            }
            Some((_, Ok((_, mtime)))) if *mtime != d.mtime_ns => {
                Drift::Changed("modified since it was indexed".into())
            }
            Some((_, Err(e))) => Drift::Missing(e.clone()),
            _ => continue,
        };
        if told.insert(d.path) {
            drift(row, d.path, found);
        }
    }
}
