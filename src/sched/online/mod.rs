//! What is learnt while running: how long decoding and steps take. It decides who decodes a sample and when, and
//! never who receives it.
//!
//! - [`fit`]: least squares that forget;
//! - [`margin`]: how far above a prediction one must go to be right as often as wanted;
//! - [`decode`]: time of a ticket, by codec and server;
//! - [`step`]: time of a rank's step, by its cost;
//! - [`transfer`]: time of reading, by server and bytes, and what writing across servers adds;
//! - [`error`]: how wrong all of these are, for the status.

pub mod decode;
pub mod error;
pub mod fit;
pub mod margin;
pub mod step;
pub mod transfer;
