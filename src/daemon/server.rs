//! The daemon's loop: one thread, one epoll, every job.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, listen, socket,
};

use super::config::Config;
use super::conn::{Conn, Gone};
use super::cores::Cores;
use super::job::{self, Job};
use super::page::StatusPage;
use super::poller::{Poller, Source};
use super::workers::Corpse;
use super::{DaemonError, Options, slice};
use crate::proto;
use crate::proto::session::{First, FromRank, FromTool, FromWorker, ToRank, ToTool};
use crate::ring::bell::Guard;
use crate::sched::event::Time;

/// Connections taken in before those that are there have their turn.
const ACCEPTS: usize = 64;
/// Connections that have not said who they are; of more the oldest is turned away.
const MAX_STRANGERS: usize = 256;
/// How long a connection may stay silent before it says who it is.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long nobody is let in after there were no descriptors left.
const DEAF: Duration = Duration::from_millis(200);
/// How long a daemon that is asked whether it listens may take to end, milliseconds; one that lives says nothing.
const DYING: u16 = 300;
/// Dying daemons that are found at a socket one after the other.
const MAX_DYING: u32 = 5;
/// How often every lane is looked at, whatever the doorbells say.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How long an embedded daemon waits for its first rank.
const FIRST_RANK: Duration = Duration::from_secs(30);
/// How long the end of the daemon waits for its workers, which are killed, to be gone.
const FUNERAL: Duration = Duration::from_secs(2);

/// The daemon.
pub struct Server {
    options: Options,
    config: Arc<Config>,
    page: StatusPage,
    /// Workers of jobs that are over which could not be reaped yet.
    corpses: Vec<Corpse>,
    /// Until when jobs may go on, once the daemon was asked to end.
    draining: Option<Instant>,
    poller: Poller,
    listener: OwnedFd,
    /// The socket's file.
    name: FileId,
    signals: SignalFd,
    strangers: BTreeMap<u64, (Conn, Instant)>,
    next_stranger: u64,
    jobs: BTreeMap<u32, Job>,
    next_job: u32,
    had_job: bool,
    /// Until when nobody is let in, since there were no descriptors left.
    deaf_until: Option<Instant>,
    born: Instant,
    /// When the events that are being handled were seen.
    woken: Time,
    cores: Arc<Cores>,
    stop: bool,
}

