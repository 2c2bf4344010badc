//! Ranks and their loaders: joining, and starting an iteration.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::endings::Culprit;
use super::{Job, Source, Stream};
use crate::crash;
use crate::daemon::conn::{Conn, Gone};
use crate::daemon::poller::Poller;
use crate::daemon::regions::Regions;
use crate::daemon::sessions::{
    FEEDBACK_CAPACITY, LANE_CAPACITY, LANES, MAX_SESSIONS, MAX_WORKERS, Phase, SESSION_BELLS, Session, check_slab,
};
use crate::manifest::Manifest;
use crate::proto;
use crate::proto::options::StreamOptions;
use crate::proto::order::{BadOrder, Order};
use crate::proto::session::{FromRank, Given, Join, Opened, ToRank, ToWorker};
use crate::sched::event::{Catalog, Event, Place, StreamId};

/// Why a rank may not join; goes to the rank as it is.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl From<std::io::Error> for Refusal {
    fn from(e: std::io::Error) -> Self {
        Refusal(format!("the daemon could not set up the session: {e}"))
    }
}

/// Epochs of a rank whose briefs are kept for workers that come later.
const BRIEFS: usize = 2;
/// Most steps of an epoch that a brief decides.
const MAX_BRIEFED: u32 = 1 << 24;

/// Packets of one peer that are taken in before others have their turn.
pub(super) const PACKETS: usize = 64;

impl Job {
    /// A rank asks to join. Its connection comes back with the refusal, so that it can be told.
    pub fn join(
        &mut self,
        conn: Conn,
        join: Join,
        fds: Vec<OwnedFd>,
        poller: &mut Poller,
    ) -> Result<(), (Conn, Refusal)> {
        match self.prepare(&join, fds, &conn) {
            Ok(mut session) => {
                session.conn = Some(conn);
                self.admit(session, &join, poller);
                Ok(())
            }
            Err(refusal) => {
                // A stream that was opened for this rank alone has nobody.
                let empty = |s: &Stream| s.loader == join.loader && !s.closed && s.members.is_empty();
                self.streams.retain(|_, stream| !empty(stream));
                Err((conn, refusal))
            }
        }
    }

    /// Everything that can refuse a rank, before anything is changed for it.
    fn prepare(&mut self, join: &Join, fds: Vec<OwnedFd>, conn: &Conn) -> Result<Session, Refusal> {
        if join.version != proto::VERSION {
            let ours = proto::VERSION;
            return Err(Refusal(format!(
                "the rank speaks version {}, the daemon {ours}: install the same on both sides",
                join.version
            )));
        }
        let mut fds = fds;
        let statement = if join.dealt { fds.pop() } else { None };
        let [slab, manifest] = <[OwnedFd; 2]>::try_from(fds)
            .map_err(|fds| Refusal(format!("a join carries 2 descriptors, {} came", fds.len())))?;
        join.stream.check().map_err(|e| Refusal(e.to_string()))?;
        join.run.check().map_err(|e| Refusal(e.to_string()))?;
        if join.rank >= join.stream.world {
            return Err(Refusal(format!("rank {} of a world of {}", join.rank, join.stream.world)));
        }
        if join.run.workers > u32::from(MAX_WORKERS) {
            return Err(Refusal(format!(
                "{} workers asked for, {MAX_WORKERS} are the most: lower `workers`",
                join.run.workers
            )));
        }
        if let Some(other) = self.streams.values().find(|s| !s.closed && s.run.program != join.run.program) {
            return Err(Refusal(format!(
                "workers of job `{}` run {}, and loader `{}` wants {}: give it a job of its own",
                self.name,
                shown(&other.run.program),
                join.loader,
                shown(&join.run.program)
            )));
        }
        if self.workers.iter().any(Option::is_some) && self.program != join.run.program {
            let ours = shown(&self.program);
            return Err(Refusal(format!(
                "workers of job `{}` still run {ours}: give this loader a job of its own",
                self.name
            )));
        }
        check_slab(&slab, join.slab_bytes).map_err(Refusal)?;
        let current =
            self.streams.iter().find(|(_, s)| s.loader == join.loader && !s.closed).map(|(&id, _)| StreamId(id));
        let id = match current {
            Some(id) => {
                self.must_agree(id, join)?;
                id
            }
            None => self.open_stream(join, manifest)?,
        };
        let stream = &self.streams[&id.0];
        let most = stream.largest_batch;
        // Blocks of differing sizes leave gaps: with room for a third, one block anywhere leaves a gap for another.
        let (count, name) = if stream.options.transform.is_uniform() { (2, "two") } else { (3, "three") };
        let wanted = most.saturating_mul(count);
        if join.slab_bytes < wanted {
            return Err(Refusal(format!(
                "a slab of {} bytes cannot hold {name} batches of {most} bytes: set the slab to at least {wanted} bytes ({} MiB), or lower the batch size",
                join.slab_bytes,
                wanted.div_ceil(1 << 20)
            )));
        }
        self.afford(join.slab_bytes)?;
        let number = (0..MAX_SESSIONS as u16).find(|id| !self.sessions.contains_key(id));
        let number = number.ok_or_else(|| {
            Refusal(format!("job `{}` has {MAX_SESSIONS} sessions, the most there can be", self.name))
        })?;
        let serial = self.next_generation;
        self.next_generation += 1;
        let mut session = Session::new((number, serial), id, conn, slab, join, &self.hints)?;
        session.lent = join.lent.clone();
        for &(grant, offset, len) in &join.held {
            let held = session.regions.hold(grant, offset, len);
            held.map_err(|e| Refusal(format!("block {grant} said to be held over a restart: {e}")))?;
        }
        self.hear_statement(id, statement).map_err(Refusal)?;
        Ok(session)
    }

