//! Another user can neither join nor see a job.

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use helix_shm::client::status;
use helix_shm::manifest::Manifest;
use helix_shm::proto::session::{FromRank, ToRank};

use crate::harness::{Daemon, Rank, Said, data, folder, spec};
use crate::intruder::{self, dial, hear, honest_join, say};

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

fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_second_user_cannot_join_and_sees_no_job() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root can become a second user");
        return;
    }
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let mut paced = spec(&daemon.socket, 0, 1);
    paced.paced = true;
    let mut rank = Rank::start(&paced);
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
