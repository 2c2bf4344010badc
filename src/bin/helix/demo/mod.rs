//! `helix demo`: rank processes fed from real video under several policies, side by side.
//!
//! [`material`] finds or makes the clips, [`calibrate`] measures them, [`plan`] fixes the run, [`crew`] runs the
//! [`rank`] processes under each policy, [`metrics`] and [`report`] say what came of it. Everything that differs
//! between policies is in `RunOptions` and `Balance`; engine, cores, memory and stream are the same. The room uses
//! the crate's public faces alone, as any trainer would.

mod args;
mod calibrate;
mod crew;
mod interrupt;
mod material;
mod metrics;
mod plan;
pub(crate) mod rank;
mod report;
mod screen;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use args::Contender;
pub(crate) use args::DemoArgs;
use calibrate::{Calibration, Cost};
use crew::{Crew, CrewError};
use helix_shm::corpus::CorpusError;
use helix_shm::manifest::build::BuildError;
use helix_shm::manifest::{ManifestError, WriteError};
use helix_shm::results;
use metrics::{Outcome, Step};
use plan::Plan;
use report::{Entry, Report};
use screen::Screen;

/// The share of the cores' time that a quiet machine leaves us.
const QUIET: f64 = 0.9;

/// Why there is no demo.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error("no video in {folder} ({files} files looked at); name a folder with videos, or leave out --videos")]
    NoVideos { folder: PathBuf, files: u64 },
    #[error(
        "{folder} has {found} usable videos, and a step of {ranks} ranks × {batch} samples takes {needed}; add videos, \
         or lower --ranks or --batch-size"
    )]
    TooFew { folder: PathBuf, found: usize, needed: u64, ranks: u32, batch: u32 },
    #[error("cannot write into {folder}: {source}; name another folder with --work")]
    Work { folder: PathBuf, source: std::io::Error },
    #[error("cannot write {file}: {source}; name another file with --results")]
    Results { file: PathBuf, source: std::io::Error },
    #[error("no clip in {0} could be decoded")]
    NothingDecodes(String),
    #[error("policy {who}: {source}")]
    Run { who: &'static str, source: CrewError },
    #[error("interrupted")]
    Interrupted,
    #[error("cannot find this program's own file: {0}")]
    Program(std::io::Error),
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    #[error(transparent)]
    Index(#[from] BuildError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Runs the demo; the exit code is 0 only if all policies delivered the same stream.
pub(crate) fn main(args: &DemoArgs) -> ExitCode {
    interrupt::install();
    let screen = Arc::new(Screen::new());
    match run(args, &screen) {
        Ok(report) => {
            if args.json {
                println!("{}", serde_json::to_string_pretty(&report.rows()).expect("rows are plain data"));
            }
            if report.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(DemoError::Interrupted) => {
            screen.end();
            eprintln!("interrupted: ranks, workers and daemon have ended");
            ExitCode::from(interrupt::EXIT_CODE as u8)
        }
        Err(error) => {
            screen.end();
            eprintln!("helix demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &DemoArgs, screen: &Arc<Screen>) -> Result<Report, DemoError> {
    let material = material::gather(args, screen)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let calibration =
        calibrate::calibrate(&material.clips, args.seed, cores, screen).ok_or(DemoError::Interrupted)?;
    let Calibration { costs, share } = calibration;
    if costs.iter().all(|c| c.pixels == [0, 0]) {
        return Err(DemoError::NothingDecodes(material.words));
    }
    let plan = Plan::new(args, &material.clips, &costs, cores);
    let manifest = args.work.join("run.arrow");
    material::write_manifest(&manifest, &material.clips, plan.rows)?;
    let manifest = manifest.canonicalize().map_err(|source| DemoError::Work { folder: args.work.clone(), source })?;
    screen.line(&plan.words(&material.words));
    if share < QUIET {
        let taken = (1.0 - share) * 100.0;
        screen.line(&format!(
            "NOT QUIET: other processes take {taken:.0} % of the cores; a policy with more processes gets more of the \
             rest, so these numbers compare nothing"
        ));
    }

    let record = args.record.as_deref().map(record_folder).transpose()?;
    let mut outcomes = Vec::new();
    for &who in &args.policies {
        outcomes.push((who, run_policy(who, &plan, &manifest, record.as_deref(), screen)?));
    }
    let report = judge(args, &plan, &costs, outcomes);
    if !args.json {
        print_report(args, &report);
    }
    results::write(&args.results, &report.rows())
        .map_err(|source| DemoError::Results { file: args.results.clone(), source })?;
    Ok(report)
}

/// Makes the folder for records. The daemon runs elsewhere, so that it is named by its whole path.
fn record_folder(folder: &std::path::Path) -> Result<PathBuf, DemoError> {
    let made = std::fs::create_dir_all(folder).and_then(|()| folder.canonicalize());
    made.map_err(|source| DemoError::Work { folder: folder.to_owned(), source })
}

fn run_policy(
    who: Contender,
    plan: &Plan,
    manifest: &std::path::Path,
    record: Option<&std::path::Path>,
    screen: &Arc<Screen>,
) -> Result<Outcome, DemoError> {
    let program = std::env::current_exe().map_err(DemoError::Program)?;
    let job = format!("demo-{}-{}", std::process::id(), who.name());
    screen.begin(who.name(), u64::from(plan.steps));
    let mut waited = Duration::ZERO;
    let mut on_step = |n: usize, step: &Step| {
        let longest = step.ranks.iter().map(|r| r.wait).max().unwrap_or_default();
        waited += longest;
        screen.at(n as u64 + 1, || {
            let mean = waited / (n as u32 + 1);
            format!("step {} took {:.2?}, longest wait {longest:.1?} (mean {mean:.1?})", n + 1, step.took)
        });
    };
    let ran = Crew::start(
        &program,
        (0..plan.ranks).map(|rank| plan.spec(who, rank, &job, manifest)).collect(),
        record,
        screen,
    )
    .and_then(|crew| crew.run(plan.steps, &mut on_step));
    screen.end();
    ran.map_err(|source| match source {
        CrewError::Interrupted => DemoError::Interrupted,
        source => DemoError::Run { who: who.name(), source },
    })
}

/// From what happened to what is reported.
fn judge(args: &DemoArgs, plan: &Plan, costs: &[Cost], outcomes: Vec<(Contender, Outcome)>) -> Report {
    let measured = |outcome: &Outcome| outcome.steps[plan.warm_up as usize..].to_vec();
    // All policies deliver the same samples in each step, so one bound and one yardstick serve all.
    let first = measured(&outcomes[0].1);
    let ids = first.iter().flat_map(|s| &s.ranks).flat_map(|r| &r.samples).map(|s| s.id);
    let bound = metrics::bound(&first, plan.decode_time(ids, costs), plan.cores);
    let thresholds = [Duration::from_secs_f64(args.theta_ms / 1e3), metrics::median_step(&first) / 20];
    let differs = |(who, outcome): &(Contender, Outcome)| {
        metrics::first_difference(&outcomes[0].1, outcome).map(|step| (*who, step))
    };
    let difference = outcomes.iter().find_map(differs);
    let reference = metrics::reference(&outcomes[0].1, costs);
    let entries = outcomes
        .into_iter()
        .map(|(who, outcome)| {
            let summary = metrics::summary(&measured(&outcome), thresholds);
            Entry { who, outcome, summary }
        })
        .collect();
    Report { entries, bound, thresholds, difference, reference, command: command() }
}

fn print_report(args: &DemoArgs, report: &Report) {
    println!("\n{}", report.table());
    for line in report.remarks() {
        println!("{line}");
    }
    println!("rows: {}", args.results.display());
}

/// The command that gives these rows again.
fn command() -> String {
    let words: Vec<String> = std::env::args().skip(2).collect();
    if words.is_empty() { "make demo".into() } else { format!("make demo ARGS=\"{}\"", words.join(" ")) }
}
