//! The work itself: decisions of the scheduler carried out, and what ranks and workers say of it taken in.

use std::sync::Arc;

use super::endings::Culprit;
use super::{Flight, Job, now};
use crate::crash;
use crate::daemon::poller::Poller;
use crate::daemon::regions::{Address, Made};
use crate::daemon::sessions::{FEEDBACK_CAPACITY, Phase, SESSION_LANES};
use crate::daemon::workers::Worker;
use crate::proto::message::{
    Batch, Body, DONE_UNTOLD, Done, Entry, Feedback, Head, Ready, Ticket, Words, head, kind,
};
use crate::proto::options::OnError;
use crate::proto::page::is_miss;
use crate::proto::session::{BadSample, ToRank};
use crate::proto::transform::Span;
use crate::sched::event::{Decision, Event, Measured, Place, Scheduler, StreamId, TicketId};
use crate::sched::record::Line;

/// Messages to a rank that may wait for room in its lane, over those of the batches that it holds: some 4 MB.
const MAX_UNHEARD: usize = 65_536;

/// What a rank is told of the step of all ranks.
#[derive(Debug, Clone, Copy)]
struct Whole {
    global: u32,
    mean_cost: f64,
    tokens: f64,
    bins: u16,
}

impl Job {
    /// Gives the scheduler what happened and carries out what it decides, until nothing is left of either.
    pub(super) fn drive(&mut self) {
        loop {
            if let Some(decision) = self.decisions.pop_front() {
                self.carry_out(decision);
            } else if let Some(event) = self.events.pop_front() {
                self.decide(event);
            } else {
                break;
            }
        }
    }

    pub(super) fn decide(&mut self, event: Event) {
        let now = now();
        if let Some(recorder) = &mut self.recorder {
            recorder.line(Line::of_event(now, &event));
        }
        self.sched.handle(now, event, &mut self.scratch);
        if let Some(recorder) = &mut self.recorder {
            self.scratch.iter().for_each(|decision| recorder.line(Line::of_decision(now, decision)));
        }
        self.decisions.extend(self.scratch.drain(..));
    }

    fn carry_out(&mut self, decision: Decision) {
        match decision {
            Decision::Grant { stream, rank, iter, epoch, step, places, global, mean_cost, tokens, bins } => {
                let whole = Whole { global, mean_cost, tokens, bins };
                let granted = self.grant(stream, rank, (iter, epoch, step), &places, whole);
                // The scheduler wants its answer before anything else happens.
                self.decide(if granted {
                    Event::Granted { stream, rank, iter, step }
                } else {
                    Event::NoRoom { stream, rank }
                });
            }
            Decision::End { stream, rank, iter, step } => self.end(stream, rank, iter, step),
            Decision::Assign {
                worker,
                ticket,
                stream,
                rank,
                iter,
                epoch,
                step,
                slot,
                part,
                hedge,
                attempt: _,
                due: _,
            } => {
                if !self.assign(worker.0, ticket.0, (stream, rank), (iter, epoch, step), (slot, part, hedge)) {
                    // A second attempt that cannot be made is none; the first goes on.
                    let none = if hedge { Event::Unassigned { ticket } } else { Event::TicketFailed { ticket } };
                    self.events.push_back(none);
                }
            }
            Decision::WakeAt(at) => self.wake = Some(at),
        }
    }

    /// Takes room for a batch and announces it. `false` when there is none now.
    fn grant(
        &mut self,
        stream: StreamId,
        rank: u32,
        (iter, epoch, step): (u32, u32, u32),
        places: &[Place],
        Whole { global, mean_cost, tokens, bins }: Whole,
    ) -> bool {
        let Some(session) = self.member(stream, rank).and_then(|id| self.sessions.get_mut(&id)) else { return false };
        let Some(grant) = session.regions.grant(iter, epoch, step, places) else { return false };
        session.grants.insert((iter, step), grant);
        crash::point("block.taken");
        let Some(block) = session.regions.block(grant) else { return false };
        let id = session.id;
        let (offset, len) = (block.offset, block.len);
        let head = Head { kind: kind::BATCH, session: id, attempt: bins, slot: places.len() as u16 };
        let (mean_cost, tokens_global) = (mean_cost as f32, tokens);
        let mut news =
            vec![Batch { head, offset, len, grant, iter, epoch, step, global, mean_cost, tokens_global }.words()];
        news.extend(block.regions.iter().enumerate().map(|(slot, region)| {
            let Place { sample, bytes: len, home_rank, tokens, home_share, bin, .. } = region.place;
            let head = Head { kind: kind::ENTRY, session: id, attempt: bin, slot: slot as u16 };
            Entry { head, sample, offset: region.offset, len, grant, home_rank, home_share, tokens }.words()
        }));
        for (nth, words) in news.into_iter().enumerate() {
            session.tell(words);
            if nth == 0 {
                crash::point("batch.told");
            }
        }
        crash::point("entries.told");
        self.gather(stream, rank, grant);
        true
    }

