//! A rank's table hears what no honest daemon or worker says.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| helix_shm::client::fuzz::table(bytes));
