//! Ring messages: one 64-byte cache line each, of which the ring's sequence takes 8 and the body 56.
//!
//! A body is a plain struct without padding. Receivers copy it once, then [`Body::parse`] it: an unknown kind or
//! an out-of-range field is an error value, never a panic. Everything here only *says* what a peer claims; the
//! receiver compares it with its own table before acting (see `docs/protocol.md`, "Checks").

use bytemuck::{Pod, Zeroable};

/// The seven words that a ring slot carries beside its sequence.
pub type Words = [u64; 7];

/// What is wrong with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// The kind is not one that may travel on this ring.
    #[error("message kind {0} does not belong on this ring")]
    Kind(u16),
    /// A field has a value outside its range.
    #[error("message kind {kind}: field `{field}` is {value}, which is out of range")]
    Field {
        /// Kind of the message.
        kind: u16,
        /// Name of the field.
        field: &'static str,
        /// What was found.
        value: u64,
    },
}

/// First word of every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Head {
    /// One of the `kind` constants.
    pub kind: u16,
    /// The session (rank and loader) that the message is about; see [`crate::proto::session::Opened::session`].
    pub session: u16,
    /// Which try at the sample this is, from 1; for [`kind::BATCH`] the number of packed sequences (0 = not packed), for
    /// [`kind::ENTRY`] which of them the sample is in; 0 where it has no meaning.
    pub attempt: u16,
    /// Place of the sample in its batch, from 0; for [`kind::BATCH`] the number of samples.
    pub slot: u16,
}

/// Message kinds. A number is never reused.
pub mod kind {
    /// Daemon → worker: [`super::Ticket`].
    pub const TICKET: u16 = 1;
    /// Worker → daemon: [`super::Done`], the sample is in its place.
    pub const DONE: u16 = 2;
    /// Worker → daemon: [`super::Done`], the sample could not be made; the reason came on the socket before.
    pub const FAILED: u16 = 3;
    /// Worker → rank, or daemon → rank on behalf of a dead or blocked worker: [`super::Ready`].
    pub const READY: u16 = 4;
    /// Daemon → rank: [`super::Batch`], memory for a batch was granted; its [`super::Entry`]s follow.
    pub const BATCH: u16 = 5;
    /// Daemon → rank: [`super::Entry`], one sample of the batch granted last.
    pub const ENTRY: u16 = 6;
    /// Daemon → rank: [`super::Ready`] with no bytes; the sample is skipped.
    pub const SKIP: u16 = 7;
    /// Daemon → rank: [`super::Batch`] with no samples; the iteration has no batch from this step on.
    pub const END: u16 = 8;
    /// Rank → daemon: [`super::Feedback`], every holder of the block has let it go.
    pub const RELEASE: u16 = 9;
    /// Rank → daemon: [`super::Feedback`], the step that used this batch has ended.
    pub const STEP_END: u16 = 10;
    /// Daemon → rank: [`super::Spare`], a second place for a sample whose worker is stuck.
    pub const SPARE: u16 = 11;
    /// Daemon → rank: [`super::Plan`], a step of all ranks was balanced by what its samples turned out to be.
    pub const PLAN: u16 = 16;
    /// Daemon → rank: [`super::Tokens`], a sample of the step has other tokens than was said.
    pub const TOKENS: u16 = 17;
    /// Daemon → rank: [`super::Move`], a sample of the step goes to another rank.
    pub const MOVE: u16 = 18;
    /// Daemon → rank: [`super::Handed`], where a sample that comes lies in the slab of another rank.
    pub const HANDED: u16 = 19;
    /// Rank → daemon: [`super::Feedback`], it has let go of what lies in another rank's slab.
    pub const RETURN: u16 = 20;
    /// Worker → daemon: [`super::Actual`], the sample of a ticket is not what its descriptor says.
    pub const ACTUAL: u16 = 21;
    /// Daemon → rank: [`super::Entry`], another sample takes the place of one that could not be made.
    pub const OTHER: u16 = 12;
}

