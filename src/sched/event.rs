//! The door of the scheduler: events in, decisions out.
//!
//! A driver (the daemon, or the simulator under a virtual clock) owns the clock, the memory and the processes. It
//! tells what happened, and carries out what comes back, in order. The scheduler never asks.

use std::sync::Arc;

use super::cost::{self, Work};
use crate::proto::handover::Dealt;
use crate::proto::options::{RunOptions, StreamOptions};
use crate::proto::order::Order;
use crate::proto::transform::{Facts, Span};

/// Nanoseconds of the driver's monotonic clock.
pub type Time = u64;

/// A stream: one loader of one job. Numbered by the driver, never reused while open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u16);

/// A worker process of the job. Numbered by the driver; a replacement has the number of the one it replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u16);

/// The workers of one NUMA node, or of another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ServerId(pub u16);

/// A ticket, numbered by the scheduler; each attempt has a number of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId(pub u64);

/// What the scheduler may know of the samples: row number to facts.
pub trait Catalog: Send + Sync {
    /// Samples that can be delivered. Bad rows are not among them.
    fn len(&self) -> u64;
    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The `i`-th deliverable sample's row in the manifest.
    fn row(&self, i: u64) -> u64;
    /// Facts of the `i`-th deliverable sample.
    fn facts(&self, i: u64) -> Facts;
    /// What the `i`-th deliverable sample takes to decode, and what it costs the rank that receives it. A pure
    /// function: who receives a sample follows from it. Overridden where more is known than the facts tell.
    fn appraise(&self, i: u64, options: &StreamOptions) -> (Work, f64) {
        cost::appraise(&self.facts(i), options)
    }
    /// The pieces of which the sample of this row is made in an epoch, in the order of the output, as far as each can
    /// be decoded by itself. None where it cannot be taken apart.
    fn chunks(&self, _row: u64, _epoch: u32, _options: &StreamOptions) -> Vec<Chunk> {
        Vec::new()
    }
    /// The profile's tokens of the `i`-th deliverable sample; what it costs is [`Profile::cost`] of them, unless
    /// [`appraise`](Self::appraise) knows better.
    ///
    /// [`Profile::cost`]: crate::proto::options::Profile::cost
    fn tokens(&self, i: u64, options: &StreamOptions) -> f64 {
        let (facts, transform) = (self.facts(i), &options.transform);
        cost::tokens_of(options.profile, &facts, transform, &Work::of(&facts, transform))
    }
    /// Samples of a micro-batch of each shape, where only samples of one shape can share one; none is more than the
    /// options' micro-batch. Empty where all samples are alike.
    fn shapes(&self) -> &[u32] {
        &[]
    }
    /// The shape of the `i`-th deliverable sample; `None` if it fits nowhere and is left out.
    fn shape(&self, _i: u64) -> Option<usize> {
        None
    }
}

/// The frames of a sample that are reached from one key frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chunk {
    /// Frames of the output.
    pub span: Span,
    /// What it takes to decode them.
    pub work: Work,
}

/// What a finished ticket cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measured {
    /// Reading, microseconds from submission to end.
    pub read_us: u32,
    /// CPU time of decoding and transforming, microseconds.
    pub cpu_us: u32,
    /// Wall time on the worker, microseconds.
    pub wall_us: u32,
    /// Frames that went through the decoder.
    pub frames: u32,
    /// Bytes read.
    pub bytes: u32,
}

