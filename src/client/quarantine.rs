//! The list of bad samples that loaders leave behind: a line of JSON each, so that they can be looked into, repaired or
//! left out of the next manifest.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::proto::session::BadSample;

/// Bytes from which on the list is set aside, in the place of the one that was set aside before.
const MOST: u64 = 16 << 20;

/// Where the list is, unless the options say: `HELIX_SHM_QUARANTINE`, or in the user's state. `None` if that is `off`, or
/// if this user has no home.
pub(super) fn usual(var: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let set = |name| var(name).filter(|value| !value.is_empty());
    match set("HELIX_SHM_QUARANTINE") {
        Some(off) if off == "off" => None,
        Some(path) => Some(path.into()),
        None => {
            let state = set("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
            let state = state.or_else(|| Some(PathBuf::from(set("HOME")?).join(".local/state")))?;
            Some(state.join("helix-shm/quarantine.jsonl"))
        }
    }
}

/// Adds a line. Ranks that share a list do not mix their lines: each is one write to its end.
pub(super) fn add(path: &Path, job: &str, manifest: &Path, bad: &BadSample) -> io::Result<()> {
    add_up_to(MOST, path, job, manifest, bad)
}

fn add_up_to(most: u64, path: &Path, job: &str, manifest: &Path, bad: &BadSample) -> io::Result<()> {
    let BadSample { sample, path: file, epoch, step, stage, reason } = bad;
    let line = serde_json::json!({
        "id": sample, "path": file, "stage": stage, "reason": reason, "epoch": epoch, "step": step, "job": job,
        "manifest": manifest,
    });
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut list = open(path)?;
    if list.metadata()?.len() >= most && set_aside(path, &list)? {
        list = open(path)?;
    }
    list.write_all(format!("{line}\n").as_bytes())
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Moves a list that is full out of the way; `false` if another rank is about to, or did.
fn set_aside(path: &Path, list: &File) -> io::Result<bool> {
    if list.try_lock().is_err() {
        return Ok(false);
    }
    let (ours, there) = (list.metadata()?, std::fs::metadata(path)?);
    if (ours.dev(), ours.ino()) == (there.dev(), there.ino()) {
        let mut old = path.as_os_str().to_owned();
        old.push(".old");
        std::fs::rename(path, old)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bad(sample: u64) -> BadSample {
        let reason = "it \"ends\"\nearly".into();
        BadSample { sample, path: "/a/ä.mp4".into(), epoch: 1, step: 2, stage: "read".into(), reason }
    }

    #[test]
    fn lines_of_many_writers_stay_whole_and_the_list_stays_small() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/quarantine.jsonl");
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    (0..200).for_each(|i| {
                        add_up_to(4096, path, "job", Path::new("/m.arrow"), &bad(writer * 1000 + i)).unwrap();
                    });
                });
            }
        });
        let mut bytes = 0;
        for list in [path.clone(), path.with_file_name("quarantine.jsonl.old")] {
            let text = std::fs::read_to_string(list).unwrap();
            bytes += text.len();
            for line in text.lines() {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!((&line["path"], &line["stage"]), (&"/a/ä.mp4".into(), &"read".into()));
            }
        }
        // A line of each writer may come behind the last that fits.
        assert!(bytes < 2 * (4096 + 5 * 200), "{bytes}");
    }

    #[test]
    fn the_list_is_where_the_user_says_or_in_his_state() {
        let at = |vars: &[(&str, &str)]| {
            usual(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string()))
        };
        let (q, x, h) = ("HELIX_SHM_QUARANTINE", "XDG_STATE_HOME", "HOME");
        assert_eq!(at(&[(q, "/q.jsonl"), (x, "/x")]), Some("/q.jsonl".into()));
        assert_eq!(at(&[(q, "off"), (x, "/x")]), None);
        assert_eq!(at(&[(x, "/x"), (h, "/h")]), Some("/x/helix-shm/quarantine.jsonl".into()));
        assert_eq!(at(&[(x, "x"), (h, "/h")]), Some("/h/.local/state/helix-shm/quarantine.jsonl".into()));
        assert_eq!(at(&[]), None);
    }
}
