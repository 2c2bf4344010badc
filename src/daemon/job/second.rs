//! Balance after decode: when all samples of a step are there, over all ranks, who gets which of them is decided once
//! more, by what they turned out to be; those that change ranks stay where they are and are lent.
//!
//! Nothing here depends on time: a step's plan is made of all its samples or not at all, and no rank delivers the step
//! before it has heard the plan. Whoever makes a batch again, when others have theirs, is dealt it by the plan that these
//! have. See `docs/protocol.md`, "Balance after decode".

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use super::endings::Culprit;
use super::{Job, Stream};
use crate::crash;
use crate::daemon::regions::{Address, Region};
use crate::daemon::sessions::Session;
use crate::proto::handover::{BadStatement, Dealt, Known, Shift};
use crate::proto::message::{self, Body, Entry, Feedback, Handed, Head, Move, Plan, Tokens, Words, kind};
use crate::proto::options::{Rebalance, StreamOptions};
use crate::proto::session::{Lent, ToRank};
use crate::proto::transform::Facts;
use crate::sched::cost::{self, Work};
use crate::sched::event::{Event, Place, StreamId};
use crate::sched::second::{Found, balanced};

/// Largest statement of a rank: what [`Known`] keeps at most, twice.
const MAX_STATEMENT: u64 = 64 << 20;
/// Grants of a session whose plans are remembered until their steps end.
const MAX_TOLD: u32 = 4096;

/// Serial of a session that there is not; those of sessions count from 1.
const NO_SERIAL: u32 = 0;

/// A step of a stream.
type StepOf = (u16, u32, u32);

/// See the head of the file.
#[derive(Default)]
pub(super) struct Second {
    /// What the samples of tickets under way turned out to be.
    actual: HashMap<u64, message::Actual>,
    /// Steps whose samples are being made.
    gatherings: BTreeMap<StepOf, BTreeMap<u32, Gathered>>,
    /// What steps came to, by stream.
    known: BTreeMap<u16, Known>,
    /// What sessions may read of other ranks' blocks: (holder, rank, grant).
    loans: BTreeMap<(u16, u32, u32), Loan>,
    /// The plan that a session was told for a grant, by the low half of its digest.
    told: BTreeMap<(u16, u32), u32>,
    /// Whose slab which session has: (holder, rank).
    passed: BTreeSet<(u16, u32)>,
}

/// A rank's batch of a step that is gathered.
struct Gathered {
    session: u16,
    grant: u32,
    /// Samples that have not ended.
    left: usize,
    /// Of samples that are not what was said of them, by slot: the sample, and its tokens.
    tokens: HashMap<u16, (u64, f64)>,
}

/// A block of a rank's slab in which another rank reads.
#[derive(Debug, Clone, Copy)]
struct Loan {
    giver: u16,
    serial: u32,
    count: u32,
}

impl Gathered {
    /// What became of a sample. One in the place of a bad one weighs what it is, and counts what the place counts for.
    fn found(&self, stream: &Stream, slot: u16, region: &Region) -> Found {
        let options = &stream.options;
        let Place { sample, bytes, mut cost, mut tokens, .. } = region.place;
        let actual = self.tokens.get(&slot).filter(|(of, _)| *of == sample).map(|(_, tokens)| *tokens);
        let (is_other, said) = (region.planned.0 != sample, tokens);
        if let Some(actual) = actual {
            cost = options.profile.cost(actual);
        } else if is_other {
            cost = cost::appraise(&stream.manifest.facts(sample), options).1;
        }
        if !is_other {
            tokens = actual.unwrap_or(tokens);
        }
        Found { tokens, cost, changed: tokens != said, bytes, there: !region.skipped }
    }
}

impl Second {
    /// Forgets what workers said of tickets that are not under way any more.
    pub(super) fn forget_tickets(&mut self, under_way: impl Fn(u64) -> bool) {
        self.actual.retain(|ticket, _| under_way(*ticket));
    }

    /// A stream is over.
    pub(super) fn forget_stream(&mut self, id: StreamId) {
        self.gatherings.retain(|(stream, ..), _| *stream != id.0);
        self.known.remove(&id.0);
    }

    /// A rank has let a batch go before it was balanced.
    fn abandon(&mut self, (stream, epoch, step): StepOf, rank: u32, grant: u32) {
        let Some(parts) = self.gatherings.get_mut(&(stream, epoch, step)) else { return };
        if parts.get(&rank).is_some_and(|part| part.grant == grant) {
            parts.remove(&rank);
        }
        if parts.is_empty() {
            self.gatherings.remove(&(stream, epoch, step));
        }
    }