impl Server {
    /// Binds the socket and takes over the signals. From here on ranks can connect.
    pub fn bind(options: Options) -> Result<Server, DaemonError> {
        let mut mask = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            mask.add(signal);
        }
        mask.thread_block().map_err(io::Error::from)?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
        let signals = signals.map_err(io::Error::from)?;
        let (listener, name) = listen_at(&options.socket)?;
        if options.embedded {
            end_election(&options.socket)?;
        }
        crate::crash::point("listening");
        let mut poller = Poller::new()?;
        poller.add(listener.as_fd(), Source::Listener)?;
        poller.add(signals.as_fd(), Source::Signals)?;
        let cores = Arc::new(Cores::of_this_process());
        tracing::info!(
            socket = %options.socket.display(),
            cores = cores.allowed.len(),
            quota = cores.quota,
            "helix-shmd {} listens",
            env!("CARGO_PKG_VERSION")
        );
        let config = Arc::new(options.config.clone());
        let page = StatusPage::new(config.status.page, options.embedded);
        Ok(Server {
            options,
            config,
            page,
            corpses: Vec::new(),
            draining: None,
            poller,
            listener,
            name,
            signals,
            strangers: BTreeMap::new(),
            next_stranger: 0,
            jobs: BTreeMap::new(),
            next_job: 0,
            had_job: false,
            deaf_until: None,
            born: Instant::now(),
            woken: job::now(),
            cores,
            stop: false,
        })
    }

    /// Serves until a signal, or until the embedded daemon's job is over.
    pub fn run(mut self) -> Result<(), DaemonError> {
        // A bell that a hostile peer has made blocking must not stop the others' daemon.
        let _guard = Guard::new()?;
        if let Err(e) = slice::shorten() {
            tracing::info!(
                "the daemon's time slice stays as it is ({e}): beside busy workers it answers a little later"
            );
        }
        let mut woken = Vec::new();
        let mut looked = Instant::now();
        while !self.stop {
            let timeout = self.timeout();
            let quiet = self.jobs.values_mut().all(Job::park);
            let waited = self.poller.wait(if quiet { timeout } else { Some(0) }, &mut woken);
            self.woken = job::now();
            self.jobs.values_mut().for_each(Job::unpark);
            waited?;
            let all = looked.elapsed() >= LOOK_AGAIN;
            if all {
                looked = Instant::now();
            }
            for job in self.jobs.values_mut() {
                job.look(&mut self.poller, all);
            }
            for source in woken.drain(..) {
                self.handle(source);
            }
            for job in self.jobs.values_mut() {
                job.tend_connections(&mut self.poller);
            }
            self.clean_up()?;
            self.page.tend(&self.config, self.jobs.values());
        }
        self.close();
        Ok(())
    }

    /// How long nothing need be done, milliseconds; `None` for ever.
    fn timeout(&self) -> Option<u16> {
        let mut wait: Option<Duration> = None;
        let mut at_most = |d: Duration| wait = Some(wait.map_or(d, |w| w.min(d)));
        for job in self.jobs.values() {
            at_most(if job.empty_since().is_some() { (self.linger() / 4).min(LOOK_AGAIN) } else { LOOK_AGAIN });
            if let Some(ns) = job.sleep_ns() {
                at_most(Duration::from_nanos(ns));
            }
        }
        if (self.options.embedded && self.jobs.is_empty()) || self.draining.is_some() || !self.corpses.is_empty() {
            at_most(LOOK_AGAIN);
        }
        if !self.strangers.is_empty() {
            at_most(PATIENCE);
        }
        if self.deaf_until.is_some() {
            at_most(DEAF);
        }
        // Rounded up, or the loop would spin through the last fraction of a millisecond.
        wait.map(|w| w.as_micros().div_ceil(1000).min(10_000) as u16)
    }

    fn handle(&mut self, source: Source) {
        match source {
            Source::Listener => self.accept(),
            Source::Signals => self.signal(),
            Source::Stranger(id) => self.stranger(id),
            // `look` has heard it already.
            Source::Bell(_) => {}
            Source::Rank(job, id, serial) => self.with(job, |job, poller| job.rank_packets(id, serial, poller)),
            Source::RankDeath(job, id, serial) => self.with(job, |job, poller| job.rank_died(id, serial, poller)),
            Source::Worker(job, slot, gen_) => self.with(job, |job, poller| job.worker_packets(slot, gen_, poller)),
            Source::WorkerDeath(job, slot, gen_) => {
                let fired = self.woken;
                self.with(job, |job, poller| job.worker_died(slot, gen_, fired, poller));
            }
        }
    }

    fn with(&mut self, job: u32, act: impl FnOnce(&mut Job, &mut Poller)) {
        if let Some(job) = self.jobs.get_mut(&job) {
            act(job, &mut self.poller);
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            let sock = match accept4(&self.listener, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC) {
                Ok(sock) => sock,
                Err(nix::errno::Errno::EAGAIN) => return,
                Err(e) => {
                    // It stays readable: watched on, it would wake the loop without end.
                    tracing::warn!("cannot accept a connection: {e}; raise `ulimit -n` if it is too many open files");
                    self.poller.remove(self.listener.as_fd(), Source::Listener);
                    self.deaf_until = Some(Instant::now() + DEAF);
                    return;
                }
            };
            if self.strangers.len() >= MAX_STRANGERS
                && let Some(&oldest) = self.strangers.keys().next()
                && let Some((conn, _)) = self.strangers.remove(&oldest)
            {
                // An honest peer speaks at once, so the new one is more likely to be one than the one that waits.
                let pid = conn.peer().pid;
                tracing::warn!(pid, "{MAX_STRANGERS} connections have not said who they are; one was turned away");
                self.poller.remove(conn.fd(), Source::Stranger(oldest));
            }
            self.next_stranger += 1;
            let id = self.next_stranger;
            let conn = Conn::new(sock).and_then(|conn| {
                self.poller.add(conn.fd(), Source::Stranger(id))?;
                Ok(conn)
            });
            match conn {
                Ok(conn) => drop(self.strangers.insert(id, (conn, Instant::now()))),
                Err(e) => tracing::warn!("cannot take a connection: {e}"),
            }
        }
    }

    /// The first packet of a connection says what it is.
    fn stranger(&mut self, id: u64) {
        let Some((conn, _)) = self.strangers.get_mut(&id) else { return };
        let first = match conn.recv::<First>() {
            Ok(None) => return,
            Ok(Some(first)) => Some(first),
            Err(Gone::End) => None,
            Err(e) => {
                let reason = format!(
                    "the daemon could not take the first packet: {e}. Where descriptors were cut off, raise `ulimit -n`"
                );
                tracing::warn!(pid = conn.peer().pid, "{reason}");
                let _ = conn.send(&ToRank::Failed { reason, rank: None, sample: None }, &[]);
                None
            }
        };
        let Some((mut conn, _)) = self.strangers.remove(&id) else { return };
        self.poller.remove(conn.fd(), Source::Stranger(id));
        match first {
            Some((First::Rank(FromRank::Join(join)), fds)) => self.join(conn, *join, fds),
            Some((First::Worker(FromWorker::Introduce { version, job, slot, token }), _)) => {
                let peer = conn.peer();
                let known = self.jobs.values_mut().find(|j| j.name() == job && version == proto::VERSION);
                let taken = known.map(|job| job.introduce(conn, slot, &token, &mut self.poller));
                if !matches!(taken, Some(Ok(()))) {
                    tracing::warn!(pid = peer.pid, uid = peer.uid, "not a worker of ours: turned away");
                }
            }
            Some((First::Tool(FromTool::Status { version: _ }), _)) => {
                let uid = conn.peer().uid;
                let jobs: Vec<_> =
                    self.jobs.values().filter(|j| uid == 0 || j.uid() == uid).map(Job::status).collect();
                let status =
                    serde_json::json!({ "version": proto::VERSION, "pid": std::process::id(), "jobs": jobs });
                let _ = conn.send(&ToTool::Status { status }, &[]);
            }
            Some((other, _)) => tracing::warn!(pid = conn.peer().pid, "out of turn: {other:?}"),
            None => {}
        }
    }

    fn join(&mut self, mut conn: Conn, join: proto::session::Join, fds: Vec<OwnedFd>) {
        let peer = conn.peer();
        let own = nix::unistd::geteuid().as_raw();
        // An embedded daemon runs as its user and its workers would read files with that user's rights.
        if peer.uid != own && peer.uid != 0 {
            let reason =
                format!("this daemon serves user {own}, and you are user {}: start one of your own", peer.uid);
            tracing::warn!(pid = peer.pid, "{reason}");
            let _ = conn.send(&ToRank::Failed { reason, rank: None, sample: None }, &[]);
            return;
        }
        let found = self.jobs.values().position(|job| job.name() == join.job && job.uid() == own);
        if let Err(reason) = self.may_join(found.is_some(), join.slab_bytes) {
            tracing::warn!(pid = peer.pid, job = join.job, "{reason}");
            let _ = conn.send(&ToRank::Failed { reason, rank: None, sample: None }, &[]);
            return;
        }
        let id = match found.and_then(|at| self.jobs.keys().nth(at).copied()) {
            Some(id) => id,
            None => {
                let id = self.next_job;
                let (socket, config) = (&self.options.socket, self.config.clone());
                let job = Job::new(id, join.job.clone(), own, socket, config, self.cores.clone(), &mut self.poller);
                match job {
                    Ok(mut job) => {
                        if let Some(folder) = &self.options.record {
                            job.record_in(folder);
                        }
                        self.next_job += 1;
                        self.jobs.insert(id, job);
                        id
                    }
                    Err(e) => {
                        let reason = format!("the daemon cannot set up job `{}`: {e}", join.job);
                        tracing::error!("{reason}");
                        let _ = conn.send(&ToRank::Failed { reason, rank: None, sample: None }, &[]);
                        return;
                    }
                }
            }
        };
        self.had_job = true;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if let Err((mut conn, refusal)) = job.join(conn, join, fds, &mut self.poller) {
            tracing::warn!(pid = peer.pid, "rank refused: {refusal}");
            let _ = conn.send(&ToRank::Failed { reason: refusal.to_string(), rank: None, sample: None }, &[]);
        }
    }

    /// Whether a rank may join a job, or begin one.
    fn may_join(&self, known: bool, slab_bytes: u64) -> Result<(), String> {
        let most = self.config.jobs.most as usize;
        if !known && self.draining.is_some() {
            return Err("this daemon is about to end and takes no new job: start one when it has".into());
        }
        if !known && self.jobs.len() >= most {
            return Err(format!("this daemon serves {most} jobs, which is all that its `jobs.most` allows"));
        }
        let (most, has) = (
            self.config.memory.all_mib << 20,
            self.jobs.values().fold(0, |sum: u64, j| sum.saturating_add(j.slab_bytes())),
        );
        let wanted = has.saturating_add(slab_bytes);
        if most > 0 && wanted > most {
            return Err(format!(
                "the slabs of all jobs would be {wanted} bytes, {has} of them of ranks that are in: this daemon's `memory.all_mib` allows {most}; set `slab_bytes` to at most {}, or raise that limit to {} MiB",
                most.saturating_sub(has),
                wanted.div_ceil(1 << 20)
            ));
        }
        Ok(())
    }

    fn linger(&self) -> Duration {
        Duration::from_millis(self.config.jobs.linger_ms.into())
    }

    fn signal(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let drain = Duration::from_secs(self.config.daemon.drain_s.into());
            match Signal::try_from(info.ssi_signo as i32) {
                Ok(Signal::SIGHUP) if self.options.reload.is_some() => self.reload(),
                Ok(Signal::SIGTERM) if !drain.is_zero() && self.draining.is_none() && !self.jobs.is_empty() => {
                    tracing::info!("ending on SIGTERM: {} jobs may go on for {drain:?}", self.jobs.len());
                    self.draining = Some(Instant::now() + drain);
                }
                signal => {
                    tracing::info!("stopping on {}", signal.map_or("a signal", |s| s.as_str()));
                    self.stop = true;
                }
            }
        }
    }

    /// Takes over what the configuration says by now. A file with an error in it changes nothing.
    fn reload(&mut self) {
        let Some(reload) = self.options.reload.as_mut() else { return };
        match reload() {
            Ok(config) => {
                let late = config.needs_restart(&self.config);
                if !late.is_empty() {
                    tracing::warn!("{} has changed, which a daemon takes over only at its start", late.join(", "));
                }
                self.config = Arc::new(config);
                self.jobs.values_mut().for_each(|job| job.configure(self.config.clone()));
                tracing::info!("configuration read anew");
            }
            Err(why) => tracing::error!("configuration left as it was: {why}"),
        }
    }

    /// Ends jobs without ranks and connections without words, and the embedded daemon without jobs.
    fn clean_up(&mut self) -> Result<(), DaemonError> {
        if self.deaf_until.is_some_and(|until| until <= Instant::now()) {
            self.poller.add(self.listener.as_fd(), Source::Listener)?;
            self.deaf_until = None;
        }
        let linger = self.linger();
        let over = |job: &Job| job.empty_since().is_some_and(|since| since.elapsed() >= linger);
        for id in self.jobs.iter().filter(|(_, job)| over(job)).map(|(&id, _)| id).collect::<Vec<_>>() {
            if let Some(mut job) = self.jobs.remove(&id) {
                tracing::info!(job = job.name(), "job ended");
                self.corpses.extend(job.close(&mut self.poller));
            }
        }
        self.corpses.retain_mut(|corpse| !corpse.is_gone());
        self.stop |= self.draining.is_some_and(|until| self.jobs.is_empty() || until <= Instant::now());
        let silent = self.strangers.iter().filter(|(_, (_, since))| since.elapsed() > PATIENCE);
        for id in silent.map(|(&id, _)| id).collect::<Vec<_>>() {
            if let Some((conn, _)) = self.strangers.remove(&id) {
                self.poller.remove(conn.fd(), Source::Stranger(id));
            }
        }
        if self.options.embedded && self.jobs.is_empty() && self.strangers.is_empty() {
            self.stop |= self.had_job || self.born.elapsed() > FIRST_RANK;
        }
        Ok(())
    }

    fn close(&mut self) {
        crate::crash::point("closing");
        // The socket first: whoever connects from now on finds nobody and starts a daemon anew.
        remove_socket(&self.options.socket, self.name);
        crate::crash::point("socket.removed");
        for job in self.jobs.values_mut() {
            self.corpses.extend(job.close(&mut self.poller));
        }
        let begun = Instant::now();
        while !self.corpses.is_empty() && begun.elapsed() < FUNERAL {
            self.corpses.retain_mut(|corpse| !corpse.is_gone());
            std::thread::sleep(Duration::from_micros(200));
        }
        for corpse in &self.corpses {
            tracing::warn!(pid = corpse.pid(), "a killed worker is still in the kernel, waiting for a disk perhaps");
        }
    }
}