    /// Whether a job may have another slab of so many bytes.
    fn afford(&self, bytes: u64) -> Result<(), Refusal> {
        let (most, has) = (self.config.memory.job_mib << 20, self.slab_bytes());
        let wanted = has.saturating_add(bytes);
        if most == 0 || wanted <= most {
            return Ok(());
        }
        Err(Refusal(format!(
            "the slabs of job `{}` would be {wanted} bytes, {has} of them of ranks that are in: this daemon's `memory.job_mib` allows {most}; set `slab_bytes` to at most {}, or raise that limit to {} MiB",
            self.name,
            most.saturating_sub(has),
            wanted.div_ceil(1 << 20)
        )))
    }

    fn open_stream(&mut self, join: &Join, manifest: OwnedFd) -> Result<StreamId, Refusal> {
        let again = manifest.try_clone()?;
        let path = Path::new(&join.manifest);
        let manifest = Manifest::from_fd(manifest, path).map_err(|e| Refusal(e.to_string()))?;
        if manifest.fingerprint() != join.fingerprint {
            return Err(Refusal(format!("manifest {} is not the one that the rank opened", join.manifest)));
        }
        let samples = manifest.good();
        if join.stream.steps(samples) == 0 {
            return Err(Refusal(format!(
                "{samples} samples do not fill one step of {} ranks with {} each: lower the batch size, or set drop_last = false",
                join.stream.world, join.stream.batch_size
            )));
        }
        let id = (0..=u16::MAX).map(|n| self.next_stream.wrapping_add(n)).find(|id| !self.streams.contains_key(id));
        let id = id.ok_or_else(|| Refusal("too many loaders".into()))?;
        self.next_stream = id.wrapping_add(1);
        self.streams.insert(
            id,
            Stream {
                loader: join.loader.clone(),
                largest_batch: largest_batch(&manifest, &join.stream),
                options: Arc::new(join.stream.clone()),
                run: join.run.clone(),
                manifest: Arc::new(manifest),
                manifest_fd: again,
                manifest_path: join.manifest.clone(),
                members: BTreeMap::new(),
                rejoined: None,
                opened: false,
                done: 0,
                bad: 0,
                ordered: Vec::new(),
                closed: false,
            },
        );
        Ok(StreamId(id))
    }

