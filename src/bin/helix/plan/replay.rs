//! A recorded run with other numbers of workers, and as it was.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use helix_shm::manifest::Manifest;
use helix_shm::sched::record;
use helix_shm::sim::{Bounds, Job, Recording, simulate};

use super::report::{Line, Replay, Report};
use super::{Args, Failure, enough, workers};

/// What a recorded run would have been with other numbers of workers.
pub(super) fn replay(args: &Args, path: &Path) -> Result<Report, Failure> {
    let manifest = Manifest::open(&args.manifest)?;
    let file = |error| Failure::Run { path: path.to_owned(), error };
    let text = BufReader::new(File::open(path).map_err(file)?);
    let lines: Vec<record::Line> = text
        .lines()
        .map(|line| serde_json::from_str(&line?).map_err(std::io::Error::from))
        .collect::<Result<_, _>>()
        .map_err(file)?;
    // Of another manifest nothing would be known.
    let facts = |row| if row < manifest.len() { manifest.facts(row) } else { Default::default() };
    let recording =
        Recording::read(lines, facts).map_err(|error| Failure::Recording { path: path.to_owned(), error })?;
    let megabytes = |job: &Job| {
        let count = job.trace.samples.iter().filter(|s| s.count > 0).count();
        job.trace.samples.iter().map(|s| s.work.megabytes).sum::<f64>() / count.max(1) as f64
    };
    let each = megabytes(&recording.job);
    let run = |workers: u16| {
        let (job, setup) = recording.with_workers(workers);
        let bounds = Bounds::new(&job);
        (simulate(&job, &bounds, setup), bounds)
    };
    let line = |workers: u16| {
        let (run, bounds) = run(workers);
        Line::of(workers, &run, run.throughput / bounds.unbalanced, each)
    };
    let (again, _) = run(recording.workers);
    let replay = Replay {
        workers: recording.workers,
        steps: recording.job.steps,
        measured_samples_per_s: recording.throughput,
        replayed_samples_per_s: again.throughput,
        measured_wait_p95_ms: 1e3 * recording.wait_p95,
        replayed_wait_p95_ms: 1e3 * again.waits[1],
    };
    let lines = workers(args).into_iter().map(line).collect();
    Ok(Report { lines, enough: enough(|w| run(w).0.throughput), replay: Some(replay) })
}
