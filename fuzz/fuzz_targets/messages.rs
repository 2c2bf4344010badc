//! Any seven words: a body or an error, and a body says what it was made of.
#![no_main]

#[path = "../bodies/messages.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::run(bytes));
