//! Another user can neither join nor see a job, nor reach into its memory, nor disturb it from a daemon of its own.

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use helix_shm::client::status;
use helix_shm::manifest::Manifest;
use helix_shm::proto::session::{FromRank, ToRank};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::harness::{Daemon, Rank, Said, data, folder, run, spec, wait_for, workers};
use crate::intruder::{self, Intruder, dial, hear, honest_join, say};

const NOBODY: libc::c_long = 65_534;

/// Runs `act` as another user. Credentials are a thread's own where they are set by the system call itself.
fn as_nobody<R: Send>(act: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: three integers; it changes nothing but this thread's credentials.
            let rc = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            assert_eq!(rc, 0);
            act()
        });
        thread.join().unwrap()
    })
}

fn can_be_another() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("skipped: only root can become a second user");
    }
    root
}

/// A rank that takes a step when it is told to.
fn paced_rank(daemon: &Daemon) -> Rank {
    let mut paced = spec(&daemon.socket, 0, 1);
    paced.paced = true;
    Rank::start(&paced)
}

fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_second_user_cannot_join_and_sees_no_job() {
    if !can_be_another() {
        return;
    }
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let mut rank = paced_rank(&daemon);
    assert_eq!(rank.hear(), Some(Said::Up));
    allow(folder.path(), 0o755);
    let (socket, manifest) = (&daemon.socket, Manifest::open(&data().good).unwrap());
    let denied = as_nobody(|| dial(socket).unwrap_err().kind());
    assert_eq!(denied, std::io::ErrorKind::PermissionDenied, "the socket is its owner's alone");
    // And if somebody opens it to all, the kernel still says who comes.
    allow(socket, 0o666);
    let (answer, seen) = as_nobody(|| {
        let (sock, slab, fd) = (dial(socket).unwrap(), intruder::slab(), manifest.try_clone_fd().unwrap());
        let join = FromRank::Join(Box::new(honest_join(&manifest)));
        say(sock.as_fd(), &join, &[slab.fd().unwrap(), fd.as_fd()]).unwrap();
        (hear(sock.as_fd()).map(|(packet, _)| packet), status(socket).unwrap())
    });
    let Some(ToRank::Failed { reason, .. }) = answer else { panic!("{answer:?}") };
    assert!(reason.contains("you are user 65534"), "{reason}");
    assert_eq!(seen["jobs"].as_array().unwrap().len(), 0, "{seen}");
    assert_eq!(status(socket).unwrap()["jobs"].as_array().unwrap().len(), 1);
    rank.step();
    while !matches!(rank.hear(), Some(Said::Batch(..))) {}
}

/// Everything of a process through which its memory could be reached.
fn doors(pid: u32) -> Vec<String> {
    let process = format!("/proc/{pid}");
    let mut doors: Vec<String> =
        ["mem", "maps", "environ", "fd"].iter().map(|name| format!("{process}/{name}")).collect();
    let fds = std::fs::read_dir(format!("{process}/fd")).unwrap().flatten();
    doors.extend(fds.map(|fd| fd.path().display().to_string()));
    doors
}

#[test]
fn a_second_user_reaches_no_memory_of_a_job_by_any_door() {
    if !can_be_another() {
        return;
    }
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let mut rank = paced_rank(&daemon);
    rank.step();
    rank.hear_batch();
    wait_for("the workers", || workers(&daemon.socket).len() == 2);
    let mut pids: Vec<u32> = workers(&daemon.socket).into_iter().map(|pid| pid as u32).collect();
    pids.extend([daemon.child.id(), rank.child.id()]);
    let own = nix::unistd::geteuid().as_raw();
    // Of each the slab is among the doors, or nothing would be shown.
    let slab = |pid: &u32| {
        let links = doors(*pid).into_iter().filter_map(|door| std::fs::read_link(door).ok());
        links.filter(|link| link.to_string_lossy().contains("helix-slab")).count() > 0
    };
    assert!(slab(&daemon.child.id()) && slab(&rank.child.id()));
    let all: Vec<String> = pids.iter().flat_map(|pid| doors(*pid)).collect();
    let (open, page) = as_nobody(|| {
        let tried = |door: &&String| {
            let file = std::fs::File::options().read(true).open(door).map(drop);
            // A list of descriptors is opened as a folder.
            file.is_ok() && std::fs::read_dir(door).map_or(true, |mut list| list.next().is_some())
        };
        let open: Vec<String> =
            all.iter().filter(tried).filter(|door| std::fs::read(door).is_ok()).cloned().collect();
        (open, helix_shm::status::read(own).err().map(|e| e.to_string()))
    });
    assert_eq!(open, Vec::<String>::new());
    assert!(page.is_some_and(|e| e.contains("EACCES")), "the status page is its owner's alone");
    assert!(!helix_shm::status::read(own).unwrap().is_empty());
}

#[test]
fn a_job_of_another_user_that_scribbles_over_all_it_has_disturbs_nobody() {
    if !can_be_another() {
        return;
    }
    let (mine, theirs) = (folder(), folder());
    let daemon = Daemon::start(mine.path());
    let alone = run(&[spec(&daemon.socket, 0, 1)]);
    std::os::unix::fs::chown(theirs.path(), Some(NOBODY as u32), Some(NOBODY as u32)).unwrap();
    let socket = theirs.path().join("d.sock");
    let mut command = Command::new(env!("CARGO_BIN_EXE_helix-shmd"));
    command.arg("--socket").arg(&socket).uid(NOBODY as u32).gid(NOBODY as u32).current_dir("/");
    match command.spawn() {
        Ok(mut child) => drop((child.kill(), child.wait())),
        Err(e) => return println!("skipped: another user may not start the daemon where it lies: {e}"),
    }
    let hostile = Daemon::start_as(&mut command, &socket);
    let (over, manifest) = (AtomicBool::new(false), data().good.clone());
    let (stream, attacks) = std::thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            as_nobody(|| {
                let (mut rng, mut attacks) = (ChaCha8Rng::seed_from_u64(9), 0);
                while attacks == 0 || !over.load(Ordering::Relaxed) {
                    let Some(intruder) = Intruder::join(&hostile.socket, &manifest) else { continue };
                    intruder.start(1);
                    for _ in 0..20_000 {
                        for segment in [&intruder.inbox, &intruder.hints] {
                            let at = rng.next_u32() as usize % (segment.len() / 8) * 8;
                            segment.word(at).store(rng.next_u64(), Ordering::Relaxed);
                        }
                    }
                    attacks += 1;
                }
                attacks
            })
        });
        let stream = run(&[spec(&daemon.socket, 0, 1)]);
        over.store(true, Ordering::Relaxed);
        (stream, attacker.join().unwrap())
    });
    // It was killed, and nobody of its user starts another that would clear its page.
    drop(hostile);
    as_nobody(helix_shm::status::sweep);
    assert!(!Path::new("/dev/shm").join(format!("helix-shm-{NOBODY}")).exists(), "the page is still there");
    assert_eq!(stream, alone, "after {attacks} attacks");
}
