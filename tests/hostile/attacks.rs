//! One attack after the other, each for as long as an honest job beside it takes.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use helix_shm::manifest::Manifest;
use helix_shm::proto::message::kind;
use helix_shm::proto::session::{FromRank, MAX_PACKET};
use helix_shm::ring::fds::send_packet;
use helix_shm::ring::segment::Segment;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, fallocate, fcntl};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::common::PATIENCE;
use crate::harness::{Daemon, Stream, data, folder, run, spec, status, wait_for};
use crate::intruder::{self, Intruder, dial, hear, honest_join, say};

/// A daemon with an honest job, and what is known of both before anybody attacks.
struct Scene {
    folder: tempfile::TempDir,
    daemon: Daemon,
    stream: Stream,
    descriptors: usize,
    resident: u64,
}

impl Scene {
    fn new() -> Scene {
        let folder = folder();
        let socket = folder.path().join("d.sock");
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_helix-shmd"));
        command.arg("--socket").arg(&socket).stderr(log);
        let daemon = Daemon::start_as(&mut command, &socket);
        let stream = run(&[spec(&socket, 0, 1)]);
        wait_for("the first job to end", || no_jobs(&socket));
        let pid = daemon.child.id();
        Scene { folder, daemon, stream, descriptors: descriptors(pid), resident: resident(pid) }
    }

    fn socket(&self) -> &Path {
        &self.daemon.socket
    }

    /// Attacks again and again while the honest job runs; then all must be as before. The reason for which the
    /// attacker was thrown out must be in the log.
    fn attack(&self, reason: Option<&str>, attack: impl Fn(&Scene, &AtomicBool) + Sync) {
        let over = AtomicBool::new(false);
        let stream = std::thread::scope(|scope| {
            let attacker = scope.spawn(|| attack(self, &over));
            // Its patience bounds the time.
            let stream = run(&[spec(self.socket(), 0, 1)]);
            over.store(true, Ordering::Relaxed);
            attacker.join().unwrap();
            stream
        });
        assert_eq!(stream, self.stream, "the honest job's stream");
        wait_for("the attacked job to end", || no_jobs(self.socket()));
        let pid = self.daemon.child.id();
        wait_for("the daemon's descriptors", || descriptors(pid) <= self.descriptors);
        let grown = resident(pid).saturating_sub(self.resident);
        assert!(grown < 64 << 20, "the daemon has grown by {grown} bytes");
        if let Some(reason) = reason {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap();
            assert!(log.contains(reason), "`{reason}` is not in the log:\n{log}");
        }
    }

    /// Joins until the honest job is through; `act` has the session for itself.
    fn as_rank(&self, over: &AtomicBool, manifest: &Path, mut act: impl FnMut(Intruder)) {
        let (mut once, start) = (false, Instant::now());
        while !once || !over.load(Ordering::Relaxed) {
            assert!(start.elapsed() < PATIENCE, "the attacker was never let in, or the honest job never through");
            if let Some(intruder) = Intruder::join(self.socket(), manifest) {
                act(intruder);
                once = true;
            }
        }
    }
}

