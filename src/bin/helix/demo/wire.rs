//! What the demo and its ranks say to each other: a JSON line each, on the rank's stdin and stdout.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::Duration;

use helix_shm::proto::options::{RunOptions, StreamOptions};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// To a rank: first what it is, then a line for each step it may begin. End of file means that the run is over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum ToRank {
    /// First line.
    Be(Box<RankSpec>),
    /// All ranks have ended the step before: the barrier opens.
    Go,
}

/// What a rank is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankSpec {
    pub(crate) rank: u32,
    pub(crate) job: String,
    pub(crate) manifest: PathBuf,
    pub(crate) stream: StreamOptions,
    pub(crate) run: RunOptions,
    pub(crate) slab_bytes: u64,
    /// Steps to run; the stream is longer, so that decoding does not run dry at the end.
    pub(crate) steps: u32,
    /// The emulated accelerator's time for a token, nanoseconds.
    pub(crate) ns_per_token: f64,
}

/// From a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum FromRank {
    /// The loader is open and the rank waits for the first [`ToRank::Go`].
    Joined {
        /// The daemon that serves it, to see that it ends with the job.
        daemon: i32,
    },
    /// A step has ended; the rank waits at the barrier.
    Step(StepReport),
    /// A sample could not be decoded.
    Bad(BadClip),
    /// The loader is closed in good order.
    Left {
        /// Bytes copied on the host after decoding.
        copied: u64,
        /// Bytes uploaded.
        uploaded: u64,
    },
    /// The iteration ended with an error.
    Failed(String),
}

/// One rank's part of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepReport {
    pub(crate) rank: u32,
    pub(crate) step: u32,
    /// From asking for the batch to having it.
    pub(crate) wait: Duration,
    pub(crate) samples: Vec<Sample>,
    pub(crate) skipped: u32,
    /// How much longer uploading and hashing took than the emulated compute; zero unless steps are very short.
    pub(crate) late: Duration,
}

/// A sample that was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Row in the manifest.
    pub(crate) id: u64,
    /// The rank that the sampler dealt it to.
    pub(crate) home: u32,
    /// Its time on the emulated accelerator.
    pub(crate) compute: Duration,
    /// 128-bit xxh3 of its numbers as they arrived on the device.
    pub(crate) pixels: [u64; 2],
}

impl Sample {
    /// One hash of what it is and how it looks.
    pub(crate) fn hash(&self) -> u128 {
        let mut bytes = [0; 24];
        for (to, word) in bytes.chunks_exact_mut(8).zip([self.id, self.pixels[0], self.pixels[1]]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        xxhash_rust::xxh3::xxh3_128(&bytes)
    }
}

/// A sample that could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct BadClip {
    pub(crate) sample: u64,
    pub(crate) path: String,
    pub(crate) stage: String,
    pub(crate) reason: String,
}

/// Sends a line.
pub(crate) fn send(to: &mut impl Write, message: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Receives a line; `None` at the end of the file.
pub(crate) fn receive<T: DeserializeOwned>(from: &mut impl BufRead) -> std::io::Result<Option<T>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_survive_the_pipe() {
        let sample = Sample { id: 7, home: 1, compute: Duration::from_millis(3), pixels: [u64::MAX, 5] };
        let report = StepReport {
            rank: 1,
            step: 2,
            wait: Duration::ZERO,
            samples: vec![sample],
            skipped: 1,
            late: Duration::ZERO,
        };
        let messages = [FromRank::Joined { daemon: 4 }, FromRank::Step(report), FromRank::Failed("a\nb".into())];
        let mut pipe = Vec::new();
        for message in &messages {
            send(&mut pipe, message).unwrap();
        }
        let mut pipe = &pipe[..];
        for message in messages {
            assert_eq!(receive::<FromRank>(&mut pipe).unwrap(), Some(message));
        }
        assert_eq!(receive::<FromRank>(&mut pipe).unwrap(), None);
    }
}
