//! Many producers, one consumer: our matrix of rings under one bell, and one `ArrayQueue` for all.
//!
//! All are threads of this process, since the peer knows no other. The consumer has a core to itself; the producers
//! share the rest, so only with three cores or more do they truly contend.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use helix_shm::ring::bell::{Ringer, Sleeper, eventfd, hints_bytes};
use helix_shm::ring::receive::Receiver;
use helix_shm::ring::segment::Segment;
use helix_shm::ring::spsc::{Consumer, Producer, Words, ring_bytes};

use crate::cores::pin;
use crate::ends::message;
use crate::poll::{poll, poll_sharing_a_core};
use crate::shared::CAPACITY;
use crate::windows::{STREAM, Windows};

/// A message of producer `p`, in the words that count the messages of one producer.
fn from(p: usize, n: u64) -> Words {
    let mut words = message(n);
    words[6] = p as u64;
    words
}

/// In registers, as everybody compares.
fn same(found: &Words, wanted: &Words) -> bool {
    found.iter().zip(wanted).fold(0, |wrong, (a, b)| wrong | (a ^ b)) == 0
}

/// Checks that the messages of each producer come in order, without loss.
struct Check(Vec<u64>);

impl Check {
    fn take(&mut self, words: &Words) {
        let p = words[6] as usize;
        assert!(same(words, &from(p, self.0[p])));
        self.0[p] += 1;
    }
}

/// Runs a producer on each of `cores` that sends `each` messages by `send`, and a consumer here that takes them by `receive`; nanoseconds a message.
fn run<S: Send + FnMut(&Words) -> bool>(
    cores: &[usize],
    each: u64,
    senders: Vec<S>,
    mut receive: impl FnMut() -> Words,
) -> f64 {
    let total = each * senders.len() as u64;
    let waiting = AtomicU32::new(senders.len() as u32 + 1);
    let meet = || {
        waiting.fetch_sub(1, Ordering::AcqRel);
        poll_sharing_a_core(|| (waiting.load(Ordering::Acquire) == 0).then_some(()));
    };
    let meet = &meet;
    let mut check = Check(vec![0; senders.len()]);
    thread::scope(|scope| {
        for ((p, mut send), &core) in senders.into_iter().enumerate().zip(cores.iter().cycle()) {
            scope.spawn(move || {
                pin(core).expect("a core that we may use");
                meet();
                for i in 0..each {
                    let words = from(p, i);
                    poll_sharing_a_core(|| send(&words).then_some(()));
                }
            });
        }
        meet();
        let mut windows = Windows::new(total, STREAM);
        for i in 0..total {
            check.take(&receive());
            windows.done(i);
        }
        windows.median()
    })
}

/// Our matrix: a ring for each producer, one bell.
pub fn matrix(cores: &[usize], producers: usize, each: u64) -> f64 {
    let rings = Arc::new(Segment::create("crowd", ring_bytes(CAPACITY) * producers).expect("memory"));
    let hints = Arc::new(Segment::create("crowd", hints_bytes(1)).expect("memory"));
    let bell = eventfd().expect("an eventfd");
    let at = |lane| lane * ring_bytes(CAPACITY);
    let senders = (0..producers).map(|lane| {
        let mut ring = Producer::fresh(rings.clone(), at(lane), CAPACITY).expect("a ring");
        let ringer = Ringer::new(hints.clone(), 0, bell.clone()).expect("an entry");
        move |words: &Words| {
            let sent = ring.push(words).is_ok();
            if sent {
                ringer.ring(lane);
            }
            sent
        }
    });
    let lanes = (0..producers).map(|l| (l, Consumer::new(rings.clone(), at(l), CAPACITY).expect("a ring")));
    let sleeper = Sleeper::new(hints.clone(), 0, bell.clone()).expect("an entry");
    let mut receiver = Receiver::new(sleeper, lanes, Duration::ZERO);
    run(cores, each, senders.collect(), || poll(|| receiver.try_recv().expect("honest producers")).1)
}

/// crossbeam's queue, as large as all the rings together. It has no bell, so it does less.
pub fn array(cores: &[usize], producers: usize, each: u64) -> f64 {
    let queue = ArrayQueue::new(CAPACITY as usize * producers);
    let queue = &queue;
    let senders = (0..producers).map(|_| move |words: &Words| queue.push(*words).is_ok());
    run(cores, each, senders.collect(), || poll(|| queue.pop()))
}
