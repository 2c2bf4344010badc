//! One rank of one loader, seen from the daemon: its slab's table, its inbox, and where it stands.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use super::conn::{Conn, Gone};
use super::pidfd::PidFd;
use super::poller::{Poller, Source};
use super::regions::{Address, Block, Refused, Region, Regions, Spare, State};
use super::workers::segment_fd;
use crate::crash;
use crate::proto::message::{self, Body, Feedback, Head, Ready, Words, kind};
pub use crate::proto::session::MAX_WORKERS;
use crate::proto::session::{self, Join, ToRank};
use crate::proto::transform::Span;
use crate::ring::bell::{EventFd, Ringer, eventfd};
use crate::ring::segment::Segment;
use crate::ring::spsc::{Consumer, Producer, ring_bytes};
use crate::sched::event::{ServerId, StreamId};

/// Messages in a worker's lane to a rank: a worker reports one sample at a time, and a rank that is slower than
/// this is told by the daemon instead.
pub const LANE_CAPACITY: u32 = 64;
/// Messages in the feedback ring: two a batch.
pub const FEEDBACK_CAPACITY: u32 = 256;
/// First lane of the daemon's bitmap, and first entry of the hints segment, that belongs to sessions.
pub const SESSION_BELLS: usize = 1 + SESSION_LANES;
/// Lane of the daemon's bitmap on which session 0 rings.
pub const SESSION_LANES: usize = MAX_WORKERS as usize;
/// Most sessions of a job.
pub const MAX_SESSIONS: usize = session::MAX_SESSIONS as usize;

/// Lanes of an inbox: the daemon's, and one a worker.
pub const LANES: u16 = 1 + MAX_WORKERS;

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// In, and served.
    Live,
    /// It said Leave, and workers are still detaching.
    Leaving,
    /// Its rank is gone, or its stream has failed.
    Over,
}

/// The daemon's side of a rank.
pub struct Session {
    /// Its number in the job.
    pub id: u16,
    /// Tells it from every other session that had or will have the number.
    pub serial: u32,
    /// The rank.
    pub rank: u32,
    /// Its stream.
    pub stream: StreamId,
    /// Where it stands.
    pub phase: Phase,
    /// Its connection; gone after the end of file.
    pub conn: Option<Conn>,
    /// Its process.
    pub pidfd: Option<PidFd>,
    /// Node of its slab.
    pub server: ServerId,
    /// Who may write where in its slab.
    pub regions: Regions,
    /// Grant of each (iteration, step) that is not free.
    pub grants: HashMap<(u32, u32), u32>,
    /// The iteration it is in, and what it asked for before the others were there: (iter, epoch, step).
    pub iter: u32,
    /// See [`Session::iter`].
    pub pending_start: Option<(u32, u32, u32)>,
    /// The epoch and step that it waits for, or has.
    pub wants: (u32, u32),
    /// What the rank gave for the latest epochs, for workers of the user's own program.
    pub briefs: VecDeque<(u32, OwnedFd)>,
    /// What it read of other ranks' slabs under an earlier daemon, until all ranks are in.
    pub lent: Vec<session::Lent>,
    /// Tells its slab from any other that the rank had: the number of the file's inode.
    pub slab_id: u64,
    /// Workers that may have its slab mapped.
    pub mapped_by: BTreeSet<u16>,
    /// Those of them that were asked to let go: once each, so that each answers once.
    pub detaching: BTreeSet<u16>,
    /// Counters for the status.
    pub stats: SessionStats,
    /// The slab, to be handed to workers; never mapped here.
    pub slab: OwnedFd,
    inbox: Arc<Segment>,
    plan: Producer,
    backlog: VecDeque<Words>,
    feedback: Consumer,
    ringer: Ringer,
    bell: EventFd,
}

/// What the status shows of a session.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct SessionStats {
    /// Steps ended.
    pub steps: u64,
    /// Sum of waits, nanoseconds.
    pub wait_ns: u64,
    /// Longest wait, nanoseconds.
    pub wait_max_ns: u64,
    /// The last wait, nanoseconds.
    pub wait_last_ns: u64,
    /// Steps whose batch was not there in time.
    pub misses: u64,
    /// The step that ended last.
    pub step: u32,
    /// Bytes that the rank copied on the host.
    pub copied: u64,
    /// Samples that were skipped.
    pub skipped: u64,
}

