//! Any bytes as a manifest: rows or an error; and rows that are scribbled over after the file was opened.
#![no_main]

#[path = "../bodies/manifest.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::run(bytes));
