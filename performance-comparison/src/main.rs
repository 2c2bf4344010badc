//! The ring beside its peers: one way, throughput, full path, many producers, wake-up, publishing.
//!
//! Two processes, each on a core of its own, measure every system in turn, in rounds. Before and after each burst the
//! same is done by the least that could do it, the *floor*: a word on a cache line, a bare eventfd, a flag and a
//! fence. A burst whose floor moved is dropped; what is reported are medians of ratios to the floor. Pairs of cores
//! have two states, told apart by their floor: *near* (below 100 ns) and *far*; a machine may change between them.
//!
//! Everything is polled by one policy ([`poll`]) or sleeps in the kernel on both sides; every message is 56 bytes,
//! every queue holds 256, every payload is checked. Queues that know only threads have a thread on the same core.

mod bench;
mod cores;
mod crowd;
mod ends;
mod floor;
mod peer;
mod poll;
mod publish;
mod report;
mod rounds;
mod shared;
mod wakers;
mod windows;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use helix_shm::results;

use crate::bench::Bench;
use crate::ends::iceoryx::{Failed, Iceoryx};

const USAGE: &str = "usage: performance-comparison [--seconds N] [--out FILE]

  --seconds N  measure for at most so long (120); half of it is spent waiting for the regime that did not come by
  --out FILE   where the rows go (target/results/ring.json)";

struct Options {
    limit: Duration,
    out: PathBuf,
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options, Failed> {
    let mut options = Options { limit: Duration::from_secs(120), out: "target/results/ring.json".into() };
    while let Some(flag) = args.next() {
        match (flag.as_str(), args.next()) {
            ("--seconds", Some(n)) => options.limit = Duration::from_secs(n.parse()?),
            ("--out", Some(path)) => options.out = path.into(),
            _ => return Err(USAGE.into()),
        }
    }
    Ok(options)
}

fn compare(options: &Options) -> Result<(), Failed> {
    let cores = cores::allowed()?;
    if cores.len() < 2 {
        return Err(format!("wanted two cores, found {cores:?}: nothing can be polled from one to the other").into());
    }
    let (load, count) = (cores::load(), cores.len());
    println!("cores {cores:?}, load average {load:.1}");
    let busy = load > count as f64;
    if busy {
        println!(
            "other work wants the cores too: most bursts will be dropped; take no figure from this run for final"
        );
    }
    give_up_after(options.limit + Duration::from_secs(45));
    let mut bench = Bench::new(cores)?;
    let mut groups = rounds::groups();
    let tell = |round| {
        if std::io::stderr().is_terminal() {
            eprint!("\rround {round} ");
        }
    };
    let rounds = rounds::run(&mut bench, &mut groups, options.limit, tell)?;
    let producers = bench.producers;
    bench.finish()?;
    println!("{}{rounds} rounds", report::table(&groups));
    if count < 3 {
        println!("{producers} producers shared one core: real contention needs three cores or more");
    }
    let (rows, missing) = report::rows(&groups);
    println!("\n{}{}", report::verdict(&rows), missing.iter().map(|line| format!("{line}\n")).collect::<String>());
    if busy {
        println!("the load average was {load:.1} on {count} cores: these figures are not final");
    }
    results::write(&options.out, &rows)?;
    println!("rows are in {}", options.out.display());
    Ok(())
}

/// Ends everything if a lost message made a side wait for ever: the child dies with us.
fn give_up_after(limit: Duration) {
    thread::spawn(move || {
        thread::sleep(limit);
        eprintln!("no end after {limit:?}: a side waits for what does not come");
        let _ = Iceoryx::remove_leftovers(&bench::run_name());
        std::process::exit(1);
    });
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let done = match args.next().as_deref() {
        Some("--answer") => {
            let run = args.next().unwrap_or_default();
            let fds: Result<Vec<i32>, _> = args.next().unwrap_or_default().split(',').map(str::parse).collect();
            fds.map_err(Failed::from).and_then(|fds| bench::answer(&run, &fds))
        }
        first => options(first.map(str::to_owned).into_iter().chain(args)).and_then(|options| compare(&options)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("performance-comparison: {e}");
            ExitCode::FAILURE
        }
    }
}
