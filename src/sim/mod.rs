//! The scheduler under a virtual clock: what a machine of another size, or another policy, would do.
//!
//! The engine is the daemon's own; only the driver differs. [`workload`] draws clips from a workload's
//! distributions into a [`job`], which a manifest can be made into as well; [`setup`] says what is simulated, [`layout`]
//! where ranks and workers are, on one machine or several; [`machine`] is the box (workers that decode, ranks that
//! compute and wait for each other), [`metrics`] the arithmetic, with the bounds that no loader can beat, [`replay`]
//! makes a job of a recorded run. This room knows `sched` and `proto`; it does no I/O and is a pure function of
//! workload, set-up and seed.

pub mod job;
pub mod layout;
pub mod machine;
pub mod metrics;
mod random;
pub mod replay;
pub mod setup;
pub mod workload;

pub use job::{Job, Pace};
pub use layout::{Layout, Node};
pub use machine::{simulate, simulate_recorded};
pub use metrics::{Bounds, Outcome, Placed, Share};
pub use replay::{BadRecording, Recording};
pub use setup::{Contention, Link, Setup, System};
pub use workload::{BadSuite, Suite, Workload};

#[cfg(test)]
mod tests;