/// Daemon → worker: decode this sample into that region by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Ticket {
    /// `kind` = [`kind::TICKET`].
    pub head: Head,
    /// Number of this ticket, unique in the life of the daemon and different for each attempt.
    pub ticket: u64,
    /// Row of the sample in the manifest.
    pub sample: u64,
    /// Where the output goes in the session's slab, bytes: the sample's region, or the place of its part in it.
    pub offset: u64,
    /// Length of that place, bytes.
    pub len: u64,
    /// The grant that the region belongs to; see [`Batch::grant`].
    pub grant: u32,
    /// Step of the batch.
    pub step: u32,
    /// Epoch; with seed and sample it keys the randomness.
    pub epoch: u32,
    /// First frame of the output that is to be made; 0 for a whole sample.
    pub first: u16,
    /// Frames of the output that are to be made.
    pub frames: u16,
}

/// Worker → daemon: the end of a ticket, with what it cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Done {
    /// `kind` = [`kind::DONE`] or [`kind::FAILED`]; `attempt`, `slot`, `session` as in the ticket.
    pub head: Head,
    /// The ticket's number.
    pub ticket: u64,
    /// Bytes written into the ticket's place, from its start.
    pub written: u64,
    /// The sample's shape; all zero when failed.
    pub shape: [u16; 4],
    /// Time from the ticket's reads being submitted to their end, microseconds.
    pub read_us: u32,
    /// CPU time of decoding and transforming, microseconds.
    pub cpu_us: u32,
    /// Wall time from taking the ticket up to its end, microseconds.
    pub wall_us: u32,
    /// Frames that went through the decoder.
    pub frames_decoded: u32,
    /// Bytes read from storage.
    pub bytes_read: u32,
    /// Bit 0: the rank's lane was full, so the daemon must tell the rank itself.
    pub flags: u32,
}

/// Flag of [`Done`]: the worker could not tell the rank because its lane was full.
pub const DONE_UNTOLD: u32 = 1;

/// Worker → rank: a sample, or a part of it, is in its place. With kind [`kind::SKIP`]: the sample never will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Ready {
    /// `kind` = [`kind::READY`] or [`kind::SKIP`].
    pub head: Head,
    /// Row of the sample in the manifest.
    pub sample: u64,
    /// Where it was written in the slab, bytes.
    pub offset: u64,
    /// Bytes written.
    pub written: u64,
    /// The sample's shape, in the layout's order (e.g. T, C, H, W).
    pub shape: [u16; 4],
    /// The grant that the region belongs to; see [`Batch::grant`].
    pub grant: u32,
    /// Step of the batch.
    pub step: u32,
    /// First frame of the output that was written.
    pub first: u16,
    /// Frames of the output that were written; the sample is ready when all are.
    pub frames: u16,
    /// Zero; room for later.
    pub reserved: u32,
}

/// Daemon → rank: a block of the slab now belongs to this batch.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Batch {
    /// `kind` = [`kind::BATCH`] or [`kind::END`]; `slot` = number of samples.
    pub head: Head,
    /// Start of the block in the slab, bytes.
    pub offset: u64,
    /// Length of the block, bytes.
    pub len: u64,
    /// Number of this grant: counts the blocks handed to the session in its life, so that no two batches share one.
    pub grant: u32,
    /// Iteration: counts the `start` packets of this session, so that what belongs to an abandoned one is known.
    pub iter: u32,
    /// Epoch.
    pub epoch: u32,
    /// Step.
    pub step: u32,
    /// Samples of this step over all ranks, before any was skipped.
    pub global: u32,
    /// Predicted cost of the mean rank in this step, in the profile's unit.
    pub mean_cost: f32,
    /// Tokens of this step over all ranks, before any sample was skipped.
    pub tokens_global: f64,
}

