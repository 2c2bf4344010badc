//! helix-shm
fn main() {}