    /// A stream that nobody has joined, or that all have left, goes.
    pub(super) fn drop_empty_stream(&mut self, id: StreamId) {
        if !self.sessions.values().any(|s| s.stream == id) {
            self.close_in_sched(id);
            self.streams.remove(&id.0);
        }
    }

    /// A rank that joins a loader must want what the others want.
    fn must_agree(&self, id: StreamId, join: &Join) -> Result<(), Refusal> {
        let stream = &self.streams[&id.0];
        if stream.manifest.fingerprint() != join.fingerprint {
            return Err(Refusal(format!(
                "another manifest than the other ranks of loader `{}` have: {} here, {} there",
                join.loader, join.manifest, stream.manifest_path
            )));
        }
        if *stream.options != join.stream {
            let ours = serde_json::to_string(&*stream.options).unwrap_or_default();
            let theirs = serde_json::to_string(&join.stream).unwrap_or_default();
            return Err(Refusal(format!(
                "other options than the other ranks of loader `{}` have: {theirs} here, {ours} there",
                join.loader
            )));
        }
        if let Some(other) = stream.members.get(&join.rank) {
            let pid = self.sessions.get(other).and_then(|s| s.conn.as_ref()).map_or(0, |c| c.peer().pid);
            return Err(Refusal(format!(
                "rank {} of loader `{}` is already there (process {pid}): give each rank its own RANK, or each loader its own name",
                join.rank, join.loader
            )));
        }
        Ok(())
    }

    fn admit(&mut self, mut session: Session, join: &Join, poller: &mut Poller) {
        let id = session.id;
        let packet = {
            let stream = &self.streams[&session.stream.0];
            ToRank::Opened(Opened {
                version: proto::VERSION,
                session: id,
                lanes: LANES,
                lane_capacity: LANE_CAPACITY,
                feedback_capacity: FEEDBACK_CAPACITY,
                bell: (SESSION_BELLS + usize::from(id)) as u16,
                steps: stream.options.steps(stream.manifest.good()),
                samples: stream.manifest.good(),
                daemon_pid: std::process::id() as i32,
            })
        };
        let watched = session.welcome(&packet, &self.hints, &self.bell, &self.lifeline.0).and_then(|()| {
            if let Some(conn) = &session.conn {
                poller.add(conn.fd(), Source::Rank(self.id, id, session.serial))?;
            }
            if let Some(pidfd) = &session.pidfd {
                poller.add(pidfd.as_fd(), Source::RankDeath(self.id, id, session.serial))?;
            }
            Ok(())
        });
        if let Err(e) = watched {
            tracing::warn!(job = self.name, rank = join.rank, "rank lost while it joined: {e}");
            self.sessions.insert(id, session);
            self.session_ended(id, poller);
            return;
        }
        let stream = session.stream;
        self.sessions.insert(id, session);
        if let Some(s) = self.streams.get_mut(&stream.0) {
            s.members.insert(join.rank, id);
            if join.rejoin {
                s.rejoined.get_or_insert_with(Instant::now);
            }
        }
        crash::point("rank.admitted");
        let world = join.stream.world;
        self.cores = Arc::new(self.cores.with(&join.cores));
        for slot in 0..self.workers.len() as u16 {
            self.attach(slot, id);
        }
        tracing::info!(job = self.name, rank = join.rank, world, loader = join.loader, "rank joined");
        self.open_if_complete(stream);
        self.drive();
    }

