//! Rings and bells between threads: many messages, every word checked.
#![cfg(not(feature = "loom"))]

use std::{sync::Arc, thread, time::Duration};

use helix_shm::ring::{
    bell::{RELOOK, Ringer, Sleeper, eventfd, hints_bytes},
    segment::Segment,
    spsc::{Consumer, Producer, PushError, Words, ring_bytes},
};

fn message(lane: usize, n: u64) -> Words {
    std::array::from_fn(|i| (n * 8 + i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ lane as u64)
}

fn push(producer: &mut Producer, words: &Words) {
    while let Err(error) = producer.push(words) {
        assert_eq!(error, PushError::Full);
        thread::yield_now();
    }
}

#[test]
fn a_million_messages_pass_rings_of_every_size() {
    for (capacity, messages) in [(1, 20_000), (2, 50_000), (8, 200_000), (1024, 1_000_000)] {
        let segment = Arc::new(Segment::create("test", ring_bytes(capacity)).unwrap());
        let mut consumer = Consumer::new(segment.clone(), 0, capacity).unwrap();
        let producer = thread::spawn(move || {
            let mut producer = Producer::fresh(segment, 0, capacity).unwrap();
            (0..messages).for_each(|n| push(&mut producer, &message(0, n)));
        });
        let mut n = 0;
        while n < messages {
            match consumer.pop().unwrap() {
                Some(words) => {
                    assert_eq!(words, message(0, n));
                    n += 1;
                }
                None => thread::yield_now(),
            }
        }
        assert_eq!(consumer.pop(), Ok(None));
        producer.join().unwrap();
    }
}

/// Lanes far apart, so that they lie in different words of the bitmap.
fn bit(lane: usize) -> usize {
    lane * 150
}

/// One sleeper hears of every lane. It looks only where the bitmap says so, and the time limit of its sleep is far
/// beyond what the test takes, so that one wake-up that was lost is a test that hangs.
fn many_producers(spin: Duration) {
    const LANES: usize = 4;
    const CAPACITY: u32 = 16;
    const MESSAGES: u64 = 50_000;
    let rings = Arc::new(Segment::create("rings", LANES * ring_bytes(CAPACITY)).unwrap());
    let hints = Arc::new(Segment::create("hints", hints_bytes(2)).unwrap());
    let fd = eventfd().unwrap();
    let producers = (0..LANES).map(|lane| {
        let mut producer = Producer::fresh(rings.clone(), lane * ring_bytes(CAPACITY), CAPACITY).unwrap();
        let ringer = Ringer::new(hints.clone(), 1, fd.clone()).unwrap();
        thread::spawn(move || {
            for n in 0..MESSAGES {
                push(&mut producer, &message(lane, n));
                ringer.ring(bit(lane));
            }
        })
    });
    let producers: Vec<_> = producers.collect();
    let sleeper = Sleeper::new(hints, 1, fd).unwrap();
    let mut lanes: Vec<(Consumer, u64)> = (0..LANES)
        .map(|lane| (Consumer::new(rings.clone(), lane * ring_bytes(CAPACITY), CAPACITY).unwrap(), 0))
        .collect();
    while lanes.iter().any(|(_, n)| *n < MESSAGES) {
        sleeper.wait(1000 * RELOOK, spin);
        sleeper.take(|b| {
            let lane = (0..LANES).find(|&lane| bit(lane) == b).unwrap();
            let (consumer, n) = &mut lanes[lane];
            while let Some(words) = consumer.pop().unwrap() {
                assert_eq!(words, message(lane, *n));
                *n += 1;
            }
        });
    }
    producers.into_iter().for_each(|p| p.join().unwrap());
}

#[test]
fn many_producers_share_one_sleeper() {
    many_producers(Duration::ZERO);
}

#[test]
fn many_producers_share_one_sleeper_that_spins_first() {
    many_producers(Duration::from_micros(30));
}
