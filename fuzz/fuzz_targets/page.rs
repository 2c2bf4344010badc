//! Any bytes on a status page: a page or none, and text that cannot steer a terminal.
#![no_main]

#[path = "../bodies/page.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::run(bytes));
