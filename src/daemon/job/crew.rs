//! The job's worker processes: started, introduced, attached, mourned, replaced.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::streams::PACKETS;
use super::{Job, Orphan, Source};
use crate::crash;
use crate::daemon::config::LogFormat;
use crate::daemon::conn::{Conn, Gone};
use crate::daemon::poller::Poller;
use crate::daemon::regions::{Address, Part, State};
use crate::daemon::sessions::{LANE_CAPACITY, LANES, MAX_WORKERS, Phase, SESSION_BELLS, Session};
use crate::daemon::workers::{Bounds, Corpse, Shared, Worker, segment_fd};
use crate::proto::message::Body;
use crate::proto::options::{Policy, RunOptions};
use crate::proto::session::{FromWorker, ToRank, ToWorker};
use crate::sched::event::{Event, ServerId, Time, WorkerId};

/// A sample that kills its worker by a fault of its own this often is bad.
const MAX_FAULTS: u8 = 2;
/// A sample that loses eight workers to SIGKILL is bad: the kernel's OOM killer looks the same as a person.
const MAX_KILLS: u8 = 8 * KILL_AT_WORK;
/// What a worker counts that was killed with the sample in hand; one that had not taken it in counts 1.
const KILL_AT_WORK: u8 = 4;
/// Workers that die before they do anything, with no ticket ended by another in between, until the job is given up.
const MAX_FAILED_STARTS: u32 = 5;

/// What a ticket may have to do with the death of the worker that had it.
#[derive(Debug, Clone, Copy)]
enum Blame {
    /// It was waiting behind another one.
    None,
    /// The worker did what only a fault in its work makes it do.
    Fault,
    /// The worker was killed from outside, with the ticket in hand.
    KillAtWork,
    /// The same, before it had taken the ticket in.
    KillBefore,
    /// The daemon ended it over this very sample.
    Sentence,
}

impl Job {
    /// Has what is missing up to `wanted` workers started, also what died while there was no rank to serve.
    pub(super) fn want_workers(&mut self, wanted: u16, run: &RunOptions) {
        self.pin = run.pin;
        self.bounds = Bounds { sandbox: run.sandbox, memory: run.most_memory() };
        if !run.sandbox && run.program.is_empty() {
            self.notice(
                "workers run without a sandbox, as `sandbox` is off: media that harm a decoder can harm this user"
                    .into(),
            );
        }
        let wanted = self.affordable_workers(wanted);
        // Ranks that come anew are not to pay for what went wrong before them.
        self.failed_starts = 0;
        let slots = self.workers.len().max(usize::from(wanted));
        self.workers.resize_with(slots, || None);
        for slot in 0..slots as u16 {
            let planned = self.revive.iter().any(|(of, _)| *of == slot);
            if self.workers[usize::from(slot)].is_none() && !planned {
                self.revive.push((slot, Instant::now()));
            }
        }
    }

