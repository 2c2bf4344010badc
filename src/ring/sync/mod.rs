//! The only place that knows loom: atomics, fences and the memory they live in.
//!
//! In production a [`Memory`] is a shared mapping. Under the feature `loom` it is a heap of loom's atomics, so that
//! the models run the very code of the ring and the bell. [`point`] and [`fence`] carry a name: under loom the
//! environment variable `HELIX_MUTANT` weakens the one so named, and a model must fail. [`step`] is a place where a
//! model may let the process die. In production all three are nothing but their ordering.

#[cfg(feature = "loom")]
mod model;
#[cfg(not(feature = "loom"))]
mod real;

/// New memory with the memfd behind it, which a model has not; or the step that failed, and how.
type Created = Result<(std::sync::Arc<Memory>, Option<std::os::fd::OwnedFd>), (&'static str, nix::errno::Errno)>;

#[cfg(feature = "loom")]
pub use model::*;
#[cfg(not(feature = "loom"))]
pub use real::*;
