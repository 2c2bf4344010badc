//! The background thread of a loader: it drains the lanes, finishes batches in step order, listens to the socket,
//! and finds another daemon when this one dies.
//!
//! It never spins: the workers have the cores, and a sleeper is woken within microseconds.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::batch::{Batch, View};
use super::embed::{self, DialError, PATIENCE};
use super::error::{ConnectError, LoaderError};
use super::ledger::{Held, Outlet};
use super::loader::memory;
use super::options::State;
use super::quarantine;
use super::session::{self, JoinError, Packet, Session, generation_ended};
use super::shared::{Core, Link, Setup, Shared};
use super::table::{Table, Violation};
use crate::crash;
use crate::proto::VERSION;
use crate::proto::options::OnError;
use crate::proto::session::{BadSample, FromRank, Join, ToRank};
use crate::ring::bell::RELOOK;

/// How long a daemon may take to say Bye: workers end the samples that they have in hand.
const FAREWELL: Duration = Duration::from_secs(2);
/// Daemons that may die within [`RESTART_WINDOW`] before it is taken for a fault that a restart does not cure.
const MAX_RESTARTS: usize = 5;
const RESTART_WINDOW: Duration = Duration::from_secs(60);
/// How soon a full feedback ring is tried again.
const RETRY: Duration = Duration::from_millis(2);

/// Why the thread stopped listening to a session.
enum End {
    /// The loader is being dropped.
    Leave,
    /// The daemon is gone.
    Gone,
    /// The session is over.
    Error(LoaderError),
}

/// See the head of the file.
pub(super) struct Collector {
    shared: Arc<Shared>,
    session: Session,
    restarts: VecDeque<Instant>,
    /// Scratch: lanes with news.
    lanes: Vec<usize>,
}

fn violation(from: String) -> impl Fn(Violation) -> End {
    move |violation| End::Error(LoaderError::Protocol { from: from.clone(), violation })
}

fn daemon_said(what: impl Into<String>) -> End {
    violation("the daemon".into())(Violation::Packet(what.into()))
}

/// How a session ended.
enum Parting {
    /// The daemon said Bye.
    Quiet,
    /// The daemon is gone.
    Gone,
    /// Neither came in time.
    Late,
}

impl Collector {
    /// Takes over a session that was just opened.
    pub(super) fn new(shared: Arc<Shared>, session: Session, outlet: Box<dyn Outlet>) -> Self {
        let collector = Collector { shared, session, restarts: VecDeque::new(), lanes: Vec::new() };
        collector.attach(outlet, 0);
        collector
    }

    /// Makes the session the loader's, and goes on with what is under way.
    fn attach(&self, outlet: Box<dyn Outlet>, highest: u32) {
        let Shared { setup, ledger, .. } = &*self.shared;
        let opened = &self.session.opened;
        let table = Table::new(setup.rules(opened.session), Arc::clone(ledger), highest);
        let mut core = self.shared.lock();
        core.link = Some(Link { table, socket: Arc::clone(&self.session.socket), iter: 0 });
        core.daemon = opened.daemon_pid;
        ledger.up(opened.session, outlet);
        if !core.over {
            core.send_start();
        }
    }

