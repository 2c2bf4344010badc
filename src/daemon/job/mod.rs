//! One job: the ranks of one user that share workers, and the scheduler that serves them.
//!
//! By duty: `streams` (joining, starting), `endings` (leaving, dying, failing), `work` (decisions out, tickets and
//! their ends in), `bad` (samples that cannot be made), `second` (balance after decode), `crew` (worker processes),
//! `watch` (their limits), `page` (what is shown of it). All state is private to the daemon; what comes from outside is
//! checked in the method that takes it.

mod bad;
mod crew;
mod endings;
pub mod page;
mod second;
mod streams;
mod watch;
mod work;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::config::Config;
use super::cores::Cores;
use super::histogram::Histogram;
use super::poller::{Poller, Source};
use super::record::Recorder;
use super::regions::Address;
use super::sessions::{MAX_SESSIONS, SESSION_BELLS, SESSION_LANES, Session};
use super::workers::{Bounds, Corpse, Worker};
use crate::manifest::Manifest;
use crate::proto::options::{RunOptions, StreamOptions};
use crate::proto::session::ToRank;
use crate::ring::bell::{EventFd, Sleeper, eventfd, hints_bytes};
use crate::ring::segment::Segment;
use crate::sched::event::{Decision, Event, StreamId, Time};
use crate::sched::{Engine, EngineOptions};

/// A loader of the job.
struct Stream {
    loader: String,
    options: Arc<StreamOptions>,
    run: RunOptions,
    manifest: Arc<Manifest>,
    manifest_fd: OwnedFd,
    manifest_path: String,
    /// Bytes of the largest batch that there can be.
    largest_batch: u64,
    /// When the first rank came back after a daemon's death.
    rejoined: Option<Instant>,
    /// Session of each rank that has joined.
    members: BTreeMap<u32, u16>,
    /// Whether all have, and the scheduler serves it.
    opened: bool,
    /// Samples made, and samples that could not be.
    done: u64,
    bad: u64,
    /// Orders that ranks gave before.
    ordered: Vec<Event>,
    /// Whether it has ended with an error, or a rank has left: nobody may join any more.
    closed: bool,
}

/// A ticket that a worker holds.
#[derive(Debug, Clone, Copy)]
struct Flight {
    worker: u16,
    session: u16,
    what: Address,
    attempt: u16,
    sample: u64,
    epoch: u32,
    step: u32,
    /// When the worker was given it.
    since: Time,
}

/// A sample that has lost its worker.
#[derive(Debug, Clone, Copy)]
struct Orphan {
    /// When the worker's pidfd fired.
    since: Time,
    /// Whether there was an idle worker for it, and for all that was lost with it.
    idle: bool,
}

/// From a worker's pidfd firing to its ticket being with another worker, microseconds.
#[derive(Debug, Clone, Default, serde::Serialize)]
struct Reissue {
    /// Where there was an idle one.
    idle: Histogram,
    /// Where all were busy, or dead too: then it waits its turn.
    busy: Histogram,
}

/// Counters of a job, for the status.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct JobStats {
    /// Tickets handed to workers.
    pub tickets: u64,
    /// Samples in their place.
    pub done: u64,
    /// Tickets for a part of a sample.
    pub parts: u64,
    /// Second attempts at what a worker was stuck in.
    pub hedged: u64,
    /// Samples handed over to another rank when they were decoded.
    pub handed: u64,
    /// Samples that could not be made.
    pub bad: u64,
    /// Of these, those whose place another sample took.
    pub substituted: u64,
    /// Tickets given to another worker after a death.
    pub reissued: u64,
    /// Workers started in place of dead ones.
    pub restarts: u64,
    /// Workers ended over a sample: in a loop, or beyond their memory.
    pub ended: u64,
    /// Messages from ranks or workers that were refused.
    pub refused: u64,
    /// CPU time of decoding, microseconds.
    pub cpu_us: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Frames decoded.
    pub frames: u64,
}