    fn end(&mut self, stream: StreamId, rank: u32, iter: u32, step: u32) {
        let Some(session) = self.member(stream, rank).and_then(|id| self.sessions.get_mut(&id)) else { return };
        let head = Head { kind: kind::END, session: session.id, attempt: 0, slot: 0 };
        session.tell(Batch { head, iter, step, ..bytemuck::Zeroable::zeroed() }.words());
    }

    /// Hands a ticket to a worker. `false` when its place is gone, since the rank has let the batch go, and when there
    /// is none for a second attempt.
    fn assign(
        &mut self,
        worker: u16,
        ticket: u64,
        (stream, rank): (StreamId, u32),
        (iter, epoch, step): (u32, u32, u32),
        (slot, part, hedge): (u16, Option<Span>, bool),
    ) -> bool {
        let Some((options, manifest)) = self.stream_of(stream).map(|s| (s.options.clone(), Arc::clone(&s.manifest)))
        else {
            return false;
        };
        let Some(session) = self.member(stream, rank).and_then(|id| self.sessions.get_mut(&id)) else { return false };
        let Some(&grant) = session.grants.get(&(iter, step)) else { return false };
        let Some(w) = self.workers.get_mut(usize::from(worker)).and_then(Option::as_mut) else { return false };
        let Ok(region) = session.regions.region(grant, slot) else { return false };
        let (offset, sample) = (region.offset, region.place.sample);
        let span = part.unwrap_or(options.transform.whole());
        let place = options.transform.place(&manifest.facts(sample), span);
        let Some((at, len)) = place.filter(|(at, len)| at + len <= region.place.bytes) else { return false };
        let what = Address { grant, slot, span };
        let id = session.id;
        let place = if hedge {
            session.hedge(what, iter)
        } else {
            session.regions.assign(what, (at, len)).map(|attempt| Some((attempt, None)))
        };
        let (attempt, spare) = match place {
            Ok(Some(place)) => place,
            Ok(None) => {
                self.end_idle(id, what, "there is no room to go around it");
                return false;
            }
            Err(_) => return false,
        };
        let head = Head { kind: kind::TICKET, session: id, attempt, slot };
        let (grant, offset) = spare.map_or((grant, offset + at), |spare| (spare.grant, spare.offset));
        let Span { first, frames } = span;
        let message = Ticket { head, ticket, sample, offset, len, grant, step, epoch, first, frames };
        self.stats.hedged += u64::from(hedge);
        self.stats.tickets += 1;
        self.stats.parts += u64::from(part.is_some());
        let since = now();
        self.flights.insert(ticket, Flight { worker, session: id, what, attempt, sample, epoch, step, since });
        crash::point("ticket.assigned");
        if w.push(&message) {
            if let Some(orphan) = self.orphans.remove(&(id, what)) {
                let times = if orphan.idle { &mut self.reissue.idle } else { &mut self.reissue.busy };
                times.note(now().saturating_sub(orphan.since) / 1000);
            }
        } else {
            // Its death will give the ticket to someone else.
            w.held.push_back(ticket);
            self.quarantine(worker, "its ticket ring is spoilt");
        }
        true
    }

    /// Takes what a worker has to say.
    pub(super) fn hear_worker(&mut self, slot: u16) {
        loop {
            let Some(worker) = self.workers.get_mut(usize::from(slot)).and_then(Option::as_mut) else { return };
            let heard = match worker.pop() {
                Ok(None) => return,
                Ok(Some(words)) => self.worker_says(slot, &words),
                Err(()) => Err("its done ring is spoilt".into()),
            };
            if let Err(why) = heard {
                self.quarantine(slot, &why);
                return;
            }
        }
    }

