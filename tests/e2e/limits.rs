//! Machines that refuse things: it runs, or one clear line says why not and what to change.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::harness::{Daemon, Rank, Said, collect, data, folder, index, rank_command, run, spec};
use crate::rank::Spec;

/// Last word of a rank that is expected to fail.
fn failure(spec: &Spec) -> String {
    let mut rank = Rank::start(spec);
    loop {
        match rank.hear() {
            Some(Said::Err(reason)) => return reason,
            Some(Said::Up | Said::Batch(..)) => {}
            other => panic!("ended with {other:?}"),
        }
    }
}

/// Makes io_uring's system calls fail with EPERM, in this process and its children: what container runtimes do.
fn refuse_io_uring() -> std::io::Result<()> {
    let filter = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // Load the system call's number; 425..=427 are io_uring's; refuse those and allow the rest.
    let mut program = [
        filter(0x20, 0, 0, 0),
        filter(0x35, 0, 2, 425),
        filter(0x25, 1, 0, 427),
        filter(0x06, 0, 0, 0x0005_0000 | libc::EPERM as u32),
        filter(0x06, 0, 0, 0x7fff_0000),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: both calls take what prctl(2) says; the program outlives them.
    let rc = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) | libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program)
    };
    if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn with_io_uring_refused_the_stream_is_the_same() {
    let dir = folder();
    let plain = {
        let daemon = Daemon::start(dir.path());
        run(&[spec(&daemon.socket, 0, 1)])
    };
    let socket = dir.path().join("d.sock");
    let log = std::fs::File::create(dir.path().join("log")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_helix-shmd"));
    command.arg("--socket").arg(&socket).stderr(log);
    // SAFETY: the closure makes two system calls and touches nothing else.
    unsafe { command.pre_exec(refuse_io_uring) };
    let daemon = Daemon::start_as(&mut command, &socket);
    assert_eq!(run(&[spec(&daemon.socket, 0, 1)]), plain);
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("io_uring")).collect();
    assert_eq!(lines.len(), 1, "said once, whatever the number of workers: {log}");
}

#[test]
fn it_runs_with_256_open_files() {
    let dir = folder();
    let socket = dir.path().join("embedded.sock");
    let ranks = (0..4).map(|rank| {
        let mut spec = spec(&socket, rank, 4);
        spec.keep = 3;
        let mut command = rank_command(&spec);
        // SAFETY: setrlimit touches no memory of the parent.
        unsafe {
            command.pre_exec(|| {
                nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, 256, 256)?;
                Ok(())
            });
        }
        Rank::start_as(&mut command)
    });
    assert_eq!(collect(ranks.collect()).len(), 4);
}

#[test]
fn a_slab_larger_than_memory_is_refused_with_the_number_to_change() {
    let dir = folder();
    let mut big = spec(&dir.path().join("x.sock"), 0, 1);
    big.slab_bytes = Some(1 << 45);
    let reason = failure(&big);
    assert!(reason.contains("slab") && reason.contains("35184372088832"), "{reason}");
}

#[test]
fn a_slab_too_small_for_two_batches_is_refused_with_the_number_to_set() {
    let dir = folder();
    let daemon = Daemon::start(dir.path());
    let mut small = spec(&daemon.socket, 0, 1);
    small.slab_bytes = Some(200_000);
    let reason = failure(&small);
    assert!(reason.contains("two batches") && reason.contains("344064"), "{reason}");
}

#[test]
fn ranks_that_want_different_things_are_told_what_differs() {
    let dir = folder();
    let daemon = Daemon::start(dir.path());
    let mut first = spec(&daemon.socket, 0, 2);
    first.paced = true;
    let mut waiting = Rank::start(&first);
    assert_eq!(waiting.hear(), Some(Said::Up));
    let mut other = spec(&daemon.socket, 1, 2);
    other.batch_size = 2;
    assert!(failure(&other).contains("other options"), "batch size");
    let mut twin = spec(&daemon.socket, 0, 2);
    twin.paced = true;
    assert!(failure(&twin).contains("rank 0"), "a rank twice");
}

#[test]
fn a_file_that_vanished_after_indexing_is_named() {
    let dir = folder();
    let daemon = Daemon::start(dir.path());
    let clip = data().good.parent().unwrap().join("good/clip00.mp4");
    let copy = dir.path().join("gone.mp4");
    std::fs::copy(&clip, &copy).unwrap();
    let manifest = dir.path().join("gone.arrow");
    index(std::slice::from_ref(&copy), &manifest);
    std::fs::remove_file(&copy).unwrap();
    let mut gone = spec(&daemon.socket, 0, 1);
    (gone.manifest, gone.batch_size) = (manifest, 1);
    let reason = failure(&gone);
    assert!(reason.contains("gone.mp4") && reason.contains("open"), "{reason}");
}
