//! The coordinator, `helix-shmd`: sockets, supervision, the region tables; it drives the scheduler.
//!
//! One thread. It sees descriptors, tickets and times, and maps no bulk memory: slabs pass through its hands as
//! file descriptors only. Everything that a rank or a worker says is checked against the private tables here
//! before anything follows from it; `docs/protocol.md` lists the checks.
//!
//! Knows `ring`, `sched`, `manifest` and `proto`; must not know how anything is decoded or uploaded.

pub mod config;
mod conn;
pub mod cores;
#[doc(hidden)]
pub mod fuzz;
mod histogram;
mod job;
mod page;
mod pidfd;
mod poller;
mod record;
mod regions;
mod server;
mod sessions;
mod slice;
mod workers;

use std::io;
use std::path::PathBuf;

use self::config::Config;

/// Tells a worker in which form to log: `json`, or anything else for text.
pub const LOG_FORMAT: &str = "HELIX_SHM_LOG_FORMAT";

/// Reads the configuration again, or says why not.
pub type Reload = Box<dyn FnMut() -> Result<Config, String>>;

/// How the daemon is to run.
pub struct Options {
    /// Where to listen.
    pub socket: PathBuf,
    /// Whether it belongs to one job and ends with it.
    pub embedded: bool,
    /// Folder for the records of its jobs, if they are to be kept.
    pub record: Option<PathBuf>,
    /// Everything else; its socket and its log are the caller's to see to.
    pub config: Config,
    /// What SIGHUP does. Without it that signal ends the daemon.
    pub reload: Option<Reload>,
}

/// Why the daemon could not run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The socket cannot be made.
    #[error("cannot listen at {path}: {source}. Is the folder there, and may this user write to it?")]
    Socket {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody listens there.
    #[error("another daemon listens at {0}: stop it, or choose another --socket")]
    Taken(PathBuf),
    /// The system refused something that is always there.
    #[error("the system refused: {0}")]
    Io(#[from] io::Error),
}

/// Runs the daemon until it is told to stop.
pub fn run(options: Options) -> Result<(), DaemonError> {
    crate::crash::arm("daemon");
    crate::manifest::guard::install();
    raise_file_limit();
    server::Server::bind(options)?.run()
}

/// Workers and ranks take a few descriptors each; the soft limit is often far below what is allowed.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(e) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!("cannot raise the limit of open files from {soft} to {hard}: {e}");
    }
}
