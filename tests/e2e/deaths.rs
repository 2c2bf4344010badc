//! Any process may die at any moment, and nothing is lost, repeated or leaked.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::harness::{
    Daemon, Rank, Said, Stream, alive, folder, kill, rank_command, run, spec, status, wait_for, workers,
};
use crate::rank::Spec;

const WORLD: u32 = 2;

/// Steps all ranks of a paced run together, calling `between` after each step.
pub fn march(ranks: &mut [Rank], between: impl FnMut(u32, &mut [Rank])) -> Stream {
    let (stream, copied) = march_copying(ranks, between);
    assert_eq!(copied, 0);
    stream
}

/// As [`march`], where bytes may be copied.
fn march_copying(ranks: &mut [Rank], mut between: impl FnMut(u32, &mut [Rank])) -> (Stream, u64) {
    let (mut stream, mut all) = (Stream::new(), 0);
    for n in 0.. {
        ranks.iter_mut().for_each(Rank::step);
        let mut over = true;
        for at in 0..ranks.len() {
            loop {
                match ranks[at].hear() {
                    Some(Said::Up) => {}
                    Some(Said::Batch(epoch, step, samples)) => {
                        let world = ranks.len();
                        stream.entry((epoch, step)).or_insert_with(|| vec![Vec::new(); world])[at] = samples;
                        over = false;
                        break;
                    }
                    Some(Said::End(copied)) => {
                        all += copied;
                        break;
                    }
                    other => panic!("rank {at} said {other:?} after {n} steps"),
                }
            }
        }
        if over {
            break;
        }
        between(n, ranks);
    }
    (stream, all)
}

pub fn paced(daemon_socket: &std::path::Path, change: impl Fn(&mut Spec)) -> Vec<Spec> {
    let one = |rank| {
        let mut spec = spec(daemon_socket, rank, WORLD);
        spec.paced = true;
        change(&mut spec);
        spec
    };
    (0..WORLD).map(one).collect()
}

#[test]
fn fifty_killed_workers_change_nothing_in_the_stream() {
    let dir = folder();
    let daemon = Daemon::start(dir.path());
    let mut rng = ChaCha8Rng::seed_from_u64(50);
    let mut kills = 0;
    for epoch in 0..16 {
        let undisturbed = run(&paced(&daemon.socket, |s| (s.epoch, s.paced) = (epoch, false)));
        let specs = paced(&daemon.socket, |s| s.epoch = epoch);
        let mut ranks: Vec<_> = specs.iter().map(Rank::start).collect();
        let stream = march(&mut ranks, |_, _| {
            if rng.next_u32() % 2 == 0 {
                let pids = workers(&daemon.socket);
                if let Some(&pid) = pids.get(rng.next_u32() as usize % pids.len().max(1)) {
                    kill(pid);
                    kills += 1;
                }
            }
        });
        assert_eq!(stream, undisturbed, "epoch {epoch} after {kills} kills");
    }
    assert!(kills >= 50, "only {kills} kills");
}

#[test]
fn killed_workers_change_nothing_in_a_stream_of_clips_in_parts() {
    let dir = folder();
    let daemon = Daemon::start(dir.path());
    let mut rng = ChaCha8Rng::seed_from_u64(51);
    let (mut kills, mut reissued) = (0, 0);
    let stats = |name: &str| status(&daemon.socket).and_then(|s| s["jobs"][0]["stats"][name].as_u64()).unwrap_or(0);
    for epoch in 0..4 {
        let undisturbed =
            run(&paced(&daemon.socket, |s| (s.epoch, s.paced, s.spread, s.split_ms) = (epoch, false, true, 0)));
        let change =
            |s: &mut Spec| (s.epoch, s.spread, s.split_ms, s.workers, s.max_batches) = (epoch, true, 1, 3, 2);
        let mut ranks: Vec<_> = paced(&daemon.socket, change).iter().map(Rank::start).collect();
        let stream = march(&mut ranks, |_, _| {
            let pids = workers(&daemon.socket);
            if let Some(&pid) = pids.get(rng.next_u32() as usize % pids.len().max(1)) {
                kill(pid);
                kills += 1;
            }
            reissued = reissued.max(stats("reissued").min(stats("parts")));
        });
        assert_eq!(stream, undisturbed, "epoch {epoch} after {kills} kills");
    }
    assert!(kills >= 20 && reissued > 0, "only {kills} kills, {reissued} tickets done again");
}

