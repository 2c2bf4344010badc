//! helix-shm
pub mod client;
#[cfg(feature = "decode")]
pub mod daemon;
#[cfg(feature = "decode")]
pub mod decode;
pub mod device;
pub mod manifest;
pub mod proto;
pub mod ring;
pub mod sched;
pub mod sim;