/// Listens at a path. A socket file without a listener is what a killed daemon left behind: it is replaced.
fn listen_at(path: &Path) -> Result<(OwnedFd, FileId), DaemonError> {
    let seqpacket = || {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).map_err(io::Error::from)
    };
    let failed = |source: io::Error| DaemonError::Socket { path: path.to_path_buf(), source };
    let addr = UnixAddr::new(path).map_err(|e| failed(e.into()))?;
    let sock = seqpacket()?;
    // Only its owner may connect, from the first moment on.
    let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o177));
    let mut bound = bind(sock.as_raw_fd(), &addr);
    if bound == Err(nix::errno::Errno::EADDRINUSE) {
        if is_taken(&addr, &seqpacket)? {
            nix::sys::stat::umask(before);
            return Err(DaemonError::Taken(path.to_path_buf()));
        }
        let _ = std::fs::remove_file(path);
        bound = bind(sock.as_raw_fd(), &addr);
    }
    nix::sys::stat::umask(before);
    bound.map_err(|e| failed(e.into()))?;
    let name = file_id(&path.symlink_metadata().map_err(failed)?);
    let backlog = Backlog::new(128).map_err(io::Error::from)?;
    listen(&sock, backlog).map_err(|e| failed(e.into()))?;
    Ok((sock, name))
}