    /// As many workers as there are open files for: each takes four, each rank six.
    fn affordable_workers(&mut self, wanted: u16) -> u16 {
        use nix::sys::resource::{Resource, getrlimit};
        let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NOFILE) else { return wanted };
        let others = 64 + 6 * self.sessions.len() as u64;
        let most = (limit.saturating_sub(others) / 4).clamp(1, MAX_WORKERS.into()) as u16;
        if most < wanted {
            self.notice(format!(
                "{most} workers instead of {wanted}, since the daemon may open {limit} files: raise `ulimit -n`"
            ));
        }
        wanted.min(most)
    }

    fn start_worker(&mut self, slot: u16, poller: &mut Poller) {
        let generation = self.next_generation;
        self.next_generation += 1;
        let core = (self.pin && self.config.workers.pin).then(|| self.cores.core_of(slot));
        let shared = Shared {
            job: &self.name,
            socket: &self.socket,
            hints: &self.hints,
            lifeline: &self.lifeline.1,
            program: &self.program,
            bounds: self.bounds,
            log: if self.config.log.format == LogFormat::Json { "json" } else { "text" },
        };
        let started = Worker::start(&shared, slot, generation, core).and_then(|worker| {
            poller.add(worker.pidfd.as_fd(), Source::WorkerDeath(self.id, slot, generation))?;
            Ok(worker)
        });
        match started {
            Ok(worker) => {
                self.workers[usize::from(slot)] = Some(worker);
                crash::point("worker.started");
            }
            Err(e) => {
                self.failed_starts += 1;
                tracing::error!(job = self.name, slot, "cannot start a worker: {e}");
                self.start_later(slot, format!("cannot start a worker process: {e}"));
            }
        }
    }

    /// Plans the next start of a slot; gives the job up when workers never come up.
    fn start_later(&mut self, slot: u16, why: String) {
        if self.failed_starts > MAX_FAILED_STARTS {
            let reason = format!("{why}; tried {} times. The daemon's log says more", self.failed_starts);
            self.fail_all(&reason);
            return;
        }
        let wait = Duration::from_millis(if self.failed_starts == 0 { 0 } else { 50 << self.failed_starts });
        self.revive.push((slot, Instant::now() + wait));
    }

    /// Starts again one worker that is due. One at a time: meanwhile nobody is heard.
    pub(super) fn revive_a_worker(&mut self, poller: &mut Poller) {
        if self.revive.is_empty() {
            return;
        }
        let now = Instant::now();
        let Some(due) = self.revive.iter().position(|(_, at)| *at <= now) else { return };
        let (slot, _) = self.revive.remove(due);
        if self.workers[usize::from(slot)].is_none() && !self.sessions.is_empty() {
            self.start_worker(slot, poller);
        }
    }

    /// A connection claims to be one of our workers. Gives it back when it is not.
    pub fn introduce(&mut self, conn: Conn, slot: u16, token: &str, poller: &mut Poller) -> Result<(), Conn> {
        let peer = conn.peer();
        let known = self.workers.get_mut(usize::from(slot)).and_then(Option::as_mut);
        let Some(worker) = known.filter(|w| w.is(peer.pid, token)) else { return Err(conn) };
        let generation = worker.generation;
        if let Err(e) = worker.welcome(conn, &self.hints, &self.bell) {
            tracing::warn!(job = self.name, slot, "worker lost while it was welcomed: {e}");
            worker.pidfd.kill();
            return Ok(());
        }
        if let Some(conn) = &worker.conn
            && let Err(e) = poller.add(conn.fd(), Source::Worker(self.id, slot, generation))
        {
            tracing::warn!(job = self.name, slot, "cannot watch a worker's socket: {e}");
            worker.pidfd.kill();
            return Ok(());
        }
        crash::point("worker.introduced");
        let node = worker.core.and_then(|core| self.cores.node.get(&core)).copied().unwrap_or(0);
        let live: Vec<u16> = self.sessions.values().filter(|s| s.phase == Phase::Live).map(|s| s.id).collect();
        for session in live {
            self.attach(slot, session);
        }
        self.events.push_back(Event::WorkerUp { worker: WorkerId(slot), server: ServerId(node as u16) });
        self.drive();
        Ok(())
    }

    /// Lets a worker write into a session's slab.
    pub(super) fn attach(&mut self, slot: u16, session: u16) {
        let Some(worker) = self.workers.get_mut(usize::from(slot)).and_then(Option::as_mut) else { return };
        let Some(s) = self.sessions.get_mut(&session) else { return };
        let Some(stream) = self.streams.get(&s.stream.0) else { return };
        let Some(conn) = worker.conn.as_mut() else { return };
        let packet = ToWorker::Attach {
            session,
            slab_bytes: s.regions.bytes(),
            lanes: LANES,
            lane_capacity: LANE_CAPACITY,
            bell: (SESSION_BELLS + usize::from(session)) as u16,
            manifest: stream.manifest_path.clone(),
            stream: Box::new((*stream.options).clone()),
        };
        let sent = segment_fd(s.inbox()).map_err(Gone::from).and_then(|inbox| {
            conn.send(&packet, &[s.slab.as_fd(), inbox, s.bell().fd(), stream.manifest_fd.as_fd()])
        });
        let sent = sent.and_then(|()| {
            let mut briefs = s.briefs.iter();
            briefs.try_for_each(|(epoch, fd)| conn.send(&ToWorker::Brief { session, epoch: *epoch }, &[fd.as_fd()]))
        });
        match sent {
            Ok(()) => {
                worker.attached.insert(session);
                s.mapped_by.insert(slot);
                crash::point("attach.sent");
            }
            Err(e) => {
                tracing::warn!(job = self.name, slot, "worker lost: {e}");
                worker.pidfd.kill();
            }
        }
    }

    /// Asks every worker to let go of a session's slab.
    pub(super) fn detach_all(&mut self, session: u16) {
        let Some(s) = self.sessions.get_mut(&session) else { return };
        for slot in s.mapped_by.difference(&s.detaching).copied().collect::<Vec<_>>() {
            s.detaching.insert(slot);
            let Some(worker) = self.workers.get_mut(usize::from(slot)).and_then(Option::as_mut) else { continue };
            if worker.detach(session).is_err() {
                worker.pidfd.kill();
            }
        }
    }

    /// Ends the workers that do not run and whose end is waited for: for a part of a sample of which another part has
    /// failed, or for a slab that they were asked to let go of.
    pub(super) fn end_those_who_hold_on(&mut self) {
        let held_up: Vec<_> =
            self.sessions.iter().flat_map(|(&id, s)| s.regions.held_up().into_iter().map(move |p| (id, p))).collect();
        for (session, part) in held_up {
            self.end_idle(session, part, "holds up a sample that is skipped");
        }
        let asked: std::collections::BTreeSet<u16> =
            self.sessions.values().flat_map(|s| s.detaching.iter().copied()).collect();
        for slot in asked {
            if let Some(worker) = self.workers.get_mut(usize::from(slot)).and_then(Option::as_mut)
                && !worker.has_run()
            {
                tracing::warn!(
                    slot,
                    pid = worker.pid(),
                    "worker ended: it is stuck, and holds a slab that is given up"
                );
                worker.pidfd.kill();
            }
        }
    }

    /// Packets of a worker wait, or its socket takes output again.
    pub fn worker_packets(&mut self, slot: u16, generation: u32, poller: &mut Poller) {
        for _ in 0..PACKETS {
            let known = self.workers.get_mut(usize::from(slot)).and_then(Option::as_mut);
            let Some(worker) = known.filter(|w| w.generation == generation) else { return };
            let Some(conn) = worker.conn.as_mut() else { return };
            match conn.flush().and_then(|()| conn.recv::<FromWorker>()) {
                Ok(Some((packet, fds))) if fds.is_empty() => self.worker_packet(slot, packet),
                Ok(Some(_)) => self.quarantine(slot, "it sent descriptors"),
                Ok(None) => break,
                Err(e) => {
                    // Its pidfd says when it is dead; a live one without a socket is of no use.
                    tracing::debug!(job = self.name, slot, "worker's socket: {e}");
                    poller.remove(conn.fd(), Source::Worker(self.id, slot, generation));
                    worker.pidfd.kill();
                    return;
                }
            }
        }
        self.drive();
    }

    /// Reads the packets that a worker has sent by now, without acting on its socket's end.
    pub(super) fn fetch_complaints(&mut self, slot: u16) {
        for _ in 0..PACKETS {
            let worker = self.workers.get_mut(usize::from(slot)).and_then(Option::as_mut);
            let Some(conn) = worker.and_then(|w| w.conn.as_mut()) else { return };
            let Ok(Some((packet, _))) = conn.recv::<FromWorker>() else { return };
            self.worker_packet(slot, packet);
        }
    }

    fn worker_packet(&mut self, slot: u16, packet: FromWorker) {
        match packet {
            FromWorker::BadSample { ticket, mut stage, mut reason } => {
                // It goes into a packet to the rank, which has a largest size.
                shorten(&mut stage, 100);
                shorten(&mut reason, 2000);
                if self.flights.get(&ticket).is_some_and(|flight| flight.worker == slot) {
                    self.complaints.insert(ticket, (stage, reason));
                }
            }
            FromWorker::Detached { session } if !self.is_detaching(slot, session) => {
                self.quarantine(slot, "it let go of a session that it was not asked to let go of");
            }
            FromWorker::Detached { session } => {
                // It ended its tickets of the session before; the session's number may be given away after.
                self.hear_worker(slot);
                if let Some(worker) = self.workers[usize::from(slot)].as_mut() {
                    worker.attached.remove(&session);
                }
                self.unmapped(slot, session);
            }
            FromWorker::Notice { mut text } => {
                shorten(&mut text, 2000);
                self.notice(text);
            }
            FromWorker::Introduce { .. } => self.quarantine(slot, "it introduced itself twice"),
        }
    }

    fn is_detaching(&self, slot: u16, session: u16) -> bool {
        self.sessions.get(&session).is_some_and(|s| s.detaching.contains(&slot))
    }

    /// Watches sockets that have packets to send for room, and ends those to which nothing can be sent any more.
    pub fn tend_connections(&mut self, poller: &mut Poller) {
        let mut lost = Vec::new();
        for session in self.sessions.values() {
            let Some(conn) = &session.conn else { continue };
            poller.watch_output(conn.fd(), Source::Rank(self.id, session.id, session.serial), conn.is_blocked());
            if conn.is_broken() {
                lost.push(session.id);
            }
        }
        for worker in self.workers.iter().flatten() {
            let Some(conn) = &worker.conn else { continue };
            let source = Source::Worker(self.id, worker.slot, worker.generation);
            poller.watch_output(conn.fd(), source, conn.is_blocked());
            if conn.is_broken() {
                worker.pidfd.kill();
            }
        }
        for id in lost {
            self.rank_lost(id, "its socket takes nothing any more", poller);
        }
        self.drive();
    }

    /// A worker has broken the protocol: it is ended, and replaced when it is dead.
    pub(super) fn quarantine(&mut self, slot: u16, why: &str) {
        self.stats.refused += 1;
        if let Some(worker) = self.workers.get(usize::from(slot)).and_then(Option::as_ref) {
            tracing::error!(job = self.name, slot, pid = worker.pid(), "worker ended: {why}");
            worker.pidfd.kill();
        }
    }

    /// A worker's pidfd has fired, at `fired`: it is dead.
    pub fn worker_died(&mut self, slot: u16, generation: u32, fired: Time, poller: &mut Poller) {
        let known = self.workers.get_mut(usize::from(slot)).and_then(Option::as_mut);
        if known.is_none_or(|w| w.generation != generation) {
            return;
        }
        // What it had told before it died still counts.
        self.hear_worker(slot);
        self.fetch_complaints(slot);
        let Some(mut worker) = self.workers[usize::from(slot)].take() else { return };
        crash::point("mourning.drained");
        poller.remove(worker.pidfd.as_fd(), Source::WorkerDeath(self.id, slot, generation));
        if let Some(conn) = &worker.conn {
            poller.remove(conn.fd(), Source::Worker(self.id, slot, generation));
        }
        let status = worker.reap();
        let (what, fault) = obituary(&status);
        tracing::warn!(job = self.name, slot, pid = worker.pid(), "worker died: {what}");
        self.stats.restarts += 1;
        // One that dies of itself before it does anything will do so again.
        if !worker.is_up() || (fault && !worker.proven && worker.held.is_empty()) {
            self.failed_starts += 1;
        }
        let idle = self.workers.iter().flatten().filter(|w| w.is_up() && w.held.is_empty()).count();
        let at_work = worker.has_taken_a_ticket();
        let orphan = Orphan { since: fired, idle: idle >= worker.held.len() };
        // It ended of itself and in good order: another manifest's files are outside its sandbox.
        let retired = status.as_ref().is_ok_and(|status| status.is_some_and(|status| status.success()));
        let sentence = worker.sentence.take();
        for (nth, ticket) in worker.held.iter().enumerate() {
            // Only the oldest ticket was being decoded; the one behind it is innocent.
            let blame = match (nth, fault) {
                _ if retired => Blame::None,
                _ if sentence.as_ref().is_some_and(|(of, ..)| of == ticket) => Blame::Sentence,
                (0, true) => Blame::Fault,
                (0, false) if at_work => Blame::KillAtWork,
                (0, false) => Blame::KillBefore,
                _ => Blame::None,
            };
            let why = match (&sentence, blame) {
                (Some((_, stage, why)), Blame::Sentence) => (*stage, why.as_str()),
                _ => ("worker", what.as_str()),
            };
            self.ticket_lost(*ticket, blame, why, orphan);
        }
        self.second.forget_tickets(|ticket| self.flights.contains_key(&ticket));
        crash::point("mourning.tickets");
        self.retell(slot);
        // It may have died between the word and the bell.
        self.sessions.values().for_each(Session::wake);
        let was_up = worker.is_up();
        let attached = std::mem::take(&mut worker.attached);
        self.corpses.push(worker.bury());
        if was_up {
            self.events.push_back(Event::WorkerDown { worker: WorkerId(slot) });
        }
        for session in attached {
            self.unmapped(slot, session);
        }
        if !self.sessions.is_empty() {
            self.start_later(slot, format!("worker processes end at once ({what})"));
        }
        // Its tickets are with others before its successor, whose start takes milliseconds, is started.
        self.drive();
    }

    /// A dead worker's ticket: again, or a bad sample when it has cost too many workers.
    fn ticket_lost(&mut self, ticket: u64, blame: Blame, (stage, what): (&str, &str), orphan: Orphan) {
        let Some(flight) = self.flights.remove(&ticket) else { return };
        // It may have died between its reason and its Failed.
        self.complaints.remove(&ticket);
        self.stats.reissued += 1;
        let Some(session) = self.sessions.get_mut(&flight.session) else { return };
        let Ok((region, spare)) = session.regions.lost(flight.what, flight.attempt) else { return };
        let Some(region) = region.filter(|region| !region.skipped && !region.has(flight.what.span)) else {
            self.tell_skip(flight.session, flight.what.grant, flight.what.slot);
            self.reap_block(flight.session, flight.what.grant);
            self.reap_spare(flight.session, spare);
            return;
        };
        match blame {
            Blame::None | Blame::Sentence => {}
            Blame::Fault => region.faults += 1,
            Blame::KillAtWork => region.kills += KILL_AT_WORK,
            Blame::KillBefore => region.kills += 1,
        }
        if let Blame::Sentence = blame {
            self.bad_sample(&flight, stage, what);
            self.events.push_back(Event::TicketFailed { ticket: crate::sched::event::TicketId(ticket) });
        } else if region.faults >= MAX_FAULTS || region.kills >= MAX_KILLS {
            let cost = region.faults.max(region.kills.div_ceil(KILL_AT_WORK));
            self.bad_sample(&flight, stage, &format!("it cost {cost} workers; the last one: {what}"));
            self.events.push_back(Event::TicketFailed { ticket: crate::sched::event::TicketId(ticket) });
        } else {
            self.orphans.insert((flight.session, flight.what), orphan);
        }
        self.reap_block(flight.session, flight.what.grant);
        self.reap_spare(flight.session, spare);
    }

    /// Repeats to the ranks what a dead worker had finished: its own message may never have been sent.
    fn retell(&mut self, slot: u16) {
        for session in self.sessions.values_mut() {
            let mut news = Vec::new();
            for (grant, block) in session.regions.blocks().filter(|(_, block)| !block.released) {
                for (at, region) in (0..).zip(&block.regions).filter(|(_, region)| !region.skipped) {
                    let its = |part: &&Part| matches!(part.state, State::Ready { worker, .. } if worker == slot);
                    let parts = region.parts.iter().filter(its);
                    news.extend(parts.filter_map(|part| session.ready(Address { grant, slot: at, span: part.span })));
                }
            }
            for ready in news {
                session.tell(ready.words());
            }
        }
    }

    /// Ends all workers: the job is over. Answers what is left of them to be reaped.
    pub fn close(&mut self, poller: &mut Poller) -> Vec<Corpse> {
        for worker in self.workers.drain(..).flatten() {
            poller.remove(worker.pidfd.as_fd(), Source::WorkerDeath(self.id, worker.slot, worker.generation));
            if let Some(conn) = &worker.conn {
                poller.remove(conn.fd(), Source::Worker(self.id, worker.slot, worker.generation));
            }
            self.corpses.push(worker.bury());
        }
        for session in self.sessions.values_mut() {
            if let Some(conn) = &mut session.conn {
                let _ = conn
                    .send(&ToRank::Failed { reason: "the daemon is stopping".into(), rank: None, sample: None }, &[]);
            }
            session.unwatch(self.id, poller);
        }
        poller.remove(self.bell.fd(), Source::Bell(self.id));
        std::mem::take(&mut self.corpses)
    }

    /// How many workers a policy asks for when the user names no number.
    pub(super) fn default_workers(&self, policy: Policy, world: u32) -> u32 {
        match policy {
            _ if self.config.workers.default > 0 => self.config.workers.default,
            // As PyTorch users do: every rank has its own, however few the cores.
            Policy::Local => self.cores.default_workers().max(world),
            Policy::Helix | Policy::Pool => self.cores.default_workers(),
        }
    }
}

fn shorten(text: &mut String, most: usize) {
    text.truncate(text.floor_char_boundary(most));
}

/// What a worker died of, and whether it was its own doing.
fn obituary(status: &std::io::Result<Option<std::process::ExitStatus>>) -> (String, bool) {
    use std::os::unix::process::ExitStatusExt;
    match status {
        Ok(None) => ("of what its debugger knows".into(), false),
        Ok(Some(status)) => match status.signal() {
            Some(libc::SIGKILL) => ("killed by SIGKILL".into(), false),
            Some(signal) => {
                let own = [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT, libc::SIGILL, libc::SIGFPE, libc::SIGSYS];
                let name = nix::sys::signal::Signal::try_from(signal).map_or("unknown signal", |s| s.as_str());
                (format!("killed by {name}"), own.contains(&signal))
            }
            None => (format!("{status}"), !status.success()),
        },
        Err(e) => (format!("not reaped: {e}"), false),
    }
}
