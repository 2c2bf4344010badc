//! A job's record: what the scheduler heard and decided, a JSON line each, to be replayed by `helix plan --run`.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::sched::record::Line;

/// Writes a job's lines. What cannot be written ends the record, once and aloud, and never the job.
pub(super) struct Recorder {
    path: PathBuf,
    file: Option<BufWriter<File>>,
}

impl Recorder {
    /// Opens `FOLDER/JOB.jsonl`; lines of an earlier daemon of the job stay before those of this one.
    pub(super) fn open(folder: &Path, job: &str) -> Recorder {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
        let path = folder.join(format!("{}.jsonl", job.chars().map(plain).collect::<String>()));
        let file = OpenOptions::new().create(true).append(true).open(&path);
        match file {
            Ok(file) => Recorder { path, file: Some(BufWriter::with_capacity(1 << 16, file)) },
            Err(e) => {
                tracing::warn!("no record is kept: cannot open {}: {e}; name a folder that is there", path.display());
                Recorder { path, file: None }
            }
        }
    }

    pub(super) fn line(&mut self, line: Option<Line>) {
        let (Some(line), Some(file)) = (line, &mut self.file) else { return };
        let written = serde_json::to_writer(&mut *file, &line).map_err(std::io::Error::from);
        let written = written.and_then(|()| file.write_all(b"\n"));
        // Whoever looks at the file sees whole steps, also of a run that is still going on or was killed.
        let flush = matches!(line, Line::Step { rank: 0, .. } | Line::Stream { .. });
        if let Err(e) = written.and_then(|()| if flush { file.flush() } else { Ok(()) }) {
            tracing::warn!("the record ends here: cannot write to {}: {e}", self.path.display());
            self.file = None;
        }
    }
}
