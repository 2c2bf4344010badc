//! `helix`: the tool. One module a subcommand; the work is in the library.

mod index;

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
    /// Look into media files and write a manifest of them
    Index(index::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("HELIX_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    match cli.command {
        Command::Index(args) => index::run(&args),
    }
}