/// Daemon → rank: one sample of the batch announced just before.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Entry {
    /// `kind` = [`kind::ENTRY`] or [`kind::OTHER`]; `slot` = place in the batch.
    pub head: Head,
    /// Row of the sample in the manifest.
    pub sample: u64,
    /// Start of the region in the slab, bytes; inside the block.
    pub offset: u64,
    /// Length of the region, bytes.
    pub len: u64,
    /// The grant that the region belongs to; see [`Batch::grant`].
    pub grant: u32,
    /// The rank that the sampler dealt this sample to, before balancing.
    pub home_rank: u32,
    /// Samples that the sampler dealt to that rank in this step, times the ranks that it dealt any to.
    pub home_share: u64,
    /// The profile's tokens of this sample.
    pub tokens: f64,
}

/// Daemon → rank: a sample of a batch, or a part of it, may come in this block instead of its own place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Spare {
    /// `kind` = [`kind::SPARE`]; `slot` = place of the sample in its batch.
    pub head: Head,
    /// Start of the block in the slab, bytes.
    pub offset: u64,
    /// Length of the block, bytes.
    pub len: u64,
    /// Number of this grant; a [`Ready`] of what was made here carries it.
    pub grant: u32,
    /// The grant of the batch.
    pub of: u32,
    /// Iteration of the batch.
    pub iter: u32,
    /// Step of the batch.
    pub step: u32,
    /// First frame of the output.
    pub first: u16,
    /// Frames of the output.
    pub frames: u16,
    /// Zero; room for later.
    pub reserved: [u32; 3],
}

/// Rank → daemon: a release or the end of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Feedback {
    /// `kind` = [`kind::RELEASE`], [`kind::STEP_END`] or [`kind::RETURN`].
    pub head: Head,
    /// The grant that is released, or whose step has ended; in a [`kind::RETURN`] one of the other rank's.
    pub grant: u32,
    /// In a [`kind::RETURN`] the other rank; in a [`kind::STEP_END`] the low half of the digest of the step's plan, 0
    /// without one; else zero.
    pub also: u32,
    /// Iteration.
    pub iter: u32,
    /// Step.
    pub step: u32,
    /// When it happened, nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// How long `next()` waited for this batch, nanoseconds.
    pub wait_ns: u64,
    /// From the delivery of this batch to the next call of `next()`, nanoseconds ([`kind::STEP_END`]).
    pub busy_ns: u64,
    /// Bytes copied on the host since the last message of either kind.
    pub copied: u64,
}

/// Daemon → rank: how a step was balanced after decoding. Behind it come its [`Tokens`], then its [`Move`]s.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Plan {
    /// `kind` = [`kind::PLAN`].
    pub head: Head,
    /// What [`handover::Dealt::digest`](super::handover::Dealt::digest) gives for all that follows.
    pub digest: u64,
    /// Tokens of the step over all ranks.
    pub total: f64,
    /// The grant of the rank's own batch.
    pub grant: u32,
    /// Tokens that follow.
    pub tokens: u32,
    /// Moves that follow.
    pub moves: u32,
    /// 1 where the batch was dealt by the plan from the start, so that nothing of it moves; else 0.
    pub dealt: u32,
    /// Epoch.
    pub epoch: u32,
    /// Step.
    pub step: u32,
    /// Zero; room for later.
    pub reserved: u64,
}

/// Daemon → rank: a sample of the step has other tokens than was said.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Tokens {
    /// `kind` = [`kind::TOKENS`]; `slot` = place in the batch of `rank`.
    pub head: Head,
    /// What it has.
    pub tokens: f64,
    /// The grant of the rank's own batch.
    pub grant: u32,
    /// The rank that the sample was dealt to.
    pub rank: u32,
    /// Zero; room for later.
    pub reserved: [u64; 4],
}

/// Daemon → rank: a sample of the step goes to another rank. To that one an [`Entry`] follows, and [`Handed`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Move {
    /// `kind` = [`kind::MOVE`]; `slot` = place in the batch of `from`.
    pub head: Head,
    /// The grant of the rank's own batch.
    pub grant: u32,
    /// The rank that the sample was dealt to.
    pub from: u32,
    /// The rank that gets it.
    pub to: u32,
    /// How many [`Handed`]s follow; 0 for all ranks but `to`.
    pub pieces: u32,
    /// Zero; room for later.
    pub reserved: [u64; 4],
}