    fn worker_says(&mut self, slot: u16, words: &Words) -> Result<(), String> {
        if head(words).kind == kind::ACTUAL {
            return self.worker_says_actual(slot, words);
        }
        let done = Done::parse(words).map_err(|e| e.to_string())?;
        let flight = *self
            .flights
            .get(&done.ticket)
            .ok_or_else(|| format!("it ended ticket {}, which is not under way", done.ticket))?;
        let said = (done.head.session, done.head.slot, done.head.attempt);
        if flight.worker != slot || said != (flight.session, flight.what.slot, flight.attempt) {
            return Err(format!("it ended ticket {} in the name of another", done.ticket));
        }
        if done.head.kind == kind::FAILED {
            self.ticket_failed(slot, &done, &flight);
            return Ok(());
        }
        self.check_output(&done, &flight)?;
        crash::point("done.heard");
        self.settle(slot, done.ticket);
        let Some(session) = self.sessions.get_mut(&flight.session) else { return Ok(()) };
        let (what, attempt, written, shape) = (flight.what, flight.attempt, done.written, done.shape);
        let made = session.regions.done(Made { what, attempt, worker: slot, written, shape });
        let made = made.map_err(|e| e.to_string())?;
        if made.first
            && done.flags & DONE_UNTOLD != 0
            && let Some(ready) = session.ready(what)
        {
            session.tell(ready.words());
        }
        self.stats.done += u64::from(made.complete);
        let stream = session.stream;
        if let Some(stream) = self.streams.get_mut(&stream.0) {
            stream.done += u64::from(made.complete);
        }
        self.note_actual(done.ticket, flight.session, what, flight.sample);
        if made.complete {
            self.sample_ended(flight.session, what.grant);
        }
        self.tell_skip(flight.session, what.grant, what.slot);
        self.stats.cpu_us += u64::from(done.cpu_us);
        self.stats.bytes_read += u64::from(done.bytes_read);
        self.stats.frames += u64::from(done.frames_decoded);
        let measured = Measured {
            read_us: done.read_us,
            cpu_us: done.cpu_us,
            wall_us: done.wall_us,
            frames: done.frames_decoded,
            bytes: done.bytes_read,
        };
        if let Some(expected) = self.sched.predicted(TicketId(done.ticket)) {
            self.accuracy.note(expected, u64::from(done.wall_us) * 1000);
        }
        self.events.push_back(Event::TicketDone { ticket: TicketId(done.ticket), measured });
        self.reap_block(flight.session, what.grant);
        self.reap_spare(flight.session, made.spare);
        Ok(())
    }

    /// A worker's claim about its output, against what the transform makes of this sample.
    fn check_output(&self, done: &Done, flight: &Flight) -> Result<(), String> {
        let Some(session) = self.sessions.get(&flight.session) else { return Ok(()) };
        let Some(stream) = self.stream_of(session.stream) else { return Ok(()) };
        let transform = &stream.options.transform;
        let facts = stream.manifest.facts(flight.sample);
        let written = transform.place(&facts, flight.what.span).map_or(0, |(_, bytes)| bytes);
        if done.shape != transform.shape(&facts) || done.written != written {
            return Err(format!(
                "sample {} came with shape {:?} and {} bytes",
                flight.sample, done.shape, done.written
            ));
        }
        Ok(())
    }

    /// The ticket is over: neither the worker nor the table of flights has it any more.
    fn settle(&mut self, slot: u16, ticket: u64) {
        self.flights.remove(&ticket);
        if let Some(worker) = self.workers.get_mut(usize::from(slot)).and_then(Option::as_mut) {
            worker.held.retain(|held| *held != ticket);
            worker.proven = true;
            self.failed_starts = 0;
        }
    }

    fn ticket_failed(&mut self, slot: u16, done: &Done, flight: &Flight) {
        // The reason travelled on the socket, before the message.
        self.fetch_complaints(slot);
        self.settle(slot, done.ticket);
        let unknown = || ("worker".to_string(), "the worker gave no reason".to_string());
        let (stage, reason) = self.complaints.remove(&done.ticket).unwrap_or_else(unknown);
        self.bad_sample(flight, &stage, &reason);
        // Behind the word of another sample in its place, so that the batch does not seem complete in between.
        self.events.push_back(Event::TicketFailed { ticket: TicketId(done.ticket) });
    }

