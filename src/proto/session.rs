//! The packets of the Unix socket (`SOCK_SEQPACKET`): JSON, one object a packet, with its file descriptors.
//!
//! They are rare (joining, starting an epoch, errors), so they are readable and extensible rather than fast.
//! A packet of more than [`MAX_PACKET`] bytes, with unknown fields or with the wrong number of descriptors ends the
//! session of its sender. `docs/protocol.md` draws the order in which they travel.

use serde::{Deserialize, Serialize};

use super::options::{RunOptions, StreamOptions};

/// Largest packet, bytes.
pub const MAX_PACKET: usize = 60 * 1024;
/// Most descriptors with one packet.
pub const MAX_FDS: usize = 6;

/// Most workers of a job. In the daemon's bitmap worker w is lane w and session s lane `MAX_WORKERS` + s; in the hints
/// entry 0 is the daemon's, then come the workers', then the sessions'.
pub const MAX_WORKERS: u16 = 256;
/// Most sessions of a job.
pub const MAX_SESSIONS: u16 = 704;

/// What a rank says to the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromRank {
    /// First packet. Descriptors: the slab (sealed memfd), the manifest (read-only); and a file with the outcomes of
    /// steps that were balanced after decoding ([`Known::state`](super::handover::Known::state)), if [`Join::dealt`].
    Join(Box<Join>),
    /// Begin an iteration; whatever is under way for an earlier one is dropped. One descriptor if `given` is there.
    Start {
        /// Counts this session's iterations, from 1.
        iter: u32,
        /// Epoch.
        epoch: u32,
        /// First step to deliver.
        step: u32,
        /// What the descriptor holds that decides this epoch's samples in place of the stream's own order.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        given: Option<Given>,
    },
    /// The session ends in good order. The daemon answers [`ToRank::Bye`] once no worker can touch the slab any more.
    Leave,
}

/// What a rank gives along with [`FromRank::Start`]. Ranks of one loader give the same for an epoch, and for another
/// content they take another epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Given {
    /// An [`Order`](super::order::Order): a sampler of the user's own decides which samples meet.
    Order,
    /// What workers of the user's own program need to make the epoch's batches: they get the descriptor as it is.
    Brief {
        /// Steps of the epoch.
        steps: u32,
    },
    /// As a brief, where each task is a sample: behind what the workers need lies the epoch's
    /// [`Order`](super::order::Order), which has so many bytes; with none the stream's own order holds.
    Samples {
        /// Bytes of the order, at the end of the file.
        order: u64,
    },
}

/// What a tool says to the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromTool {
    /// Asks for [`ToTool::Status`].
    Status {
        /// Protocol version.
        version: u32,
    },
}

/// Contents of [`FromRank::Join`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// Protocol version.
    pub version: u32,
    /// Name of the job; ranks of one job and user share workers.
    pub job: String,
    /// Name of the loader within the job ("train", "eval").
    pub loader: String,
    /// This rank, from 0.
    pub rank: u32,
    /// Bytes of the slab.
    pub slab_bytes: u64,
    /// Path of the manifest, for messages and for workers that open it themselves.
    pub manifest: String,
    /// Fingerprint of the manifest, to be found again in the file.
    pub fingerprint: String,
    /// What decides the stream.
    pub stream: StreamOptions,
    /// What decides its speed.
    pub run: RunOptions,
    /// Blocks of the slab that the rank still holds from a daemon that died: (grant, offset, length in bytes).
    /// No writer of that daemon's generation is alive when this is sent.
    pub held: Vec<(u32, u64, u64)>,
    /// Blocks in the slabs of other ranks of which it still reads, one for each
    /// [`kind::RETURN`](super::message::kind::RETURN) that is to come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lent: Vec<Lent>,
    /// Whether a third descriptor says how steps were balanced after decoding.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dealt: bool,
    /// Whether the rank was in before, with a daemon that died.
    pub rejoin: bool,
    /// NUMA node of the slab's pages, if known.
    pub node: Option<u32>,
    /// Cores that the rank may run on: the workers of the job may use those of all its ranks.
    pub cores: Vec<u32>,
}

/// A block in the slab of another rank, of which a rank reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lent {
    /// The other rank.
    pub rank: u32,
    /// The block's grant.
    pub grant: u32,
    /// Where it lies in the slab, bytes.
    pub offset: u64,
    /// Its length, bytes.
    pub len: u64,
    /// Which slab; see [`Handed::slab`](super::message::Handed::slab).
    pub slab: u64,
}

