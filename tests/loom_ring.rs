//! Models of the ring: every interleaving of a bounded number of preemptions, and every value that the memory model
//! lets a load see. A message's body is a cell whose accesses loom checks, so a model fails on any that is not
//! ordered. `ci/loom.sh` runs these as they are, and with each named ordering weakened, which must fail.
#![cfg(feature = "loom")]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use helix_shm::ring::{
    Death, die_at,
    segment::Segment,
    spsc::{Consumer, Producer, PushError, Words, ring_bytes},
};
use loom::{cell::UnsafeCell, thread};

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    builder.max_branches = 10_000;
    builder.check(run);
}

fn ring(capacity: u32) -> (Arc<Segment>, Producer, Consumer) {
    let segment = Arc::new(Segment::create("model", ring_bytes(capacity)).unwrap());
    let producer = Producer::fresh(segment.clone(), 0, capacity).unwrap();
    let consumer = Consumer::new(segment.clone(), 0, capacity).unwrap();
    (segment, producer, consumer)
}

fn message(n: u64) -> Words {
    std::array::from_fn(|i| n * 10 + i as u64)
}

fn push(producer: &mut Producer, n: u64) {
    while let Err(error) = producer.push(&message(n)) {
        assert_eq!(error, PushError::Full);
        thread::yield_now();
    }
}

fn pop(consumer: &mut Consumer) -> Words {
    loop {
        match consumer.pop().unwrap() {
            Some(words) => return words,
            None => thread::yield_now(),
        }
    }
}

/// Pushes and pops before the threads start, so that they meet the ring at a place of our choice.
fn turn(producer: &mut Producer, consumer: &mut Consumer, from: u64, to: u64) {
    for n in from..to {
        push(producer, n);
        assert_eq!(consumer.pop(), Ok(Some(message(n))));
    }
    assert_eq!(consumer.pop(), Ok(None));
}

#[test]
fn messages_cross_the_end_of_the_ring_whole_and_in_order() {
    for capacity in [1, 2] {
        model(move || {
            let (_segment, mut producer, mut consumer) = ring(capacity);
            let other = thread::spawn(move || (0..4).for_each(|n| push(&mut producer, n)));
            (0..4).for_each(|n| assert_eq!(pop(&mut consumer), message(n)));
            assert!(consumer.is_empty());
            other.join().unwrap();
        });
    }
}

#[test]
fn a_full_ring_overwrites_nothing() {
    model(|| {
        let (_segment, mut producer, mut consumer) = ring(2);
        turn(&mut producer, &mut consumer, 0, 1);
        push(&mut producer, 1);
        push(&mut producer, 2);
        let other = thread::spawn(move || {
            // One try each: what does not fit is given up.
            let sent: Vec<u64> = (3..6).filter(|&n| producer.push(&message(n)).is_ok()).collect();
            sent
        });
        let first = pop(&mut consumer);
        let second = pop(&mut consumer);
        let sent = other.join().unwrap();
        let rest: Vec<Words> = std::iter::from_fn(|| consumer.pop().unwrap()).collect();
        assert_eq!((first, second), (message(1), message(2)));
        assert_eq!(rest, sent.into_iter().map(message).collect::<Vec<_>>());
    });
}

#[test]
fn an_empty_ring_gives_nothing_that_was_not_pushed() {
    model(|| {
        let (_segment, mut producer, mut consumer) = ring(2);
        turn(&mut producer, &mut consumer, 0, 3);
        let other = thread::spawn(move || (3..5).for_each(|n| push(&mut producer, n)));
        let mut next = 3;
        for _ in 0..3 {
            if let Some(words) = consumer.pop().unwrap() {
                assert_eq!(words, message(next));
                next += 1;
            }
        }
        other.join().unwrap();
        (next..5).for_each(|n| assert_eq!(consumer.pop(), Ok(Some(message(n)))));
        assert_eq!(consumer.pop(), Ok(None));
    });
}

