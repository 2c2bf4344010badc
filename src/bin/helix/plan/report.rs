//! What a plan answers: a line for each number of workers, and what binds.

use helix_shm::sim::Outcome;
use serde::Serialize;

/// What holds a run back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Binds {
    /// Ranks wait for input.
    Decoding,
    /// Ranks wait for each other, since their batches cost unlike.
    Imbalance,
    /// Ranks compute.
    Compute,
}

impl Binds {
    /// Whatever costs the ranks more of their time, if it is more than a little.
    pub(super) fn of(run: &Outcome) -> Binds {
        // Who waits for a rank that waits for input stands at the barrier for the same reason.
        let input = if run.wait_share > 0.02 { run.wait_share + run.barrier_idle } else { 0.0 };
        match () {
            () if input > 0.05 => Binds::Decoding,
            () if run.barrier_idle > 0.05 => Binds::Imbalance,
            () => Binds::Compute,
        }
    }

    pub(super) const fn words(self) -> &'static str {
        match self {
            Binds::Decoding => "decoding: ranks wait for input",
            Binds::Imbalance => "uneven batches: ranks wait for each other",
            Binds::Compute => "compute",
        }
    }
}

/// One number of workers.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) workers: u16,
    pub(super) samples_per_s: f64,
    pub(super) of_compute_bound: f64,
    pub(super) miss_rate: f64,
    pub(super) wait_p95_ms: f64,
    pub(super) wait_max_ms: f64,
    pub(super) workers_busy: f64,
    pub(super) read_mb_per_s: f64,
    pub(super) binds: Binds,
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) lines: Vec<Line>,
    /// Workers that come within 2 % of what any number would give.
    pub(super) enough: Option<u16>,
    /// The recorded run, and what replaying it gives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) replay: Option<Replay>,
}

/// A recorded run beside its replay.
#[derive(Debug, Serialize)]
pub(super) struct Replay {
    pub(super) workers: u16,
    pub(super) steps: u32,
    pub(super) measured_samples_per_s: f64,
    pub(super) replayed_samples_per_s: f64,
    pub(super) measured_wait_p95_ms: f64,
    pub(super) replayed_wait_p95_ms: f64,
}

impl Line {
    pub(super) fn of(workers: u16, run: &Outcome, of_compute_bound: f64, megabytes: f64) -> Line {
        Line {
            workers,
            samples_per_s: run.throughput,
            of_compute_bound,
            miss_rate: run.miss_rate,
            wait_p95_ms: 1e3 * run.waits[1],
            wait_max_ms: 1e3 * run.waits[3],
            workers_busy: run.decode_s / (run.run_s * f64::from(workers)).max(1e-9),
            read_mb_per_s: megabytes * run.throughput,
            binds: Binds::of(run),
        }
    }
}

pub(super) fn print(report: &Report) {
    if let Some(r) = &report.replay {
        println!(
            "recorded: {} steps, {} workers, {:.2} samples/s, p95 wait {:.0} ms; replayed: {:.2} samples/s ({:+.1} %), {:.0} ms",
            r.steps,
            r.workers,
            r.measured_samples_per_s,
            r.measured_wait_p95_ms,
            r.replayed_samples_per_s,
            100.0 * (r.replayed_samples_per_s / r.measured_samples_per_s - 1.0),
            r.replayed_wait_p95_ms
        );
    }
    println!("workers  samples/s  of bound  misses   p95 wait  longest  busy  reads MB/s  what binds");
    for l in &report.lines {
        println!(
            "{:7} {:10.2} {:8.1}% {:6.1}% {:7.0} ms {:5.0} ms {:4.0}% {:11.1}  {}",
            l.workers,
            l.samples_per_s,
            100.0 * l.of_compute_bound,
            100.0 * l.miss_rate,
            l.wait_p95_ms,
            l.wait_max_ms,
            100.0 * l.workers_busy,
            l.read_mb_per_s,
            l.binds.words()
        );
    }
    match report.enough {
        Some(n) => println!("{n} workers come within 2 % of what any number would give"),
        None => println!("4096 workers are not enough"),
    }
}
