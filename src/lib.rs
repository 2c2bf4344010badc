//! **helix-shm**: the data plane that keeps the accelerators of a training box fed.
//!
//! A coordinator that sees only light descriptors decides, before anything is decoded, who decodes what by when;
//! worker processes decode straight into the shared memory of the rank that needs it; work is balanced by cost; and
//! the training loop keeps an ordinary loader. It implements DataHelix (preprint 2611.09411v1) for the single server
//! with eight accelerators, and runs on a laptop without any.
//!
//! # The picture
//!
//! ```text
//!             helix-shmd: the coordinator. Metadata only: it never maps bulk memory
//!             ┌──────────────────────────────────────────────────────────┐
//!  manifest ─▶│ order ▸ balance by cost ▸ place by deadline, local first │◀─ feedback: step ends, waits, releases
//!             └──┬──────────────▲────────────────────────────────────────┘                ▲
//!        ticket ring      done ring                                                       │
//!                ▼              │                                                         │
//!    worker processes, one a core, pinned to their NUMA node                        rank processes
//!    io_uring read ▸ FFmpeg decode ▸ transform ──── writes once ────▶ the rank's slab ──▶ batch ▸ upload ▸ step
//!                └───────────── ready ring (worker → rank, direct) ─────────────────▶
//! ```
//!
//! # The words
//!
//! - **descriptor**: what is known of a sample before decoding: source, byte range, codec, frames, key frames.
//! - **server**: the workers of one NUMA node.
//! - **ticket**: decode this descriptor into that region by then; it has an attempt number.
//! - **slab**: a rank's memory segment; **region**: a piece of it, for one sample.
//! - **batch**: what a rank gets: a lease on the regions of one step.
//! - **window**: the time until a rank will ask for a batch.
//!
//! # The rooms, in the order in which a sample passes through them
//!
//! [`manifest`] holds the descriptors, [`sched`] decides, `daemon` carries out, `decode` makes the pixels, [`ring`]
//! is the memory between them, [`client`] hands out batches, [`device`] takes them on. [`proto`] is what they say to
//! each other; `docs/protocol.md` in the repository is its prose.
//!
//! Without the feature `decode` (a default) nothing here needs FFmpeg; `daemon` alone adds the coordinator to the
//! client.

pub mod client;
#[cfg(feature = "decode")]
pub mod corpus;
#[doc(hidden)]
pub mod crash;
#[cfg(feature = "daemon")]
pub mod daemon;
#[cfg(feature = "decode")]
pub mod decode;
pub mod device;
#[cfg(feature = "decode")]
mod ffmpeg;
pub mod foreign;
pub mod manifest;
pub mod proto;
pub mod results;
pub mod ring;
pub mod sched;
pub mod sim;
pub mod status;

pub use client::{Batch, ConnectError, Loader, LoaderError, Options, State};

/// The README's trainer compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
