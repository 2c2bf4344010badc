//! The rank's side: connect, prefetch, order, batch, state.
//!
//! A [`Loader`] owns the rank's slab and a background thread. The thread (`collect`) drains the lanes of the inbox,
//! checks every message against the rank's own table (`table`), and queues finished batches in step order; a
//! [`Batch`] is a lease on a block of the slab, and the account of leases (`ledger`) sends each block's one Release.
//! `handed` is what comes from other ranks' slabs; `session` is the handshake with a daemon, `embed` finds or starts one.
//!
//! This room knows ring, device, manifest and proto. It must not know how the daemon decides or a worker decodes,
//! and it believes neither: what contradicts the table is an error value.

mod batch;
mod collect;
mod embed;
mod error;
mod fields;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod handed;
mod ledger;
mod loader;
#[cfg(test)]
mod loss_tests;
mod options;
mod quarantine;
mod session;
mod shared;
mod status;
mod store;
mod table;
mod tensor;
mod tokens;

pub use batch::Batch;
pub use embed::DialError;
pub use error::{ConnectError, LoaderError};
pub use fields::{Ragged, Sound};
pub use loader::{Loader, Stats};
pub use options::{Options, State};
pub use status::status;
pub use table::Violation;
pub use tensor::{BatchError, Tensor, TensorMut};
