//! The daemon, and the worker processes that it starts from the same binary.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Feeds the ranks of training jobs: decides who decodes what by when, and supervises the workers that do it.
#[derive(Parser)]
#[command(name = "helix-shmd", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Unix socket to listen at.
    #[arg(long, value_name = "PATH", required = true)]
    socket: Option<PathBuf>,
    /// Belong to one job and end with it.
    #[arg(long)]
    embedded: bool,
    /// Keep a record of each job in this folder, for `helix plan --run` [default: HELIX_SHM_RECORD, if set]
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// A worker process; started by the daemon, not by hand.
    #[command(hide = true)]
    Worker { socket: PathBuf, job: String, slot: u16 },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_env("HELIX_SHM_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let ended = match (cli.command, cli.socket) {
        (Some(Command::Worker { socket, job, slot }), _) => {
            helix_shm::decode::worker::run(&socket, &job, slot).map_err(|e| e.to_string())
        }
        (None, Some(socket)) => {
            let named = std::env::var_os("HELIX_SHM_RECORD").filter(|v| !v.is_empty()).map(PathBuf::from);
            let record = cli.record.or(named);
            let options = helix_shm::daemon::Options { socket, embedded: cli.embedded, record };
            helix_shm::daemon::run(options).map_err(|e| e.to_string())
        }
        // clap has asked for the socket.
        (None, None) => Err("--socket is needed".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("helix-shmd: {e}");
            ExitCode::FAILURE
        }
    }
}