    /// The thread.
    pub(super) fn run(self) {
        let shared = Arc::clone(&self.shared);
        // A bug here must end the iteration, not leave `next()` waiting for ever.
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.work()));
        if ran.is_err() {
            let reason = "the loader's own thread panicked; its message is on standard error".into();
            shared.fail(LoaderError::Failed { reason });
        }
    }

    fn work(mut self) {
        loop {
            let error = match self.pump() {
                End::Leave => return self.farewell(),
                End::Error(error) => error,
                End::Gone => match self.rejoin() {
                    Ok(()) => continue,
                    Err(End::Error(error)) => error,
                    Err(_) => return self.sweep(),
                },
            };
            return self.shared.fail(error);
        }
    }

    /// Works until the session ends.
    fn pump(&mut self) -> End {
        let mut looked = Instant::now();
        loop {
            if self.shared.is_leaving() {
                return End::Leave;
            }
            let all = looked.elapsed() >= RELOOK;
            if all {
                looked = Instant::now();
            }
            if let Err(end) = self.look(all).and_then(|()| self.sleep(RELOOK.saturating_sub(looked.elapsed()))) {
                return end;
            }
        }
    }

    /// Drains the lanes with news, or all of them, and queues what is finished.
    fn look(&mut self, all: bool) -> Result<(), End> {
        let count = self.session.lanes.len();
        let mut lanes = std::mem::take(&mut self.lanes);
        lanes.clear();
        // Also when all are looked at: what is pushed from here on sets its bit again.
        self.session.sleeper.take(|lane| lanes.extend((lane < count).then_some(lane)));
        if all {
            lanes.clear();
            lanes.extend(0..count);
        }
        let drained = lanes.iter().try_for_each(|lane| self.drain(*lane));
        self.lanes = lanes;
        drained?;
        self.finish()
    }

    fn drain(&mut self, lane: usize) -> Result<(), End> {
        let mut core = self.shared.lock();
        let Some(link) = &mut core.link else { return Ok(()) };
        let (plan, workers) = self.session.lanes.split_at_mut(1);
        let mut hear_daemon = |table: &mut Table| -> Result<(), Violation> {
            while let Some(words) = plan[0].pop()? {
                table.hear_daemon(&words)?;
            }
            Ok(())
        };
        let Some(worker) = lane.checked_sub(1) else {
            return hear_daemon(&mut link.table).map_err(violation("the daemon".into()));
        };
        let mut hear_worker = || -> Result<bool, Violation> {
            let Some(words) = workers[worker].pop()? else { return Ok(false) };
            // The Batch that this speaks of was published before it, so it is there now.
            hear_daemon(&mut link.table)?;
            link.table.hear_worker(&words)?;
            Ok(true)
        };
        while hear_worker().map_err(violation(format!("worker {worker}, or the daemon,")))? {}
        Ok(())
    }

    /// Queues the batches whose turn it is.
    fn finish(&self) -> Result<(), End> {
        let Setup { store, options, manifest, fixed, encode, .. } = &self.shared.setup;
        let stream = &options.stream;
        let (profile, weigh) = (stream.profile, stream.weigh);
        let (audio, manifest) = (stream.transform.audio.clone(), Some(Arc::clone(manifest)));
        let view = View {
            dtype: stream.transform.dtype,
            audio,
            manifest,
            encode: encode.clone(),
            fixed: *fixed,
            profile,
            weigh,
        };
        loop {
            let mut core = self.shared.lock();
            let serial = core.serial;
            let Core { link, slabs, over, .. } = &mut *core;
            let Some(link) = link else { return Ok(()) };
            let Some(mut assembled) = link.table.pop_with(slabs) else {
                if link.iter > 0 && link.table.is_over() && !*over {
                    core.over = true;
                    self.shared.ready.notify_all();
                }
                return Ok(());
            };
            crash::point("assembled");
            let slabs = slabs.of(&assembled.handover);
            drop(core);
            slabs.fetch(&mut assembled.handover, &self.shared.ledger).map_err(End::Error)?;
            let batch = Batch::new(Arc::clone(store), assembled, view.clone());
            // The reasons were sent before the skips: who has the batch can ask for them. If they went down with the
            // daemon the batch is good all the same; dropped here, it would be missing before those behind it.
            let heard = if batch.skipped() > 0 { self.hear_socket() } else { Ok(()) };
            let mut core = self.shared.lock();
            if core.serial == serial {
                core.wanted = Some(State { epoch: batch.epoch(), step: batch.step().saturating_add(1) });
                core.queue.push_back(batch);
                self.shared.ready.notify_all();
            }
            drop(core);
            heard?;
        }
    }

    /// Sleeps until there is news of any kind, and takes in what came on the socket.
    fn sleep(&mut self, limit: Duration) -> Result<(), End> {
        let full = self.shared.ledger.flush().map_err(|corrupt| violation("the daemon".into())(corrupt.into()))?;
        let limit = if full { limit.min(RETRY) } else { limit };
        let sleeper = &self.session.sleeper;
        let parked = sleeper.park();
        // Rounded up: a zero would make the last millisecond a busy loop.
        let millis = if parked { limit.as_millis() as u16 + 1 } else { 0 };
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = [readable(sleeper.fd()), readable(self.session.socket.fd()), readable(self.shared.wake.fd())];
        let polled = poll(&mut fds, PollTimeout::from(millis));
        let [_, socket, wake] = fds.map(|fd| fd.any().unwrap_or(false));
        if parked {
            sleeper.unpark();
        }
        match polled {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => {
                let reason = errno.desc().into();
                return Err(End::Error(LoaderError::System { doing: "wait for the daemon", reason }));
            }
        }
        if wake {
            self.shared.wake.drain();
        }
        if socket { self.hear_socket() } else { Ok(()) }
    }

    /// Takes in all packets that are there.
    fn hear_socket(&self) -> Result<(), End> {
        let failed = |e: std::io::Error| {
            End::Error(LoaderError::System { doing: "listen to the daemon", reason: e.to_string() })
        };
        while self.session.socket.readable(Duration::ZERO).map_err(failed)? {
            match self.session.socket.receive().map_err(daemon_said)? {
                Packet::End => return Err(End::Gone),
                Packet::Said(packet, fds) => self.hear(*packet, fds)?,
            }
        }
        Ok(())
    }

    fn hear(&self, packet: ToRank, mut fds: Vec<OwnedFd>) -> Result<(), End> {
        if fds.len() != usize::from(matches!(packet, ToRank::Slab { .. })) {
            return Err(daemon_said(format!("{} descriptors with {packet:?}", fds.len())));
        }
        match packet {
            ToRank::Slab { rank, bytes } => match fds.pop() {
                Some(fd) => self.shared.lock().slabs.take(rank, bytes, fd).map_err(violation("the daemon".into())),
                None => Ok(()),
            },
            ToRank::Started { iter } => {
                let known = self.shared.lock().link.as_ref().map_or(0, |link| link.iter);
                if iter > known {
                    return Err(daemon_said(format!("iteration {iter} started, and {known} is the last one wanted")));
                }
                Ok(())
            }
            ToRank::BadSample(bad) => {
                // A target of its own, for whoever reports bad samples himself.
                tracing::warn!(
                    target: "helix_shm::bad_sample",
                    "sample {} ({}) failed in stage `{}`: {}",
                    bad.sample,
                    bad.path,
                    bad.stage,
                    bad.reason
                );
                self.quarantine(&bad);
                self.shared.lock().note_bad(bad);
                Ok(())
            }
            ToRank::Notice { text } => {
                tracing::warn!("helix-shmd: {text}");
                Ok(())
            }
            ToRank::Failed { reason, rank, sample } => Err(End::Error(self.failed(reason, rank, sample))),
            other @ (ToRank::Opened(_) | ToRank::Bye) => Err(daemon_said(format!("{other:?} out of turn"))),
        }
    }

    /// Writes a bad sample down where the user looks for it. What cannot be written is said, and stops nothing.
    fn quarantine(&self, bad: &BadSample) {
        let Setup { options, job, .. } = &self.shared.setup;
        let path = options.quarantine.clone().or_else(|| quarantine::usual(|name| std::env::var(name).ok()));
        // Where the loader raises every rank hears of the sample.
        let Some(path) = path.filter(|_| options.stream.on_error != OnError::Raise || options.rank == 0) else {
            return;
        };
        match quarantine::add(&path, job, &options.manifest, bad) {
            Ok(()) if self.shared.lock().bad_count == 0 => {
                tracing::info!("bad samples are listed in {}", path.display());
            }
            Ok(()) => {}
            Err(e) => tracing::warn!("bad sample {} was not added to {}: {e}", bad.sample, path.display()),
        }
    }

    fn failed(&self, reason: String, rank: Option<u32>, sample: Option<u64>) -> LoaderError {
        let Setup { options, .. } = &self.shared.setup;
        match rank {
            Some(rank) if rank != options.rank => LoaderError::RankDied { rank, reason },
            _ => match self.shared.lock().bad.iter().rfind(|bad| Some(bad.sample) == sample) {
                Some(bad) => LoaderError::BadSample(Box::new(bad.clone())),
                None => LoaderError::Failed { reason },
            },
        }
    }

    /// Leaves in good order, within [`FAREWELL`].
    fn farewell(self) {
        {
            let mut core = self.shared.lock();
            core.queue.clear();
            core.link = None;
        }
        let parting = self.part();
        self.shared.ledger.keep_open(Box::new(Arc::clone(&self.session.socket)));
        self.shared.ledger.down();
        match parting {
            Parting::Quiet => {}
            Parting::Gone => self.sweep(),
            Parting::Late => tracing::warn!(
                "the daemon did not say that the slab is quiet within {FAREWELL:?}; leaving all the same"
            ),
        }
    }

    /// Says Leave and waits for Bye, or for the end of the daemon.
    fn part(&self) -> Parting {
        let begun = Instant::now();
        let socket = &self.session.socket;
        if socket.send(&FromRank::Leave, &[]).is_err() {
            return Parting::Gone;
        }
        crash::point("leave.said");
        while let Ok(true) = socket.readable(FAREWELL.saturating_sub(begun.elapsed())) {
            match socket.receive() {
                Ok(Packet::Said(packet, _)) if matches!(*packet, ToRank::Bye) => return Parting::Quiet,
                Ok(Packet::Said(..)) => {}
                _ => return Parting::Gone,
            }
        }
        Parting::Late
    }

    /// A daemon that was killed when nobody needed it any more has left its socket behind.
    fn sweep(&self) {
        if self.shared.setup.options.spawn {
            embed::sweep(&self.shared.setup.path);
        }
    }

    /// The daemon is gone: finds or starts another one and joins it with what is still held.
    fn rejoin(&mut self) -> Result<(), End> {
        let gone = |reason: String| End::Error(LoaderError::DaemonGone { reason });
        let pid = self.session.opened.daemon_pid;
        let now = Instant::now();
        self.restarts.push_back(now);
        while self.restarts.front().is_some_and(|at| now.duration_since(*at) > RESTART_WINDOW) {
            self.restarts.pop_front();
        }
        if self.restarts.len() > MAX_RESTARTS {
            let n = self.restarts.len();
            return Err(gone(format!("{n} daemons died within {RESTART_WINDOW:?}; the last was process {pid}")));
        }
        tracing::warn!("the daemon, process {pid}, is gone: joining another one");
        let shared = Arc::clone(&self.shared);
        let cancelled = move || shared.is_leaving();
        let quiet = generation_ended(self.session.lifeline.as_fd(), PATIENCE, &cancelled);
        match quiet {
            Ok(true) => {}
            Ok(false) if cancelled() => return Err(End::Leave),
            Ok(false) => {
                return Err(gone(format!("workers of process {pid} still lived {PATIENCE:?} after it; end them")));
            }
            Err(e) => return Err(gone(format!("its lifeline cannot be watched: {e}"))),
        }
        crash::point("rejoin.quiet");
        // What its workers had finished is as good as ever.
        match self.look(true) {
            Ok(()) | Err(End::Gone) => {}
            Err(end) => return Err(end),
        }
        self.shared.ledger.down();
        self.shared.lock().link = None;
        let (session, outlet, highest) = match establish(&self.shared, &cancelled) {
            Ok(joined) => joined,
            Err(_) if cancelled() => return Err(End::Leave),
            Err(ConnectError::Refused { reason, .. }) => return Err(End::Error(LoaderError::Failed { reason })),
            Err(error) => return Err(gone(error.to_string())),
        };
        crash::point("rejoin.joined");
        self.session = session;
        self.shared.lock().restarts += 1;
        self.attach(outlet, highest);
        Ok(())
    }
}