    /// Once all ranks are in, the scheduler hears of the stream, and of the iterations that waited for it.
    fn open_if_complete(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id.0) else { return };
        if stream.opened || stream.closed || stream.members.len() < stream.options.world as usize {
            return;
        }
        stream.opened = true;
        crash::point("stream.complete");
        let (run, world) = (stream.run.clone(), stream.options.world);
        let members: Vec<u16> = stream.members.values().copied().collect();
        self.events.push_back(Event::StreamOpened {
            stream: id,
            options: stream.options.clone(),
            run: stream.run.clone(),
            catalog: stream.manifest.clone(),
        });
        let ordered = std::mem::take(&mut stream.ordered);
        self.events.extend(ordered);
        if let Err(why) = self.resume_loans(id) {
            self.fail_stream(id, &why, Culprit::default());
            return;
        }
        // Only now is it known on which cores the ranks run: workers started before would crowd the first rank's.
        let workers = match run.workers {
            0 => self.default_workers(run.policy, world),
            n => n,
        };
        self.program.clone_from(&run.program);
        let most = self.config.workers.most.clamp(1, MAX_WORKERS.into());
        if workers > most {
            self.notice(format!("{most} workers instead of {workers}: this daemon's `workers.most` allows no more"));
        }
        self.want_workers(workers.clamp(1, most) as u16, &run);
        for session in members {
            if let Some((iter, epoch, step)) = self.sessions.get_mut(&session).and_then(|s| s.pending_start.take()) {
                self.start(session, iter, epoch, step);
            }
        }
    }

    /// Ends streams whose ranks came back after a daemon's death, but not all of them.
    pub(super) fn give_up_on_missing_ranks(&mut self) {
        let patience = Duration::from_secs(self.config.jobs.rejoin_s.into());
        let late = |s: &Stream| !s.opened && !s.closed && s.rejoined.is_some_and(|at| at.elapsed() > patience);
        for id in self.streams.iter().filter(|(_, s)| late(s)).map(|(&id, _)| id).collect::<Vec<_>>() {
            let stream = &self.streams[&id];
            let missing: Vec<_> = (0..stream.options.world).filter(|r| !stream.members.contains_key(r)).collect();
            let reason = format!(
                "the daemon was replaced, and rank {} of loader `{}` did not come back within {patience:?}",
                missing.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
                stream.loader
            );
            self.fail_stream(StreamId(id), &reason, Culprit { rank: missing.first().copied(), sample: None });
        }
    }

    fn start(&mut self, session: u16, iter: u32, epoch: u32, step: u32) {
        let Some(s) = self.sessions.get_mut(&session) else { return };
        let Some(stream) = self.streams.get(&s.stream.0) else { return };
        if !stream.opened {
            s.pending_start = Some((iter, epoch, step));
            return;
        }
        s.iter = iter;
        if let Some(conn) = s.conn.as_mut() {
            // A socket that does not take it says so by itself, and ends the session.
            let _ = conn.send(&ToRank::Started { iter }, &[]);
        }
        crash::point("start.said");
        let (stream, rank, server) = (s.stream, s.rank, s.server);
        self.wants(session, epoch, step);
        self.events.push_back(Event::RankStarted { stream, rank, server, iter, epoch, step });
    }

    /// Packets of a rank wait, or its socket takes output again.
    pub fn rank_packets(&mut self, id: u16, serial: u32, poller: &mut Poller) {
        // Of a rank that never stops only so many: the socket stays readable.
        for _ in 0..PACKETS {
            let known = self.sessions.get_mut(&id).filter(|session| session.serial == serial);
            let Some(conn) = known.and_then(|session| session.conn.as_mut()) else { break };
            match conn.flush().and_then(|()| conn.recv::<FromRank>()) {
                Ok(Some((packet, fds))) => self.rank_packet(id, packet, fds, poller),
                Ok(None) => break,
                Err(e @ (Gone::Packet(_) | Gone::Io(_))) => self.refuse_rank(id, &e.to_string(), poller),
                Err(e) => {
                    self.rank_lost(id, &format!("its connection ended ({e})"), poller);
                    break;
                }
            }
        }
        self.drive();
    }

    fn rank_packet(&mut self, id: u16, packet: FromRank, fds: Vec<OwnedFd>, poller: &mut Poller) {
        let Some(session) = self.sessions.get(&id) else { return };
        let wanted = usize::from(matches!(packet, FromRank::Start { given: Some(_), .. }));
        if fds.len() != wanted {
            let why = format!("{} descriptors with a packet that has {wanted}", fds.len());
            self.refuse_rank(id, &why, poller);
            return;
        }
        match packet {
            FromRank::Start { iter, epoch, step, given } => {
                if session.phase != Phase::Live {
                    return;
                }
                if iter <= session.iter {
                    self.refuse_rank(id, &format!("iteration {iter} after iteration {}", session.iter), poller);
                    return;
                }
                if let Some((given, fd)) = given.zip(fds.into_iter().next())
                    && let Err(why) = self.take_given(id, epoch, given, fd)
                {
                    self.refuse_rank(id, &why.to_string(), poller);
                    return;
                }
                // Releases that the rank made before this must be known before its memory is granted anew.
                self.hear_rank(id, poller);
                self.start(id, iter, epoch, step);
            }
            FromRank::Leave => self.leave(id),
            FromRank::Join(_) => self.refuse_rank(id, "it joined twice", poller),
        }
    }

    /// Takes in what a rank gives for an epoch, in place of the stream's own order.
    fn take_given(&mut self, id: u16, epoch: u32, given: Given, fd: OwnedFd) -> Result<(), BadOrder> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        let Some(stream) = self.streams.get_mut(&session.stream.0) else { return Ok(()) };
        let mut file = File::from(fd);
        let order = match given {
            Given::Order => Some(order_at_end(&mut file, None)?),
            Given::Brief { steps } => {
                let steps = steps.min(MAX_BRIEFED) as usize;
                Some(Order::new(vec![1; steps], vec![0; steps])?)
            }
            Given::Samples { order: 0 } => None,
            Given::Samples { order } => Some(order_at_end(&mut file, Some(order))?),
        };
        if let Some(order) = &order {
            order.check(stream.manifest.good(), stream.options.micro_batch)?;
        }
        if given != Given::Order {
            session.briefs.retain(|(e, _)| *e != epoch);
            session.briefs.push_back((epoch, file.into()));
            if session.briefs.len() > BRIEFS {
                session.briefs.pop_front();
            }
        }
        if given != Given::Order
            && let Some((_, fd)) = session.briefs.back()
        {
            for slot in &session.mapped_by {
                let worker = self.workers.get_mut(usize::from(*slot)).and_then(Option::as_mut);
                let Some(conn) = worker.and_then(|w| w.conn.as_mut()) else { continue };
                // A worker that takes nothing any more is ended when connections are tended.
                let _ = conn.send(&ToWorker::Brief { session: id, epoch }, &[fd.as_fd()]);
            }
        }
        let Some(order) = order else { return Ok(()) };
        let event = Event::Ordered { stream: session.stream, epoch, order: order.into() };
        // A stream that is not open yet is opened with what came before.
        if stream.opened {
            self.events.push_back(event)
        } else {
            stream.ordered.push(event)
        }
        Ok(())
    }
}

