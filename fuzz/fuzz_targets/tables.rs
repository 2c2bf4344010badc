//! A slab's table in the daemon hears what no honest worker or rank says.
#![no_main]

#[path = "../bodies/tables.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::run(bytes));