impl Session {
    /// Sets up inbox and bell for the rank at the other end of `conn`, which is not taken over yet.
    pub fn new(
        (id, serial): (u16, u32),
        stream: StreamId,
        conn: &Conn,
        slab: OwnedFd,
        join: &Join,
        hints: &Arc<Segment>,
    ) -> io::Result<Session> {
        let feedback_at = usize::from(LANES) * ring_bytes(LANE_CAPACITY);
        let inbox = Segment::create("helix-inbox", feedback_at + ring_bytes(FEEDBACK_CAPACITY));
        let inbox = Arc::new(inbox.map_err(io::Error::other)?);
        let plan = Producer::fresh(inbox.clone(), 0, LANE_CAPACITY).map_err(io::Error::other)?;
        let feedback = Consumer::new(inbox.clone(), feedback_at, FEEDBACK_CAPACITY).map_err(io::Error::other)?;
        let bell = eventfd()?;
        let ringer = Ringer::new(hints.clone(), SESSION_BELLS + usize::from(id), bell.clone());
        let pidfd = PidFd::of_peer(conn.fd(), conn.peer().pid as u32)?;
        Ok(Session {
            id,
            serial,
            rank: join.rank,
            stream,
            phase: Phase::Live,
            conn: None,
            pidfd: Some(pidfd),
            server: ServerId(join.node.unwrap_or(0) as u16),
            regions: Regions::new(join.slab_bytes),
            grants: HashMap::new(),
            iter: 0,
            pending_start: None,
            wants: (0, 0),
            briefs: VecDeque::new(),
            lent: Vec::new(),
            slab_id: nix::sys::stat::fstat(&slab)?.st_ino,
            mapped_by: BTreeSet::new(),
            detaching: BTreeSet::new(),
            stats: SessionStats::default(),
            slab,
            inbox,
            plan,
            backlog: VecDeque::new(),
            feedback,
            ringer: ringer.map_err(io::Error::other)?,
            bell,
        })
    }

    /// Takes the rank in.
    pub fn welcome(
        &mut self,
        packet: &ToRank,
        hints: &Segment,
        daemon_bell: &EventFd,
        lifeline: &OwnedFd,
    ) -> Result<(), Gone> {
        let fds = [segment_fd(&self.inbox)?, segment_fd(hints)?, self.bell.fd(), daemon_bell.fd(), lifeline.as_fd()];
        self.conn.as_mut().ok_or(Gone::End)?.send(packet, &fds)
    }

    /// The rank's bell.
    pub fn bell(&self) -> &EventFd {
        &self.bell
    }

    /// The inbox.
    pub fn inbox(&self) -> &Segment {
        &self.inbox
    }

    /// Closes the rank's socket and stops watching its process.
    pub fn unwatch(&mut self, job: u32, poller: &mut Poller) {
        if let Some(conn) = self.conn.take() {
            poller.remove(conn.fd(), Source::Rank(job, self.id, self.serial));
        }
        if let Some(pidfd) = self.pidfd.take() {
            poller.remove(pidfd.as_fd(), Source::RankDeath(job, self.id, self.serial));
        }
    }

    /// Whether something waits for room in the rank's lane.
    pub fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Tells the rank; what does not fit into its lane waits here, in order.
    pub fn tell(&mut self, words: Words) {
        self.backlog.push_back(words);
        self.flush();
    }

    /// Sends what waited, and answers how many messages still wait that are not of batches which the rank holds. A
    /// rank that spoils its lane hears nothing more: its own loss.
    pub fn flush(&mut self) -> usize {
        let mut news = false;
        while let Some(words) = self.backlog.front() {
            if self.plan.push(words).is_err() {
                break;
            }
            self.backlog.pop_front();
            news = true;
        }
        if news {
            self.ringer.ring(0);
        }
        let waiting = self.backlog.len();
        // A batch is told in one message and one a sample, and the end of a sample, or of each part, may be told twice.
        let ends = |regions: &[Region]| regions.iter().map(|r| 2 * r.parts.len().max(1)).sum::<usize>();
        let of = |block: &Block| 1 + block.regions.len() + ends(&block.regions);
        let of_batches = || self.regions.blocks().map(|(_, block)| of(block)).sum();
        if waiting < 256 { 0 } else { waiting.saturating_sub(of_batches()) }
    }