    /// A sample that cannot be made: skipped, or the end of the stream, as the user chose.
    pub(super) fn bad_sample(&mut self, flight: &Flight, stage: &str, reason: &str) {
        let Some(session) = self.sessions.get_mut(&flight.session) else { return };
        let Address { grant, slot, .. } = flight.what;
        let Ok(failed) = session.regions.fail(flight.what, flight.attempt) else { return };
        // Given up with its batch or its session: nobody waits for it.
        let given_up =
            session.phase != Phase::Live || session.regions.block(grant).is_none_or(|block| block.released);
        let (stream, rank) = (session.stream, session.rank);
        self.reap_block(flight.session, grant);
        self.reap_spare(flight.session, failed.spare);
        if given_up {
            return;
        }
        // Of a sample in parts the first that fails is told of, and the skip when the last has ended.
        if !failed.first {
            self.tell_skip(flight.session, grant, slot);
            return;
        }
        // Who is stuck in it would hold that up.
        self.end_stuck(flight.session, flight.what);
        let Some(s) = self.streams.get(&stream.0) else { return };
        let path = s.manifest.descriptor(flight.sample).path.to_string();
        let on_error = s.options.on_error;
        let (sample, epoch, step) = (flight.sample, flight.epoch, flight.step);
        tracing::warn!(job = self.name(), rank, sample, path, stage, reason, "bad sample");
        self.stats.bad += 1;
        let bad = BadSample { sample, path: path.clone(), epoch, step, stage: stage.into(), reason: reason.into() };
        let bad = ToRank::BadSample(bad);
        match on_error {
            OnError::Skip | OnError::Substitute => {
                let Some(session) = self.sessions.get_mut(&flight.session) else { return };
                session.stats.skipped += u64::from(on_error == OnError::Skip);
                if let Some(conn) = session.conn.as_mut() {
                    // A socket that does not take it ends the session, when connections are tended.
                    let _ = conn.send(&bad, &[]);
                }
                if on_error == OnError::Skip {
                    self.sample_ended(flight.session, grant);
                }
                self.tell_skip(flight.session, grant, slot);
                self.judge_data(stream, &path);
            }
            OnError::Raise => {
                for session in self.sessions.values_mut().filter(|session| session.stream == stream) {
                    if let Some(conn) = session.conn.as_mut() {
                        let _ = conn.send(&bad, &[]);
                    }
                }
                let reason = format!(
                    "sample {sample} ({path}) could not be made, at stage `{stage}`: {reason}. Set on_error = skip or substitute to go on without such samples"
                );
                self.fail_stream(stream, &reason, Culprit { rank: None, sample: Some(sample) });
            }
        }
    }