#[test]
fn a_head_that_is_told_late_frees_what_was_read_and_no_more() {
    model(|| {
        // Told every second message.
        let (_segment, mut producer, mut consumer) = ring(8);
        turn(&mut producer, &mut consumer, 0, 3);
        (3..11).for_each(|n| push(&mut producer, n));
        assert_eq!(producer.push(&message(11)), Err(PushError::Full));
        let other = thread::spawn(move || {
            push(&mut producer, 11);
            push(&mut producer, 12);
            producer
        });
        (3..6).for_each(|n| assert_eq!(consumer.pop(), Ok(Some(message(n)))));
        let mut producer = other.join().unwrap();
        assert_eq!(producer.free_slots(), Ok(0), "one is taken and not told");
        (6..13).for_each(|n| assert_eq!(consumer.pop(), Ok(Some(message(n)))));
        assert_eq!(consumer.pop(), Ok(None));
        assert_eq!(producer.free_slots(), Ok(8));
    });
}

/// A producer that dies at `step` of pushing message `last`, having pushed those from `first` on.
fn dies(mut producer: Producer, first: u64, last: u64, step: &'static str) {
    let died = catch_unwind(AssertUnwindSafe(|| {
        (first..last).for_each(|n| push(&mut producer, n));
        die_at(Some(step));
        push(&mut producer, last);
    }));
    assert!(died.unwrap_err().is::<Death>());
}

#[test]
fn whoever_follows_a_producer_that_died_within_a_publish_repeats_and_loses_nothing() {
    // The first of these that the dead one did not publish.
    let steps = [("push.start", 3), ("push.half", 3), ("push.words", 3), ("push.published", 4)];
    for (step, unpublished) in steps {
        // Before its first lap, at the end of one, and after.
        for before in 0..3 {
            model(move || {
                let (segment, mut producer, mut consumer) = ring(2);
                turn(&mut producer, &mut consumer, 2 - before, 2);
                let reader = thread::spawn(move || {
                    (2..5).for_each(|n| assert_eq!(pop(&mut consumer), message(n)));
                    assert_eq!(consumer.pop(), Ok(None));
                });
                thread::spawn(move || dies(producer, 2, 3, step)).join().unwrap();
                // Known dead: its successor starts.
                let mut successor = Producer::resume(segment, 0, 2).unwrap();
                (unpublished..5).for_each(|n| push(&mut successor, n));
                reader.join().unwrap();
            });
        }
    }
}

/// A region's bytes, every access to which loom checks.
struct Pixels(UnsafeCell<u64>);

// SAFETY: loom fails the model if two accesses of which one writes are not ordered.
unsafe impl Send for Pixels {}
// SAFETY: as above.
unsafe impl Sync for Pixels {}

/// What the holders of a batch share. The last of them lets the region go.
struct Batch {
    pixels: Arc<Pixels>,
    /// Behind a lock of std, which loom does not see: it must not lend the model an ordering.
    feedback: std::sync::Mutex<Producer>,
}

impl Batch {
    fn release(&self) {
        push(&mut self.feedback.lock().unwrap(), 1);
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if !first_releases() {
            self.release();
        }
    }
}

/// The mutant of a lease: whoever is first lets go for all.
fn first_releases() -> bool {
    std::env::var("HELIX_MUTANT").is_ok_and(|m| m == "lease.first")
}

#[test]
fn a_region_has_a_new_writer_only_after_its_last_reader() {
    model(|| {
        let (_segment, producer, mut consumer) = ring(2);
        let pixels = Arc::new(Pixels(UnsafeCell::new(7)));
        let lease = loom::sync::Arc::new(Batch { pixels: pixels.clone(), feedback: producer.into() });
        let holders = [lease.clone(), lease].map(|lease| {
            thread::spawn(move || {
                // SAFETY: loom fails the model if anybody writes meanwhile.
                assert_eq!(lease.pixels.0.with(|p| unsafe { *p }), 7);
                if first_releases() {
                    lease.release();
                }
            })
        });
        assert_eq!(pop(&mut consumer), message(1));
        // SAFETY: loom fails the model if anybody has access.
        pixels.0.with_mut(|p| unsafe { *p = 8 });
        holders.into_iter().for_each(|h| h.join().unwrap());
        assert_eq!(consumer.pop(), Ok(None), "let go once");
    });
}
