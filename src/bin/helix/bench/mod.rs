//! `helix bench`: the eleven workloads under each system, in virtual time, beside the bounds that no loader can beat.
//!
//! [`run`] simulates, [`figures`] averages over seeds, [`table`] prints, [`rows`] holds the figures against their
//! targets, [`plot`] draws, [`ablation`] switches one lever off at a time, [`sweep`] adds servers and compares the bytes
//! that cross between them with [`flow`]'s fewest, [`nodes`] has several machines, [`scaling`] looks for the best number of workers, [`speed`] measures
//! the scheduler itself.

mod ablation;
mod figures;
mod flow;
mod live;
mod nodes;
mod plot;
mod rows;
mod run;
mod scaling;
mod speed;
mod sweep;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use helix_shm::results;
use helix_shm::sim::{Suite, System, Workload};
use xxhash_rust::xxh3::xxh3_128;

/// The workloads that come with the tool.
const SUITE: &str = include_str!("../../../../benches/workloads.json");

/// Most seeds of the ablations: they tell large differences.
const ABLATION_SEEDS: u64 = 3;

/// Exit code: 0 done, targets missed or not (`helix results` says which); 2 it could not be done.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Workloads by name, or `all`
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "all")]
    workload: Vec<String>,
    /// Systems to compare [default: all]
    #[arg(long, value_delimiter = ',')]
    system: Vec<Name>,
    /// Seeds of samples and order; figures are means over them
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Runs so many times as long: what was prefetched in the warm-up then counts for less
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    longer: u32,
    /// Threads that simulate [default: one for each core]
    #[arg(short, long, value_name = "N")]
    jobs: Option<usize>,
    /// A file of workloads of your own
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Leave out the measurement of the scheduler's own speed, which wants a quiet machine
    #[arg(long)]
    no_speed: bool,
    /// Leave out the ablations, the server sweep, the bytes between servers and the case of several machines
    #[arg(long)]
    no_ablations: bool,
    /// Nothing but the case of several machines: four nodes of two ranks
    #[arg(long, conflicts_with = "live")]
    nodes: bool,
    /// Through a real daemon, workers and rings instead, with emulated decoding and compute
    #[arg(long)]
    live: bool,
    /// Workers of a live run; decoding is shortened so that as much binds as with all cores
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u16).range(8..=200))]
    live_workers: u16,
    /// Seconds of a live run at the bound, for each workload and system
    #[arg(long, value_name = "S", default_value_t = 8.0)]
    live_seconds: f64,
    /// Where manifests of a live run lie
    #[arg(long, value_name = "DIR", default_value = "target/bench-live")]
    work: PathBuf,
    /// Where the rows go
    #[arg(long, value_name = "FILE", default_value = "target/results/paper.json")]
    results: PathBuf,
    /// Where the plot goes
    #[arg(long, value_name = "FILE", default_value = "target/results/paper.svg")]
    plot: PathBuf,
}

/// A system by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Name {
    /// PyTorch's DataLoader a rank, 2 workers each.
    #[value(name = "native-2")]
    Native2,
    /// The same with 4 workers each.
    #[value(name = "native-4")]
    Native4,
    /// The same with 12 workers each: all cores.
    #[value(name = "native-12")]
    Native12,
    /// A first-come-first-served pool, a task a batch.
    PoolBatch,
    /// A first-come-first-served pool, a task a sample.
    PoolSample,
    /// This scheduler, samples to the ranks as the sampler dealt them.
    HelixDealt,
    /// This scheduler.
    Helix,
    /// This scheduler, eight steps sharing their samples.
    #[value(name = "helix-regroup8")]
    HelixRegroup8,
}

impl Name {
    const fn system(self) -> System {
        match self {
            Name::Native2 => System::Native { workers: 2 },
            Name::Native4 => System::Native { workers: 4 },
            Name::Native12 => System::Native { workers: 12 },
            Name::PoolBatch => System::Pool { batches: true },
            Name::PoolSample => System::Pool { batches: false },
            Name::HelixDealt => System::Helix { balance: false, regroup: 1 },
            Name::Helix => System::HELIX,
            Name::HelixRegroup8 => System::Helix { balance: true, regroup: 8 },
        }
    }

    /// Whether it is somebody else's.
    const fn other(self) -> bool {
        !matches!(self, Name::HelixDealt | Name::Helix | Name::HelixRegroup8)
    }