/// A job and everything that belongs to it.
pub struct Job {
    id: u32,
    name: String,
    uid: u32,
    socket: PathBuf,
    config: Arc<Config>,
    cores: Arc<Cores>,
    hints: Arc<Segment>,
    bell: EventFd,
    sleeper: Sleeper,
    lifeline: (OwnedFd, OwnedFd),
    workers: Vec<Option<Worker>>,
    /// Ended workers that could not be reaped at once.
    corpses: Vec<Corpse>,
    pin: bool,
    bounds: Bounds,
    /// What its workers run: see [`RunOptions::program`].
    program: Vec<String>,
    failed_starts: u32,
    next_generation: u32,
    /// Workers to be started again, and when: a crash at start must not become a busy loop.
    revive: Vec<(u16, Instant)>,
    sessions: BTreeMap<u16, Session>,
    streams: BTreeMap<u16, Stream>,
    next_stream: u16,
    sched: Engine,
    events: VecDeque<Event>,
    decisions: VecDeque<Decision>,
    scratch: Vec<Decision>,
    wake: Option<Time>,
    flights: HashMap<u64, Flight>,
    /// What has lost its worker, by session.
    orphans: HashMap<(u16, Address), Orphan>,
    /// How long they were without one: where there was an idle worker, and else.
    reissue: Reissue,
    complaints: HashMap<u64, (String, String)>,
    notices: HashSet<String>,
    /// Lanes that had more to say than was heard at once.
    unheard: Vec<usize>,
    stats: JobStats,
    accuracy: page::Accuracy,
    empty_since: Instant,
    recorder: Option<Recorder>,
    second: second::Second,
}

