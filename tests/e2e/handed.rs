//! Samples that were handed over to another rank, and deaths of all who have to do with it.

use std::fs::File;
use std::path::{Path, PathBuf};

use helix_shm::manifest::Writer;

use crate::common::{Slow, emulate};
use crate::deaths::{march, paced};
use crate::harness::{Daemon, Rank, Said, Stream, folder, kill, run, status, wait_for};
use crate::rank::Spec;

const ROWS: u64 = 48;

/// Clips that last longer or shorter than their index says.
fn manifest(folder: &Path) -> PathBuf {
    let path = folder.join("data.arrow");
    let mut writer = Writer::new(File::create(&path).unwrap(), "{}").unwrap();
    let row = |n: u64| Slow {
        said_ms: 100 + n * 37 % 500,
        text: format!("{} {}", 300 + n % 5 * 200, 100 + n * 131 % 2000),
    };
    emulate(&mut writer, &folder.join("bytes"), (0..ROWS).map(row));
    writer.finish().unwrap();
    path
}

fn specs(socket: &Path, data: &Path, change: impl Fn(&mut Spec)) -> Vec<Spec> {
    paced(socket, |s| {
        (s.manifest, s.handed, s.max_batches, s.keep) = (data.to_path_buf(), true, 4, 2);
        change(s);
    })
}

fn undisturbed(data: &Path) -> Stream {
    let dir = folder();
    let daemon = Daemon::start(dir.path());
    let stream = run(&specs(&daemon.socket, data, |s| s.paced = false));
    let plain = run(&specs(&daemon.socket, data, |s| (s.paced, s.handed) = (false, false)));
    assert_ne!(stream, plain, "samples change ranks");
    let all = |step: &Vec<Vec<String>>| {
        let mut all = step.concat();
        all.sort();
        all
    };
    assert!(stream.iter().all(|(at, step)| all(step) == all(&plain[at])), "the same samples in each step");
    stream
}

fn handed(socket: &Path) -> u64 {
    status(socket).and_then(|s| s["jobs"][0]["stats"]["handed"].as_u64()).unwrap_or(0)
}

/// Takes steps until samples were handed over, and answers how many.
fn until_handed(socket: &Path, ranks: &mut [Rank]) -> u32 {
    for steps in 1.. {
        // All before any is heard: each waits for the others' samples.
        ranks.iter_mut().for_each(Rank::step);
        ranks.iter_mut().for_each(|rank| drop(rank.hear_batch()));
        if steps >= 2 && handed(socket) > 0 {
            return steps;
        }
    }
    0
}

/// One rank dies while both hold samples of the other: it is named, nothing is left in use, and all come back.
fn a_rank_dies(victim: usize) {
    let dir = folder();
    let data = manifest(dir.path());
    let whole = undisturbed(&data);
    let daemon = Daemon::start(dir.path());
    let mut ranks: Vec<_> = specs(&daemon.socket, &data, |_| ()).iter().map(Rank::start).collect();
    let steps = until_handed(&daemon.socket, &mut ranks);
    kill(ranks[victim].child.id() as i32);
    ranks[victim].child.wait().unwrap();
    let other = 1 - victim;
    let reason = loop {
        ranks[other].step();
        match ranks[other].hear() {
            Some(Said::Err(reason)) => break reason,
            Some(Said::Batch(..)) => {}
            said => panic!("rank {other} said {said:?}, and no error"),
        }
    };
    assert!(reason.contains(&format!("rank {victim} died")), "{reason}");
    wait_for("the job to end", || status(&daemon.socket).is_some_and(|s| s["jobs"].as_array().unwrap().is_empty()));
    let rest = run(&specs(&daemon.socket, &data, |s| (s.step, s.paced) = (steps, false)));
    assert_eq!(rest, whole.into_iter().filter(|((_, step), _)| *step >= steps).collect());
}

#[test]
fn the_first_of_two_that_hold_each_others_samples_dies() {
    a_rank_dies(0);
}

#[test]
fn the_second_of_two_that_hold_each_others_samples_dies() {
    a_rank_dies(1);
}

#[test]
fn a_daemon_that_dies_while_samples_are_lent_is_replaced_and_nothing_is_torn() {
    let dir = folder();
    let data = manifest(dir.path());
    let whole = undisturbed(&data);
    let socket = dir.path().join("embedded.sock");
    let mut ranks: Vec<_> = specs(&socket, &data, |_| ()).iter().map(Rank::start).collect();
    let mut killed = 0;
    let stream = march(&mut ranks, |n, _| {
        if matches!(n, 1 | 2 | 4) {
            wait_for("a daemon to answer", || status(&socket).is_some());
            kill(status(&socket).and_then(|s| s["pid"].as_i64()).unwrap() as i32);
            killed += 1;
        }
    });
    assert_eq!((stream, killed), (whole, 3));
}