    /// Tells a rank that a sample is skipped, or has another one in its place, once nobody can write there any more.
    pub(super) fn tell_skip(&mut self, id: u16, grant: u32, slot: u16) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        match self.streams.get(&session.stream.0).map(|s| s.options.on_error) {
            Some(OnError::Skip) => {}
            Some(OnError::Substitute) => return self.replace_sample(id, grant, slot),
            Some(OnError::Raise) | None => return,
        }
        if !session.regions.skip(grant, slot) {
            return;
        }
        let Some((sample, step)) = session
            .regions
            .block(grant)
            .and_then(|block| Some((block.regions.get(usize::from(slot))?.place.sample, block.step)))
        else {
            return;
        };
        let head = Head { kind: kind::SKIP, session: id, attempt: 0, slot };
        session.tell(Ready { head, sample, grant, step, ..bytemuck::Zeroable::zeroed() }.words());
    }

    /// Takes what a rank has to say; of one that never stops only a ring full, and the rest at the next look.
    pub(super) fn hear_rank(&mut self, id: u16, poller: &mut Poller) {
        for _ in 0..FEEDBACK_CAPACITY {
            let Some(session) = self.sessions.get_mut(&id) else { return };
            if session.flush() > MAX_UNHEARD {
                self.refuse_rank(id, "it gives memory back without taking in what it was told", poller);
                return;
            }
            if session.tampered() {
                self.refuse_rank(id, "an eventfd of the job was made to block", poller);
                return;
            }
            let heard = match session.pop_feedback() {
                Ok(None) => return,
                Ok(Some(words)) => self.rank_says(id, &words),
                Err(()) => Err("its feedback ring is spoilt".into()),
            };
            if let Err(why) = heard {
                self.refuse_rank(id, &why, poller);
                return;
            }
        }
        self.unheard.push(SESSION_LANES + usize::from(id));
    }

    fn rank_says(&mut self, id: u16, words: &Words) -> Result<(), String> {
        let feedback = Feedback::parse(words).map_err(|e| e.to_string())?;
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        if feedback.head.session != id {
            return Err(format!("it spoke in the name of session {}", feedback.head.session));
        }
        let (stream, rank) = (session.stream, session.rank);
        if head(words).kind == kind::STEP_END {
            let Feedback { grant, iter, step, wait_ns, busy_ns, .. } = feedback;
            if !session.regions.has_seen(grant) {
                return Err(format!("it ended the step of grant {grant}, which it never had"));
            }
            // The numbers are the rank's own: they may be anything.
            session.stats.steps += 1;
            session.stats.wait_ns = session.stats.wait_ns.saturating_add(wait_ns);
            session.stats.wait_max_ns = session.stats.wait_max_ns.max(wait_ns);
            session.stats.wait_last_ns = wait_ns;
            session.stats.misses += u64::from(is_miss(wait_ns, busy_ns));
            session.stats.step = step;
            session.stats.copied = session.stats.copied.saturating_add(feedback.copied);
            self.events.push_back(Event::StepEnded { stream, rank, iter, step, wait_ns, busy_ns });
            return self.step_ended(id, &feedback);
        }
        if feedback.head.kind == kind::RETURN {
            return self.returned(id, &feedback);
        }
        crash::point("release.heard");
        let grant = session.grant_of(&feedback);
        let grant = grant.ok_or_else(|| format!("it released grant {}, which it does not hold", feedback.grant))?;
        session.stats.copied = session.stats.copied.saturating_add(feedback.copied);
        session.regions.release(grant).map_err(|e| e.to_string())?;
        let beaten = session.regions.beaten(grant);
        self.abandon(id, grant);
        for what in beaten {
            self.end_stuck(id, what);
        }
        self.reap_block(id, grant);
        Ok(())
    }

    /// Ends the worker that is stuck in a part's own place although another attempt has settled the part: its work is of
    /// no use, and what it may write to is needed.
    fn end_stuck(&mut self, session: u16, what: Address) {
        if let Some(worker) = self.writer_of(session, what) {
            tracing::warn!(pid = worker.pid(), "worker ended: it is stuck in a sample that another has settled");
            worker.pidfd.kill();
        }
    }

    /// If the worker that writes to a part's own place has not run at all since this was asked before, it is ended, and
    /// the place is free.
    pub(super) fn end_idle(&mut self, session: u16, what: Address, why: &str) {
        if let Some(worker) = self.writer_of(session, what)
            && !worker.has_run()
        {
            tracing::warn!(pid = worker.pid(), "worker ended: it is stuck, and {why}");
            worker.pidfd.kill();
        }
    }

    /// The worker that may be writing to a part's own place.
    fn writer_of(&mut self, session: u16, what: Address) -> Option<&mut Worker> {
        let writer = self.sessions.get(&session).and_then(|s| s.regions.writer(what))?;
        let its = |f: &&Flight| (f.session, f.what, f.attempt) == (session, what, writer);
        let slot = self.flights.values().find(its)?.worker;
        self.workers.get_mut(usize::from(slot))?.as_mut()
    }

    /// As [`Job::reap_block`], for the place that an attempt was made in, if it was a spare one.
    pub(super) fn reap_spare(&mut self, id: u16, spare: Option<u32>) {
        if let Some(grant) = spare {
            self.reap_block(id, grant);
        }
    }

    /// Frees a block if its time has come, and tells the scheduler.
    pub(super) fn reap_block(&mut self, id: u16, grant: u32) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(block) = session.regions.reap(grant) else { return };
        crash::point("block.freed");
        session.grants.remove(&(block.iter, block.step));
        self.orphans.retain(|(session, what), _| (*session, what.grant) != (id, grant));
        let (stream, rank) = (session.stream, session.rank);
        self.events.push_back(Event::Released { stream, rank, iter: block.iter, step: block.step });
    }
}
