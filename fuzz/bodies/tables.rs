//! A slab's table in the daemon hears what no honest worker or rank says.

/// One input.
pub fn run(bytes: &[u8]) {
    helix_shm::daemon::fuzz::tables(bytes);
}
