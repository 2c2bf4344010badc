//! Rings and bells in memory that somebody else writes to: messages, errors or false hints.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use helix_shm::ring::bell::{LANES, Ringer, Sleeper, eventfd, hints_bytes};
use helix_shm::ring::segment::Segment;
use helix_shm::ring::spsc::{Consumer, Producer, ring_bytes};

/// One input.
pub fn run(bytes: &[u8]) {
    let Some((&size, rest)) = bytes.split_first() else { return };
    let capacity = 1u32 << (size % 5);
    let segment = Arc::new(Segment::create("fuzz", ring_bytes(capacity)).unwrap());
    let hints = Arc::new(Segment::create("fuzz", hints_bytes(2)).unwrap());
    let fd = eventfd().unwrap();
    let ringer = Ringer::new(hints.clone(), 1, fd.clone()).unwrap();
    let sleeper = Sleeper::new(hints.clone(), 1, fd).unwrap();
    let mut producer = Producer::fresh(segment.clone(), 0, capacity).unwrap();
    let mut consumer = Consumer::new(segment.clone(), 0, capacity).unwrap();
    for act in rest.chunks_exact(6) {
        let value = u64::from(u32::from_le_bytes([act[2], act[3], act[4], act[5]]));
        // Small numbers come near what is expected, large ones near the ends.
        let value = match act[1] % 4 {
            0 => value % 64,
            1 => u64::MAX - value % 64,
            2 => value << 32,
            _ => 1 << (value % 64),
        };
        let place = usize::from(act[1]) * 8;
        match act[0] % 10 {
            0..=2 => drop(producer.push(&[value; 7])),
            3..=4 => drop(consumer.pop()),
            5 => {
                let _ = (producer.free_slots(), consumer.is_empty());
            }
            6 => segment.word(place % segment.len() / 8 * 8).store(value, Ordering::Relaxed),
            7 => hints.word(place % hints.len() / 8 * 8).store(value, Ordering::Relaxed),
            8 => {
                if let Ok(successor) = Producer::resume(segment.clone(), 0, capacity) {
                    producer = successor;
                }
                if let Ok(successor) = Consumer::resume(segment.clone(), 0, capacity) {
                    consumer = successor;
                }
            }
            _ => {
                ringer.ring(value as usize % LANES);
                sleeper.watch(|lane| {
                    assert!(lane < LANES);
                    lane % 2 == 0
                });
                sleeper.forget(value as usize % LANES);
                sleeper.take(|lane| assert!(lane < LANES));
                if sleeper.park() {
                    sleeper.unpark();
                }
            }
        }
    }
}
