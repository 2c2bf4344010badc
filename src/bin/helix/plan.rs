//! `helix plan`: what would happen with these clips, that model and so many cores. The daemon's own scheduler runs
//! under a virtual clock; decode times are the frozen priors with their noise, compute is what the user says.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use helix_shm::manifest::{Manifest, ManifestError};
use helix_shm::proto::options::{BadOption, Balance, Model, OnError, Profile, StreamOptions};
use helix_shm::proto::transform::{Resize, Sampling, Transform};
use helix_shm::sched::event::Catalog;
use helix_shm::sched::record;
use helix_shm::sim::{BadRecording, Bounds, Job, Outcome, Pace, Recording, Setup, System, simulate};
use serde::Serialize;

/// Exit code: 0 done, 2 it could not be done.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A manifest that `helix index` made
    manifest: PathBuf,
    /// Ranks that share the stream
    #[arg(long, default_value_t = 8)]
    ranks: u32,
    /// Samples a rank gets in a step
    #[arg(long, default_value_t = 8)]
    batch_size: u32,
    /// Compute of a step whose ranks are even, milliseconds
    #[arg(long, value_name = "MS", value_parser = positive, required_unless_present = "run")]
    step_ms: Option<f64>,
    /// A recorded run of this manifest (`helix-shmd --record`, `helix demo --record`): samples, decoding and compute are
    /// those of the run, and of the options above and below only the numbers of workers count
    #[arg(long, value_name = "FILE", conflicts_with_all = ["step_ms", "base_ms", "profile", "most", "as_dealt"])]
    run: Option<PathBuf>,
    /// The part of it that every step takes, whatever is in it
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    base_ms: f64,
    /// Decoding workers, one a core: numbers to try
    #[arg(long, value_name = "N", num_args = 1.., value_delimiter = ',', default_values_t = [4, 8, 16, 32, 64, 96])]
    workers: Vec<u16>,
    /// What a sample costs its rank
    #[arg(long, default_value = "equal")]
    profile: Named,
    /// Weight of squared tokens against tokens
    #[arg(long, value_name = "W", default_value_t = 0.0)]
    quadratic: f64,
    /// Leave samples with the rank that the sampler dealt them to
    #[arg(long, conflicts_with = "most")]
    as_dealt: bool,
    /// Let ranks get any number of samples up to this one
    #[arg(long, value_name = "SAMPLES")]
    most: Option<u32>,
    /// Steps that share their samples
    #[arg(long, value_name = "STEPS", default_value_t = 1)]
    regroup: u32,
    /// Frames of a sample
    #[arg(long, default_value_t = 16)]
    frames: u16,
    /// Frames between two of them; 0 = spread over the whole clip
    #[arg(long, default_value_t = 0)]
    stride: u32,
    /// Width and height of a sample, pixels
    #[arg(long, default_value_t = 224)]
    size: u16,
    /// Batches a rank may hold or have under way, the one in use included
    #[arg(long, value_name = "N", default_value_t = 8)]
    max_batches: u32,
    /// Speed of a core: 1 decodes as fast as the one the priors were measured on, a lone thread of an EPYC
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    core_speed: f64,
    /// Steps to simulate
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    steps: u32,
    /// Seed of the order
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// JSON on stdout instead of the table
    #[arg(long)]
    json: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|v: &f64| *v > 0.0 && v.is_finite()).ok_or_else(|| "wanted a number above 0".into())
}

/// A cost profile by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Named {
    Equal,
    Decode,
    QwenVl,
    Wan21,
    HunyuanVideo,
    OpenSora2,
    CogVideoX,
    LtxVideo,
    LlavaVideo,
    InternVl,
    VideoMae,
    Vivit,
    TimeSformer,
    SlowFast,
}

