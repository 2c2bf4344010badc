//! Reaching the job's daemon, and starting it when none runs.
//!
//! The socket's name is the job's. Whoever finds nobody listening takes a file lock beside it; the one that gets it
//! starts `helix-shmd --embedded` and hands the lock to it as its standard input, so that there is one daemon even if
//! its starter dies at once. The daemon removes the lock file when it listens: nothing is left behind but the folder.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

/// How long anyone waits for a daemon to listen: a start takes a tenth of a second, a loaded machine ten times that.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Starting daemons that may be killed in a row; then it is taken for a fault that another start does not cure.
const MAX_KILLED_STARTS: u32 = 3;

/// Why no daemon was reached.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The folder of the socket is not ours alone, so that anybody could pose as the daemon.
    #[error("{} cannot hold the daemon's socket: {found}; remove it, or set HELIX_SHM_SOCKET", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        found: String,
    },
    /// The socket's path does not do.
    #[error("{} cannot be the daemon's socket: {source}; set HELIX_SHM_SOCKET to a shorter path that can be reached", path.display())]
    Path {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody listens, and nobody was to be started or came up in time.
    #[error("no helix-shmd listened at {} for {waited:?}{hint}", path.display())]
    Nobody {
        /// The socket.
        path: PathBuf,
        /// How long was waited.
        waited: Duration,
        /// What else is known.
        hint: String,
    },
    /// The daemon could not be started.
    #[error("cannot start {}: {source}; put helix-shmd beside this program or into PATH, or name it in HELIX_SHMD", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The daemon ended while it was starting.
    #[error("{} ended while starting ({status}); its last words:\n{log}", program.display())]
    Died {
        /// The program.
        program: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// The loader was dropped while it waited.
    #[error("the loader was closed while it waited for a daemon")]
    Cancelled,
    /// The system refused.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

fn system(doing: &'static str) -> impl Fn(Errno) -> DialError {
    move |errno| DialError::System { doing, source: errno.into() }
}

/// The name of the job when the user gave none: what all ranks of one launch share and others do not.
pub(super) fn default_job(var: impl Fn(&str) -> Option<String>) -> String {
    let set = |name| var(name).filter(|v| !v.is_empty() && v != "none");
    if let Some(id) = set("TORCHELASTIC_RUN_ID") {
        return id;
    }
    if let (Some(address), Some(port)) = (set("MASTER_ADDR"), set("MASTER_PORT")) {
        return format!("{address}-{port}");
    }
    format!("parent-{}", std::os::unix::process::parent_id())
}

/// The socket of a job, in a folder that only this user can write to.
pub(super) fn default_socket(job: &str) -> Result<PathBuf, DialError> {
    let uid = nix::unistd::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|dir| dir.is_absolute() && private(dir, uid).is_ok());
    let folder = runtime.map_or_else(|| PathBuf::from(format!("/tmp/helix-shm-{uid}")), |d| d.join("helix-shm"));
    make_private(&folder, uid)?;
    Ok(folder.join(format!("{}.sock", file_name(job))))
}

fn make_private(folder: &Path, uid: u32) -> Result<(), DialError> {
    let refused = |found| DialError::Folder { path: folder.to_owned(), found };
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(refused(format!("it cannot be made: {e}"))),
    }
    private(folder, uid).map_err(refused)
}

/// Whether a folder is this user's and no one else's. A link is not: it may point anywhere tomorrow.
fn private(folder: &Path, uid: u32) -> Result<(), String> {
    let meta = folder.symlink_metadata().map_err(|e| format!("it cannot be looked at: {e}"))?;
    if !meta.is_dir() {
        return Err("it is not a folder".into());
    }
    if meta.uid() != uid {
        return Err(format!("it belongs to user {}, and this is user {uid}", meta.uid()));
    }
    if meta.permissions().mode() & 0o077 != 0 {
        return Err(format!("its mode is {:o}; wanted 700", meta.permissions().mode() & 0o7777));
    }
    Ok(())
}

/// A file name for a job: itself where it is short and plain, else a hash of it.
fn file_name(job: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !job.is_empty() && job.len() <= 40 && job.chars().all(plain) && !job.starts_with('.') {
        job.to_owned()
    } else {
        format!("job-{:016x}", xxhash_rust::xxh3::xxh3_64(job.as_bytes()))
    }
}