/// What happened.
#[derive(Clone)]
pub enum Event {
    /// All ranks of a stream are in; nothing is decided for it before.
    StreamOpened {
        /// The stream.
        stream: StreamId,
        /// What is in it.
        options: Arc<StreamOptions>,
        /// How it is to be run.
        run: RunOptions,
        /// Its samples.
        catalog: Arc<dyn Catalog>,
    },
    /// The stream is over; its queued tickets vanish. Tickets on workers still end with an event, which is ignored.
    StreamClosed {
        /// The stream.
        stream: StreamId,
    },
    /// A sampler of the user's own has decided on an epoch; said before any rank begins it, and by each again.
    Ordered {
        /// The stream.
        stream: StreamId,
        /// The epoch.
        epoch: u32,
        /// Its micro-batches, over the samples that can be delivered.
        order: Arc<Order>,
    },
    /// A step was balanced once more by what its samples turned out to be, now or before this scheduler was: whoever is
    /// granted the step from now on gets what that came to.
    Dealt {
        /// The stream.
        stream: StreamId,
        /// The epoch.
        epoch: u32,
        /// The step.
        step: u32,
        /// What it came to.
        dealt: Arc<Dealt>,
    },
    /// A rank begins an iteration at a step; its queued tickets of earlier ones vanish.
    RankStarted {
        /// The stream.
        stream: StreamId,
        /// The rank.
        rank: u32,
        /// The server on whose node the rank's slab lies.
        server: ServerId,
        /// Number of the iteration; higher than any before.
        iter: u32,
        /// Epoch.
        epoch: u32,
        /// First step.
        step: u32,
    },
    /// A rank left in good order; the others go on.
    RankLeft {
        /// The stream.
        stream: StreamId,
        /// The rank.
        rank: u32,
    },
    /// Answer to [`Decision::Grant`]: the memory is there. The batch's tickets may be assigned from now on.
    Granted {
        /// The stream.
        stream: StreamId,
        /// The rank.
        rank: u32,
        /// The iteration.
        iter: u32,
        /// The step.
        step: u32,
    },
    /// Answer to [`Decision::Grant`]: no room now. The same grant is asked for again after [`Event::Released`].
    NoRoom {
        /// The stream.
        stream: StreamId,
        /// The rank.
        rank: u32,
    },
    /// The rank let a batch go and its memory is free again.
    Released {
        /// The stream.
        stream: StreamId,
        /// The rank.
        rank: u32,
        /// The iteration it belonged to.
        iter: u32,
        /// Its step.
        step: u32,
    },
    /// A rank has ended the step that used a batch.
    StepEnded {
        /// The stream.
        stream: StreamId,
        /// The rank.
        rank: u32,
        /// The iteration.
        iter: u32,
        /// The step.
        step: u32,
        /// How long it had waited for the batch, nanoseconds.
        wait_ns: u64,
        /// From getting the batch to asking for the next one, nanoseconds.
        busy_ns: u64,
    },
    /// What a sample goes through from a server's workers into the memory of another's ranks, if it is not written there
    /// at once: it is sent when it is made, one after the other, and its ticket is done when it has come.
    Link {
        /// The workers' server.
        from: ServerId,
        /// The ranks'.
        to: ServerId,
        /// Bytes a second.
        bytes_per_s: u64,
        /// Nanoseconds on top.
        latency_ns: u64,
    },
    /// A worker can take tickets.
    WorkerUp {
        /// The worker.
        worker: WorkerId,
        /// The server it belongs to.
        server: ServerId,
    },
    /// A worker is dead (proven); its tickets are to be done again. A ticket that must not be tried again is
    /// failed by the driver with [`Event::TicketFailed`] before this event.
    WorkerDown {
        /// The worker.
        worker: WorkerId,
    },
    /// A ticket's output is in its place.
    TicketDone {
        /// The ticket.
        ticket: TicketId,
        /// What it cost.
        measured: Measured,
    },
    /// A ticket cannot be done by anyone. The driver tells the rank.
    TicketFailed {
        /// The ticket.
        ticket: TicketId,
    },
    /// A place whose sample cannot be made has another one now. Said before or after the [`Event::TicketFailed`]; no
    /// other ticket of the place is under way.
    Replaced {
        /// The stream.
        stream: StreamId,
        /// The rank.
        rank: u32,
        /// The iteration.
        iter: u32,
        /// The step.
        step: u32,
        /// Place in the batch.
        slot: u16,
        /// Row of the other sample.
        sample: u64,
        /// What it takes to decode.
        work: Work,
    },
    /// Answer to an [`Decision::Assign`] that hedges: there is no room for a second attempt, and none was made.
    Unassigned {
        /// The ticket.
        ticket: TicketId,
    },
    /// Time passed: the answer to [`Decision::WakeAt`].
    Tick,
}

/// One sample of a batch, in the order of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Place {
    /// Row in the manifest.
    pub sample: u64,
    /// Bytes of its region.
    pub bytes: u64,
    /// The rank that the sampler dealt it to.
    pub home_rank: u32,
    /// Its cost in the profile's unit.
    pub cost: f64,
    /// The profile's tokens of it.
    pub tokens: f64,
    /// Samples of the step that the sampler dealt to `home_rank`, times the ranks that it dealt any to.
    pub home_share: u64,
    /// The packed sequence of the batch that it is in; 0 where samples are not packed.
    pub bin: u16,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Make room for this batch in the rank's slab and announce it; answer at once with [`Event::Granted`] or
    /// [`Event::NoRoom`], before carrying out anything else.
    Grant {
        /// The stream.
        stream: StreamId,
        /// The rank.
        rank: u32,
        /// The iteration.
        iter: u32,
        /// The epoch.
        epoch: u32,
        /// The step.
        step: u32,
        /// The samples in order.
        places: Vec<Place>,
        /// Samples of this step over all ranks.
        global: u32,
        /// Sum of costs of the mean rank in this step.
        mean_cost: f64,
        /// Tokens of this step over all ranks.
        tokens: f64,
        /// Packed sequences of each rank in this step; 0 where samples are not packed.
        bins: u16,
    },
    /// The iteration has no batch at or after this step.
    End {
        /// The stream.
        stream: StreamId,
        /// The rank.
        rank: u32,
        /// The iteration.
        iter: u32,
        /// The first step that does not exist.
        step: u32,
    },
    /// Hand this ticket to that worker, behind what it already holds.
    Assign {
        /// The worker.
        worker: WorkerId,
        /// The ticket.
        ticket: TicketId,
        /// The stream.
        stream: StreamId,
        /// The rank.
        rank: u32,
        /// The iteration.
        iter: u32,
        /// The epoch.
        epoch: u32,
        /// The step.
        step: u32,
        /// Place in the batch.
        slot: u16,
        /// The part of the sample that is to be made; `None` for all of it. The parts of a sample lie apart and make
        /// all of it, and a sample that was given out as a whole is never given out in parts.
        part: Option<Span>,
        /// Which attempt at this sample or part, from 1.
        attempt: u16,
        /// Whether it is a second attempt while the first is still under way: it needs a place of its own.
        hedge: bool,
        /// When the rank is predicted to want the batch.
        due: Option<Time>,
    },
    /// Send [`Event::Tick`] at this time, or later; replaces any earlier wish.
    WakeAt(Time),
}

/// A state machine that turns events into decisions.
///
/// It does no I/O, has no clock, no threads and no randomness of its own: the same events at the same times give
/// the same decisions.
pub trait Scheduler: Send {
    /// Takes one event and appends what follows from it.
    fn handle(&mut self, now: Time, event: Event, out: &mut Vec<Decision>);
    /// A ticket's predicted time on a worker, nanoseconds, for the status page; `None` if unknown.
    fn predicted(&self, ticket: TicketId) -> Option<u64>;
}