impl Named {
    const fn profile(self, quadratic: f64) -> Profile {
        let model = match self {
            Named::Equal => return Profile::Equal,
            Named::Decode => return Profile::Decode,
            Named::QwenVl => Model::QwenVl,
            Named::Wan21 => Model::Wan21,
            Named::HunyuanVideo => Model::HunyuanVideo,
            Named::OpenSora2 => Model::OpenSora2,
            Named::CogVideoX => Model::CogVideoX,
            Named::LtxVideo => Model::LtxVideo,
            Named::LlavaVideo => Model::LlavaVideo,
            Named::InternVl => Model::InternVl,
            Named::VideoMae => Model::VideoMae,
            Named::Vivit => Model::Vivit,
            Named::TimeSformer => Model::TimeSformer,
            Named::SlowFast => Model::SlowFast,
        };
        Profile::Tokens { model, quadratic }
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Option(#[from] BadOption),
    #[error("{} has no clip that can be decoded", .0.display())]
    Empty(PathBuf),
    #[error("{}: {error}", path.display())]
    Run { path: PathBuf, error: std::io::Error },
    #[error("{}: {error}", path.display())]
    Recording { path: PathBuf, error: BadRecording },
    #[error("base_ms is {base}; wanted from 0 to step_ms, {step}")]
    Base { base: f64, step: f64 },
}

/// What holds a run back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Binds {
    /// Ranks wait for input.
    Decoding,
    /// Ranks wait for each other, since their batches cost unlike.
    Imbalance,
    /// Ranks compute.
    Compute,
}

impl Binds {
    /// Whatever costs the ranks more of their time, if it is more than a little.
    fn of(run: &Outcome) -> Binds {
        // Who waits for a rank that waits for input stands at the barrier for the same reason.
        let input = if run.wait_share > 0.02 { run.wait_share + run.barrier_idle } else { 0.0 };
        match () {
            () if input > 0.05 => Binds::Decoding,
            () if run.barrier_idle > 0.05 => Binds::Imbalance,
            () => Binds::Compute,
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Binds::Decoding => "decoding: ranks wait for input",
            Binds::Imbalance => "uneven batches: ranks wait for each other",
            Binds::Compute => "compute",
        }
    }
}

/// One number of workers.
#[derive(Debug, Serialize)]
struct Line {
    workers: u16,
    samples_per_s: f64,
    of_compute_bound: f64,
    miss_rate: f64,
    wait_p95_ms: f64,
    wait_max_ms: f64,
    workers_busy: f64,
    read_mb_per_s: f64,
    binds: Binds,
}

#[derive(Debug, Serialize)]
struct Report {
    lines: Vec<Line>,
    /// Workers that come within 2 % of what any number would give.
    enough: Option<u16>,
    /// The recorded run, and what replaying it gives.
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<Replay>,
}

/// A recorded run beside its replay.
#[derive(Debug, Serialize)]
struct Replay {
    workers: u16,
    steps: u32,
    measured_samples_per_s: f64,
    replayed_samples_per_s: f64,
    measured_wait_p95_ms: f64,
    replayed_wait_p95_ms: f64,
}

pub(crate) fn main(args: &Args) -> ExitCode {
    match plan(args) {
        Ok(report) if args.json => {
            println!("{}", serde_json::to_string_pretty(&report).unwrap_or_default());
            ExitCode::SUCCESS
        }
        Ok(report) => {
            print(&report);
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("helix plan: {e}");
            ExitCode::from(2)
        }
    }
}

fn options(args: &Args) -> StreamOptions {
    let sampling = if args.stride == 0 { Sampling::Uniform } else { Sampling::RandomWindow { stride: args.stride } };
    let resize = Resize::Exact { width: args.size, height: args.size };
    let balance = match args.most {
        _ if args.as_dealt => Balance::None,
        Some(most) => Balance::Free { most },
        None => Balance::Cost,
    };
    StreamOptions {
        world: args.ranks,
        batch_size: args.batch_size,
        seed: args.seed,
        shuffle: true,
        drop_last: true,
        balance,
        profile: args.profile.profile(args.quadratic),
        on_error: OnError::Skip,
        transform: Transform { frames: args.frames, sampling, resize, ..Transform::default() },
        micro_batch: 1,
        regroup: args.regroup,
        weigh: Default::default(),
        mix: Vec::new(),
        rebalance: Default::default(),
    }
}

fn plan(args: &Args) -> Result<Report, Failure> {
    if let Some(path) = &args.run {
        return replay(args, path);
    }
    let options = options(args);
    options.check()?;
    let step = args.step_ms.unwrap_or(0.0);
    if !(0.0..=step).contains(&args.base_ms) {
        return Err(Failure::Base { base: args.base_ms, step });
    }
    let manifest = Manifest::open(&args.manifest)?;
    if manifest.is_empty() || manifest.good() == 0 {
        return Err(Failure::Empty(args.manifest.clone()));
    }
    Ok(report(args, &manifest, &options))
}

/// What a recorded run would have been with other numbers of workers.
fn replay(args: &Args, path: &Path) -> Result<Report, Failure> {
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

/// The numbers of workers to try, ascending.
fn workers(args: &Args) -> Vec<u16> {
    let mut workers = args.workers.clone();
    workers.retain(|w| *w > 0);
    workers.sort_unstable();
    workers.dedup();
    workers
}

fn report(args: &Args, catalog: &dyn Catalog, options: &StreamOptions) -> Report {
    let step_ms = args.step_ms.unwrap_or(0.0);
    let pace = Pace {
        core_speed: args.core_speed,
        sample_s: (step_ms - args.base_ms) / 1e3 / f64::from(args.batch_size),
        step_base: args.base_ms / 1e3,
    };
    let job = Job::of(catalog, options, pace, args.steps, 1);
    let megabytes = job.trace.samples.iter().map(|s| s.work.megabytes).sum::<f64>() / job.trace.samples.len() as f64;
    let run = |workers: u16| {
        let job = Job { cores: workers, ..job.clone() };
        let bounds = Bounds::new(&job);
        let system = System::Helix { balance: true, regroup: args.regroup };
        let setup = Setup { servers: 1, depth: args.max_batches.max(2), ..Setup::new(system) };
        (simulate(&job, &bounds, setup), bounds)
    };
    let line = |workers: u16| {
        let (run, bounds) = run(workers);
        // Even compute, whatever decoding takes: what more workers could give at best.
        let compute = f64::from(options.world * options.batch_size) / (step_ms / 1e3);
        Line::of(workers, &run, run.throughput / compute.max(bounds.perfect), megabytes)
    };
    let lines = workers(args).into_iter().map(line).collect();
    Report { lines, enough: enough(|w| run(w).0.throughput), replay: None }
}

impl Line {
    fn of(workers: u16, run: &Outcome, of_compute_bound: f64, megabytes: f64) -> Line {
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

/// The fewest workers that come within 2 % of the most that any number gives.
fn enough(rate: impl Fn(u16) -> f64) -> Option<u16> {
    const MOST: u16 = 4096;
    let wanted = 0.98 * rate(MOST);
    let mut high = 1u16;
    while rate(high) < wanted {
        high = high.checked_mul(2).filter(|h| *h <= MOST)?;
    }
    let mut low = high / 2; // not enough, or none
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if rate(middle) < wanted { low = middle } else { high = middle }
    }
    Some(high)
}

fn print(report: &Report) {
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

#[cfg(test)]
mod tests {
    use clap::Parser;
    use helix_shm::proto::transform::{Codec, Facts};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        plan: Args,
    }

    /// Clips of 720p, of 2 to 20 seconds.
    struct Clips;

    impl Catalog for Clips {
        fn len(&self) -> u64 {
            300
        }
        fn row(&self, i: u64) -> u64 {
            i
        }
        fn facts(&self, i: u64) -> Facts {
            let frames = 50 + (i * 37 % 450) as u32;
            let (bytes, duration_ms) = (u64::from(frames) * 10_000, frames * 40);
            Facts { bytes, frames, duration_ms, width: 1280, height: 720, keyframes: frames / 50, codec: Codec::H264 }
        }
    }

    fn planned(more: &[&str]) -> Report {
        let words = [&["plan", "x.arrow", "--ranks", "4", "--batch-size", "2", "--steps", "60"], more].concat();
        let args = Cli::parse_from(words).plan;
        report(&args, &Clips, &options(&args))
    }

    #[test]
    fn few_workers_bind_and_enough_do_not() {
        let report = planned(&["--step-ms", "400", "--workers", "1", "64"]);
        let [one, many] = &report.lines[..] else { panic!("{report:?}") };
        assert_eq!((one.binds, many.binds), (Binds::Decoding, Binds::Compute), "{report:?}");
        assert!(one.workers_busy > 0.95 && many.of_compute_bound > 0.98, "{report:?}");
        assert!(many.samples_per_s > 3.0 * one.samples_per_s);
        assert!(report.enough.is_some_and(|n| n > 1 && n < 64), "{report:?}");
    }

    #[test]
    fn uneven_batches_are_told_from_slow_decoding() {
        let uneven = ["--step-ms", "4000", "--workers", "64", "--profile", "qwen-vl", "--as-dealt"];
        assert_eq!(planned(&uneven).lines[0].binds, Binds::Imbalance);
        let grouped = ["--step-ms", "4000", "--workers", "64", "--profile", "qwen-vl", "--regroup", "8"];
        assert_eq!(planned(&grouped).lines[0].binds, Binds::Compute);
    }

    #[test]
    fn the_fewest_that_are_enough_are_found() {
        assert_eq!(enough(|w| f64::from(w.min(37))), Some(37));
        assert_eq!(enough(|_| 1.0), Some(1));
    }
}
