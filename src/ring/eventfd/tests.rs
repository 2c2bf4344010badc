use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::*;

/// Without room, and blocking.
fn full() -> EventFd {
    let bell = EventFd::new().unwrap();
    fcntl(bell.fd(), FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    unistd::write(bell.fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
    bell
}

#[test]
fn a_write_that_a_peer_makes_wait_is_freed() {
    let _guard = Guard::new().unwrap();
    let bell = full();
    // As if it had been filled after the look at its room.
    for _ in 0..3 {
        bell.write();
        assert!(bell.stalled());
        unistd::write(bell.fd(), &(u64::MAX - 2).to_ne_bytes()).unwrap();
    }
    let other = EventFd::new().unwrap();
    other.signal();
    assert!(!other.stalled());
}

#[test]
fn a_guard_can_follow_another() {
    for _ in 0..3 {
        let _guard = Guard::new().unwrap();
        let bell = full();
        bell.write();
        assert!(bell.stalled());
    }
}

#[test]
fn a_full_bell_counts_as_rung() {
    let bell = full();
    bell.signal();
    bell.drain();
    bell.drain();
    assert!(!bell.stalled());
}
