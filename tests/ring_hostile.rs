//! Whatever a peer writes over shared memory: an error value or a false hint, never a panic, a fault or a hang.
#![cfg(not(feature = "loom"))]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use helix_shm::ring::{
    bell::{Guard, LANES, Ringer, Sleeper, eventfd, hints_bytes},
    segment::Segment,
    spsc::{Consumer, Producer, PushError, Words, ring_bytes},
};
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, fallocate, fcntl};
use proptest::prelude::*;

/// A word that is near what an honest peer would write, or anything.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![0..40u64, any::<u64>(), (0..20u64).prop_map(|n| u64::MAX - n), (0..70u32).prop_map(|n| 1 << (n % 64))]
}

#[derive(Debug, Clone)]
enum Act {
    Push,
    Pop,
    Room,
    ResumeProducer,
    ResumeConsumer,
    /// Writes a value over some word, the n-th modulo how many there are.
    Scribble(usize, u64),
    /// Writes a value over a slot's sequence, or the head.
    Forge(usize, u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => Just(Act::Push),
        8 => Just(Act::Pop),
        1 => Just(Act::Room),
        1 => Just(Act::ResumeProducer),
        1 => Just(Act::ResumeConsumer),
        1 => (any::<usize>(), word()).prop_map(|(at, value)| Act::Scribble(at, value)),
        1 => (any::<usize>(), word()).prop_map(|(at, value)| Act::Forge(at, value)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_scribbled_ring_gives_errors_and_no_panic(capacity in 0..4u32, acts in prop::collection::vec(act(), 1..120)) {
        let capacity = 1 << capacity;
        let segment = Arc::new(Segment::create("hostile", ring_bytes(capacity)).unwrap());
        let mut producer = Producer::fresh(segment.clone(), 0, capacity).unwrap();
        let mut consumer = Consumer::new(segment.clone(), 0, capacity).unwrap();
        let mut honest = true;
        let (mut pushed, mut popped) = (0u64, 0u64);
        for act in acts {
            match act {
                Act::Push => match producer.push(&[pushed; 7]) {
                    Ok(()) => pushed += 1,
                    Err(PushError::Full) => {}
                    Err(PushError::Corrupt(_)) => prop_assert!(!honest),
                },
                Act::Pop => match consumer.pop() {
                    Ok(Some(words)) if honest => {
                        prop_assert_eq!(words, [popped; 7]);
                        popped += 1;
                    }
                    Ok(None) if honest => prop_assert_eq!(popped, pushed),
                    Ok(_) => {}
                    Err(_) => prop_assert!(!honest),
                },
                Act::Room => match producer.free_slots() {
                    Ok(room) => prop_assert!(room <= capacity),
                    Err(_) => prop_assert!(!honest),
                },
                Act::ResumeProducer => match Producer::resume(segment.clone(), 0, capacity) {
                    Ok(successor) => {
                        prop_assert!(!honest || successor.pushed() == pushed);
                        producer = successor;
                    }
                    Err(_) => prop_assert!(!honest),
                },
                Act::ResumeConsumer => match Consumer::resume(segment.clone(), 0, capacity) {
                    Ok(successor) => {
                        prop_assert!(!honest || successor.popped() <= popped);
                        consumer = successor;
                        popped = consumer.popped();
                    }
                    Err(_) => prop_assert!(!honest),
                },
                Act::Scribble(at, value) => {
                    honest = false;
                    segment.word(at % (segment.len() / 8) * 8).store(value, Ordering::Relaxed);
                }
                Act::Forge(at, value) => {
                    honest = false;
                    let line = at % (capacity as usize + 1);
                    let offset = if line == 0 { 0 } else { 64 + 64 * line };
                    segment.word(offset).store(value, Ordering::Relaxed);
                }
            }
        }
    }

    #[test]
    fn scribbled_hints_are_false_hints(words in prop::collection::vec(any::<u64>(), 32), lane in 0..LANES) {
        let hints = Arc::new(Segment::create("hostile", hints_bytes(2)).unwrap());
        let fd = eventfd().unwrap();
        let ringer = Ringer::new(hints.clone(), 1, fd.clone()).unwrap();
        let sleeper = Sleeper::new(hints.clone(), 1, fd).unwrap();
        for (i, word) in words.iter().enumerate() {
            hints.word(8 * i).store(*word, Ordering::Relaxed);
        }
        ringer.ring(lane);
        let mut seen = Vec::new();
        sleeper.take(|lane| seen.push(lane));
        prop_assert!(seen.iter().all(|&lane| lane < LANES) && seen.contains(&lane));
        prop_assert!(!sleeper.wait(Duration::ZERO, Duration::ZERO));
        // The neighbour's entry is as it was.
        prop_assert!((0..16).all(|i| hints.word(8 * i).load(Ordering::Relaxed) == words[i]));
    }
}

#[test]
fn a_ring_is_scribbled_over_while_both_sides_use_it() {
    const CAPACITY: u32 = 16;
    let stop = Arc::new(AtomicBool::new(false));
    let segment = Arc::new(Segment::create("hostile", ring_bytes(CAPACITY)).unwrap());
    let scribbler = thread::spawn({
        let (stop, segment) = (stop.clone(), segment.clone());
        move || {
            let mut state = 1u64;
            while !stop.load(Ordering::Relaxed) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (state >> 33) as usize % (segment.len() / 8) * 8;
                // Small numbers come near what is expected; zeros let the others start again.
                segment.word(at).store(if state & 1 << 20 == 0 { 0 } else { state >> 60 }, Ordering::Relaxed);
            }
        }
    });
    let (mut corrupt, mut rounds) = (0, 0);
    // On a busy machine the scribbler may start late.
    while rounds < 20_000 || corrupt == 0 {
        rounds += 1;
        // Whatever resumes, resumes; whatever comes out, comes out.
        if let Ok(mut producer) = Producer::resume(segment.clone(), 0, CAPACITY) {
            (0..3).for_each(|n| corrupt += usize::from(producer.push(&Words::from([n; 7])).is_err()));
        }
        let mut consumer = Consumer::new(segment.clone(), 0, CAPACITY).unwrap();
        for _ in 0..3 {
            corrupt += usize::from(consumer.pop().is_err());
        }
    }
    stop.store(true, Ordering::Relaxed);
    scribbler.join().unwrap();
}

#[test]
fn a_page_that_a_peer_punches_out_reads_as_zeros() {
    let segment = Arc::new(Segment::create("hostile", ring_bytes(4)).unwrap());
    let mut producer = Producer::fresh(segment.clone(), 0, 4).unwrap();
    let mut consumer = Consumer::new(segment.clone(), 0, 4).unwrap();
    for n in 0..6 {
        producer.push(&[n; 7]).unwrap();
        assert_eq!(consumer.pop(), Ok(Some([n; 7])));
    }
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(segment.fd().unwrap(), mode, 0, 4096).unwrap();
    assert!(consumer.pop().is_err());
    // Zero is less than the head seen last.
    assert!(producer.free_slots().is_err());
}

#[test]
fn a_guarded_thread_gets_past_a_peer_that_fills_its_bell_and_makes_it_block() {
    let _guard = Guard::new().unwrap();
    let hints = Arc::new(Segment::create("hostile", hints_bytes(1)).unwrap());
    let fd = eventfd().unwrap();
    let ringer = Ringer::new(hints.clone(), 0, fd.clone()).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let peer = thread::spawn({
        let stop = stop.clone();
        move || {
            while !stop.load(Ordering::Relaxed) {
                fcntl(fd.fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
                let _ = nix::unistd::write(fd.fd(), &(u64::MAX - 1).to_ne_bytes());
                let _ = nix::unistd::write(fd.fd(), &1u64.to_ne_bytes());
                fcntl(fd.fd(), FcntlArg::F_SETFL(OFlag::empty())).unwrap();
            }
        }
    });
    let mut rings = 0;
    while rings < 1000 || !ringer.tampered() {
        // A parked sleeper that has no news.
        hints.word(8).store(0, Ordering::Relaxed);
        hints.flag(0).store(1, Ordering::Relaxed);
        ringer.ring(0);
        rings += 1;
    }
    stop.store(true, Ordering::Relaxed);
    peer.join().unwrap();
}