/// One try to connect; `None` when nobody listens.
fn try_connect(path: &Path) -> Result<Option<OwnedFd>, DialError> {
    let refused = |errno: Errno| DialError::Path { path: path.to_owned(), source: errno.into() };
    let address = UnixAddr::new(path).map_err(refused)?;
    let sock = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
        .map_err(system("make a socket"))?;
    match connect(sock.as_raw_fd(), &address) {
        Ok(()) => Ok(Some(sock)),
        // EAGAIN: its queue is full; it will be there.
        Err(Errno::ENOENT | Errno::ECONNREFUSED | Errno::EAGAIN | Errno::EINTR) => Ok(None),
        Err(errno) => Err(refused(errno)),
    }
}

/// Connects to the daemon at `path`; starts one (`program`, if it is named) if `spawn` and nobody listens.
pub(super) fn dial(
    path: &Path,
    spawn: bool,
    program: Option<&Path>,
    cancelled: &dyn Fn() -> bool,
) -> Result<OwnedFd, DialError> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(2);
    let mut killed = 0;
    loop {
        if let Some(sock) = try_connect(path)? {
            return Ok(sock);
        }
        if spawn && let Some(lock) = Elected::try_new(path)? {
            // Someone may have come up between our look and our lock.
            if let Some(sock) = try_connect(path)? {
                return Ok(sock);
            }
            match start(path, lock, program, cancelled) {
                // Killed from outside while it started, which says nothing of the next one.
                Err(DialError::Died { status, .. })
                    if status.signal() == Some(libc::SIGKILL) && killed < MAX_KILLED_STARTS =>
                {
                    killed += 1;
                    tracing::warn!("the daemon was killed while it started: starting another one");
                    continue;
                }
                started => return started,
            }
        }
        if cancelled() {
            return Err(DialError::Cancelled);
        }
        if begun.elapsed() > PATIENCE {
            let hint = if spawn {
                "; another rank was starting it: that rank's error says more".into()
            } else {
                "; start it, or let the loader do so".into()
            };
            return Err(DialError::Nobody { path: path.to_owned(), waited: begun.elapsed(), hint });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Removes the socket that a killed daemon left behind, unless somebody listens there again or is about to.
pub(super) fn sweep(path: &Path) {
    // Whoever starts a daemon holds the lock until it listens.
    let Ok(Some(_lock)) = Elected::try_new(path) else { return };
    let Ok(address) = UnixAddr::new(path) else { return };
    let sock = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None);
    if sock.is_ok_and(|sock| connect(sock.as_raw_fd(), &address) == Err(Errno::ECONNREFUSED)) {
        let _ = std::fs::remove_file(path);
    }
}

/// The right to start the daemon of a socket, held by one process at a time, and then by the daemon until it listens.
struct Elected {
    path: PathBuf,
    lock: Flock<File>,
}

impl Elected {
    fn try_new(socket: &Path) -> Result<Option<Self>, DialError> {
        let mut name = socket.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        let refused = |source| DialError::Path { path: path.clone(), source };
        let mut open = OpenOptions::new();
        open.create(true).truncate(false).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = open.open(&path).map_err(refused)?;
        let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, errno)) => return Err(refused(errno.into())),
        };
        let elected = Elected { path: path.clone(), lock };
        // The last holder removed the file before it let go; then this lock is on nothing.
        let valid = elected.is_there().map_err(refused)?;
        Ok(valid.then_some(elected))
    }

    /// Whether the lock's file is still at its path. If so, nobody else may remove it.
    fn is_there(&self) -> io::Result<bool> {
        let ours = self.lock.metadata()?;
        let there = self.path.symlink_metadata().map(|m| (m.dev(), m.ino())).ok();
        Ok(there == Some((ours.dev(), ours.ino())))
    }
}

