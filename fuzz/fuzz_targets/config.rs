//! Any bytes as a configuration: one that can be used, or an error that names the file.
#![no_main]

#[path = "../bodies/config.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::run(bytes));
