//! Ranks that leave or die, and streams that end.

use std::time::Instant;

use super::Job;
use crate::crash;
use crate::daemon::poller::Poller;
use crate::daemon::sessions::{Phase, Session};
use crate::proto::session::ToRank;
use crate::sched::event::{Event, StreamId};

/// Who is to blame for the end of a stream, if anyone.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Culprit {
    pub(super) rank: Option<u32>,
    pub(super) sample: Option<u64>,
}

impl Culprit {
    pub(super) fn rank(rank: u32) -> Culprit {
        Culprit { rank: Some(rank), sample: None }
    }
}

impl Job {
    pub(super) fn leave(&mut self, id: u16) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if session.phase == Phase::Live {
            session.phase = Phase::Leaving;
            let (stream, rank) = (session.stream, session.rank);
            let begun = self.streams.get(&stream.0).is_none_or(|s| s.opened || s.closed);
            if let Some(s) = self.streams.get_mut(&stream.0).filter(|_| !begun) {
                // The others wait for all to be in, which cannot be any more.
                s.members.remove(&rank);
                let reason = format!("rank {rank} of loader `{}` left before all ranks were in", s.loader);
                self.fail_stream(stream, &reason, Culprit::rank(rank));
            }
            self.events.push_back(Event::RankLeft { stream, rank });
            self.drop_member(stream, rank);
            self.end_vain_waits(stream);
            self.drive();
        }
        self.detach_all(id);
        crash::point("leave.heard");
        self.say_bye_if_quiet(id);
    }

    /// The rank has broken the protocol: it is told, and its stream ends.
    pub(super) fn refuse_rank(&mut self, id: u16, why: &str, poller: &mut Poller) {
        self.stats.refused += 1;
        let Some(session) = self.sessions.get_mut(&id) else { return };
        tracing::error!(job = self.name, rank = session.rank, "rank refused: {why}");
        if let Some(conn) = session.conn.as_mut() {
            let reason = format!("the daemon ends this session: {why}");
            let _ = conn.send(&ToRank::Failed { reason, rank: Some(session.rank), sample: None }, &[]);
        }
        self.rank_lost(id, &format!("it broke the protocol: {why}"), poller);
    }

    /// A rank's pidfd fired.
    pub fn rank_died(&mut self, id: u16, serial: u32, poller: &mut Poller) {
        if self.sessions.get(&id).is_some_and(|session| session.serial == serial) {
            self.rank_lost(id, "its process died", poller);
            self.drive();
        }
    }

    /// The rank is not there any more. In the middle of things that ends the stream for the others too.
    pub(super) fn rank_lost(&mut self, id: u16, why: &str, poller: &mut Poller) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.unwatch(self.id, poller);
        let (phase, stream, rank) = (session.phase, session.stream, session.rank);
        if phase == Phase::Live {
            session.phase = Phase::Over;
            let pid_note = format!(
                "rank {rank} of loader `{}` is gone: {why}",
                self.streams.get(&stream.0).map_or("", |s| &s.loader)
            );
            tracing::error!(job = self.name, rank, "{pid_note}");
            self.fail_stream(stream, &pid_note, Culprit::rank(rank));
        }
        self.session_ended(id, poller);
    }

    /// Ends a stream: every rank that is still there is told why.
    pub(super) fn fail_stream(&mut self, id: StreamId, reason: &str, culprit: Culprit) {
        let Some(stream) = self.streams.get_mut(&id.0) else { return };
        if std::mem::replace(&mut stream.closed, true) {
            return;
        }
        let members = std::mem::take(&mut stream.members);
        self.close_in_sched(id);
        for session in members.into_values() {
            let Some(s) = self.sessions.get_mut(&session) else { continue };
            s.phase = Phase::Over;
            if let Some(conn) = s.conn.as_mut() {
                let _ = conn.send(
                    &ToRank::Failed { reason: reason.to_string(), rank: culprit.rank, sample: culprit.sample },
                    &[],
                );
            }
            self.detach_all(session);
        }
    }

    /// Ends the streams whose manifests were cut under them: what was read since may be wrong.
    pub(super) fn drop_cut_streams(&mut self) {
        let cut = self.streams.iter().filter(|(_, s)| !s.closed && s.manifest.was_cut());
        for (id, path) in cut.map(|(&id, s)| (id, s.manifest_path.clone())).collect::<Vec<_>>() {
            let reason =
                format!("manifest {path} was cut while it was in use: write a new one beside it, and rename it");
            tracing::error!(job = self.name, "{reason}");
            self.fail_stream(StreamId(id), &reason, Culprit::default());
        }
    }

    /// Ends every stream: the job cannot go on.
    pub(super) fn fail_all(&mut self, reason: &str) {
        tracing::error!(job = self.name, "{reason}");
        for id in self.streams.keys().copied().collect::<Vec<_>>() {
            self.fail_stream(StreamId(id), reason, Culprit::default());
        }
    }

    pub(super) fn drop_member(&mut self, id: StreamId, rank: u32) {
        let Some(stream) = self.streams.get_mut(&id.0) else { return };
        stream.members.remove(&rank);
        // Whoever comes now belongs to a new round of this loader.
        stream.closed = true;
        if stream.members.is_empty() {
            self.close_in_sched(id);
        }
    }

    /// Tells the scheduler, once, that a stream is over.
    pub(super) fn close_in_sched(&mut self, id: StreamId) {
        if self.streams.get_mut(&id.0).is_some_and(|stream| std::mem::replace(&mut stream.opened, false)) {
            self.events.push_back(Event::StreamClosed { stream: id });
        }
        self.second.forget_stream(id);
    }

    /// The session's connection is gone: it vanishes when no worker has its slab any more.
    pub(super) fn session_ended(&mut self, id: u16, poller: &mut Poller) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.unwatch(self.id, poller);
        if session.phase == Phase::Live {
            session.phase = Phase::Over;
        }
        self.take_all_back(id);
        self.detach_all(id);
        self.forget_if_quiet(id);
    }

    /// A worker has let go of a session's slab, by its word or by its death.
    pub(super) fn unmapped(&mut self, slot: u16, session: u16) {
        // What it says of this session from now on is not to be believed: the number may be given away.
        self.flights.retain(|_, flight| (flight.worker, flight.session) != (slot, session));
        if let Some(s) = self.sessions.get_mut(&session) {
            s.mapped_by.remove(&slot);
            s.detaching.remove(&slot);
        }
        self.say_bye_if_quiet(session);
        self.forget_if_quiet(session);
    }

    pub(super) fn say_bye_if_quiet(&mut self, id: u16) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if session.phase == Phase::Leaving
            && session.mapped_by.is_empty()
            && let Some(conn) = session.conn.as_mut()
        {
            let _ = conn.send(&ToRank::Bye, &[]);
            crash::point("bye.said");
        }
    }

    pub(super) fn forget_if_quiet(&mut self, id: u16) {
        let quiet = |s: &Session| s.conn.is_none() && s.mapped_by.is_empty();
        if !self.sessions.get(&id).is_some_and(quiet) {
            return;
        }
        if let Some(session) = self.sessions.remove(&id) {
            self.orphans.retain(|(session, _), _| *session != id);
            self.drop_empty_stream(session.stream);
        }
        if self.sessions.is_empty() {
            self.empty_since = Instant::now();
        }
    }
}
