//! `helix`: the tool. One module a subcommand; the work is in the library.

mod bench;
mod demo;
mod index;
mod plan;
mod results;
mod top;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The data plane that keeps the accelerators of a training box fed.
#[derive(Parser)]
#[command(name = "helix", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare systems on the eleven workloads, in virtual time
    Bench(bench::Args),
    /// Feed ranks from real video under several policies, side by side
    Demo(Box<demo::DemoArgs>),
    /// One rank of `helix demo`
    #[command(hide = true)]
    DemoRank,
    /// Look into media files and write a manifest of them
    Index(index::Args),
    /// What a manifest would need: throughput, waits and cores, by simulation
    Plan(Box<plan::Args>),
    /// Print the rows that benchmarks and demo left, those that do not hold first
    Results(results::Args),
    /// Show what the daemons of a user are doing, also while they do not answer
    Top(top::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("HELIX_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default_filter(&cli.command)));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time();
    lines.with_ansi(std::io::stderr().is_terminal()).init();
    match cli.command {
        Command::Bench(args) => bench::main(&args),
        Command::Demo(args) => demo::main(&args),
        Command::DemoRank => demo::rank::main(),
        Command::Index(args) => index::run(&args),
        Command::Plan(args) => plan::main(&args),
        Command::Results(args) => results::run(&args),
        Command::Top(args) => top::run(&args),
    }
}

/// What is said unless `HELIX_LOG` says otherwise. The demo reports the bad samples of its ranks, each file once.
fn default_filter(command: &Command) -> &'static str {
    match command {
        Command::DemoRank => "warn,helix_shm::bad_sample=error",
        _ => "warn",
    }
}