/// Daemon → rank: where a sample that comes, or a part of it, lies in the slab of another rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Handed {
    /// `kind` = [`kind::HANDED`]; `slot` = place in the batch of `from`.
    pub head: Head,
    /// Start of the block in that slab, bytes.
    pub block: u64,
    /// Length of the block, bytes.
    pub block_len: u64,
    /// Start of the frames, bytes; inside the block.
    pub offset: u64,
    /// The grant of the rank's own batch.
    pub grant: u32,
    /// The grant of the block; a [`kind::RETURN`] names it.
    pub of: u32,
    /// The rank whose slab it is.
    pub from: u32,
    /// First frame of the output.
    pub first: u16,
    /// Frames of the output.
    pub frames: u16,
    /// Which slab it is: the number of the file's inode. Another process of that rank has another slab.
    pub slab: u64,
}

/// Worker → daemon: the sample of a ticket is not what its descriptor says; comes before the ticket's [`Done`]. A pure
/// function of the sample: who receives it may depend on this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Actual {
    /// `kind` = [`kind::ACTUAL`]; `attempt`, `slot`, `session` as in the ticket.
    pub head: Head,
    /// The ticket's number.
    pub ticket: u64,
    /// Frames that the clip has.
    pub frames: u32,
    /// Its duration, milliseconds.
    pub duration_ms: u32,
    /// Width in pixels as shown.
    pub width: u16,
    /// Height in pixels as shown.
    pub height: u16,
    /// Zero; room for later.
    pub pad: u32,
    /// Zero; room for later.
    pub reserved: [u64; 3],
}

/// A body that may travel on a ring.
pub trait Body: Pod {
    /// The kinds that carry this body.
    const KINDS: &'static [u16];
    /// Checks of single fields; relations with the receiver's table are the receiver's.
    fn check(&self, kind: u16) -> Result<(), BadMessage>;

    /// The words to publish.
    fn words(&self) -> Words {
        bytemuck::cast(*self)
    }

    /// Reads a body out of received words.
    fn parse(words: &Words) -> Result<Self, BadMessage> {
        let kind = head(words).kind;
        if !Self::KINDS.contains(&kind) {
            return Err(BadMessage::Kind(kind));
        }
        let body: Self = bytemuck::cast(*words);
        body.check(kind)?;
        Ok(body)
    }
}

/// The head of a message whose body is not known yet.
pub fn head(words: &Words) -> Head {
    bytemuck::cast(words[0])
}

const fn field(kind: u16, field: &'static str, value: u64, ok: bool) -> Result<(), BadMessage> {
    if ok { Ok(()) } else { Err(BadMessage::Field { kind, field, value }) }
}

/// No slab is larger than this (2^48 bytes), so offset + length never overflows.
const MAX_BYTES: u64 = 1 << 48;

fn span(kind: u16, offset: u64, len: u64) -> Result<(), BadMessage> {
    field(kind, "offset", offset, offset < MAX_BYTES)?;
    field(kind, "len", len, len < MAX_BYTES)
}

impl Body for Ticket {
    const KINDS: &'static [u16] = &[kind::TICKET];
    fn check(&self, kind: u16) -> Result<(), BadMessage> {
        span(kind, self.offset, self.len)?;
        field(kind, "frames", self.frames.into(), self.frames > 0)?;
        field(kind, "attempt", self.head.attempt.into(), self.head.attempt > 0)
    }
}

impl Body for Done {
    const KINDS: &'static [u16] = &[kind::DONE, kind::FAILED];
    fn check(&self, kind: u16) -> Result<(), BadMessage> {
        field(kind, "written", self.written, self.written < MAX_BYTES)?;
        field(kind, "flags", self.flags.into(), self.flags & !DONE_UNTOLD == 0)
    }
}

impl Body for Ready {
    const KINDS: &'static [u16] = &[kind::READY, kind::SKIP];
    fn check(&self, kind: u16) -> Result<(), BadMessage> {
        span(kind, self.offset, self.written)
    }
}