/// How long what did not fit into a rank's lane waits before it is tried again, nanoseconds.
const FLUSH_NS: u64 = 1_000_000;
/// Most different lines that a job says to its ranks.
const MAX_NOTICES: usize = 100;

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub fn now() -> Time {
    let t = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    // The clock cannot fail on Linux; a zero would only make deadlines late.
    t.map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

impl Job {
    /// A job without ranks and workers.
    pub fn new(
        id: u32,
        name: String,
        uid: u32,
        socket: &Path,
        config: Arc<Config>,
        cores: Arc<Cores>,
        poller: &mut Poller,
    ) -> io::Result<Job> {
        let hints = Segment::create("helix-hints", hints_bytes(SESSION_BELLS + MAX_SESSIONS));
        let hints = Arc::new(hints.map_err(io::Error::other)?);
        let bell = eventfd()?;
        let sleeper = Sleeper::new(hints.clone(), 0, bell.clone()).map_err(io::Error::other)?;
        let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        poller.add(bell.fd(), Source::Bell(id))?;
        let horizon = u64::from(config.scheduler.horizon_ms) * 1_000_000;
        Ok(Job {
            id,
            name,
            uid,
            socket: socket.to_path_buf(),
            config,
            cores,
            hints,
            bell,
            sleeper,
            lifeline: (read, write),
            workers: Vec::new(),
            corpses: Vec::new(),
            pin: true,
            bounds: Bounds { sandbox: true, memory: RunOptions::default().most_memory() },
            program: Vec::new(),
            failed_starts: 0,
            next_generation: 1,
            revive: Vec::new(),
            sessions: BTreeMap::new(),
            streams: BTreeMap::new(),
            next_stream: 0,
            sched: Engine::new(EngineOptions { horizon }),
            events: VecDeque::new(),
            decisions: VecDeque::new(),
            scratch: Vec::new(),
            wake: None,
            flights: HashMap::new(),
            orphans: HashMap::new(),
            reissue: Reissue::default(),
            complaints: HashMap::new(),
            notices: HashSet::new(),
            unheard: Vec::new(),
            stats: JobStats::default(),
            accuracy: page::Accuracy::default(),
            empty_since: Instant::now(),
            recorder: None,
            second: Default::default(),
        })
    }

    /// Keeps a record of the job in a folder.
    pub fn record_in(&mut self, folder: &Path) {
        self.recorder = Some(Recorder::open(folder, &self.name));
    }

    /// The job's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whose it is.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The configuration was read anew.
    pub fn configure(&mut self, config: Arc<Config>) {
        self.config = config;
    }

    /// Bytes of all slabs of the job.
    pub fn slab_bytes(&self) -> u64 {
        self.sessions.values().fold(0, |sum, s| sum.saturating_add(s.regions.bytes()))
    }

    /// Since when no session is left; `None` while there is one.
    pub fn empty_since(&self) -> Option<Instant> {
        self.sessions.is_empty().then_some(self.empty_since)
    }

    /// When the job wants to be looked at again, nanoseconds from now.
    pub fn sleep_ns(&self) -> Option<u64> {
        let tick = self.wake.map(|wake| wake.saturating_sub(now()));
        let revive = self.revive.iter().map(|(_, at)| at.saturating_duration_since(Instant::now()).as_nanos() as u64);
        let backlog = self.sessions.values().any(Session::has_backlog).then_some(FLUSH_NS);
        tick.into_iter().chain(revive).chain(backlog).min()
    }

    /// Says that the daemon is about to sleep. `false` if there is news already.
    pub fn park(&mut self) -> bool {
        self.unheard.is_empty() && self.sleeper.park()
    }

    /// The daemon is awake again.
    pub fn unpark(&mut self) {
        self.sleeper.unpark();
    }

    /// Looks at every lane with news; at all of them when `all`, since the bitmap is only a hint.
    pub fn look(&mut self, poller: &mut Poller, all: bool) {
        let mut lanes = std::mem::take(&mut self.unheard);
        self.sleeper.take(|lane| lanes.push(lane));
        if all {
            lanes.clear();
            lanes.extend(0..self.workers.len());
            lanes.extend(self.sessions.keys().map(|&id| SESSION_LANES + usize::from(id)));
        }
        for lane in lanes {
            match lane.checked_sub(SESSION_LANES) {
                None => self.hear_worker(lane as u16),
                Some(session) => self.hear_rank(session as u16, poller),
            }
        }
        for session in self.sessions.values_mut().filter(|session| session.has_backlog()) {
            session.flush();
        }
        if all {
            self.corpses.retain_mut(|corpse| !corpse.is_gone());
            self.give_up_on_missing_ranks();
            self.end_those_who_hold_on();
            self.end_stray_workers();
        }
        if self.wake.is_some_and(|wake| wake <= now()) {
            self.wake = None;
            self.events.push_back(Event::Tick);
        }
        self.drive();
        self.revive_a_worker(poller);
        self.drop_cut_streams();
        self.drive();
    }

    /// Says a line to every rank of the job, once.
    fn notice(&mut self, text: String) {
        // Each once, and no more than anyone would read.
        if self.notices.len() >= MAX_NOTICES || !self.notices.insert(text.clone()) {
            return;
        }
        tracing::warn!(job = self.name, "{text}");
        for session in self.sessions.values_mut() {
            if let Some(conn) = &mut session.conn {
                // A rank that cannot be told has lost its session, which its own socket will say.
                let _ = conn.send(&ToRank::Notice { text: text.clone() }, &[]);
            }
        }
    }

    fn stream_of(&self, id: StreamId) -> Option<&Stream> {
        self.streams.get(&id.0)
    }

    /// The session of a rank, if it is still served.
    fn member(&self, stream: StreamId, rank: u32) -> Option<u16> {
        self.stream_of(stream)?.members.get(&rank).copied()
    }

    /// State for tools.
    pub fn status(&self) -> serde_json::Value {
        let sessions = self.sessions.values().map(|s| {
            let loader = self.stream_of(s.stream).map_or("", |stream| stream.loader.as_str());
            serde_json::json!({
                "session": s.id, "rank": s.rank, "loader": loader, "phase": format!("{:?}", s.phase).to_lowercase(),
                "iter": s.iter, "slab_bytes": s.regions.bytes(), "slab_used": s.regions.used(),
                "blocks": s.regions.blocks().count(), "stats": s.stats,
            })
        });
        let sessions: Vec<_> = sessions.collect();
        let workers = self.workers.iter().flatten().map(|w| {
            serde_json::json!({
                "slot": w.slot, "pid": w.pid(), "generation": w.generation, "up": w.is_up(), "core": w.core,
                "held": w.held.iter().filter_map(|t| self.flights.get(t)).map(|f| f.sample).collect::<Vec<_>>(),
            })
        });
        let workers: Vec<_> = workers.collect();
        serde_json::json!({
            "job": self.name, "uid": self.uid, "sessions": sessions, "workers": workers, "stats": self.stats,
            "tickets_in_flight": self.flights.len(), "reissue_us": self.reissue, "prediction_errors": self.sched.errors(),
            "workers_used": self.sched.workers_used(),
        })
    }
}