    /// What the rank is told of a part that is in its place; `None` if it is not.
    pub fn ready(&self, what: Address) -> Option<Ready> {
        let Address { grant, slot, span: Span { first, frames } } = what;
        let (block, region) = (self.regions.block(grant)?, self.regions.region(grant, slot).ok()?);
        let part = region.parts.iter().find(|part| part.span == what.span)?;
        let State::Ready { attempt, written, shape, spare, .. } = part.state else { return None };
        let grant = spare.unwrap_or(grant);
        let offset = match spare {
            Some(spare) => self.regions.block(spare)?.offset,
            None => region.offset + part.at,
        };
        let head = Head { kind: kind::READY, session: self.id, attempt, slot };
        let (sample, step) = (region.place.sample, block.step);
        Some(Ready { head, sample, offset, written, shape, grant, step, first, frames, reserved: 0 })
    }

    fn block(&self, grant: u32) -> Result<&Block, Refused> {
        self.regions.block(grant).ok_or(Refused::Grant(grant))
    }

    /// Makes room for a second attempt at a part, and tells the rank of it. `None` if there is no room.
    pub fn hedge(&mut self, what: Address, iter: u32) -> Result<Option<(u16, Option<Spare>)>, Refused> {
        let Some((attempt, spare, fresh)) = self.regions.hedge(what)? else { return Ok(None) };
        if let Some(spare) = spare.filter(|_| fresh) {
            let Spare { offset, grant, .. } = spare;
            let (step, len) = (self.block(what.grant)?.step, self.block(grant)?.len);
            let head = Head { kind: kind::SPARE, session: self.id, attempt, slot: what.slot };
            let (of, Span { first, frames }) = (what.grant, what.span);
            let told = message::Spare { head, offset, len, grant, of, iter, step, first, frames, reserved: [0; 3] };
            self.tell(told.words());
            crash::point("spare.told");
        }
        Ok(Some((attempt, spare)))
    }

    /// Wakes the rank whatever its parked flag says: a worker may have died after it cleared the flag.
    pub fn wake(&self) {
        self.ringer.ring_anyway(0);
    }

    /// Whether someone of the job has tried to make the daemon wait.
    pub fn tampered(&self) -> bool {
        self.ringer.tampered()
    }

    /// The next message of the rank, unchecked.
    pub fn pop_feedback(&mut self) -> Result<Option<Words>, ()> {
        self.feedback.pop().map_err(|_| ())
    }

    /// Whether a feedback message speaks of what is granted.
    pub fn grant_of(&self, feedback: &Feedback) -> Option<u32> {
        let block = self.regions.block(feedback.grant)?;
        // A block held over a restart has neither iteration nor step.
        let held = block.regions.is_empty();
        (held || (block.iter, block.step) == (feedback.iter, feedback.step)).then_some(feedback.grant)
    }
}

/// Refuses a slab that could shrink under a worker, or that is smaller than it says.
pub fn check_slab(slab: &OwnedFd, bytes: u64) -> Result<(), String> {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    let seals = fcntl(slab, FcntlArg::F_GET_SEALS).map_err(|_| "the slab is not a memfd".to_string())?;
    let wanted = (SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL).bits();
    if seals & wanted != wanted {
        return Err("the slab is not sealed against shrinking and growing".into());
    }
    let stat = nix::sys::stat::fstat(slab).map_err(|e| format!("fstat of slab {}: {e}", slab.as_raw_fd()))?;
    if bytes == 0 || (stat.st_size as u64) < bytes {
        return Err(format!("the slab has {} bytes, {bytes} were announced", stat.st_size));
    }
    Ok(())
}
