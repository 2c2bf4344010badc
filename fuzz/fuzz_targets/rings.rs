//! Rings and bells in memory that somebody else writes to: messages, errors or false hints.
#![no_main]

#[path = "../bodies/rings.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::run(bytes));
