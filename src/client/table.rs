//! The rank's private table of the batches that are being made: the truth against which every message is checked.
//!
//! Pure: words in; leases released, complete batches out, in step order. `docs/protocol.md` lists the checks.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::handed::{Handover, Hearing, Slabs};
use super::ledger::{Lease, Ledger};
use crate::proto::handover::Disagreement;
use crate::proto::message::{BadMessage, Batch, Body, Entry, Plan, Ready, Spare, Words, head, kind};
use crate::proto::transform::{Span, Transform};
use crate::ring::spsc::Corrupt;

/// A message that cannot be true.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// It is not a message.
    #[error(transparent)]
    Bad(#[from] BadMessage),
    /// Its ring is not one.
    #[error(transparent)]
    Ring(#[from] Corrupt),
    /// Ranks would get other samples than each other believe.
    #[error(transparent)]
    Plan(#[from] Disagreement),
    /// A packet that does not belong there.
    #[error("{0}")]
    Packet(String),
    /// It contradicts what is known.
    #[error("{message}: `{field}` is {found}, expected {wanted}")]
    Contradiction {
        /// Which message.
        message: &'static str,
        /// Which field.
        field: &'static str,
        /// What was in it.
        found: String,
        /// What would have been right.
        wanted: String,
    },
}

pub(super) fn expect(
    message: &'static str,
    field: &'static str,
    ok: bool,
    found: impl ToString,
    wanted: impl ToString,
) -> Result<(), Violation> {
    if ok {
        return Ok(());
    }
    Err(Violation::Contradiction { message, field, found: found.to_string(), wanted: wanted.to_string() })
}

/// What must hold for the whole session.
#[derive(Clone)]
pub(crate) struct Rules {
    pub(crate) session: u16,
    pub(crate) rank: u32,
    pub(crate) slab_bytes: u64,
    pub(crate) rows: u64,
    pub(crate) world: u32,
    /// Most samples of a batch, and samples of a step over all ranks.
    pub(crate) batch_size: u32,
    pub(crate) global_batch: u64,
    /// What becomes of a sample: where its parts lie follows from it.
    pub(crate) transform: Arc<Transform>,
    /// Whether samples may be left out.
    pub(crate) may_skip: bool,
    /// Whether batches wait for the plan of their step.
    pub(crate) rebalance: bool,
    /// Whether others may take their places.
    pub(crate) may_replace: bool,
    /// The shape that the transform makes of a row below `rows`.
    pub(crate) shape: Arc<dyn Fn(u64) -> [u16; 4] + Send + Sync>,
}

impl Rules {
    /// Bytes of a sample.
    pub(super) fn bytes(&self, sample: u64) -> u64 {
        self.transform.bytes_of((self.shape)(sample))
    }
}

/// One sample of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slot {
    pub(crate) sample: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) home_rank: u32,
    pub(crate) home_share: u64,
    pub(crate) tokens: f64,
    /// The packed sequence that it is in.
    pub(crate) bin: u16,
    pub(crate) state: SlotState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotState {
    Waiting,
    Ready {
        written: u64,
        shape: [u16; 4],
    },
    Skipped,
    /// Another rank gets it.
    Away,
}

/// A batch whose samples are all ready or skipped.
pub(crate) struct Assembled {
    pub(crate) lease: Lease,
    pub(crate) epoch: u32,
    pub(crate) step: u32,
    pub(crate) global: u32,
    pub(crate) mean_cost: f32,
    pub(crate) tokens_global: f64,
    /// Packed sequences; 0 where samples are not packed.
    pub(crate) bins: u16,
    pub(crate) slots: Vec<Slot>,
    /// By slot, the pieces of samples that are not in one place.
    pub(crate) scattered: BTreeMap<u16, Vec<Piece>>,
    /// The blocks of samples that are not in their own places.
    pub(crate) spares: Vec<Lease>,
    pub(crate) handover: Handover,
}

struct Pending {
    batch: Assembled,
    waiting: usize,
    /// Whether the plan of its step is known, or none will come.
    planned: bool,
    /// By slot, the parts that are there of a sample that is not there as a whole.
    parts: BTreeMap<u16, Vec<Piece>>,
    /// Second places, by their grants.
    spares: BTreeMap<u32, Spare>,
    /// By slot, samples that were bad, of which parts may still be told.
    formers: Vec<(u16, u64)>,
}

/// A part of a sample, and where it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Piece {
    span: Span,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A batch whose entries are coming.
struct Filling {
    announced: Batch,
    /// Entries seen.
    seen: u16,
    /// Where the last region ended.
    end: u64,
    /// The packed sequence of the last entry.
    bin: u16,
    /// `None` when its iteration is over: the entries are read and forgotten.
    pending: Option<Pending>,
}

/// See the head of the file.
pub(crate) struct Table {
    rules: Rules,
    ledger: Arc<Ledger>,
    iter: u32,
    epoch: u32,
    /// Step of the next Batch.
    next: u32,
    /// Grants up to this one have been seen.
    highest: u32,
    filling: Option<Filling>,
    /// A plan that is being told.
    hearing: Option<Hearing>,
    /// By grant, which is also the order of steps.
    pending: BTreeMap<u32, Pending>,
    /// The batches of second places, by the grants of these.
    spares: BTreeMap<u32, u32>,
    ended: bool,
    /// What workers said of grants that the daemon has yet to announce: its lane may be full while theirs is not.
    early: Vec<Ready>,
}

/// Most messages that wait for their grant; an honest slab has fewer samples under way.
const MAX_EARLY: usize = 1 << 16;

#[cfg(test)]
impl Piece {
    pub(crate) fn of(span: Span, offset: u64, bytes: u64) -> Piece {
        Piece { span, offset, bytes }
    }
}

impl Table {
    /// A table with nothing under way; grants up to `highest` are known from earlier.
    pub(crate) fn new(rules: Rules, ledger: Arc<Ledger>, highest: u32) -> Self {
        let pending = BTreeMap::new();
        let (early, spares) = (Vec::new(), BTreeMap::new());
        Table {
            rules,
            ledger,
            iter: 0,
            epoch: 0,
            next: 0,
            highest,
            filling: None,
            hearing: None,
            pending,
            spares,
            ended: false,
            early,
        }
    }

    /// Begins an iteration. What is under way for an earlier one is released now.
    pub(crate) fn start(&mut self, iter: u32, epoch: u32, step: u32) {
        (self.iter, self.epoch, self.next, self.ended) = (iter, epoch, step, false);
        if let Some(filling) = &mut self.filling {
            filling.pending = None;
        }
        self.pending.clear();
        self.spares.clear();
        self.early.clear();
    }

    /// Whether the daemon said that no further step exists, and everything before was taken.
    pub(crate) fn is_over(&self) -> bool {
        self.ended && self.pending.is_empty()
    }

    /// As [`pop_with`](Self::pop_with), without any other rank's slab.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn pop(&mut self) -> Option<Assembled> {
        self.pop_with(&Slabs::default())
    }

    /// The next batch in step order, if it is complete and all slabs are there that it lies in.
    pub(crate) fn pop_with(&mut self, slabs: &Slabs) -> Option<Assembled> {
        let first = self.pending.first_entry()?;
        let complete = |p: &Pending| p.waiting == 0 && p.planned && slabs.suffice(&p.batch.handover);
        let batch = complete(first.get()).then(|| first.remove().batch)?;
        if !batch.spares.is_empty() {
            let of = batch.lease.id().grant;
            self.spares.retain(|_, grant| *grant != of);
        }
        Some(batch)
    }

    /// The samples that the earliest batch waits for; `None` when no batch is under way.
    pub(crate) fn missing(&self) -> Option<(u32, Vec<u64>)> {
        let filling = self.filling.as_ref().and_then(|f| f.pending.as_ref());
        let Pending { batch, .. } = self.pending.values().next().or(filling)?;
        let waiting = batch.slots.iter().filter(|s| s.state == SlotState::Waiting);
        Some((batch.step, waiting.map(|s| s.sample).collect()))
    }

    /// A message from the daemon's lane.
    pub(crate) fn hear_daemon(&mut self, words: &Words) -> Result<(), Violation> {
        let kind = head(words).kind;
        if self.filling.is_some() {
            return self.entry(Entry::parse(words)?);
        }
        if let Some(hearing) = &mut self.hearing {
            hearing.hear(words, &self.rules, &self.ledger)?;
            return self.balance();
        }
        match kind {
            kind::BATCH => self.batch(Batch::parse(words)?),
            kind::END => self.end(Batch::parse(words)?),
            kind::READY => self.ready(Ready::parse(words)?),
            kind::SKIP => self.skip(Ready::parse(words)?),
            kind::SPARE => self.spare(Spare::parse(words)?),
            kind::PLAN => {
                self.hearing = Some(Hearing::new(Plan::parse(words)?, &self.rules)?);
                self.balance()
            }
            kind::OTHER => self.other(Entry::parse(words)?),
            kind => Err(BadMessage::Kind(kind).into()),
        }
    }

    /// A message from a worker's lane.
    pub(crate) fn hear_worker(&mut self, words: &Words) -> Result<(), Violation> {
        match head(words).kind {
            kind::READY => self.ready(Ready::parse(words)?),
            kind => Err(BadMessage::Kind(kind).into()),
        }
    }

    fn session(&self, message: &'static str, session: u16) -> Result<(), Violation> {
        expect(message, "session", session == self.rules.session, session, self.rules.session)
    }

    fn batch(&mut self, b: Batch) -> Result<(), Violation> {
        const ME: &str = "Batch";
        let (samples, bytes) = (u32::from(b.head.slot), self.rules.slab_bytes);
        self.session(ME, b.head.session)?;
        let most = self.rules.batch_size;
        expect(ME, "samples", (1..=most).contains(&samples), samples, format!("from 1 to {most}"))?;
        let inside = b.len > 0 && b.offset + b.len <= bytes;
        expect(ME, "block", inside, format!("{}+{}", b.offset, b.len), format!("inside {bytes} bytes"))?;
        let highest = self.highest;
        expect(ME, "grant", b.grant > highest, b.grant, format!("above {highest}"))?;
        expect(ME, "iter", b.iter <= self.iter, b.iter, format!("at most {}", self.iter))?;
        let most = self.rules.global_batch;
        let global = u64::from(b.global);
        let range = u64::from(samples)..=most;
        expect(ME, "global", range.contains(&global), global, format!("from {samples} to {most}"))?;
        let tokens = b.tokens_global;
        expect(ME, "tokens_global", tokens.is_finite() && tokens >= 0.0, tokens, "a number from 0")?;
        let lease = match self.ledger.take((b.offset, b.len), (b.grant, b.iter, b.step)) {
            Ok(lease) => lease,
            Err(overlap) => return expect(ME, "block", false, "on top of another", format!("{overlap:?}")),
        };
        self.highest = b.grant;
        let pending = if b.iter < self.iter {
            drop(lease); // its iteration is over: released at once
            None
        } else {
            expect(ME, "ended", !self.ended, "a batch behind the end", "none")?;
            expect(ME, "epoch", b.epoch == self.epoch, b.epoch, self.epoch)?;
            expect(ME, "step", b.step == self.next, b.step, self.next)?;
            self.next = self.next.saturating_add(1);
            let slots = Vec::with_capacity(usize::from(b.head.slot));
            let Batch { epoch, step, global, mean_cost, tokens_global, .. } = b;
            let bins = b.head.attempt;
            let (scattered, spares, handover) = (BTreeMap::new(), Vec::new(), Handover::default());
            let batch = Assembled {
                lease,
                epoch,
                step,
                global,
                mean_cost,
                tokens_global,
                bins,
                slots,
                scattered,
                spares,
                handover,
            };
            let (parts, spares, formers) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
            let planned = !self.rules.rebalance;
            Some(Pending { batch, waiting: usize::from(b.head.slot), planned, parts, spares, formers })
        };
        self.filling = Some(Filling { announced: b, seen: 0, end: b.offset, bin: 0, pending });
        Ok(())
    }

    fn entry(&mut self, e: Entry) -> Result<(), Violation> {
        const ME: &str = "Entry";
        expect(ME, "kind", e.head.kind == kind::ENTRY, e.head.kind, kind::ENTRY)?;
        self.session(ME, e.head.session)?;
        let Some(filling) = &mut self.filling else {
            return Err(BadMessage::Kind(kind::ENTRY).into());
        };
        let (b, rules) = (&filling.announced, &self.rules);
        expect(ME, "grant", e.grant == b.grant, e.grant, b.grant)?;
        expect(ME, "slot", e.head.slot == filling.seen, e.head.slot, filling.seen)?;
        expect(ME, "sample", e.sample < rules.rows, e.sample, format!("below {}", rules.rows))?;
        expect(ME, "home_rank", e.home_rank < rules.world, e.home_rank, format!("below {}", rules.world))?;
        expect(ME, "tokens", e.tokens.is_finite(), e.tokens, "a number")?;
        expect(ME, "home_share", e.home_share > 0, e.home_share, "1 at least")?;
        let (bin, bins) = (e.head.attempt, b.head.attempt.max(1));
        expect(ME, "bin", (filling.bin..bins).contains(&bin), bin, format!("from {} to {}", filling.bin, bins - 1))?;
        let (start, end) = (filling.end, b.offset + b.len);
        let inside = e.offset >= start && e.offset + e.len <= end;
        expect(ME, "region", inside, format!("{}+{}", e.offset, e.len), format!("inside {start}..{end}"))?;
        (filling.seen, filling.end, filling.bin) = (filling.seen + 1, e.offset + e.len, bin);
        if let Some(pending) = &mut filling.pending {
            let Entry { sample, offset, len, home_rank, home_share, tokens, .. } = e;
            let state = SlotState::Waiting;
            pending.batch.slots.push(Slot { sample, offset, len, home_rank, home_share, tokens, bin, state });
        }
        if filling.seen == b.head.slot
            && let Some(Filling { announced, pending: Some(pending), .. }) = self.filling.take()
        {
            self.pending.insert(announced.grant, pending);
            self.hear_early(announced.grant)?;
        }
        Ok(())
    }

    /// Judges what was said before grants up to this one were announced.
    fn hear_early(&mut self, grant: u32) -> Result<(), Violation> {
        let (now, later) = self.early.drain(..).partition(|r| r.grant <= grant);
        self.early = later;
        let now: Vec<Ready> = now;
        now.into_iter().try_for_each(|r| self.ready(r))
    }

    /// A second place for a sample of a batch, or for a part of one.
    fn spare(&mut self, s: Spare) -> Result<(), Violation> {
        const ME: &str = "Spare";
        let (bytes, highest) = (self.rules.slab_bytes, self.highest);
        self.session(ME, s.head.session)?;
        let inside = s.len > 0 && s.offset + s.len <= bytes;
        expect(ME, "block", inside, format!("{}+{}", s.offset, s.len), format!("inside {bytes} bytes"))?;
        expect(ME, "grant", s.grant > highest, s.grant, format!("above {highest}"))?;
        expect(ME, "of", s.of <= highest, s.of, format!("at most {highest}"))?;
        let lease = match self.ledger.take((s.offset, s.len), (s.grant, s.iter, s.step)) {
            Ok(lease) => lease,
            Err(overlap) => return expect(ME, "block", false, "on top of another", format!("{overlap:?}")),
        };
        self.highest = s.grant;
        // Of a batch that is complete, or of an iteration that is over, it is released at once.
        if let Some(pending) = self.pending.get_mut(&s.of) {
            let samples = pending.batch.slots.len();
            expect(ME, "slot", usize::from(s.head.slot) < samples, s.head.slot, format!("below {samples}"))?;
            pending.batch.spares.push(lease);
            pending.spares.insert(s.grant, s);
            self.spares.insert(s.grant, s.of);
        }
        self.hear_early(s.grant)
    }

    /// If the plan is told, gives away and takes in what it says. Of a batch that was let go what comes is given back.
    fn balance(&mut self) -> Result<(), Violation> {
        const ME: &str = "Plan";
        let Some(hearing) = self.hearing.take_if(|hearing| hearing.is_complete()) else { return Ok(()) };
        let Hearing { plan, dealt, coming, .. } = hearing;
        let Plan { epoch, step, .. } = plan;
        let digest = dealt.digest(epoch, step);
        expect(ME, "digest", digest == plan.digest, format!("{:x}", plan.digest), format!("{digest:x}"))?;
        let (shifts, actual, total) = (dealt.shifts.clone(), dealt.actual.clone(), dealt.total);
        self.ledger.learn(epoch, step, Arc::new(dealt))?;
        crate::crash::point("plan.heard");
        let rank = self.rules.rank;
        let Some(Pending { batch, waiting, planned, parts, .. }) = self.pending.get_mut(&plan.grant) else {
            return Ok(());
        };
        expect(ME, "step", (epoch, step) == (batch.epoch, batch.step), step, batch.step)?;
        expect(ME, "plan", !*planned, "told", "one for each batch")?;
        *planned = true;
        batch.tokens_global = total;
        batch.handover = Handover { digest: digest as u32, coming, came: Vec::new() };
        if plan.dealt == 1 {
            return Ok(());
        }
        let samples = batch.slots.len();
        for a in actual.iter().filter(|a| a.rank == rank) {
            let Some(slot) = batch.slots.get_mut(a.slot as usize) else {
                return expect("Tokens", "slot", false, a.slot, format!("below {samples}"));
            };
            slot.tokens = a.tokens;
        }
        for shift in shifts.iter().filter(|s| s.from == rank) {
            let slot = batch.slots.get_mut(shift.slot as usize);
            let slot = slot.filter(|slot| !matches!(slot.state, SlotState::Skipped | SlotState::Away));
            let Some(slot) = slot else {
                return expect("Move", "slot", false, shift.slot, format!("a sample of {samples} that is there"));
            };
            *waiting -= usize::from(slot.state == SlotState::Waiting);
            slot.state = SlotState::Away;
            let nth = shift.slot as u16;
            parts.remove(&nth);
            batch.scattered.remove(&nth);
        }
        Ok(())
    }

    /// Whether a grant has been announced with all its entries.
    fn is_announced(&self, grant: u32) -> bool {
        grant <= self.highest - u32::from(self.filling.as_ref().is_some_and(|f| f.pending.is_some()))
    }

    fn end(&mut self, e: Batch) -> Result<(), Violation> {
        const ME: &str = "End";
        self.session(ME, e.head.session)?;
        expect(ME, "samples", e.head.slot == 0, e.head.slot, 0)?;
        expect(ME, "iter", e.iter <= self.iter, e.iter, format!("at most {}", self.iter))?;
        if e.iter < self.iter {
            return Ok(());
        }
        // A start behind the last step is answered with the first step that does not exist.
        expect(ME, "step", e.step <= self.next, e.step, format!("at most {}", self.next))?;
        self.ended = true;
        Ok(())
    }

    /// The entry that a message speaks of; `None` when its block was released before the message came.
    fn slot(&mut self, me: &'static str, r: &Ready) -> Result<Option<Entered<'_>>, Violation> {
        self.session(me, r.head.session)?;
        let (announced, highest) = (self.is_announced(r.grant), self.highest);
        let of = self.spares.get(&r.grant).copied().unwrap_or(r.grant);
        let Some(pending) = self.pending.get_mut(&of) else {
            expect(me, "grant", announced, r.grant, format!("at most {highest}"))?;
            return Ok(None);
        };
        let Pending { batch, waiting, parts, spares, formers, .. } = pending;
        let spare = spares.get(&r.grant).copied();
        expect(me, "step", r.step == batch.step, r.step, batch.step)?;
        let samples = batch.slots.len();
        let Some(slot) = batch.slots.get_mut(usize::from(r.head.slot)) else {
            return expect(me, "slot", false, r.head.slot, format!("below {samples}")).map(|()| None);
        };
        if r.sample != slot.sample && self.rules.may_replace {
            // Of one that was bad, or of the next, whose turn has not been told yet: the daemon's lane was full.
            let former = formers.contains(&(r.head.slot, r.sample));
            if !former {
                let fits = slot.state == SlotState::Waiting && r.sample < self.rules.rows;
                expect(me, "sample", fits && self.early.len() < MAX_EARLY, r.sample, slot.sample)?;
                self.early.push(*r);
            }
            return Ok(None);
        }
        expect(me, "sample", r.sample == slot.sample, r.sample, slot.sample)?;
        Ok(Some(Entered { slot, waiting, parts, spare, scattered: &mut batch.scattered }))
    }

    fn ready(&mut self, r: Ready) -> Result<(), Violation> {
        const ME: &str = "Ready";
        if !self.is_announced(r.grant) {
            self.session(ME, r.head.session)?;
            expect(ME, "grant", self.early.len() < MAX_EARLY, r.grant, format!("at most {}", self.highest))?;
            self.early.push(r);
            return Ok(());
        }
        let (shape_of, transform) = (Arc::clone(&self.rules.shape), Arc::clone(&self.rules.transform));
        let frames = transform.frames;
        let Some(Entered { slot, waiting, parts, spare, scattered }) = self.slot(ME, &r)? else { return Ok(()) };
        // Also one that was skipped: the parts that others had in hand then are of no use to anyone.
        if slot.state != SlotState::Waiting {
            return Ok(());
        }
        let span = Span { first: r.first, frames: r.frames };
        let whole = span == transform.whole();
        let shape = shape_of(slot.sample);
        let bytes = transform.bytes_of(shape);
        let Some((at, len)) = transform.place_in(shape, span) else {
            return expect(
                ME,
                "frames",
                false,
                format!("{}+{}", span.first, span.frames),
                format!("within {frames}"),
            );
        };
        expect(ME, "shape", r.shape == shape, format!("{:?}", r.shape), format!("{shape:?}"))?;
        let place = match spare {
            Some(spare) => {
                let its = spare.head.slot == r.head.slot && (spare.first, spare.frames) == (r.first, r.frames);
                expect(ME, "spare", its, format!("{span:?}"), format!("{}+{}", spare.first, spare.frames))?;
                (spare.offset, spare.len)
            }
            None => (slot.offset + at, slot.len.saturating_sub(at)),
        };
        expect(ME, "offset", r.offset == place.0, r.offset, place.0)?;
        expect(ME, "written", r.written == len && len <= place.1, r.written, len.min(place.1))?;
        let piece = Piece { span, offset: place.0, bytes: len };
        if whole && !parts.contains_key(&r.head.slot) {
            slot.offset = place.0;
        } else {
            let Some(pieces) = enter(parts, r.head.slot, piece, frames)? else { return Ok(()) };
            if pieces.windows(2).any(|w| w[0].offset + w[0].bytes != w[1].offset) {
                scattered.insert(r.head.slot, pieces);
            }
        }
        slot.state = SlotState::Ready { written: bytes, shape };
        *waiting -= 1;
        Ok(())
    }

    /// Another sample takes the place of one that was bad.
    fn other(&mut self, e: Entry) -> Result<(), Violation> {
        const ME: &str = "Other";
        let (rows, shape_of) = (self.rules.rows, Arc::clone(&self.rules.shape));
        self.session(ME, e.head.session)?;
        expect(ME, "kind", self.rules.may_replace, "another sample", "none, by the loader's options")?;
        expect(ME, "sample", e.sample < rows, e.sample, format!("below {rows}"))?;
        let (announced, highest) = (self.is_announced(e.grant), self.highest);
        let Some(pending) = self.pending.get_mut(&e.grant) else {
            return expect(ME, "grant", announced, e.grant, format!("at most {highest}"));
        };
        let samples = pending.batch.slots.len();
        let Some(slot) = pending.batch.slots.get_mut(usize::from(e.head.slot)) else {
            return expect(ME, "slot", false, e.head.slot, format!("below {samples}"));
        };
        expect(ME, "sample", slot.state == SlotState::Waiting, "of a place that has one", "of one that waits")?;
        let place = (slot.offset, slot.len);
        expect(ME, "region", (e.offset, e.len) == place, format!("{}+{}", e.offset, e.len), format!("{place:?}"))?;
        let (shape, wanted) = (shape_of(e.sample), shape_of(slot.sample));
        expect(ME, "shape", shape == wanted, format!("{shape:?}"), format!("{wanted:?}"))?;
        pending.formers.push((e.head.slot, slot.sample));
        pending.parts.remove(&e.head.slot);
        slot.sample = e.sample;
        self.hear_early(self.highest)
    }

    fn skip(&mut self, r: Ready) -> Result<(), Violation> {
        const ME: &str = "Skip";
        expect(ME, "kind", self.rules.may_skip, "a skip", "none, as this loader raises")?;
        let Some(Entered { slot, waiting, parts, .. }) = self.slot(ME, &r)? else { return Ok(()) };
        match slot.state {
            SlotState::Skipped => return Ok(()),
            SlotState::Ready { .. } => return expect(ME, "sample", false, "skipped", "ready, as was said"),
            SlotState::Away => return expect(ME, "sample", false, "skipped", "given to another rank, as was said"),
            SlotState::Waiting => {}
        }
        expect(ME, "written", r.written == 0, r.written, 0)?;
        expect(ME, "offset", r.offset == 0, r.offset, 0)?;
        parts.remove(&r.head.slot);
        slot.state = SlotState::Skipped;
        *waiting -= 1;
        Ok(())
    }
}

/// An entry, and what is counted beside it.
struct Entered<'a> {
    slot: &'a mut Slot,
    waiting: &'a mut usize,
    parts: &'a mut BTreeMap<u16, Vec<Piece>>,
    scattered: &'a mut BTreeMap<u16, Vec<Piece>>,
    /// The second place that the message is about.
    spare: Option<Spare>,
}

/// Notes a part, and answers all of its sample's, in order, when none is missing. One that is told again, or that is
/// made twice, is noted once.
fn enter(
    parts: &mut BTreeMap<u16, Vec<Piece>>,
    slot: u16,
    piece: Piece,
    frames: u16,
) -> Result<Option<Vec<Piece>>, Violation> {
    let known = parts.entry(slot).or_default();
    let span = piece.span;
    if known.iter().any(|p| p.span == span) {
        return Ok(None);
    }
    let apart = |other: &Piece| span.end() <= other.span.first.into() || other.span.end() <= span.first.into();
    if let Some(other) = known.iter().find(|other| !apart(other)) {
        expect("Ready", "frames", false, format!("{span:?}"), format!("apart from {:?}", other.span))?;
    }
    let at = known.partition_point(|p| p.span < span);
    known.insert(at, piece);
    let all = known.iter().map(|p| u32::from(p.span.frames)).sum::<u32>() == u32::from(frames);
    Ok(if all { parts.remove(&slot) } else { None })
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
