//! Any packet of the socket: one of the protocol or an error; options that pass their check can be calculated with.
#![no_main]

#[path = "../bodies/packets.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::run(bytes));