#[test]
fn a_killed_daemon_is_replaced_in_the_middle_of_clips_in_parts() {
    let dir = folder();
    let socket = dir.path().join("embedded.sock");
    let undisturbed = {
        let dir = folder();
        let daemon = Daemon::start(dir.path());
        run(&paced(&daemon.socket, |s| (s.paced, s.spread, s.split_ms) = (false, true, 0)))
    };
    let specs = paced(&socket, |s| (s.keep, s.max_batches, s.spread, s.split_ms, s.workers) = (1, 3, true, 1, 3));
    let mut ranks: Vec<_> = specs.iter().map(Rank::start).collect();
    let stream = march(&mut ranks, |n, _| {
        if n == 1 || n == 3 {
            wait_for("a daemon to answer", || status(&socket).is_some());
            kill(status(&socket).and_then(|s| s["pid"].as_i64()).unwrap() as i32);
        }
    });
    assert_eq!(stream, undisturbed);
}

#[test]
fn a_worker_that_is_stopped_does_not_stall_the_stream() {
    let dir = folder();
    let daemon = Daemon::start(dir.path());
    // Room for two batches: there is none to go around whoever is stuck.
    let tight = Some(344_064);
    for (split_ms, slab) in [(0, Some(4 << 20)), (1, Some(4 << 20)), (0, tight)] {
        let undisturbed = run(&paced(&daemon.socket, |s| (s.paced, s.spread, s.split_ms) = (false, true, 0)));
        let change = |s: &mut Spec| {
            (s.spread, s.split_ms, s.workers, s.max_batches, s.slab_bytes) = (true, split_ms, 3, 2, slab);
            s.hedge = true;
        };
        let mut ranks: Vec<_> = paced(&daemon.socket, change).iter().map(Rank::start).collect();
        let (mut stopped, mut hedged) = (Vec::new(), 0);
        let (stream, copied) = march_copying(&mut ranks, |n, _| {
            let stats = status(&daemon.socket).unwrap();
            hedged = hedged.max(stats["jobs"][0]["stats"]["hedged"].as_u64().unwrap_or(0));
            if n == 1 || n == 3 {
                let pid = workers(&daemon.socket)[n as usize / 2];
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGSTOP).unwrap();
                stopped.push(pid);
            }
        });
        assert_eq!(stream, undisturbed);
        assert!(hedged > 0 || slab == tight, "nothing was given to a second worker");
        // Whole samples are where their second workers wrote them; only what came in parts may have to be joined.
        assert!(split_ms > 0 || copied == 0, "{copied} bytes copied");
        drop(ranks);
        // What they might write to is needed, so they were ended.
        wait_for("the stopped workers to end", || stopped.iter().all(|&pid| !alive(pid)));
    }
}

#[test]
fn a_killed_rank_ends_the_others_with_an_error_that_names_it() {
    let dir = folder();
    let daemon = Daemon::start(dir.path());
    // Few batches ahead, so that the other rank cannot reach its end before the death is noticed.
    let specs = paced(&daemon.socket, |s| s.max_batches = 2);
    let mut ranks: Vec<_> = specs.iter().map(Rank::start).collect();
    for rank in &mut ranks {
        rank.step();
        rank.hear_batch();
    }
    kill(ranks[1].child.id() as i32);
    ranks[1].child.wait().unwrap();
    let reason = loop {
        ranks[0].step();
        match ranks[0].hear() {
            Some(Said::Err(reason)) => break reason,
            Some(_) => {}
            None => panic!("rank 0 ended without an error"),
        }
    };
    assert!(reason.contains("rank 1"), "{reason}");
    // No slab is accounted for any more, and the job's processes are gone.
    let left = workers(&daemon.socket);
    wait_for("the job to end", || status(&daemon.socket).unwrap()["jobs"].as_array().unwrap().is_empty());
    wait_for("its workers to end", || left.iter().all(|&pid| !alive(pid)));
    // All ranks can come back where they were.
    let rest = run(&paced(&daemon.socket, |s| (s.step, s.paced) = (1, false)));
    assert_eq!(rest.len(), 7);
}

