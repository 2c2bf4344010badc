//! Descriptors and the manifest that holds them.
//!
//! A [`Manifest`] is a memory-mapped Arrow IPC file with a row a sample: a [`Descriptor`](descriptor::Descriptor), or
//! the reason why there is none. It is made by [`Writer`] (and, with the feature `decode`, by `build`, which gathers
//! samples from folders, tars and lists and probes each) and read by every process without private memory of its own.
//!
//! This room knows `proto::transform` for [`Facts`](crate::proto::transform::Facts) and nothing else of ours. It
//! must not know who schedules or decodes.

mod atomic;
#[cfg(feature = "decode")]
pub mod build;
mod check;
mod column;
pub mod descriptor;
#[cfg(feature = "decode")]
mod drift;
mod error;
mod file;
mod fingerprint;
#[cfg(feature = "decode")]
mod former;
pub mod groups;
pub mod guard;
#[cfg(feature = "decode")]
mod input;
mod join;
mod layout;
#[cfg(feature = "decode")]
pub mod orientation;
#[cfg(feature = "decode")]
pub mod probe;
mod record;
mod schema;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[cfg(feature = "decode")]
pub(crate) mod webp;
mod writer;

pub use atomic::AtomicFile;
pub use error::{ManifestError, WriteError};
pub use file::Manifest;
pub use join::{JoinError, join, join_into};
pub use record::Record;
pub use writer::{Writer, Written};
