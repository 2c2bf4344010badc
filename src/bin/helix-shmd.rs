//! The daemon, and the worker processes that it starts from the same binary.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use helix_shm::daemon::config::{Config, LogFormat};
use helix_shm::daemon::{LOG_FORMAT, Options, Reload};
use tracing_subscriber::EnvFilter;

/// Feeds the ranks of training jobs: decides who decodes what by when, and supervises the workers that do it.
#[derive(Parser)]
#[command(name = "helix-shmd", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Unix socket to listen at; comes before the configuration's
    #[arg(long, value_name = "PATH", required_unless_present = "config")]
    socket: Option<PathBuf>,
    /// Configuration file; SIGHUP has it read again
    #[arg(long, value_name = "FILE", conflicts_with = "embedded")]
    config: Option<PathBuf>,
    /// Look through the configuration file, say what is wrong with it, and end
    #[arg(long, requires = "config")]
    check: bool,
    /// Belong to one job and end with it
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
    /// Fetches for a worker, which starts it.
    #[cfg(feature = "object-store")]
    #[command(hide = true)]
    Fetch { origins: Vec<String> },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("helix-shmd: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<(), String> {
    #[cfg(feature = "object-store")]
    if let Some(Command::Fetch { origins }) = cli.command {
        return helix_shm::object::helper::serve(origins).map_err(|e| e.to_string());
    }
    if let Some(Command::Worker { socket, job, slot }) = cli.command {
        let json = std::env::var(LOG_FORMAT).is_ok_and(|format| format == "json");
        let _ = start_log("warn", json);
        return helix_shm::decode::worker::run(&socket, &job, slot).map_err(|e| e.to_string());
    }
    let config = cli.config.as_deref().map(Config::read).transpose().map_err(|e| e.to_string())?;
    if cli.check {
        println!("helix-shmd: no fault found");
        return Ok(());
    }
    // A daemon without a configuration is a rank's, or somebody's who looks at it: it speaks when something is wrong.
    let level = config.as_ref().map_or("warn", |config| &config.log.level);
    let set_level = start_log(level, config.as_ref().is_some_and(|config| config.log.format == LogFormat::Json));
    let reload = cli.config.map(|path| reload(path, set_level));
    let config = config.unwrap_or_default();
    let socket = cli.socket.unwrap_or_else(|| config.daemon.socket.clone());
    let named = std::env::var_os("HELIX_SHM_RECORD").filter(|v| !v.is_empty()).map(PathBuf::from);
    let record = cli.record.or(named);
    let options = Options { socket, embedded: cli.embedded, record, config, reload };
    helix_shm::daemon::run(options).map_err(|e| e.to_string())
}

/// Changes what is logged.
type SetLevel = Box<dyn Fn(&str) -> Result<(), String>>;

/// Logs to standard error from now on. `HELIX_SHM_LOG`, where it is set, is what counts, now and later.
fn start_log(level: &str, json: bool) -> SetLevel {
    let forced = EnvFilter::try_from_env("HELIX_SHM_LOG").ok();
    let is_forced = forced.is_some();
    let filter = forced.unwrap_or_else(|| EnvFilter::new(level));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let new = move |level: &str| EnvFilter::try_new(level).map_err(|e| e.to_string());
    if json {
        let lines = lines.json().with_filter_reloading();
        let handle = lines.reload_handle();
        lines.init();
        Box::new(move |l| if is_forced { Ok(()) } else { handle.reload(new(l)?).map_err(|e| e.to_string()) })
    } else {
        let lines = lines.with_ansi(std::io::stderr().is_terminal()).with_filter_reloading();
        let handle = lines.reload_handle();
        lines.init();
        Box::new(move |l| if is_forced { Ok(()) } else { handle.reload(new(l)?).map_err(|e| e.to_string()) })
    }
}

/// What SIGHUP does.
fn reload(path: PathBuf, set_level: SetLevel) -> Reload {
    // The daemon stays where it was started, but nobody has to know that.
    let path = std::path::absolute(&path).unwrap_or(path);
    Box::new(move || {
        let config = Config::read(Path::new(&path)).map_err(|e| e.to_string())?;
        set_level(&config.log.level)?;
        Ok(config)
    })
}