    fn remember(&mut self, session: u16, grant: u32, digest: u64) {
        let old = self.told.range((session, 0)..(session, grant.saturating_sub(MAX_TOLD)));
        for key in old.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.told.remove(&key);
        }
        self.told.insert((session, grant), digest as u32);
    }
}

/// What a rank states of steps that were balanced under an earlier daemon.
pub(super) fn read_statement(fd: OwnedFd, known: &mut Known, options: &StreamOptions) -> Result<(), String> {
    let mut file = File::from(fd);
    let bytes = file.metadata().map_err(|e| e.to_string())?.len();
    if options.rebalance == Rebalance::Off || bytes > MAX_STATEMENT {
        return Err(format!("{bytes} bytes on how steps were balanced, with rebalance = {:?}", options.rebalance));
    }
    let mut statement = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut statement)).map_err(|e| e.to_string())?;
    let heard = known.hear(&statement, options.world, options.largest_batch());
    heard.map_err(|e: BadStatement| e.to_string())
}

impl Job {
    /// Takes in what a rank that joins states of steps that were balanced before.
    pub(super) fn hear_statement(&mut self, id: StreamId, statement: Option<OwnedFd>) -> Result<(), String> {
        let (Some(fd), Some(stream)) = (statement, self.streams.get(&id.0)) else { return Ok(()) };
        read_statement(fd, self.second.known.entry(id.0).or_default(), &stream.options)
    }

    /// All ranks of a stream are in: what they read of each other's slabs since before this daemon is not granted anew,
    /// and steps that some of them have are dealt to the others as these have them.
    pub(super) fn resume_loans(&mut self, id: StreamId) -> Result<(), String> {
        let Some(stream) = self.streams.get(&id.0) else { return Ok(()) };
        let members: Vec<(u32, u16)> = stream.members.iter().map(|(rank, session)| (*rank, *session)).collect();
        for &(holder_rank, holder) in &members {
            let lent = self.sessions.get_mut(&holder).map(|s| std::mem::take(&mut s.lent)).unwrap_or_default();
            for Lent { rank, grant, offset, len, slab } in lent {
                let giver = members.iter().find(|(r, _)| *r == rank).and_then(|(_, id)| self.sessions.get_mut(id));
                let giver =
                    giver.ok_or_else(|| format!("rank {holder_rank} reads of rank {rank}, which is not there"))?;
                // Of a slab whose process has died nothing is granted any more.
                let still = giver.slab_id == slab;
                let lent = if still { giver.regions.lend_from_before(grant, offset, len) } else { Ok(()) };
                lent.map_err(|e| {
                    format!("rank {holder_rank} says that it reads in block {grant} of rank {rank}: {e}")
                })?;
                let serial = if still { giver.serial } else { NO_SERIAL };
                let loan = Loan { giver: giver.id, serial, count: 0 };
                self.second.loans.entry((holder, rank, grant)).or_insert(loan).count += 1;
            }
        }
        let known = self.second.known.get(&id.0);
        let known = known.into_iter().flat_map(Known::iter);
        let dealt =
            known.map(|((epoch, step), dealt)| Event::Dealt { stream: id, epoch, step, dealt: dealt.clone() });
        self.events.extend(dealt);
        Ok(())
    }

    /// A rank was granted a batch. If the step was balanced already, it was dealt accordingly.
    pub(super) fn gather(&mut self, stream: StreamId, rank: u32, grant: u32) {
        let Some(s) = self.streams.get(&stream.0).filter(|s| s.options.rebalance != Rebalance::Off) else { return };
        let Some(&session) = s.members.get(&rank) else { return };
        let Some(block) = self.sessions.get(&session).and_then(|s| s.regions.block(grant)) else { return };
        let (epoch, step, left) = (block.epoch, block.step, block.regions.len());
        if let Some(dealt) = self.second.known.get(&stream.0).and_then(|known| known.get(epoch, step)).cloned() {
            self.tell_plan(session, grant, (epoch, step), &dealt, None);
            return;
        }
        let part = Gathered { session, grant, left, tokens: HashMap::new() };
        self.second.gatherings.entry((stream.0, epoch, step)).or_default().insert(rank, part);
        self.end_vain_waits(stream);
    }

