//! The words that processes exchange: ring messages, session packets, and the options both carry.
//!
//! Four layers, one file each:
//! - [`message`]: the 56-byte bodies that travel in ring slots (tickets, done, ready, plan, feedback);
//! - [`session`]: the JSON packets of the Unix socket, sent rarely, each with its file descriptors;
//! - [`page`]: the counters of the status page;
//! - [`options`] and [`transform`]: what the user asks for. Pure data and arithmetic, so that the rank, the
//!   daemon, the workers and the simulator compute the same shapes from the same descriptor; with [`sampling`], which
//!   frames are kept, [`picture`] and [`fit`], their size, [`fields`], how all that a sample has lies in its region, and
//!   [`key`], its randomness;
//! - [`order`]: an epoch's order, where a sampler of the user's own makes it;
//! - [`handover`]: what balancing after decode came to.
//!
//! This room knows nothing else of ours and does no I/O. `docs/protocol.md` is its prose.

pub mod fields;
pub mod fit;
pub mod handover;
pub mod key;
pub mod message;
pub mod options;
pub mod order;
pub mod page;
pub mod picture;
pub mod sampling;
pub mod session;
pub mod transform;

/// Version of everything in this room. Peers of another version are refused with both numbers.
pub const VERSION: u32 = 3;
