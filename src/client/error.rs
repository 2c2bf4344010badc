//! What can go wrong between a rank and its batches, as values that say what to do.

use std::time::Duration;

use super::embed::DialError;
use super::table::Violation;
use crate::device::DeviceError;
use crate::manifest::{JoinError, ManifestError};
use crate::proto::options::BadOption;
use crate::proto::session::BadSample;
use crate::ring::slab::SlabError;

/// Why a loader could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// An option has a value that cannot be served.
    #[error(transparent)]
    Option(#[from] BadOption),
    /// A variable of the environment cannot be understood.
    #[error("environment variable {name} is `{found}`; wanted {wanted}")]
    Environment {
        /// Its name.
        name: &'static str,
        /// What was in it, or `unset`.
        found: String,
        /// What would do.
        wanted: &'static str,
    },
    /// The manifest cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The manifests cannot be joined.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// There is no memory for the slab.
    #[error(transparent)]
    Slab(#[from] SlabError),
    /// The device does not take the slab.
    #[error("the slab cannot be registered: {0}")]
    Device(#[from] DeviceError),
    /// No daemon could be reached or started.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The daemon does not let the rank in.
    #[error("the daemon refused rank {rank}: {reason}")]
    Refused {
        /// This rank.
        rank: u32,
        /// The daemon's words.
        reason: String,
    },
    /// The daemon answered something that does not follow from what was asked.
    #[error(
        "the daemon's answer to joining is not one of this version: {0}; are client and helix-shmd of one version?"
    )]
    Protocol(String),
    /// The system refused.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Why an iteration ended before its time. Cheap to clone: it is given again to whoever asks again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoaderError {
    /// Another rank of this loader died, so that no step can be completed any more.
    #[error("rank {rank} died: {reason}; restart the job, or join again with all ranks at the state of this loader")]
    RankDied {
        /// The rank.
        rank: u32,
        /// The daemon's words.
        reason: String,
    },
    /// A sample cannot be decoded, and the loader was asked to raise.
    #[error(
        "sample {} ({}) of epoch {}, step {} failed in stage `{}`: {}; repair or remove it, or use on_error = skip",
        .0.sample, .0.path, .0.epoch, .0.step, .0.stage, .0.reason
    )]
    BadSample(Box<BadSample>),
    /// The daemon ended the session.
    #[error("the daemon ended the session: {reason}")]
    Failed {
        /// The daemon's words.
        reason: String,
    },
    /// The daemon is gone and no other took its place.
    #[error("the daemon is gone and could not be replaced: {reason}")]
    DaemonGone {
        /// Why.
        reason: String,
    },
    /// A message that contradicts what this rank knows. Its peer is of another version, broken or hostile.
    #[error("{from} sent what cannot be true: {violation}")]
    Protocol {
        /// Who.
        from: String,
        /// What is wrong with it.
        violation: Violation,
    },
    /// A batch did not come in time.
    #[error(
        "rank {rank} had waited {waited:?} for epoch {epoch}, step {step} when its time limit was over; {missing}"
    )]
    Timeout {
        /// This rank.
        rank: u32,
        /// Epoch.
        epoch: u32,
        /// Step.
        step: u32,
        /// How long.
        waited: Duration,
        /// The samples that are missing, in words.
        missing: String,
    },
    /// A child made by fork() touched a loader of its parent.
    #[error(
        "this loader belongs to process {owner}, and this is its fork()ed child {child}: connect a loader of its \
             own here, or start processes by exec (in Python: the `spawn` start method)"
    )]
    Forked {
        /// The process that made the loader.
        owner: u32,
        /// This process.
        child: u32,
    },
    /// Whoever waited was asked to stop. Nothing is lost: the batch comes with the next call.
    #[error("the wait for a batch was interrupted; it comes when it is asked for again")]
    Interrupted,
    /// The system refused.
    #[error("cannot {doing}: {reason}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        reason: String,
    },
}