    /// A rank begins to wait for a step.
    pub(super) fn wants(&mut self, id: u16, epoch: u32, step: u32) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.wants = (epoch, step);
        let stream = session.stream;
        self.end_vain_waits(stream);
    }

    /// When a rank has left, ends the stream if another waits for a step that cannot be balanced without it.
    pub(super) fn end_vain_waits(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get(&id.0) else { return };
        let left = (0..stream.options.world).find(|rank| !stream.members.contains_key(rank));
        let Some(left) = left.filter(|_| stream.closed) else { return };
        let waits = |(rank, session): (&u32, &u16)| {
            let (epoch, step) = self.sessions.get(session)?.wants;
            let parts = self.second.gatherings.get(&(id.0, epoch, step))?;
            parts.contains_key(rank).then_some((*rank, step))
        };
        let Some((waiting, step)) = stream.members.iter().find_map(waits) else { return };
        let reason = format!(
            "rank {left} of loader `{}` left, and rank {waiting} waits for step {step}, which cannot be balanced without it: let all ranks take as many steps, or set rebalance = off",
            stream.loader
        );
        if let Some(stream) = self.streams.get_mut(&id.0) {
            stream.closed = false;
        }
        self.fail_stream(id, &reason, Culprit::default());
    }

    /// A worker says that a sample is not what its descriptor says.
    pub(super) fn worker_says_actual(&mut self, slot: u16, words: &Words) -> Result<(), String> {
        let actual = message::Actual::parse(words).map_err(|e| e.to_string())?;
        let known = self.flights.get(&actual.ticket).filter(|flight| {
            let said = (actual.head.session, actual.head.slot, actual.head.attempt);
            flight.worker == slot && said == (flight.session, flight.what.slot, flight.attempt)
        });
        known.ok_or_else(|| format!("it spoke of ticket {}, which it does not have", actual.ticket))?;
        self.second.actual.insert(actual.ticket, actual);
        Ok(())
    }

    fn gathered(&mut self, id: u16, grant: u32) -> Option<(StepOf, &mut Gathered)> {
        let session = self.sessions.get(&id)?;
        let block = session.regions.block(grant)?;
        let key = (session.stream.0, block.epoch, block.step);
        let part = self.second.gatherings.get_mut(&key)?.get_mut(&session.rank)?;
        (part.grant == grant).then_some((key, part))
    }

    /// A ticket is done: notes what its sample turned out to be.
    pub(super) fn note_actual(&mut self, ticket: u64, id: u16, what: Address, sample: u64) {
        let Some(actual) = self.second.actual.remove(&ticket) else { return };
        let Some(stream) = self.sessions.get(&id).and_then(|s| self.streams.get(&s.stream.0)) else { return };
        let tokens = tokens_of(stream, sample, &actual);
        if let Some((_, part)) = self.gathered(id, what.grant) {
            part.tokens.insert(what.slot, (sample, tokens));
        }
    }

    /// A sample has ended, well or badly. When it was the step's last, the step is balanced.
    pub(super) fn sample_ended(&mut self, id: u16, grant: u32) {
        let Some((key, part)) = self.gathered(id, grant) else { return };
        part.left = part.left.saturating_sub(1);
        self.balance_if_complete(key);
    }

    fn balance_if_complete(&mut self, key: StepOf) {
        let (id, epoch, step) = (StreamId(key.0), key.1, key.2);
        let Some(stream) = self.streams.get(&key.0).filter(|s| s.opened && !s.closed) else { return };
        let options = stream.options.clone();
        let complete = |parts: &BTreeMap<u32, Gathered>| {
            parts.len() == options.world as usize && parts.values().all(|part| part.left == 0)
        };
        if !self.second.gatherings.get(&key).is_some_and(complete) {
            return;
        }
        let Some(parts) = self.second.gatherings.remove(&key) else { return };
        let ranks: Vec<Vec<Found>> = parts.values().map(|part| self.found(part)).collect();
        let dealt = Arc::new(balanced(&options, &ranks));
        if let Err(e) = self.second.known.entry(key.0).or_default().learn(epoch, step, dealt.clone()) {
            self.fail_stream(id, &e.to_string(), Culprit::default());
            return;
        }
        crash::point("plan.formed");
        // At once, so that nobody is granted the step as it was dealt before.
        self.decide(Event::Dealt { stream: id, epoch, step, dealt: dealt.clone() });
        self.stats.handed += dealt.shifts.len() as u64;
        self.pass_slabs(&parts, &dealt.shifts);
        for part in parts.values() {
            self.tell_plan(part.session, part.grant, (epoch, step), &dealt, Some(&parts));
            crash::point("plan.told");
        }
    }

    /// What became of a rank's samples.
    fn found(&self, part: &Gathered) -> Vec<Found> {
        let Some(session) = self.sessions.get(&part.session) else { return Vec::new() };
        let Some(stream) = self.streams.get(&session.stream.0) else { return Vec::new() };
        let Some(block) = session.regions.block(part.grant) else { return Vec::new() };
        let found = |(slot, region)| part.found(stream, slot, region);
        (0..).zip(&block.regions).map(found).collect()
    }

    /// Gives ranks the slabs of those whose samples they are about to get, once each.
    fn pass_slabs(&mut self, parts: &BTreeMap<u32, Gathered>, shifts: &[Shift]) {
        for &Shift { from, to, .. } in shifts {
            let (Some(giver), Some(taker)) = (parts.get(&from), parts.get(&to)) else { continue };
            if !self.second.passed.insert((taker.session, from)) {
                continue;
            }
            let Some(giver) = self.sessions.get(&giver.session) else { continue };
            let (slab, bytes) = (read_only(giver), giver.regions.bytes());
            let taker = self.sessions.get_mut(&taker.session).and_then(|s| s.conn.as_mut());
            if let (Some(slab), Some(conn)) = (slab, taker) {
                // A socket that does not take it ends the session, when connections are tended.
                let _ = conn.send(&ToRank::Slab { rank: from, bytes }, &[slab.as_fd()]);
                crash::point("slab.passed");
            }
        }
    }

    /// Tells a rank how a step was balanced, and where those samples lie that come to it; `None` where it was dealt the
    /// step by this plan from the start.
    fn tell_plan(
        &mut self,
        id: u16,
        grant: u32,
        (epoch, step): (u32, u32),
        dealt: &Dealt,
        parts: Option<&BTreeMap<u32, Gathered>>,
    ) {
        let Some(session) = self.sessions.get(&id) else { return };
        let (rank, digest) = (session.rank, dealt.digest(epoch, step));
        let head = |kind, slot: u32| Head { kind, session: id, attempt: 0, slot: slot as u16 };
        let (tokens, moves) = (dealt.actual.len() as u32, dealt.shifts.len() as u32);
        let (total, flag) = (dealt.total, u32::from(parts.is_none()));
        let head_of_plan = head(kind::PLAN, 0);
        let plan =
            Plan { head: head_of_plan, digest, total, grant, tokens, moves, dealt: flag, epoch, step, reserved: 0 };
        let mut news = vec![plan.words()];
        news.extend(dealt.actual.iter().map(|a| {
            let head = head(kind::TOKENS, a.slot);
            Tokens { head, tokens: a.tokens, grant, rank: a.rank, reserved: [0; 4] }.words()
        }));
        for shift in &dealt.shifts {
            let lent = parts.filter(|_| shift.to == rank).and_then(|parts| parts.get(&shift.from));
            let lent = lent.map_or(Vec::new(), |giver| self.lend((id, grant), giver, shift));
            let pieces = lent.len().saturating_sub(1) as u32;
            let (head, Shift { from, to, .. }) = (head(kind::MOVE, shift.slot), *shift);
            news.push(Move { head, grant, from, to, pieces, reserved: [0; 4] }.words());
            news.extend(lent);
        }
        self.second.remember(id, grant, digest);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        news.into_iter().for_each(|words| session.tell(words));
    }

    /// Lends a sample to another rank: the entry, and where its pieces lie.
    fn lend(&mut self, (holder, own): (u16, u32), giver: &Gathered, shift: &Shift) -> Vec<Words> {
        let Shift { from, slot, .. } = *shift;
        let Some(session) = self.sessions.get_mut(&giver.session) else { return Vec::new() };
        let Some(stream) = self.streams.get(&session.stream.0) else { return Vec::new() };
        let (slot, serial, slab) = (slot as u16, session.serial, session.slab_id);
        let Ok(region) = session.regions.region(giver.grant, slot) else { return Vec::new() };
        let (offset, Place { sample, bytes: len, home_rank, home_share, .. }) = (region.offset, region.place);
        let tokens = giver.found(stream, slot, region).tokens;
        let Some(pieces) = session.regions.pieces(giver.grant, slot) else { return Vec::new() };
        let head = |kind| Head { kind, session: holder, attempt: 0, slot };
        let grant = giver.grant;
        let entry = Entry { head: head(kind::ENTRY), sample, offset, len, grant, home_rank, home_share, tokens };
        let mut news = vec![entry.words()];
        for piece in pieces {
            if session.regions.lend(piece.grant).is_err() {
                continue;
            }
            let loan = Loan { giver: giver.session, serial, count: 0 };
            self.second.loans.entry((holder, from, piece.grant)).or_insert(loan).count += 1;
            crash::point("sample.lent");
            let head = head(kind::HANDED);
            let (block, block_len, offset, of) = (piece.block, piece.block_len, piece.offset, piece.grant);
            let (first, frames) = (piece.first, piece.frames);
            news.push(Handed { head, block, block_len, offset, grant: own, of, from, first, frames, slab }.words());
        }
        news
    }

    /// A rank has let go of what it was lent.
    pub(super) fn returned(&mut self, id: u16, feedback: &Feedback) -> Result<(), String> {
        crash::point("return.heard");
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        // After its end all that it was lent is back already.
        let over = session.conn.is_none();
        session.stats.copied = session.stats.copied.saturating_add(feedback.copied);
        let (rank, grant) = (feedback.also, feedback.grant);
        let Some(loan) = self.second.loans.get_mut(&(id, rank, grant)) else {
            let wrong = format!("it gave grant {grant} of rank {rank} back, which it was not lent");
            return if over { Ok(()) } else { Err(wrong) };
        };
        loan.count -= 1;
        let Loan { giver, serial, count } = *loan;
        if count == 0 {
            self.second.loans.remove(&(id, rank, grant));
        }
        self.take_back((giver, serial), grant, 1);
        Ok(())
    }

    fn take_back(&mut self, (giver, serial): (u16, u32), grant: u32, times: u32) {
        let Some(session) = self.sessions.get_mut(&giver).filter(|s| s.serial == serial) else { return };
        for _ in 0..times {
            if let Err(e) = session.regions.take_back(grant) {
                tracing::error!(job = self.name, rank = session.rank, "the account of loans is wrong: {e}");
                return;
            }
        }
        self.reap_block(giver, grant);
    }

    /// A session has ended: what it was lent is back.
    pub(super) fn take_all_back(&mut self, id: u16) {
        let of = |key: &(u16, u32, u32)| key.0 == id;
        let its: Vec<_> = self.second.loans.iter().filter(|(key, _)| of(key)).map(|(k, l)| (*k, *l)).collect();
        self.second.loans.retain(|key, _| !of(key));
        self.second.told.retain(|(session, _), _| *session != id);
        self.second.passed.retain(|(holder, _)| *holder != id);
        for ((.., grant), Loan { giver, serial, count }) in its {
            self.take_back((giver, serial), grant, count);
        }
    }

    /// A rank has let its own batch go.
    pub(super) fn abandon(&mut self, id: u16, grant: u32) {
        let Some(session) = self.sessions.get(&id) else { return };
        let Some(block) = session.regions.block(grant).filter(|block| !block.regions.is_empty()) else { return };
        let (key, rank) = ((session.stream.0, block.epoch, block.step), session.rank);
        self.second.abandon(key, rank, grant);
    }

    /// A rank has ended a step and wants the next. It must have carried out the plan that all ranks were told.
    pub(super) fn step_ended(&mut self, id: u16, feedback: &Feedback) -> Result<(), String> {
        let epoch = self.sessions.get(&id).map_or(0, |session| session.wants.0);
        self.wants(id, epoch, feedback.step.saturating_add(1));
        let Some(told) = self.second.told.remove(&(id, feedback.grant)) else { return Ok(()) };
        if told == feedback.also {
            return Ok(());
        }
        Err(format!(
            "it balanced step {} by another plan ({:08x}) than the other ranks ({told:08x})",
            feedback.step, feedback.also
        ))
    }
}

/// The tokens of a sample as it is.
fn tokens_of(stream: &Stream, sample: u64, actual: &message::Actual) -> f64 {
    let message::Actual { frames, duration_ms, width, height, .. } = *actual;
    let facts = Facts { frames, duration_ms, width, height, ..stream.manifest.facts(sample) };
    let StreamOptions { profile, transform, .. } = &*stream.options;
    cost::tokens_of(*profile, &facts, transform, &Work::of(&facts, transform))
}

/// A slab that can only be read, or mapped privately; as it is where `/proc` is not there.
fn read_only(giver: &Session) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", giver.slab.as_raw_fd());
    match File::open(path) {
        Ok(file) => Some(file.into()),
        Err(_) => giver.slab.try_clone().ok(),
    }
}