/// Whether somebody listens who lives. One that takes a connection and ends it at once has been killed, and its
/// descriptors are just being closed: it is asked again.
fn is_taken(addr: &UnixAddr, seqpacket: &dyn Fn() -> io::Result<OwnedFd>) -> io::Result<bool> {
    for _ in 0..MAX_DYING {
        let probe = seqpacket()?;
        match connect(probe.as_raw_fd(), addr) {
            Err(nix::errno::Errno::ECONNREFUSED) => return Ok(false),
            Err(_) => return Ok(true),
            Ok(()) => {}
        }
        let mut end = [PollFd::new(probe.as_fd(), PollFlags::POLLIN)];
        if poll(&mut end, DYING).map_err(io::Error::from)? == 0 {
            return Ok(true);
        }
    }
    Ok(true)
}

/// Device and inode of a file.
type FileId = (u64, u64);

fn file_id(meta: &std::fs::Metadata) -> FileId {
    (meta.dev(), meta.ino())
}

/// An embedded daemon has the lock of its election as standard input, so that it is alone even if its starter died.
/// Now that it listens nobody needs the lock: its file goes, if it is still this one that lies there.
fn end_election(socket: &Path) -> io::Result<()> {
    let lock = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    if path.symlink_metadata().is_ok_and(|there| lock.metadata().is_ok_and(|ours| file_id(&there) == file_id(&ours)))
        && let Err(e) = std::fs::remove_file(&path)
    {
        tracing::warn!("cannot remove {}: {e}", path.display());
    }
    nix::unistd::dup2_stdin(File::open("/dev/null")?)?;
    Ok(())
}

/// Removes the socket's file, unless another daemon's is there by now.
fn remove_socket(path: &Path, name: FileId) {
    if path.symlink_metadata().is_ok_and(|there| file_id(&there) != name) {
        tracing::warn!("{} belongs to another daemon by now: left alone", path.display());
        return;
    }
    if let Err(e) = std::fs::remove_file(path)
        && e.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!("cannot remove {}: {e}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_daemons_socket_is_left_alone_and_a_dying_ones_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.sock");
        let (first, _) = listen_at(&path).unwrap();
        assert!(matches!(listen_at(&path), Err(DaemonError::Taken(_))));
        // What the probe before left is in its queue; it dies when the next one comes.
        drop(accept4(&first, SockFlag::SOCK_CLOEXEC).unwrap());
        let dying = std::thread::spawn(move || {
            poll(&mut [PollFd::new(first.as_fd(), PollFlags::POLLIN)], nix::poll::PollTimeout::NONE).unwrap();
        });
        let (_second, name) = listen_at(&path).unwrap();
        dying.join().unwrap();
        remove_socket(&path, (0, 0));
        assert!(path.exists(), "another daemon's is left alone");
        remove_socket(&path, name);
        assert!(!path.exists());
    }
}
