//! A rank's table hears what no honest daemon or worker says.

/// One input.
pub fn run(bytes: &[u8]) {
    helix_shm::client::fuzz::table(bytes);
}
