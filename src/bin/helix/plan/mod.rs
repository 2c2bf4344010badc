//! `helix plan`: what would happen with these clips, that model and so many cores. The daemon's own scheduler runs
//! under a virtual clock; decode times are the frozen priors with their noise, compute is what the user says.
//!
//! [`mod@report`] is the answer for one machine, [`nodes`] that for several, [`replay`] looks at a recorded run.

pub(crate) mod nodes;
mod profile;
mod replay;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use helix_shm::manifest::{Manifest, ManifestError};
use helix_shm::proto::options::{BadOption, Balance, OnError, StreamOptions};
use helix_shm::proto::transform::{Resize, Sampling, Transform};
use helix_shm::sched::event::Catalog;
use helix_shm::sim::{BadRecording, Bounds, Job, Layout, Link, Node, Pace, Setup, System, simulate};
use serde::Serialize;

use self::nodes::{Machines, Speed};
use self::profile::Named;
use self::report::{Line, Report};

/// Exit code: 0 done, 2 it could not be done.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A manifest that `helix index` made
    manifest: PathBuf,
    /// Ranks that share the stream; with `--nodes`, those of each node
    #[arg(long, default_value_t = 8)]
    ranks: u32,
    /// Machines, joined by links; needs `--cores`
    #[arg(long, value_name = "N", requires = "cores", conflicts_with_all = ["workers", "run"], value_parser = clap::value_parser!(u16).range(1..=256))]
    nodes: Option<u16>,
    /// Decoding cores of each node, or of all alike
    #[arg(long, value_name = "N", num_args = 1.., value_delimiter = ',', requires = "nodes")]
    cores: Vec<u16>,
    /// What a node's link carries, each way
    #[arg(long, value_name = "SPEED", default_value = "25Gbit/s", requires = "nodes")]
    link: Speed,
    /// And how long it takes on top, microseconds
    #[arg(long, value_name = "US", default_value_t = 50.0, requires = "nodes")]
    link_latency_us: f64,
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
    #[error("--cores has {cores} numbers for {nodes} nodes; wanted one each, or one for all, and none of them 0")]
    Cores { cores: usize, nodes: u16 },
    #[error("base_ms is {base}; wanted from 0 to step_ms, {step}")]
    Base { base: f64, step: f64 },
}

/// What was asked for.
enum Answer {
    One(Report),
    Several(Vec<nodes::Line>),
}

impl Answer {
    fn show(&self, json: bool) {
        match self {
            Answer::One(report) if json => print_json(report),
            Answer::Several(lines) if json => print_json(lines),
            Answer::One(report) => report::print(report),
            Answer::Several(lines) => nodes::print(lines),
        }
    }
}

fn print_json(value: &(impl Serialize + ?Sized)) {
    println!("{}", serde_json::to_string_pretty(value).unwrap_or_default());
}

pub(crate) fn main(args: &Args) -> ExitCode {
    match plan(args) {
        Ok(answer) => {
            answer.show(args.json);
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
        world: args.ranks * args.nodes.map_or(1, u32::from),
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

fn plan(args: &Args) -> Result<Answer, Failure> {
    if let Some(path) = &args.run {
        return Ok(Answer::One(replay::replay(args, path)?));
    }
    let options = options(args);
    options.check()?;
    let step = args.step_ms.unwrap_or(0.0);
    if !(0.0..=step).contains(&args.base_ms) {
        return Err(Failure::Base { base: args.base_ms, step });
    }
    let machines = args.nodes.map(|nodes| machines(args, nodes)).transpose()?;
    let manifest = Manifest::open(&args.manifest)?;
    if manifest.is_empty() || manifest.good() == 0 {
        return Err(Failure::Empty(args.manifest.clone()));
    }
    Ok(answer(args, &manifest, &options, machines.as_ref()))
}

fn machines(args: &Args, nodes: u16) -> Result<Machines, Failure> {
    let wrong = || Failure::Cores { cores: args.cores.len(), nodes };
    let cores = match args.cores.len() {
        1 => vec![args.cores[0]; nodes.into()],
        n if n == usize::from(nodes) => args.cores.clone(),
        _ => return Err(wrong()),
    };
    if cores.contains(&0) {
        return Err(wrong());
    }
    let node = |cores: u16| Node { ranks: args.ranks, cores };
    Ok(Machines {
        nodes: cores.into_iter().map(node).collect(),
        link: Link { bandwidth: args.link.0, latency: args.link_latency_us.max(0.0) / 1e6 },
        depth: args.max_batches.max(2),
        regroup: args.regroup,
    })
}

/// The numbers of workers to try, ascending.
fn workers(args: &Args) -> Vec<u16> {
    let mut workers = args.workers.clone();
    workers.retain(|w| *w > 0);
    workers.sort_unstable();
    workers.dedup();
    workers
}

fn answer(args: &Args, catalog: &dyn Catalog, options: &StreamOptions, machines: Option<&Machines>) -> Answer {
    let step_ms = args.step_ms.unwrap_or(0.0);
    let pace = Pace {
        core_speed: args.core_speed,
        sample_s: (step_ms - args.base_ms) / 1e3 / f64::from(args.batch_size),
        step_base: args.base_ms / 1e3,
    };
    match machines {
        None => Answer::One(report(args, &Job::of(catalog, options, pace, args.steps, 1), step_ms)),
        Some(machines) => {
            let cores = machines.nodes.iter().fold(0u16, |sum, n| sum.saturating_add(n.cores));
            Answer::Several(nodes::lines(&Job::of(catalog, options, pace, args.steps, cores), machines))
        }
    }
}

fn report(args: &Args, job: &Job, step_ms: f64) -> Report {
    let megabytes = job.trace.samples.iter().map(|s| s.work.megabytes).sum::<f64>() / job.trace.samples.len() as f64;
    let run = |workers: u16| {
        let job = Job { cores: workers, ..job.clone() };
        let bounds = Bounds::new(&job);
        let system = System::Helix { balance: true, regroup: args.regroup };
        let setup = Setup { layout: Layout::Even(1), depth: args.max_batches.max(2), ..Setup::new(system) };
        (simulate(&job, &bounds, setup), bounds)
    };
    let line = |workers: u16| {
        let (run, bounds) = run(workers);
        // Even compute, whatever decoding takes: what more workers could give at best.
        let compute = f64::from(args.ranks * args.batch_size) / (step_ms / 1e3);
        Line::of(workers, &run, run.throughput / compute.max(bounds.perfect), megabytes)
    };
    let lines = workers(args).into_iter().map(line).collect();
    Report { lines, enough: enough(|w| run(w).0.throughput), replay: None }
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

#[cfg(test)]
mod tests;
