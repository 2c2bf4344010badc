//! The worker's work: from a descriptor to numbers in the batch's place.
//!
//! A sample passes through the files in this order: [`sampling`](crate::proto::sampling) says which frames, [`plan`]
//! which bytes, [`read`] fetches them while the sample before is decoded, [`video`] decodes and resizes only the frames
//! asked for, [`pixels`] writes them once, and `audio` puts the sound of their time behind them. Decoders without FFmpeg
//! come in by a [`canvas`]. [`key`] is the only source of randomness. All that happens in a [`sandbox`].
//! Unsafe code lives in `ffi`, `sws`, `avio` and `read::uring` alone. The room knows the manifest's descriptor and the
//! transform; it must not know ranks, slabs, tickets or time.

mod audio;
mod avio;
pub mod canvas;
pub mod colour;
mod crop;
mod damage;
mod decoders;
pub mod emulated;
mod ffi;
mod input;
mod orient;
#[cfg(test)]
mod picture_tests;
pub mod pixels;
pub mod plan;
pub mod read;
#[cfg(test)]
mod reference;
pub mod sandbox;
mod scale;
mod sws;
mod target;
#[cfg(test)]
mod testing;
pub mod video;
mod webp;
pub mod worker;

use std::fmt;

pub use crate::proto::key::{self, SampleKey};
pub use decoders::Decoders;
pub use input::{Input, MAX_PREFETCH};
pub use read::{Mode, ReadId, Reader, Source};
pub use video::VideoDecoder;

use crate::manifest::descriptor::Descriptor;
use crate::proto::transform::{Span, Transform};

/// What is to be made of a sample.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What is known of it.
    pub descriptor: Descriptor<'a>,
    /// What becomes of it.
    pub transform: &'a Transform,
    /// Its randomness.
    pub key: SampleKey,
    /// Which frames of the output.
    pub span: Span,
}

impl<'a> Request<'a> {
    /// All of a sample.
    pub fn whole(descriptor: Descriptor<'a>, transform: &'a Transform, key: SampleKey) -> Request<'a> {
        Request { descriptor, transform, key, span: transform.whole() }
    }
}

/// What was made of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes written at the start of the output.
    pub written: u64,
    /// Shape of the sample, in the order of the transform's layout.
    pub shape: [u16; 4],
    /// Frames that the codec gave out, wanted or not.
    pub frames_decoded: u32,
    /// What the sample is, where that is not what its descriptor says: the same whichever part of it was made.
    pub actual: Option<Actual>,
}

/// What a sample turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Actual {
    /// Frames of the clip.
    pub frames: u32,
    /// Its duration, milliseconds.
    pub duration_ms: u32,
    /// Width and height in pixels as shown.
    pub shown: (u16, u16),
}

/// Where a sample failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The file is not there, may not be read, or has changed since it was indexed.
    Open,
    /// Its bytes could not be read.
    Read,
    /// Its container could not be taken apart.
    Demux,
    /// Its frames could not be decoded, or are damaged.
    Decode,
    /// Its pixels could not be converted or do not fit.
    Transform,
    /// It asks for more memory than a worker may have.
    Memory,
}

impl Stage {
    /// The name that packets and reports carry.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Open => "open",
            Stage::Read => "read",
            Stage::Demux => "demux",
            Stage::Decode => "decode",
            Stage::Transform => "transform",
            Stage::Memory => "memory",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a sample could not be made. It says nothing of its path, which the reporter knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{stage}: {reason}")]
pub struct SampleError {
    /// Where.
    pub stage: Stage,
    /// Why, in a line.
    pub reason: String,
}

impl SampleError {
    /// An error of a stage.
    pub fn new(stage: Stage, reason: impl Into<String>) -> SampleError {
        SampleError { stage, reason: reason.into() }
    }
}

/// The room's door: turns the bytes of a sample into numbers.
///
/// A program of the user's own that adds an implementation to [`Decoders`] and hands them to [`worker::serve`] is a
/// worker that decodes what FFmpeg does not; see `examples/own_decoder.rs`. With a [`canvas`] every transform is done to
/// what it makes.
///
/// An implementation keeps what is dear to make between calls, and nothing of a sample.
pub trait Decoder {
    /// Writes the sample, or the part of it that is asked for, to the start of `out`, each byte once and none behind
    /// [`Outcome::written`]. A part has the bytes that it would have in the whole.
    ///
    /// On an error the contents of `out` have no meaning. The result depends on `input`'s bytes and `request` alone.
    fn decode(&mut self, input: &Input, request: &Request<'_>, out: &mut [u8]) -> Result<Outcome, SampleError>;
}
