//! Shared memory made safe: segments and slabs, SPSC rings, doorbells, and descriptors over a socket.
//!
//! Knows nothing else of ours: messages are seven words, peers are numbers. Trusts nothing that it reads back from
//! shared memory: every word there is an atomic, every value read is checked, and what does not fit is an error
//! value. It must not allocate regions, judge who is alive, or interpret a message.
//!
//! There is no lease type. A batch is let go exactly once, by the last of its holders: that is an `Arc` of a value
//! whose `Drop` pushes the release. The count orders every holder's last read before that drop, and
//! [`spsc::Producer::push`] orders the drop before whatever the receiver of the message does to the memory;
//! `tests/loom_ring.rs` proves the two together.

pub mod bell;
pub mod board;
pub mod eventfd;
pub mod fds;
#[cfg(not(feature = "loom"))]
pub mod receive;
pub mod segment;
pub mod slab;
pub mod spsc;
pub mod topology;

mod budget;
pub(crate) mod cgroup;
#[cfg(test)]
pub(crate) mod fixture;
mod mapping;
mod memfd;
mod pages;
mod reserve;
mod sync;

/// For the models alone: how they let a process die.
#[cfg(feature = "loom")]
pub use sync::{Death, die_at};
