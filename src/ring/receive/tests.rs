use std::sync::{Arc, atomic::Ordering};

use super::*;
use crate::ring::{
    bell::{Ringer, eventfd, hints_bytes},
    segment::Segment,
    spsc::{Producer, ring_bytes},
};

const CAPACITY: u32 = 256;

/// Rings for the lanes given, and their one receiver.
fn pair(lanes: &[usize]) -> (Arc<Segment>, Vec<Producer>, Ringer, Receiver) {
    let rings = Arc::new(Segment::create("test", lanes.len() * ring_bytes(CAPACITY)).unwrap());
    let hints = Arc::new(Segment::create("test", hints_bytes(1)).unwrap());
    let fd = eventfd().unwrap();
    let at = |i: usize| i * ring_bytes(CAPACITY);
    let producers = (0..lanes.len()).map(|i| Producer::fresh(rings.clone(), at(i), CAPACITY).unwrap()).collect();
    let consumers =
        lanes.iter().enumerate().map(|(i, &l)| (l, Consumer::new(rings.clone(), at(i), CAPACITY).unwrap()));
    let sleeper = Sleeper::new(hints.clone(), 0, fd.clone()).unwrap();
    let receiver = Receiver::new(sleeper, consumers, Duration::ZERO);
    (rings.clone(), producers, Ringer::new(hints, 0, fd).unwrap(), receiver)
}

#[test]
fn a_lane_that_is_never_empty_lets_the_others_have_their_turn() {
    let (_, mut producers, ringer, mut receiver) = pair(&[0, 700]);
    (0..200).for_each(|n| producers[0].push(&[n; 7]).unwrap());
    ringer.ring(0);
    assert_eq!(receiver.try_recv(), Ok(Some((0, [0; 7]))));
    producers[1].push(&[9; 7]).unwrap();
    ringer.ring(700);
    let before = (0..200).position(|_| receiver.try_recv().unwrap().unwrap().0 == 700);
    assert!(before.is_some_and(|n| n <= 2 * TURN as usize), "{before:?}");
}

#[test]
fn a_message_without_a_hint_is_found_all_the_same() {
    let (_, mut producers, _ringer, mut receiver) = pair(&[5]);
    assert_eq!(receiver.try_recv(), Ok(None));
    producers[0].push(&[1; 7]).unwrap();
    // Nobody rings.
    assert_eq!(receiver.recv(), Ok((5, [1; 7])));
}

#[test]
fn a_timed_receive_ends_without_a_message() {
    let (_, mut producers, ringer, mut receiver) = pair(&[5]);
    assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), Ok(None));
    producers[0].push(&[1; 7]).unwrap();
    ringer.ring(5);
    assert_eq!(receiver.recv_timeout(Duration::ZERO), Ok(Some((5, [1; 7]))));
    producers[0].push(&[2; 7]).unwrap();
    ringer.ring(5);
    assert_eq!(receiver.recv_timeout(Duration::MAX), Ok(Some((5, [2; 7]))));
}

#[test]
fn a_corrupt_lane_is_reported_once_and_the_others_go_on() {
    let (rings, mut producers, ringer, mut receiver) = pair(&[3, 4]);
    rings.word(128).store(77, Ordering::Relaxed);
    producers[1].push(&[8; 7]).unwrap();
    for lane in [3, 4, 900] {
        ringer.ring(lane);
    }
    let broken = receiver.try_recv().unwrap_err();
    assert_eq!((broken.lane, broken.corrupt), (3, Corrupt::Sequence { message: 0, found: 77 }));
    assert_eq!(receiver.recv(), Ok((4, [8; 7])));
    ringer.ring(3);
    assert_eq!(receiver.recv_timeout(2 * RELOOK), Ok(None));
}

#[test]
fn many_threads_are_heard_whether_we_block_or_wait_for_a_time() {
    const EACH: u64 = 20_000;
    let (_, producers, ringer, mut receiver) = pair(&[0, 64, 959]);
    let ringer = Arc::new(ringer);
    std::thread::scope(|scope| {
        for (mut producer, lane) in producers.into_iter().zip([0, 64, 959]) {
            let ringer = ringer.clone();
            scope.spawn(move || {
                for n in 0..EACH {
                    while producer.push(&[n; 7]).is_err() {
                        std::thread::yield_now();
                    }
                    ringer.ring(lane);
                }
            });
        }
        let mut next = [0; LANES];
        for n in 0..3 * EACH {
            let (lane, words) = match n % 2 {
                0 => receiver.recv().unwrap(),
                _ => receiver.recv_timeout(Duration::MAX).unwrap().unwrap(),
            };
            assert_eq!(words, [next[lane]; 7]);
            next[lane] += 1;
        }
    });
    assert_eq!(receiver.try_recv(), Ok(None));
}
