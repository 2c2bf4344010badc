//! A rank's table hears what no honest daemon or worker says.
#![no_main]

#[path = "../bodies/client.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::run(bytes));