fn no_jobs(socket: &Path) -> bool {
    status(socket).is_some_and(|s| s["jobs"].as_array().is_some_and(|jobs| jobs.is_empty()))
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn good() -> PathBuf {
    data().good.clone()
}

/// A number near what an honest peer would write, or any.
fn number(rng: &mut ChaCha8Rng) -> u64 {
    match rng.next_u32() % 4 {
        0 => u64::from(rng.next_u32() % 64),
        1 => u64::MAX - u64::from(rng.next_u32() % 64),
        2 => 0,
        _ => rng.next_u64(),
    }
}

fn scribble(segment: &Segment, rng: &mut ChaCha8Rng) {
    let at = rng.next_u32() as usize % (segment.len() / 8) * 8;
    segment.word(at).store(number(rng), Ordering::Relaxed);
}

#[test]
fn random_words_over_all_that_is_mapped() {
    let scene = Scene::new();
    scene.attack(Some("rank refused: its feedback ring is spoilt"), |scene, over| {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        scene.as_rank(over, &good(), |intruder| {
            intruder.start(1);
            let slab = intruder::file(intruder.slab.fd().unwrap());
            for _ in 0..20_000 {
                scribble(&intruder.inbox, &mut rng);
                scribble(&intruder.hints, &mut rng);
                let at = u64::from(rng.next_u32()) % (intruder::SLAB as u64 - 8);
                slab.write_all_at(&rng.next_u64().to_le_bytes(), at).unwrap();
            }
            // Certainly wrong: the slot that the daemon looks at next.
            let feedback = intruder.inbox.len() - 64 * intruder.opened.feedback_capacity as usize;
            (0..64).for_each(|n| intruder.inbox.word(feedback + 64 * n).store(u64::MAX - 1, Ordering::Relaxed));
            assert!(intruder.is_thrown_out());
        });
    });
}

#[test]
fn bells_that_are_drained_filled_and_made_to_block() {
    let scene = Scene::new();
    scene.attack(None, |scene, over| {
        scene.as_rank(over, &good(), |intruder| {
            intruder.start(1);
            for bell in intruder.bells.iter().cycle().take(2000) {
                let _ = fcntl(bell, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
                let _ = nix::unistd::read(bell, &mut [0; 8]);
                let _ = nix::unistd::write(bell, &(u64::MAX - 1).to_ne_bytes());
                let _ = fcntl(bell, FcntlArg::F_SETFL(OFlag::empty()));
            }
        });
    });
}

#[test]
fn holes_punched_into_slab_inbox_and_hints() {
    let scene = Scene::new();
    let punch = |fd: &OwnedFd, at, len| {
        let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(fd, mode, at, len).unwrap();
    };
    scene.attack(None, |scene, over| {
        scene.as_rank(over, &good(), |intruder| {
            let slab = intruder.slab.fd().unwrap().try_clone_to_owned().unwrap();
            intruder::file(slab.as_fd()).write_all_at(&[7; 8192], 0).unwrap();
            punch(&slab, 0, 4096);
            // SAFETY: no iteration was started, so nobody writes.
            let pages = unsafe { intruder.slab.slice(0, 8192) };
            assert!(pages[..4096].iter().all(|b| *b == 0) && pages[4096..].iter().all(|b| *b == 7));
            intruder.start(1);
            for round in 0..200 {
                punch(&slab, 4096 * (round % 64), 4096 * 8);
                punch(&intruder.files[0], 4096 * (round % 16), 4096);
                punch(&intruder.files[1], 0, 4096);
            }
        });
    });
}

#[test]
fn a_flooded_socket() {
    let scene = Scene::new();
    scene.attack(Some("its socket takes nothing any more"), |scene, over| {
        scene.as_rank(over, &good(), |intruder| {
            // Each one is answered, and no answer is read.
            (1..).take_while(|iter| intruder.start(*iter)).for_each(drop);
        });
    });
}

#[test]
fn packets_that_are_none() {
    let scene = Scene::new();
    scene.attack(Some("rank refused: not a packet"), |scene, over| {
        let mut garbage = [&b"{\"say\":\"start\",\"iter\":true}"[..], &[0xff; 1000], b"x", b"{}"].into_iter().cycle();
        scene.as_rank(over, &good(), |intruder| {
            intruder.start(1);
            while garbage.next().is_some_and(|bytes| send_packet(intruder.sock.as_fd(), bytes, &[]).is_ok()) {}
            assert!(intruder.is_thrown_out());
        });
    });
}

#[test]
fn releases_without_end_and_numbers_without_bounds() {
    let scene = Scene::new();
    scene.attack(Some("rank refused: it"), |scene, over| {
        scene.as_rank(over, &good(), |mut intruder| {
            intruder.start(1);
            let Some(batch) = intruder.grant() else { return };
            for _ in 0..4 {
                intruder.feed(kind::STEP_END, |f| {
                    (f.grant, f.iter, f.step) = (batch.grant, batch.iter, batch.step);
                    (f.wait_ns, f.busy_ns, f.copied) = (u64::MAX, u64::MAX, u64::MAX);
                });
            }
            // Given back unread, as long as there is anything to give.
            for grant in batch.grant..batch.grant + 400 {
                intruder.feed(kind::RELEASE, |f| (f.grant, f.iter, f.step) = (grant, 1, grant - 1));
            }
            intruder.feed(kind::RELEASE, |f| f.grant = u32::MAX);
            assert!(intruder.is_thrown_out());
        });
    });
}

#[test]
fn wrong_descriptors_and_wrong_packets_first() {
    let scene = Scene::new();
    scene.attack(Some("rank refused: the slab is not"), |scene, over| {
        let manifest = Manifest::open(&good()).unwrap();
        let join = || FromRank::Join(Box::new(honest_join(&manifest)));
        let (slab, fd) = (intruder::slab(), manifest.try_clone_fd().unwrap());
        let open = |path: &str| OwnedFd::from(std::fs::File::open(path).unwrap());
        let unsealed = nix::sys::memfd::memfd_create(c"x", nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING).unwrap();
        let (pipe, _writer) = nix::unistd::pipe().unwrap();
        let (dir, null, bell) = (open("/"), open("/dev/null"), nix::sys::eventfd::EventFd::new().unwrap());
        let slab = slab.fd().unwrap();
        let wrong = [slab, fd.as_fd(), unsealed.as_fd(), pipe.as_fd(), dir.as_fd(), null.as_fd(), bell.as_fd()];
        while !over.load(Ordering::Relaxed) {
            let mut refused = 0;
            for (i, first) in wrong.iter().enumerate() {
                for (j, second) in wrong.iter().enumerate().filter(|(j, _)| (i, *j) != (0, 1)) {
                    let sock = dial(scene.socket()).unwrap();
                    say(sock.as_fd(), &join(), &[*first, *second]).unwrap();
                    assert!(
                        !matches!(hear(sock.as_fd()), Some((helix_shm::proto::session::ToRank::Opened(_), _))),
                        "{i} {j}"
                    );
                    refused += 1;
                }
            }
            assert_eq!(refused, 48);
            for count in [0, 1, 3, 6, 7, 200] {
                let sock = dial(scene.socket()).unwrap();
                say(sock.as_fd(), &join(), &vec![slab; count]).unwrap();
                assert!(!matches!(hear(sock.as_fd()), Some((helix_shm::proto::session::ToRank::Opened(_), _))));
            }
            for packet in [vec![b' '; MAX_PACKET + 1], b"[]".to_vec(), b"{\"say\":\"leave\"}".to_vec(), vec![0; 9]] {
                let sock = dial(scene.socket()).unwrap();
                send_packet(sock.as_fd(), &packet, &[slab]).unwrap();
                let _ = hear(sock.as_fd());
            }
        }
    });
}

#[test]
fn joins_whose_numbers_cannot_be() {
    let scene = Scene::new();
    scene.attack(Some("rank refused"), |scene, over| {
        let manifest = Manifest::open(&good()).unwrap();
        let fd = manifest.try_clone_fd().unwrap();
        let slab = intruder::slab();
        while !over.load(Ordering::Relaxed) {
            for case in 0..9 {
                let mut join = honest_join(&manifest);
                join.loader = format!("{case}");
                match case {
                    0 => join.slab_bytes = u64::MAX,
                    1 => join.slab_bytes = 4096,
                    2 => join.held = vec![(1, u64::MAX - 4095, 8192)],
                    3 => join.held = vec![(u32::MAX, 0, 4096)],
                    4 => join.held = (1..2000).map(|n| (n, 0, 4096)).collect(),
                    5 => join.rank = 5,
                    6 => join.run.workers = u32::MAX,
                    7 => join.stream.batch_size = 16_384,
                    _ => join.fingerprint = "0".repeat(32),
                }
                let sock = dial(scene.socket()).unwrap();
                say(sock.as_fd(), &FromRank::Join(Box::new(join)), &[slab.fd().unwrap(), fd.as_fd()]).unwrap();
                assert!(
                    !matches!(hear(sock.as_fd()), Some((helix_shm::proto::session::ToRank::Opened(_), _))),
                    "{case}"
                );
            }
        }
    });
}

#[test]
fn a_manifest_that_is_scribbled_over_and_cut_while_in_use() {
    let scene = Scene::new();
    scene.attack(Some("was cut while it was in use"), |scene, over| {
        let mut rng = ChaCha8Rng::seed_from_u64(8);
        let mut bytes = Vec::new();
        std::fs::File::open(good()).unwrap().read_to_end(&mut bytes).unwrap();
        while !over.load(Ordering::Relaxed) {
            let path = intruder::copy(&good(), scene.folder.path());
            let Some(mut intruder) = Intruder::join(scene.socket(), &path) else { continue };
            intruder.start(1);
            let _ = intruder.grant();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            for _ in 0..200 {
                let at = u64::from(rng.next_u32()) % bytes.len() as u64;
                file.write_all_at(&number(&mut rng).to_le_bytes()[..1], at).unwrap();
            }
            file.set_len(bytes.len() as u64 / 3).unwrap();
            intruder.start(2);
            assert!(intruder.is_thrown_out());
        }
    });
}

#[test]
fn connections_that_say_nothing() {
    let scene = Scene::new();
    scene.attack(Some("have not said who they are"), |scene, over| {
        while !over.load(Ordering::Relaxed) {
            // The queue of the socket may be full: then the next try is as good.
            let held: Vec<_> = (0..300).filter_map(|_| dial(scene.socket()).ok()).collect();
            drop(held);
        }
    });
}
