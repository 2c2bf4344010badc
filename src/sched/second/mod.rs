//! Balance after decode: what a sample really costs is known now, and may differ from what it was dealt by.
//!
//! [`plan()`] says which samples go to which rank instead, if that gains more than moving them takes; `matching` keeps
//! re-dealt parts where most of their bytes lie. A sample that is still in host memory changes hands by its
//! descriptor and no byte moves; one that is on a device is copied. This room is pure: all ranks compute the plan from
//! the same figures, and compare [`Plan::digest`] before anything is sent. It moves nothing itself. `step` makes the
//! figures of a stream's step, and of the plan what all ranks keep.

mod matching;
mod plan;
mod step;
#[cfg(test)]
mod tests;

pub use plan::{Counts, How, Item, Move, Plan, Site, Terms, plan};
pub use step::{Found, balanced};
