//! The scheduler under a virtual clock: what a machine of another size, or another policy, would do.
//!
//! The engine is the daemon's own; only the driver differs. [`workload`] draws clips from a workload's
//! distributions, [`machine`] is the box (workers that decode, ranks that compute and wait for each other),
//! [`metrics`] the arithmetic, with the bounds that no loader can beat. This room knows `sched` and `proto`; it
//! does no I/O and is a pure function of workload, set-up and seed.

pub mod machine;
pub mod metrics;
mod random;
pub mod workload;

pub use machine::{Setup, System, simulate};
pub use metrics::{Bounds, Outcome};
pub use workload::{Suite, Workload};

#[cfg(test)]
mod tests;
