//! `helix top`: what this user's daemons are doing, read from the status page, so also while a daemon does not answer.

mod judge;
mod text;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use helix_shm::status;
use nix::time::{ClockId, clock_gettime};

use judge::Job;

/// Show what the daemons of a user are doing
#[derive(Parser)]
pub struct Args {
    /// Print once and end; 0 if every daemon is well, 1 if one is not, 2 if there is none
    #[arg(long)]
    once: bool,
    /// Print JSON
    #[arg(long, requires = "once")]
    json: bool,
    /// Whose daemons; another user's only as root
    #[arg(long, value_name = "NUMBER")]
    uid: Option<u32>,
    /// Milliseconds between two looks
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    every: u64,
}

pub fn run(args: &Args) -> ExitCode {
    let uid = args.uid.unwrap_or_else(|| nix::unistd::geteuid().as_raw());
    let shown = if args.once { once(uid, args.json) } else { watch(uid, Duration::from_millis(args.every)) };
    shown.unwrap_or_else(|e| {
        eprintln!("helix top: {e}");
        ExitCode::FAILURE
    })
}

fn once(uid: u32, json: bool) -> Result<ExitCode, String> {
    let jobs = look(uid)?;
    let mut out = String::new();
    if json {
        let report = serde_json::json!({ "uid": uid, "jobs": jobs });
        out = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())? + "\n";
    } else {
        text::all(&jobs, uid, &mut out);
    }
    // A reader that has seen enough, as `head` has, is no error.
    let _ = std::io::stdout().write_all(out.as_bytes());
    Ok(match &jobs[..] {
        [] => ExitCode::from(2),
        jobs if jobs.iter().all(Job::is_well) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Prints again and again, over what was there, until it is interrupted.
fn watch(uid: u32, every: Duration) -> Result<ExitCode, String> {
    if !std::io::stdout().is_terminal() {
        return Err("standard output is no terminal: use --once".into());
    }
    loop {
        let mut out = String::from("\x1b[H\x1b[2J");
        text::all(&look(uid)?, uid, &mut out);
        std::io::stdout().write_all(out.as_bytes()).map_err(|e| e.to_string())?;
        std::thread::sleep(every);
    }
}

/// Every job on the page, with what is to be thought of it.
fn look(uid: u32) -> Result<Vec<Job>, String> {
    let shown = status::read(uid).map_err(|e| e.to_string())?;
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).map_err(|e| e.to_string())?;
    Ok(shown.into_iter().map(|shown| Job::new(shown, now.as_nanos() as u64)).collect())
}
