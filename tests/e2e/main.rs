//! The main job end to end: real clips, the real daemon and worker processes, ranks in processes of their own.
//!
//! A rank process is this test binary again, started on the test `rank_process` (see `rank`).
#![cfg(feature = "decode")]

mod bad;
#[path = "../common/mod.rs"]
mod common;
mod deaths;
mod handed;
mod harness;
mod limits;
mod rank;
mod stream;