    fn text(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Live(#[from] live::LiveError),
    #[error(transparent)]
    Suite(#[from] helix_shm::sim::BadSuite),
    #[error("there is no workload `{name}`; there are {known}")]
    Workload { name: String, known: String },
}

pub(crate) fn main(args: &Args) -> ExitCode {
    match bench(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("helix bench: {e}");
            ExitCode::from(2)
        }
    }
}

fn bench(args: &Args) -> Result<(), Failure> {
    let text = match &args.file {
        Some(path) => std::fs::read_to_string(path).map_err(|error| Failure::File { path: path.clone(), error })?,
        None => SUITE.to_owned(),
    };
    let suite = Suite::parse(&text)?;
    let workloads = chosen(&suite, &args.workload)?;
    if args.live {
        return live(args, &workloads);
    }
    if args.nodes {
        return several(args, &workloads);
    }
    let mut systems = if args.system.is_empty() { Name::value_variants().to_vec() } else { args.system.clone() };
    systems.sort_unstable();
    systems.dedup();
    println!("workloads {:032x} (xxh3), {} seeds, in virtual time", xxh3_128(text.as_bytes()), args.seeds);
    let jobs = threads(args);
    let runs = run::all(&workloads, &systems, (args.seeds, args.longer), jobs);
    let figures = figures::average(&workloads, &systems, &runs);
    print!("{}", table::of(&figures, &systems));
    let command = command(args);
    let mut found = rows::of(&figures, &command);
    if !args.no_ablations && args.system.is_empty() {
        for (more, table) in [
            ablation::rows(&workloads, (args.seeds.min(ABLATION_SEEDS), args.longer), jobs, &command),
            sweep::servers(&workloads, jobs, &command),
            sweep::cross_bytes(&workloads, jobs, &command),
            nodes::rows(&workloads, jobs, &command),
        ] {
            print!("{table}");
            found.extend(more);
        }
    }
    if let Some(workload) = workloads.iter().find(|w| w.name == "timesformer") {
        found.extend(scaling::rows(workload, &command));
    }
    if !args.no_speed && workloads.len() == suite.workloads().len() {
        found.extend(speed::rows(workloads[0], &command));
    }
    print_targets(&found);
    let written = |path: &PathBuf, error| Failure::File { path: path.clone(), error };
    results::write(&args.results, &found).map_err(|e| written(&args.results, e))?;
    if let Some(dir) = args.plot.parent() {
        std::fs::create_dir_all(dir).map_err(|e| written(&args.plot, e))?;
    }
    std::fs::write(&args.plot, plot::of(&figures, &systems)).map_err(|e| written(&args.plot, e))?;
    println!("{} rows in {}, plot in {}", found.len(), args.results.display(), args.plot.display());
    Ok(())
}

fn print_targets(rows: &[results::Row]) {
    for row in rows.iter().filter(|r| !r.target.is_empty()) {
        let mark = if row.holds { "holds" } else { "MISSED" };
        println!("{mark:7} {:34} {:>9.4} {:4} {}", row.name, row.value, row.unit, row.target);
    }
}

/// Rows of several machines alone.
fn several(args: &Args, workloads: &[&Workload]) -> Result<(), Failure> {
    let command = format!("helix bench --nodes --workload {}", args.workload.join(","));
    let (rows, table) = nodes::rows(workloads, threads(args), &command);
    print!("{table}");
    print_targets(&rows);
    let path = args.results.with_file_name("nodes.json");
    results::write(&path, &rows).map_err(|error| Failure::File { path: path.clone(), error })?;
    println!("{} rows in {}", rows.len(), path.display());
    Ok(())
}

fn threads(args: &Args) -> usize {
    args.jobs.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1)
}

/// Rows of a live run go beside those of the simulation.
fn live(args: &Args, workloads: &[&Workload]) -> Result<(), Failure> {
    let scale = live::Scale { workers: args.live_workers, seconds: args.live_seconds.clamp(0.5, 600.0) };
    let names = args.workload.join(",");
    let command = format!(
        "helix bench --live --workload {names} --live-workers {} --live-seconds {}",
        scale.workers, scale.seconds
    );
    let rows = live::rows(workloads, scale, &args.work, &command)?;
    let path = args.results.with_file_name("live.json");
    results::write(&path, &rows).map_err(|error| Failure::File { path: path.clone(), error })?;
    println!("{} rows in {}", rows.len(), path.display());
    Ok(())
}

fn chosen<'a>(suite: &'a Suite, names: &[String]) -> Result<Vec<&'a Workload>, Failure> {
    let all = suite.workloads();
    if names.iter().any(|n| n == "all") {
        return Ok(all.iter().collect());
    }
    let find = |name: &String| {
        let known = || all.iter().map(|w| w.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = all.iter().find(|w| w.name == *name);
        found.ok_or_else(|| Failure::Workload { name: name.clone(), known: known() })
    };
    names.iter().map(find).collect()
}

/// What was asked, as far as it decides the figures.
fn command(args: &Args) -> String {
    let systems: Vec<String> = args.system.iter().map(|s| s.text()).collect();
    let mut text = format!("helix bench --workload {} --seeds {}", args.workload.join(","), args.seeds);
    if !systems.is_empty() {
        text += &format!(" --system {}", systems.join(","));
    }
    if args.longer > 1 {
        text += &format!(" --longer {}", args.longer);
    }
    if let Some(file) = &args.file {
        text += &format!(" --file {}", file.display());
    }
    text
}

#[cfg(test)]
mod tests;