#[test]
fn a_killed_daemon_is_replaced_and_the_stream_goes_on() {
    let dir = folder();
    let undisturbed = {
        let dir = folder();
        let daemon = Daemon::start(dir.path());
        run(&paced(&daemon.socket, |s| s.paced = false))
    };
    let socket = dir.path().join("embedded.sock");
    // Few batches ahead, so that the ranks need a daemon to the end.
    let specs = paced(&socket, |s| (s.keep, s.max_batches) = (1, 3));
    let mut ranks: Vec<_> = specs.iter().map(Rank::start).collect();
    let mut daemons = BTreeMap::new();
    let stream = march(&mut ranks, |n, _| {
        if n == 1 || n == 4 {
            wait_for("a daemon to answer", || status(&socket).is_some());
            let pid = status(&socket).and_then(|s| s["pid"].as_i64()).unwrap();
            daemons.insert(pid, workers(&socket));
            kill(pid as i32);
        }
    });
    assert_eq!(stream, undisturbed);
    assert_eq!(daemons.len(), 2, "two daemons were killed");
    drop(ranks);
    wait_for("the workers of the killed daemons to end", || daemons.values().flatten().all(|&pid| !alive(pid)));
    wait_for("the last daemon to remove its socket", || !socket.exists());
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert!(left.is_empty(), "files left behind: {left:?}");
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    let dir = folder();
    let socket = dir.path().join("embedded.sock");
    let specs = paced(&socket, |_| ());
    let mut ranks: Vec<_> = specs.iter().map(|spec| Rank::start_as(rank_command(spec).process_group(0))).collect();
    for rank in &mut ranks {
        rank.step();
        rank.hear_batch();
    }
    let daemon = status(&socket).unwrap()["pid"].as_i64().unwrap() as i32;
    let pids = workers(&socket);
    for rank in &ranks {
        let group = nix::unistd::Pid::from_raw(rank.child.id() as i32);
        nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGINT).unwrap();
    }
    wait_for("daemon and workers to end", || !alive(daemon) && pids.iter().all(|&pid| !alive(pid)));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert!(left.is_empty(), "files left behind: {left:?}");
}

#[test]
fn a_rank_that_leaves_before_all_are_in_ends_the_wait_of_the_others() {
    let dir = folder();
    let daemon = Daemon::start(dir.path());
    let mut waiting = spec(&daemon.socket, 0, 3);
    waiting.paced = true;
    let mut first = Rank::start(&waiting);
    assert_eq!(first.hear(), Some(Said::Up));
    first.step();
    let mut leaving = spec(&daemon.socket, 1, 3);
    leaving.steps = 0;
    let mut second = Rank::start(&leaving);
    assert_eq!(second.hear(), Some(Said::Up));
    match first.hear() {
        Some(Said::Err(reason)) => assert!(reason.contains("rank 1") && reason.contains("left"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_worker_that_is_killed_but_not_gone_keeps_nobody_else_waiting() {
    let dir = folder();
    let daemon = Daemon::start(dir.path());
    let mut ranks: Vec<_> = paced(&daemon.socket, |_| ()).iter().map(Rank::start).collect();
    for rank in &mut ranks {
        rank.step();
        rank.hear_batch();
    }
    wait_for("the workers", || workers(&daemon.socket).len() == 2);
    // Whom a debugger has seized its parent cannot reap until the debugger lets go: as a worker in an uninterruptible
    // wait, it is killed and is not gone.
    let seized: Vec<_> = workers(&daemon.socket).into_iter().map(nix::unistd::Pid::from_raw).collect();
    for pid in &seized {
        if let Err(e) = nix::sys::ptrace::seize(*pid, nix::sys::ptrace::Options::empty()) {
            println!("skipped: no process may be seized here: {e}");
            return;
        }
    }
    drop(ranks);
    wait_for("the job to end", || status(&daemon.socket).is_some_and(|s| s["jobs"].as_array().unwrap().is_empty()));
    assert_eq!(run(&paced(&daemon.socket, |s| s.paced = false)).len(), 8, "other jobs are served meanwhile");
    for pid in seized {
        let _ = nix::sys::wait::waitpid(pid, None);
    }
}
