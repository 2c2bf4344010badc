//! The status page of whole processes: `helix top` tells how a daemon is, whatever it does. One test, since the page
//! is the user's, and a daemon that is stopped or killed is seen by everyone.
#![cfg(feature = "decode")]

mod common;
#[path = "e2e/harness.rs"]
#[allow(dead_code, unused_imports, reason = "a part of it is needed here")]
mod harness;
#[path = "e2e/rank.rs"]
mod rank;

use std::process::Command;

use harness::{Daemon, Rank, folder, spec, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What `helix top` says of the daemon with this process id.
fn top(pid: u32) -> Option<serde_json::Value> {
    let out = Command::new(env!("CARGO_BIN_EXE_helix")).args(["top", "--once", "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    report["jobs"].as_array().unwrap().iter().find(|job| job["pid"] == pid).cloned()
}

fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid as i32), signal).unwrap();
}

#[test]
fn top_tells_a_daemon_that_works_from_one_that_is_stopped_and_from_one_that_was_killed() {
    let (here, there) = (folder(), folder());
    let (mut first, second) = (Daemon::start(here.path()), Daemon::start(there.path()));
    let (pid, other) = (first.child.id(), second.child.id());
    let mut paced = spec(&first.socket, 0, 1);
    paced.paced = true;
    let mut rank = Rank::start(&paced);
    for _ in 0..3 {
        rank.step();
        rank.hear_batch();
    }
    wait_for("the rank's steps", || top(pid).is_some_and(|job| job["ranks"][0]["steps"].as_u64() >= Some(2)));
    let job = top(pid).unwrap();
    let shown = &job["ranks"][0];
    assert_eq!((&job["embedded"], &shown["rank"], &shown["loader"]), (&0.into(), &0.into(), &"train".into()));
    assert_eq!((&shown["pid"], &shown["copied"]), (&rank.child.id().into(), &0.into()));
    assert_eq!(shown["slab"], 4 << 20);
    assert!(shown["used"].as_u64() > Some(0) && job["done"].as_u64() >= Some(9), "{job}");
    assert_eq!(job["workers"].as_array().unwrap().len(), 2);
    assert!(job["predicted"].as_u64() > Some(0) && job["prediction_error"].as_f64() > Some(0.0), "{job}");
    assert_eq!(top(other).unwrap()["job"], "", "another daemon of the user is on the same page");

    signal(pid, Signal::SIGSTOP);
    wait_for("the daemon to be stopped", || top(pid).is_some_and(|job| job["daemon"] == "stopped"));
    assert_eq!(top(pid).unwrap()["ranks"][0]["loader"], "train", "what it showed last");
    assert_eq!(top(other).unwrap()["daemon"], "well");
    signal(pid, Signal::SIGCONT);
    wait_for("the daemon to go on", || top(pid).is_some_and(|job| job["daemon"] == "well"));

    signal(pid, Signal::SIGKILL);
    first.child.wait().unwrap();
    // Its rank starts another daemon, which clears the page: before that it is known as dead, and after it gone.
    assert!(top(pid).is_none_or(|job| job["daemon"] == "gone"));
    let third = folder();
    let third = Daemon::start(third.path());
    assert_eq!(top(pid), None, "the next daemon clears what the dead one left");
    assert_eq!(top(third.child.id()).unwrap()["daemon"], "well");
    drop(rank);
}