/// Cores that this process may run on; none when the system does not say.
fn own_cores() -> Vec<u32> {
    use nix::sched::{CpuSet, sched_getaffinity};
    let Ok(set) = sched_getaffinity(nix::unistd::Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count()).filter(|&core| set.is_set(core).unwrap_or(false)).map(|core| core as u32).collect()
}

/// Reaches a daemon and joins it with the blocks that the ledger holds. Also returns the highest grant among them.
pub(super) fn establish(
    shared: &Shared,
    cancelled: &dyn Fn() -> bool,
) -> Result<(Session, Box<dyn Outlet>, u32), ConnectError> {
    let Setup { options, job, path, manifest, store, .. } = &shared.setup;
    let system = |doing| move |source| ConnectError::System { doing, source };
    let begun = Instant::now();
    loop {
        let socket = embed::dial(path, options.spawn, options.daemon.as_deref(), cancelled)?;
        let held = shared.ledger.joining();
        let Held { blocks: held, loans: lent, steps } = held;
        let highest = held.iter().map(|(grant, ..)| *grant).max().unwrap_or(0);
        let shown = std::path::absolute(manifest.path()).unwrap_or_else(|_| manifest.path().to_owned());
        let join = Join {
            version: VERSION,
            job: job.clone(),
            loader: options.loader.clone(),
            rank: options.rank,
            slab_bytes: store.slab.len() as u64,
            manifest: shown.to_string_lossy().into_owned(),
            fingerprint: manifest.fingerprint().to_owned(),
            stream: options.stream.clone(),
            run: options.run.clone(),
            held,
            lent,
            dealt: !steps.is_empty(),
            rejoin: shared.lock().daemon != 0,
            node: store.node,
            cores: own_cores(),
        };
        let slab = store.slab.fd().ok_or_else(|| std::io::ErrorKind::InvalidInput.into());
        let slab = slab.map_err(system("hand over the slab"))?;
        let fd = manifest.try_clone_fd().map_err(system("hand over the manifest"))?;
        let steps = (!steps.is_empty()).then(|| memory("helix-steps", &steps)).transpose();
        let steps = steps.map_err(system("state how steps were balanced"))?;
        let fds: Vec<_> = [slab, fd.as_fd()].into_iter().chain(steps.as_ref().map(AsFd::as_fd)).collect();
        match session::join(socket, join, &fds, cancelled) {
            Ok((session, outlet)) => return Ok((session, outlet, highest)),
            // It ended while we came: another one is there soon.
            Err(JoinError::Gone(_)) if cancelled() => return Err(DialError::Cancelled.into()),
            Err(JoinError::Gone(_)) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(JoinError::Gone(_)) => {
                let hint = ": those that did went away while this rank joined".into();
                return Err(DialError::Nobody { path: path.clone(), waited: begun.elapsed(), hint }.into());
            }
            Err(JoinError::Refused(reason)) => return Err(ConnectError::Refused { rank: options.rank, reason }),
            Err(JoinError::Protocol(what)) => return Err(ConnectError::Protocol(what)),
            Err(JoinError::System(source)) => {
                return Err(ConnectError::System { doing: "talk to the daemon", source });
            }
        }
    }
}
