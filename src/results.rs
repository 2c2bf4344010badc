//! Rows of benchmarks and campaigns: one format, fixed names, so that runs can be compared over time.
//!
//! Each writes `target/results/<file>.json`, a list of [`Row`]s; `helix results` prints all that it finds. A target
//! that is missed is a row like any other. This room knows nothing else of ours.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One number, with what it should be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Fixed name, e.g. `demo.stream_equal`.
    pub name: String,
    /// The number.
    pub value: f64,
    /// Its unit, e.g. `ms`; empty for plain numbers.
    pub unit: String,
    /// What it should be, e.g. `<= 1.25`; empty when it only informs.
    pub target: String,
    /// Whether it is as it should be.
    pub holds: bool,
    /// The command that makes it.
    pub command: String,
}

impl Row {
    /// A row; whether it holds follows from the target: `<`, `<=`, `=`, `>=` or `>` and a number, or nothing.
    ///
    /// # Panics
    /// If the target is none of these: targets are written by hand.
    pub fn new(name: impl Into<String>, value: f64, unit: &str, target: &str, command: &str) -> Row {
        let holds = holds(value, target).unwrap_or_else(|| panic!("`{target}` is not a target"));
        let (name, unit, target, command) = (name.into(), unit.into(), target.into(), command.into());
        Row { name, value, unit, target, holds, command }
    }
}

fn holds(value: f64, target: &str) -> Option<bool> {
    if target.is_empty() {
        return Some(true);
    }
    let (relation, number) = target.split_once(' ')?;
    let number: f64 = number.parse().ok()?;
    Some(match relation {
        "<" => value < number,
        "<=" => value <= number,
        "=" => value == number,
        ">=" => value >= number,
        ">" => value > number,
        _ => return None,
    })
}

/// Writes the rows of one file, replacing what an earlier run left.
pub fn write(path: &Path, rows: &[Row]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let part = path.with_extension("json.part");
    fs::write(&part, serde_json::to_vec_pretty(rows)?)?;
    fs::rename(&part, path)
}

/// The rows of every file in the folder, by file name; a file that is not ours is an error that names it.
pub fn read(dir: &Path) -> io::Result<Vec<Row>> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)?.map(|e| Ok(e?.path())).collect::<io::Result<_>>()?;
    files.retain(|f| f.extension().is_some_and(|e| e == "json"));
    files.sort();
    let mut rows = Vec::new();
    for file in files {
        let parsed = serde_json::from_slice::<Vec<Row>>(&fs::read(&file)?);
        rows.extend(parsed.map_err(|e| io::Error::other(format!("{}: {e}", file.display())))?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_decides_whether_a_row_holds() {
        for (value, target, expected) in [
            (1.0, "", true),
            (1.25, "<= 1.25", true),
            (1.26, "<= 1.25", false),
            (0.0, "= 0", true),
            (3.0, "> 3", false),
            (f64::NAN, ">= 0", false),
        ] {
            assert_eq!(Row::new("x", value, "", target, "").holds, expected, "{value} {target}");
        }
    }

    #[test]
    #[should_panic(expected = "is not a target")]
    fn a_target_that_cannot_be_read_is_noticed_by_whoever_wrote_it() {
        let _ = Row::new("x", 1.0, "", "about one", "");
    }

    #[test]
    fn rows_are_found_again_and_a_stranger_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let row = Row::new("a.b", 2.5, "ms", "<= 3", "make x");
        write(&dir.path().join("deep/a.json"), std::slice::from_ref(&row)).unwrap();
        assert_eq!(read(&dir.path().join("deep")).unwrap(), [row]);
        fs::write(dir.path().join("deep/b.json"), "{}").unwrap();
        let error = read(&dir.path().join("deep")).unwrap_err();
        assert!(error.to_string().contains("b.json"), "{error}");
    }
}
