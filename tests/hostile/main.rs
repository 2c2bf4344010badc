//! Hostile peers: whatever a process of one job does with all that it was given, the other jobs of the daemon get
//! their streams, and the daemon lives on as it was.
#![cfg(feature = "decode")]

mod attacks;
#[path = "../common/mod.rs"]
mod common;
#[path = "../e2e/harness.rs"]
#[allow(dead_code, unused_imports, reason = "a part of it is needed here")]
mod harness;
mod intruder;
#[path = "../e2e/rank.rs"]
mod rank;
mod users;
