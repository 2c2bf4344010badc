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
        bell.write_watched();
        assert!(bell.tampered());
        unistd::write(bell.fd(), &(u64::MAX - 2).to_ne_bytes()).unwrap();
    }
    let other = EventFd::new().unwrap();
    other.signal();
    assert!(!other.tampered());
}

#[test]
fn a_guard_can_follow_another() {
    for _ in 0..3 {
        let _guard = Guard::new().unwrap();
        let bell = full();
        bell.write_watched();
        assert!(bell.tampered());
    }
}

#[test]
fn a_bell_that_a_peer_has_made_blocking_is_mended_and_said_to_be() {
    let _guard = Guard::new().unwrap();
    let bell = full();
    bell.signal();
    assert!(bell.tampered());
    let flags = OFlag::from_bits_retain(fcntl(bell.fd(), FcntlArg::F_GETFL).unwrap());
    assert!(flags.contains(OFlag::O_NONBLOCK | OFlag::O_RDWR));
    // Full, and not to be waited for.
    bell.signal();
}

#[test]
fn an_honest_bell_was_not_tampered_with() {
    let bell = EventFd::new().unwrap();
    bell.signal();
    bell.signal();
    bell.drain();
    bell.drain();
    assert!(!bell.tampered());
}

#[test]
fn a_sleeper_makes_room_for_a_write_that_a_peer_made_wait() {
    let bell = full();
    let watch = Watch::new(&bell);
    // Whatever edge the filling made is over.
    watch.wait(Watch::FINEST);
    let writer = std::thread::spawn({
        let bell = bell.clone();
        move || {
            unistd::write(bell.fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
            bell.signal();
        }
    });
    while !writer.is_finished() {
        watch.wait(Watch::FINEST);
    }
    writer.join().unwrap();
}

#[test]
fn each_signal_wakes_once_and_the_counter_is_left_alone() {
    let bell = EventFd::new().unwrap();
    let watch = Watch::new(&bell);
    let long = Duration::from_secs(3600);
    for _ in 0..3 {
        bell.signal();
        // Would sleep for an hour if the edge were lost.
        watch.wait(long);
        // Readable, but nothing new: only the limit ends it.
        assert!(!wait_for_edge(watch.edges.as_ref().unwrap(), Watch::FINEST));
    }
}