/// What the daemon says to a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToRank {
    /// The rank is in. Descriptors: inbox segment, hints segment, rank's bell (eventfd), daemon's bell (eventfd),
    /// read end of the generation's lifeline pipe.
    Opened(Opened),
    /// All ranks of the loader are in and the iteration begins.
    Started {
        /// The iteration.
        iter: u32,
    },
    /// The session is over; the reason is for the user.
    Failed {
        /// What happened and what to do.
        reason: String,
        /// The rank that caused it, if one did.
        rank: Option<u32>,
        /// The sample that caused it, if one did; its [`ToRank::BadSample`] came before.
        sample: Option<u64>,
    },
    /// A sample could not be decoded. What follows from it comes on the ring ([`super::message::kind::SKIP`]) or,
    /// when the loader raises, as [`ToRank::Failed`].
    BadSample(BadSample),
    /// Something the user should know, said once.
    Notice {
        /// The line.
        text: String,
    },
    /// The slab of another rank of the loader, of which samples will be handed over. Descriptor: the slab, read-only.
    Slab {
        /// The rank.
        rank: u32,
        /// Bytes of the slab.
        bytes: u64,
    },
    /// Answer to [`FromRank::Leave`]: the slab is quiet.
    Bye,
}

/// Contents of [`ToRank::Opened`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opened {
    /// Protocol version.
    pub version: u32,
    /// Number of the session within the job; it is in every ring message about it.
    pub session: u16,
    /// Lanes in the inbox: lane 0 is the daemon's, lane 1 + w worker w's.
    pub lanes: u16,
    /// Messages that each lane holds; a power of two.
    pub lane_capacity: u32,
    /// Messages that the feedback ring holds; a power of two.
    pub feedback_capacity: u32,
    /// Index of this rank's parked flag in the hints segment.
    pub bell: u16,
    /// Steps in an epoch.
    pub steps: u32,
    /// Samples in the manifest that can be delivered.
    pub samples: u64,
    /// Process id of the daemon, for messages.
    pub daemon_pid: i32,
}

/// A sample that could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BadSample {
    /// Row in the manifest.
    pub sample: u64,
    /// Its path.
    pub path: String,
    /// Epoch.
    pub epoch: u32,
    /// Step.
    pub step: u32,
    /// Where it failed: `open`, `read`, `demux`, `decode`, `transform`, `memory`, `stuck` or `worker`.
    pub stage: String,
    /// Why.
    pub reason: String,
}

/// What a worker says to the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromWorker {
    /// First packet: "I am the worker for this slot of that job".
    Introduce {
        /// Protocol version.
        version: u32,
        /// The job's name.
        job: String,
        /// Slot of the worker in the job, from 0.
        slot: u16,
        /// The secret that the daemon gave to whoever starts this worker.
        token: String,
    },
    /// Why a ticket failed; sent before its [`super::message::kind::FAILED`].
    BadSample {
        /// The ticket's number.
        ticket: u64,
        /// See [`BadSample::stage`].
        stage: String,
        /// See [`BadSample::reason`].
        reason: String,
    },
    /// Answer to [`ToWorker::Detach`]: no mapping of the slab is left.
    Detached {
        /// The session.
        session: u16,
    },
    /// Something the user should know, said once by the daemon however many workers say it.
    Notice {
        /// The line.
        text: String,
    },
}

/// What the daemon says to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToWorker {
    /// The worker is in. Descriptors: link segment, hints segment, worker's bell, daemon's bell.
    Welcome {
        /// Protocol version.
        version: u32,
        /// Messages that each of the two rings of the link holds.
        link_capacity: u32,
        /// Index of this worker's parked flag in the hints segment.
        bell: u16,
        /// Cores to run on; empty = wherever the system likes.
        cores: Vec<u32>,
        /// Whether to close the sandbox before the first ticket; not for a program of the user's own.
        sandbox: bool,
        /// Most private memory, bytes; not for a program of the user's own.
        memory: u64,
    },
    /// Tickets of this session may follow. Descriptors: slab, inbox segment, rank's bell, manifest.
    Attach {
        /// The session.
        session: u16,
        /// Bytes of the slab.
        slab_bytes: u64,
        /// Lanes in the inbox; the worker's own is 1 + its slot.
        lanes: u16,
        /// Messages a lane holds.
        lane_capacity: u32,
        /// Index of the rank's parked flag in the hints segment.
        bell: u16,
        /// Path of the manifest, for messages.
        manifest: String,
        /// What decides the stream.
        stream: Box<StreamOptions>,
    },
    /// What the program of the user's own needs for an epoch of a session. Descriptor: what the rank gave.
    Brief {
        /// The session.
        session: u16,
        /// The epoch.
        epoch: u32,
    },
    /// No more tickets of this session come; unmap its slab and say [`FromWorker::Detached`].
    Detach {
        /// The session.
        session: u16,
    },
}

/// What the daemon says to a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToTool {
    /// The state of everything that the asking user may see.
    Status {
        /// Counters and tables; grows with versions, so it is free-form.
        status: serde_json::Value,
    },
}

/// First packet of any connection, to tell who is speaking.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum First {
    /// A rank joins.
    Rank(FromRank),
    /// A worker introduces itself.
    Worker(FromWorker),
    /// A tool asks.
    Tool(FromTool),
}