/// The order at the end of a file, or that is all of it.
fn order_at_end(file: &mut File, bytes: Option<u64>) -> Result<Order, BadOrder> {
    let all = file.metadata()?.len();
    let bytes = bytes.unwrap_or(all);
    let start = all.checked_sub(bytes).ok_or_else(|| BadOrder::Shape(format!("{bytes} bytes of a file of {all}")))?;
    file.seek(SeekFrom::Start(start))?;
    Order::read(file, bytes)
}

/// What workers run, in words.
fn shown(program: &[String]) -> String {
    if program.is_empty() { "the built-in decoder".into() } else { program.join(" ") }
}

/// Bytes of the largest batch that the stream can have.
fn largest_batch(manifest: &Manifest, options: &StreamOptions) -> u64 {
    let transform = &options.transform;
    let n = options.largest_batch() as usize;
    let mut sizes: Vec<u64> = if transform.is_uniform() {
        vec![transform.max_bytes(&Default::default()); n]
    } else {
        let mut sizes: Vec<u64> =
            (0..manifest.good()).map(|i| transform.max_bytes(&Catalog::facts(manifest, i))).collect();
        let largest = sizes.len().saturating_sub(n);
        if largest > 0 {
            sizes.select_nth_unstable(largest);
            sizes.drain(..largest);
        }
        sizes
    };
    // With fewer samples than a batch the last one is repeated.
    sizes.resize(n, sizes.last().copied().unwrap_or(0));
    Regions::needed(&sizes.iter().map(|&bytes| Place { bytes, ..Place::default() }).collect::<Vec<_>>())
}