impl Body for Batch {
    const KINDS: &'static [u16] = &[kind::BATCH, kind::END];
    fn check(&self, kind: u16) -> Result<(), BadMessage> {
        span(kind, self.offset, self.len)
    }
}

impl Body for Entry {
    const KINDS: &'static [u16] = &[kind::ENTRY, kind::OTHER];
    fn check(&self, kind: u16) -> Result<(), BadMessage> {
        span(kind, self.offset, self.len)
    }
}

impl Body for Spare {
    const KINDS: &'static [u16] = &[kind::SPARE];
    fn check(&self, kind: u16) -> Result<(), BadMessage> {
        span(kind, self.offset, self.len)?;
        field(kind, "frames", self.frames.into(), self.frames > 0)
    }
}

impl Body for Plan {
    const KINDS: &'static [u16] = &[kind::PLAN];
    fn check(&self, kind: u16) -> Result<(), BadMessage> {
        field(kind, "dealt", self.dealt.into(), self.dealt <= 1)
    }
}

impl Body for Tokens {
    const KINDS: &'static [u16] = &[kind::TOKENS];
    fn check(&self, kind: u16) -> Result<(), BadMessage> {
        field(kind, "tokens", self.tokens.to_bits(), self.tokens.is_finite())
    }
}

impl Body for Move {
    const KINDS: &'static [u16] = &[kind::MOVE];
    fn check(&self, kind: u16) -> Result<(), BadMessage> {
        field(kind, "to", self.to.into(), self.to != self.from)
    }
}

impl Body for Handed {
    const KINDS: &'static [u16] = &[kind::HANDED];
    fn check(&self, kind: u16) -> Result<(), BadMessage> {
        span(kind, self.block, self.block_len)?;
        field(kind, "offset", self.offset, self.offset < MAX_BYTES)?;
        field(kind, "frames", self.frames.into(), self.frames > 0)
    }
}

impl Body for Actual {
    const KINDS: &'static [u16] = &[kind::ACTUAL];
    fn check(&self, kind: u16) -> Result<(), BadMessage> {
        field(kind, "frames", self.frames.into(), self.frames > 0)
    }
}

impl Body for Feedback {
    const KINDS: &'static [u16] = &[kind::RELEASE, kind::STEP_END, kind::RETURN];
    fn check(&self, _kind: u16) -> Result<(), BadMessage> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_body_fills_the_line() {
        assert_eq!(size_of::<Ticket>(), 56);
        assert_eq!(size_of::<Done>(), 56);
        assert_eq!(size_of::<Ready>(), 56);
        assert_eq!(size_of::<Batch>(), 56);
        assert_eq!(size_of::<Entry>(), 56);
        assert_eq!(size_of::<Spare>(), 56);
        assert_eq!(size_of::<Feedback>(), 56);
        assert_eq!(size_of::<Plan>(), 56);
        assert_eq!(size_of::<Tokens>(), 56);
        assert_eq!(size_of::<Move>(), 56);
        assert_eq!(size_of::<Handed>(), 56);
        assert_eq!(size_of::<Actual>(), 56);
    }

    #[test]
    fn a_wrong_kind_is_an_error_value() {
        let ticket = Ticket {
            head: Head { kind: kind::TICKET, session: 1, attempt: 1, slot: 0 },
            frames: 1,
            ..Ticket::zeroed()
        };
        assert_eq!(Ticket::parse(&ticket.words()), Ok(ticket));
        assert_eq!(Done::parse(&ticket.words()), Err(BadMessage::Kind(kind::TICKET)));
    }

    #[test]
    fn an_offset_that_would_overflow_is_refused() {
        let head = Head { kind: kind::TICKET, session: 1, attempt: 1, slot: 0 };
        let ticket = Ticket { head, offset: u64::MAX - 3, len: 8, ..Ticket::zeroed() };
        assert!(matches!(Ticket::parse(&ticket.words()), Err(BadMessage::Field { field: "offset", .. })));
    }
}