impl Drop for Elected {
    fn drop(&mut self) {
        // A daemon that listens has removed it, and another file may be there. A leftover is harmless: the next one
        // locks it again.
        if self.is_there().unwrap_or(false) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Starts the daemon and waits until it listens.
fn start(
    path: &Path,
    lock: Elected,
    program: Option<&Path>,
    cancelled: &dyn Fn() -> bool,
) -> Result<OwnedFd, DialError> {
    crate::crash::point("elected");
    let program = find_program(program);
    let cloned = |source| DialError::System { doing: "hand the lock to the daemon", source };
    let (mut child, log) = spawn_daemon(&program, path, lock.lock.try_clone().map_err(cloned)?)?;
    tracing::info!("started {} (process {}) for {}", program.display(), child.id(), path.display());
    crate::crash::point("daemon.spawned");
    let begun = Instant::now();
    let result = loop {
        match try_connect(path) {
            Ok(Some(sock)) => break Ok(sock),
            Err(error) => break Err(error),
            Ok(None) => {}
        }
        match child.try_wait() {
            Ok(Some(status)) => {
                // It may have found that another one listens.
                if let Some(sock) = try_connect(path)? {
                    break Ok(sock);
                }
                let log = last_lines(&log);
                return Err(DialError::Died { program, status, log });
            }
            Ok(None) => {}
            Err(source) => break Err(DialError::System { doing: "wait for the daemon", source }),
        }
        if cancelled() {
            break Err(DialError::Cancelled);
        }
        if begun.elapsed() > PATIENCE {
            let hint = format!("; its last words:\n{}", last_lines(&log));
            break Err(DialError::Nobody { path: path.to_owned(), waited: begun.elapsed(), hint });
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    if result.is_err() {
        // It is ours alone: nobody could connect to it. Before the lock goes, or there would be two.
        let _ = child.kill();
    }
    drop(lock);
    reap(child, log, program);
    result
}

/// Waits for the daemon on a thread of its own, so that it leaves no zombie, and passes on its last words if it
/// did not end well.
fn reap(mut child: Child, log: File, program: PathBuf) {
    let pid = child.id();
    let wait = move || match child.wait() {
        Ok(status) if status.success() => {}
        Ok(status) => {
            let words = last_lines(&log);
            tracing::warn!("{} (process {pid}) ended: {status}; its last words:\n{words}", program.display());
        }
        Err(e) => tracing::debug!("cannot wait for the daemon, process {pid}: {e}"),
    };
    if let Err(e) = std::thread::Builder::new().name("helix-reaper".into()).spawn(wait) {
        tracing::warn!("no thread to wait for the daemon, process {pid}, so it may stay as a zombie: {e}");
    }
}

/// `HELIX_SHMD`, or what the options name, or beside this program, or beside the folder of a test program, or in PATH.
fn find_program(named: Option<&Path>) -> PathBuf {
    const NAME: &str = "helix-shmd";
    if let Some(named) = std::env::var_os("HELIX_SHMD").filter(|p| !p.is_empty()) {
        return std::path::absolute(&named).unwrap_or_else(|_| named.into());
    }
    if let Some(named) = named {
        return std::path::absolute(named).unwrap_or_else(|_| named.into());
    }
    let beside = std::env::current_exe().ok();
    let folders = beside.iter().flat_map(|exe| exe.ancestors().skip(1).take(2));
    folders.map(|dir| dir.join(NAME)).find(|p| p.is_file()).unwrap_or_else(|| NAME.into())
}

/// Runs the daemon in a session of its own, with none of our descriptors but its log and the lock that it removes.
///
/// The log is a memory file that this process can quote and that leaves nothing behind (while the daemon lives it
/// can be read at `/proc/<daemon>/fd/2`); `HELIX_SHM_LOG_FILE` names a file to append to instead.
fn spawn_daemon(program: &Path, socket: &Path, lock: File) -> Result<(Child, File), DialError> {
    let failed = |doing| move |source| DialError::System { doing, source };
    let log = match std::env::var_os("HELIX_SHM_LOG_FILE").filter(|p| !p.is_empty()) {
        Some(path) => {
            let open = OpenOptions::new().create(true).append(true).read(true).open(path);
            open.map_err(failed("open the file named in HELIX_SHM_LOG_FILE"))?
        }
        None => memfd_create("helix-shmd.log", MFdFlags::MFD_CLOEXEC).map_err(system("make a log"))?.into(),
    };
    let out = || log.try_clone().map(Stdio::from).map_err(failed("make a log"));
    let mut command = Command::new(program);
    command.arg("--embedded").arg("--socket").arg(socket);
    command.stdin(lock).stdout(out()?).stderr(out()?).current_dir("/");
    // SAFETY: the closure runs in the child between fork and exec and makes two system calls, both
    // async-signal-safe; it allocates nothing and touches no lock.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            // What is open here is not the daemon's, also where some library forgot to say so.
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        });
    }
    let child = command.spawn().map_err(|source| DialError::Spawn { program: program.to_owned(), source })?;
    Ok((child, log))
}

/// The last lines of a log.
fn last_lines(log: &File) -> String {
    const LINES: usize = 20;
    const BYTES: u64 = 16 * 1024;
    let len = log.metadata().map_or(0, |m| m.len());
    let mut text = vec![0; len.min(BYTES) as usize];
    // By position: the daemon shares the descriptor's own.
    let read = log.read_at(&mut text, len.saturating_sub(BYTES));
    match read {
        Ok(n) => text.truncate(n),
        Err(e) => return format!("(its log cannot be read: {e})"),
    }
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    if last.is_empty() { "(it said nothing)".into() } else { last.join("\n") }
}

#[cfg(test)]
#[path = "embed_tests.rs"]
mod tests;
