//! Attempts to get out of a worker's sandbox, from inside real workers: a decoder that has been taken over tries what
//! an attacker would, and writes what came of it into the batch in place of pixels.
#![allow(missing_docs, reason = "a test")]

#[path = "common/mod.rs"]
mod common;

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Daemon, folder, index, workers};
use helix_shm::corpus::{ClipSpec, clip};
use helix_shm::decode::{Decoder, Input, Outcome, Request, SampleError, Stage, worker};
use helix_shm::proto::options::OnError;
use helix_shm::proto::transform::{Resize, Transform};
use helix_shm::{Loader, Options};

/// Makes this binary a worker.
const VARIABLE: &str = "HELIX_TEST_WORKER";
/// What an attempt came to.
const LET_THROUGH: u8 = 1;
const REFUSED: u8 = 2;
const FAILED_OTHERWISE: u8 = 3;

/// An attempt: its name, and what it does, given the path of the clip that is decoded.
type Attempt = (&'static str, fn(&Path) -> io::Result<()>);

/// What no decoder needs.
const ATTEMPTS: &[Attempt] = &[
    ("a TCP socket", |_| call(|| unsafe_call(libc::SYS_socket, [libc::AF_INET as u64, libc::SOCK_STREAM as u64, 0]))),
    ("a Unix socket", |_| {
        call(|| unsafe_call(libc::SYS_socket, [libc::AF_UNIX as u64, libc::SOCK_STREAM as u64, 0]))
    }),
    ("a new file", |clip| std::fs::File::create(clip.with_file_name("new")).map(drop)),
    ("a file for writing", |clip| std::fs::File::options().write(true).open(clip).map(drop)),
    ("a file's end", |clip| std::fs::File::options().append(true).open(clip).map(drop)),
    ("a file away", |clip| std::fs::remove_file(clip.with_file_name("away"))),
    ("another program", |_| Command::new("/bin/true").status().map(drop)),
    ("this program's replacement", |_| {
        Err(std::os::unix::process::CommandExt::exec(&mut Command::new("/nonexistent")))
    }),
    ("a thread", |_| std::thread::Builder::new().spawn(|| ()).map(drop)),
    ("another process's memory", |_| {
        let parent = u64::from(std::os::unix::process::parent_id());
        call(|| unsafe_call(libc::SYS_ptrace, [libc::PTRACE_SEIZE as u64, parent, 0]))
    }),
    ("a signal to another process", |_| {
        call(|| unsafe_call(libc::SYS_kill, [u64::from(std::os::unix::process::parent_id()), 0, 0]))
    }),
    ("a ring of its own", |_| call(|| unsafe_call(libc::SYS_io_uring_setup, [4, 0, 0]))),
    ("a namespace", |_| call(|| unsafe_call(libc::SYS_unshare, [libc::CLONE_NEWUSER as u64, 0, 0]))),
];

/// What Landlock keeps from a worker.
const OUTSIDE: &[Attempt] = &[
    ("a secret beside the data", |clip| std::fs::read(clip.parent().unwrap().with_file_name("secret")).map(drop)),
    ("the users of the machine", |_| std::fs::read("/etc/passwd").map(drop)),
    ("a link out of the data", |clip| std::fs::read(clip.with_file_name("link.mp4")).map(drop)),
    ("the names in a folder", |_| std::fs::read_dir("/etc").map(drop)),
];

/// What a decoder may do.
const NEEDED: &[Attempt] = &[
    ("the clip", |clip| std::fs::read(clip).map(drop)),
    ("some memory", |_| memory(16 << 20)),
    ("the time", |_| {
        std::thread::sleep(Duration::from_micros(10));
        Ok(())
    }),
];

/// More than the tests let a worker have.
const TOO_MUCH: usize = 1 << 30;

fn call(call: impl Fn() -> i64) -> io::Result<()> {
    if call() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn unsafe_call(number: i64, [a, b, c]: [u64; 3]) -> i64 {
    // SAFETY: none of these calls refers to memory through the arguments that the attempts give.
    unsafe { libc::syscall(number, a, b, c, 0, 0) }
}

fn memory(bytes: usize) -> io::Result<()> {
    let mut block: Vec<u8> = Vec::new();
    block.try_reserve_exact(bytes).map_err(|_| io::Error::from(io::ErrorKind::PermissionDenied))
}

/// Has landlock(7) in this kernel.
fn has_landlock() -> bool {
    const VERSION: u64 = 1;
    unsafe_call(libc::SYS_landlock_create_ruleset, [0, 0, VERSION]) > 0
}

fn all() -> impl Iterator<Item = &'static Attempt> {
    const MEMORY: &[Attempt] = &[("too much memory", |_| memory(TOO_MUCH))];
    NEEDED.iter().chain(ATTEMPTS).chain(OUTSIDE).chain(MEMORY)
}

/// A decoder in the hands of an attacker.
struct Escapist;

impl Decoder for Escapist {
    fn decode(&mut self, _: &Input, request: &Request<'_>, out: &mut [u8]) -> Result<Outcome, SampleError> {
        let clip = Path::new(request.descriptor.path);
        out.fill(0);
        for (to, (_, attempt)) in out.iter_mut().zip(all()) {
            *to = match attempt(clip) {
                Ok(()) => LET_THROUGH,
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => REFUSED,
                Err(_) => FAILED_OTHERWISE,
            };
        }
        let facts = request.descriptor.facts();
        let (_, written) = request
            .transform
            .place(&facts, request.span)
            .ok_or_else(|| SampleError::new(Stage::Transform, "the tests take whole samples"))?;
        Ok(Outcome { written, shape: request.transform.shape(&facts), frames_decoded: 1, actual: None })
    }
}

/// A decoder that a file has made its own in a less subtle way.
struct Broken(&'static str);

impl Decoder for Broken {
    fn decode(&mut self, _: &Input, _: &Request<'_>, _: &mut [u8]) -> Result<Outcome, SampleError> {
        match self.0 {
            "loops" => loop {
                std::hint::spin_loop();
            },
            "eats" => {
                let mut all: Vec<Vec<u8>> = Vec::new();
                loop {
                    all.push(vec![1; 1 << 20]);
                }
            }
            _ => std::process::abort(),
        }
    }
}

/// The worker itself; does nothing unless this binary was started as one.
#[test]
fn worker_process() {
    let Ok(kind) = std::env::var(VARIABLE) else { return };
    let arguments: Vec<String> = std::env::args().collect();
    let [.., socket, job, slot] = arguments.as_slice() else { panic!("{arguments:?}") };
    let (socket, slot) = (Path::new(socket), slot.parse().unwrap());
    let ended = match kind.as_str() {
        "loops" => worker::run_with(socket, job, slot, || Broken("loops")),
        "eats" => worker::run_with(socket, job, slot, || Broken("eats")),
        "aborts" => worker::run_with(socket, job, slot, || Broken("aborts")),
        _ => worker::run_with(socket, job, slot, || Escapist),
    };
    ended.unwrap();
    // The test runner's own end would try what the sandbox refuses.
    std::process::exit(0);
}

fn data(folder: &Path) -> std::path::PathBuf {
    let data = folder.join("data");
    std::fs::create_dir(&data).unwrap();
    let spec = ClipSpec { width: 64, height: 48, frames: 8, ..ClipSpec::default() };
    clip(&data.join("clip.mp4"), &spec).unwrap();
    let manifest = folder.join("data.arrow");
    index(std::slice::from_ref(&data), &manifest);
    std::fs::write(folder.join("secret"), b"outside").unwrap();
    std::fs::write(data.join("away"), b"inside").unwrap();
    std::os::unix::fs::symlink(folder.join("secret"), data.join("link.mp4")).unwrap();
    manifest
}

fn options(manifest: &Path, daemon: &Daemon) -> Options {
    let transform = Transform { frames: 1, resize: Resize::Exact { width: 16, height: 16 }, ..Transform::default() };
    Options::default()
        .manifest(manifest)
        .socket(&daemon.socket)
        .spawn(false)
        .job("sandbox")
        .workers(1)
        .pin(false)
        .batch_size(1)
        .worker_memory(256 << 20)
        .slab_bytes(1 << 20)
        .transform(transform)
}

/// The program that makes workers of this binary.
fn program(kind: &str) -> Vec<String> {
    let program =
        ["env".into(), format!("{VARIABLE}={kind}"), std::env::current_exe().unwrap().display().to_string()];
    let filter = ["worker_process", "--exact", "--nocapture", "--test-threads=1"].map(String::from);
    program.into_iter().chain(filter).collect()
}

/// How a loader that raises ends over workers of a kind.
fn end_of(kind: &str) -> String {
    let folder = folder();
    let manifest = data(folder.path());
    let daemon = Daemon::start(folder.path());
    let sample_ms = if kind == "loops" { 500 } else { 60_000 };
    let mut loader =
        Loader::connect(options(&manifest, &daemon).program(program(kind)).sample_ms(sample_ms)).unwrap();
    let Err(e) = loader.next().unwrap() else { panic!("a batch") };
    drop(loader);
    let stats = helix_shm::client::status(&daemon.socket).unwrap()["jobs"][0]["stats"].clone();
    format!("{e} {stats}")
}

#[test]
fn a_decoder_in_a_loop_is_ended_and_its_sample_is_bad() {
    let end = end_of("loops");
    // On a machine so busy that it gets no time it is given to others eight times before.
    assert!(end.contains("`stuck`") || end.contains("it cost 8 workers"), "{end}");
}

#[test]
fn a_decoder_that_eats_memory_ends_with_its_sample() {
    let end = end_of("eats");
    assert!(end.contains("SIGABRT") && end.contains("it cost 2 workers"), "{end}");
}

#[test]
fn a_sample_that_kills_two_workers_is_bad() {
    let end = end_of("aborts");
    assert!(end.contains("SIGABRT") && end.contains("it cost 2 workers"), "{end}");
}

/// What came of each attempt in a worker.
fn outcomes(sandbox: bool) -> Vec<(&'static str, u8)> {
    let folder = folder();
    let manifest = data(folder.path());
    let daemon = Daemon::start(folder.path());
    let mut loader =
        Loader::connect(options(&manifest, &daemon).program(program("escapes")).sandbox(sandbox)).unwrap();
    let batch = loader.next().unwrap().unwrap();
    let said = batch.sample(0, "video").unwrap();
    all().zip(said).map(|((name, _), &outcome)| (*name, outcome)).collect()
}

#[test]
fn a_decoder_that_was_taken_over_reaches_nothing_but_its_clip() {
    let outside = if has_landlock() { REFUSED } else { LET_THROUGH };
    for (name, outcome) in outcomes(true) {
        let among = |attempts: &[Attempt]| attempts.iter().any(|(n, _)| *n == name);
        let wanted = match name {
            _ if among(NEEDED) => LET_THROUGH,
            _ if among(OUTSIDE) => outside,
            _ => REFUSED,
        };
        assert_eq!(outcome, wanted, "{name}");
    }
}

/// A second loader of the job, whose clips are elsewhere, and one whose clips are links, as caches of downloads have them.
#[test]
fn loaders_whose_files_are_elsewhere_are_served_too() {
    let folders = [folder(), folder(), folder()];
    let manifests = folders.each_ref().map(|folder| data(folder.path()));
    let links = folders[2].path().join("links");
    std::fs::create_dir(&links).unwrap();
    for i in 0..6 {
        std::os::unix::fs::symlink(folders[2].path().join("data/clip.mp4"), links.join(format!("{i}.mp4"))).unwrap();
    }
    let linked = folders[2].path().join("linked.arrow");
    index(&[links], &linked);
    let daemon = Daemon::start(folders[0].path());
    let open = |manifest: &Path, name: &str| {
        Loader::connect(options(manifest, &daemon).on_error(OnError::Raise).loader(name)).unwrap()
    };
    let mut first = open(&manifests[0], "first");
    let all = |loader: &mut Loader| loader.map(|batch| batch.unwrap().len()).sum::<usize>();
    assert_eq!(all(&mut first), 1);
    let mut second = open(&manifests[1], "second");
    assert_eq!(all(&mut second), 1);
    let mut third = open(&linked, "third");
    assert_eq!(all(&mut third), 6);
    first.epoch(1).unwrap();
    assert_eq!(all(&mut first), 1);
    let stats = helix_shm::client::status(&daemon.socket).unwrap()["jobs"][0]["stats"].clone();
    assert_eq!((&stats["bad"], &stats["restarts"]), (&0.into(), &2.into()), "{stats}");
}

/// Without the sandbox most of it works: so it is the sandbox that refuses.
#[test]
fn without_a_sandbox_the_same_decoder_gets_out() {
    let outcomes = outcomes(false);
    let through: Vec<&str> =
        outcomes.iter().filter(|(_, outcome)| *outcome == LET_THROUGH).map(|(name, _)| *name).collect();
    for name in [
        "a TCP socket",
        "a Unix socket",
        "a new file",
        "a file for writing",
        "a file's end",
        "a file away",
        "another program",
        "a thread",
        "a secret beside the data",
        "the users of the machine",
        "a link out of the data",
        "too much memory",
    ] {
        assert!(through.contains(&name), "{name} of {outcomes:?}");
    }
}

/// The built-in worker, as the kernel sees it.
#[test]
fn the_kernel_confirms_the_built_in_worker_s_walls() {
    let folder = folder();
    let manifest = data(folder.path());
    let daemon = Daemon::start(folder.path());
    let mut loader = Loader::connect(options(&manifest, &daemon)).unwrap();
    drop(loader.next().unwrap().unwrap());
    let pid = workers(&daemon.socket)[0];
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let has = |line: &str| status.lines().any(|l| l.split_whitespace().eq(line.split_whitespace()));
    assert!(has("NoNewPrivs: 1") && has("Seccomp: 2") && has("Threads: 1"), "{status}");
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find_map(|l| l.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().ok()
    };
    assert!(limit("Max data size").is_some_and(|most| most < 1 << 30), "{limits}");
    assert_eq!(limit("Max core file size"), Some(0));
    assert!(limit("Max open files").is_some_and(|most| most < 4096), "{limits}");
}
