use super::*;

fn bell(entry: usize) -> (Arc<Segment>, Ringer, Sleeper) {
    let hints = Arc::new(Segment::create("test", hints_bytes(entry + 1)).unwrap());
    let fd = eventfd().unwrap();
    let ringer = Ringer::new(hints.clone(), entry, fd.clone()).unwrap();
    let sleeper = Sleeper::new(hints.clone(), entry, fd).unwrap();
    (hints, ringer, sleeper)
}

fn taken(sleeper: &Sleeper) -> Vec<usize> {
    let mut lanes = Vec::new();
    sleeper.take(|lane| lanes.push(lane));
    lanes
}

fn readable(sleeper: &Sleeper) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    poll(&mut [PollFd::new(sleeper.fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
}

#[test]
fn every_lane_has_a_bit_of_its_own() {
    let (_, ringer, sleeper) = bell(3);
    let lanes = [0, 1, 63, 64, 255, 256, 511, LANES - 1];
    for lane in lanes {
        ringer.ring(lane);
        ringer.ring(lane);
    }
    assert_eq!(taken(&sleeper), lanes);
    assert!(taken(&sleeper).is_empty());
}

#[test]
fn an_awake_sleeper_costs_no_system_call() {
    let (_, ringer, sleeper) = bell(0);
    ringer.ring(5);
    assert!(!readable(&sleeper));
    assert!(!sleeper.park(), "there is news");
    ringer.ring(6);
    assert!(!readable(&sleeper), "it was not parked");
}

#[test]
fn a_parked_sleeper_is_rung_once() {
    let (_, ringer, sleeper) = bell(1);
    assert!(sleeper.park());
    ringer.ring(2);
    ringer.ring(3);
    assert!(readable(&sleeper));
    sleeper.unpark();
    assert!(!readable(&sleeper));
    assert_eq!(taken(&sleeper), [2, 3]);
}

#[test]
fn a_wake_up_that_a_dead_producer_claimed_is_made_by_the_next() {
    let (hints, ringer, sleeper) = bell(0);
    assert!(sleeper.park());
    // Claimed, and killed.
    hints.flag(0).store(0, Ordering::Relaxed);
    ringer.ring(1);
    assert!(!readable(&sleeper));
    ringer.ring_anyway(1);
    assert!(readable(&sleeper));
}

#[test]
fn a_wait_without_news_ends() {
    let (_, _, sleeper) = bell(0);
    assert!(!sleeper.wait(Duration::from_millis(1), Duration::from_micros(20)));
    assert!(!sleeper.wait(Duration::ZERO, Duration::ZERO));
}

#[test]
fn a_bell_that_a_peer_made_blocking_and_filled_or_drained_blocks_no_guarded_thread() {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let _guard = Guard::new().unwrap();
    let (_, ringer, sleeper) = bell(0);
    fcntl(sleeper.fd(), FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    // Drained: reading would block.
    assert!(sleeper.park());
    sleeper.unpark();
    // Full: writing would block.
    nix::unistd::write(sleeper.fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
    assert!(sleeper.park());
    ringer.ring(0);
    assert!(readable(&sleeper));
    sleeper.unpark();
    assert!(!readable(&sleeper));
}

#[test]
fn an_entry_outside_is_an_error_value() {
    let hints = Arc::new(Segment::create("test", hints_bytes(2)).unwrap());
    for entry in [2, usize::MAX, usize::MAX / 128 + 1] {
        assert!(Ringer::new(hints.clone(), entry, eventfd().unwrap()).is_err());
    }
}
