//! Models of the doorbell. A model's eventfd has no time limit to its sleep, so a lost wake-up is a deadlock, which
//! loom reports. `ci/loom.sh` runs these as they are, and with each named ordering weakened, which must fail.
#![cfg(feature = "loom")]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use helix_shm::ring::{
    Death,
    bell::{EventFd, RELOOK, Ringer, Sleeper, eventfd, hints_bytes},
    die_at,
    segment::Segment,
    spsc::{Consumer, Producer, ring_bytes},
};
use loom::thread;

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    builder.max_branches = 10_000;
    builder.check(run);
}

struct Bells {
    hints: Arc<Segment>,
    fd: EventFd,
    rings: Arc<Segment>,
}

const CAPACITY: u32 = 2;

impl Bells {
    fn new(lanes: usize) -> Bells {
        Bells {
            hints: Arc::new(Segment::create("hints", hints_bytes(1)).unwrap()),
            fd: eventfd().unwrap(),
            rings: Arc::new(Segment::create("rings", lanes.max(1) * ring_bytes(CAPACITY)).unwrap()),
        }
    }

    fn sleeper(&self) -> Sleeper {
        Sleeper::new(self.hints.clone(), 0, self.fd.clone()).unwrap()
    }

    fn ringer(&self) -> Ringer {
        Ringer::new(self.hints.clone(), 0, self.fd.clone()).unwrap()
    }

    /// Pushes so many messages into a lane, ringing after each.
    fn produce(&self, lane: usize, bit: usize, messages: u64) -> thread::JoinHandle<()> {
        let mut producer = Producer::fresh(self.rings.clone(), lane * ring_bytes(CAPACITY), CAPACITY).unwrap();
        let ringer = self.ringer();
        thread::spawn(move || {
            for n in 0..messages {
                producer.push(&[n; 7]).unwrap();
                ringer.ring(bit);
            }
        })
    }

    /// Sleeps and takes until every lane gave so many messages, looking only where it was told to.
    fn consume(&self, bits: &[usize], messages: u64) {
        let sleeper = self.sleeper();
        let mut lanes: Vec<(Consumer, u64)> = (0..bits.len())
            .map(|lane| (Consumer::new(self.rings.clone(), lane * ring_bytes(CAPACITY), CAPACITY).unwrap(), 0))
            .collect();
        while lanes.iter().any(|(_, got)| *got < messages) {
            sleeper.wait(RELOOK, Duration::ZERO);
            sleeper.take(|bit| {
                let (consumer, got) = &mut lanes[bits.iter().position(|&b| b == bit).unwrap()];
                while let Some(words) = consumer.pop().unwrap() {
                    assert_eq!(words, [*got; 7]);
                    *got += 1;
                }
            });
        }
    }
}

#[test]
fn one_producer_wakes_the_sleeper_for_each_message() {
    model(|| {
        let bells = Bells::new(1);
        let producer = bells.produce(0, 0, 2);
        bells.consume(&[0], 2);
        producer.join().unwrap();
    });
}

#[test]
fn two_producers_wake_it_whichever_is_first() {
    model(|| {
        let bells = Bells::new(2);
        let producers = [bells.produce(0, 0, 1), bells.produce(1, 1, 1)];
        bells.consume(&[0, 1], 1);
        producers.into_iter().for_each(|p| p.join().unwrap());
    });
}

#[test]
fn the_bitmap_loses_no_bit_in_the_same_word_or_another() {
    model(|| {
        let bells = Bells::new(0);
        let ringers = [&[3usize, 70][..], &[4]].map(|lanes| {
            let ringer = bells.ringer();
            thread::spawn(move || lanes.iter().for_each(|&lane| ringer.ring(lane)))
        });
        let sleeper = bells.sleeper();
        let mut seen = Vec::new();
        sleeper.take(|lane| seen.push(lane));
        ringers.into_iter().for_each(|r| r.join().unwrap());
        sleeper.take(|lane| seen.push(lane));
        seen.sort_unstable();
        assert_eq!(seen, [3, 4, 70], "each once");
        assert!(!sleeper.has_news());
    });
}

#[test]
fn a_lane_that_is_watched_and_then_forgotten_loses_no_message() {
    model(|| {
        let bells = Bells::new(1);
        let producer = bells.produce(0, 0, 2);
        let sleeper = bells.sleeper();
        let mut consumer = Consumer::new(bells.rings.clone(), 0, CAPACITY).unwrap();
        let mut got = 0;
        while got < 2 {
            let mut warm = false;
            sleeper.watch(|_| {
                warm = true;
                true
            });
            while let Some(words) = consumer.pop().unwrap() {
                assert_eq!(words, [got; 7]);
                got += 1;
            }
            if warm {
                sleeper.forget(0);
            }
            if got < 2 && consumer.is_empty() {
                sleeper.wait(RELOOK, Duration::ZERO);
            }
        }
        producer.join().unwrap();
    });
}

#[test]
fn whoever_follows_a_producer_that_died_within_a_ring_wakes_the_sleeper() {
    // Its heir has one more message, or none.
    for (step, messages) in
        [("ring.start", 1), ("ring.start", 2), ("ring.bit", 1), ("ring.claimed", 1), ("ring.claimed", 2)]
    {
        model(move || {
            let bells = Bells::new(1);
            let rings = bells.rings.clone();
            let ringer = bells.ringer();
            let other = thread::spawn(move || {
                let mut producer = Producer::fresh(rings.clone(), 0, CAPACITY).unwrap();
                producer.push(&[0; 7]).unwrap();
                die_at(Some(step));
                // It does not die where it finds nobody to wake.
                if let Err(death) = catch_unwind(AssertUnwindSafe(|| ringer.ring(0))) {
                    assert!(death.is::<Death>());
                }
                die_at(None);
                let mut successor = Producer::resume(rings, 0, CAPACITY).unwrap();
                if std::env::var("HELIX_MUTANT").is_ok_and(|m| m == "heir.ring") {
                    ringer.ring(0);
                } else {
                    ringer.ring_anyway(0);
                }
                for n in 1..messages {
                    successor.push(&[n; 7]).unwrap();
                    ringer.ring(0);
                }
            });
            bells.consume(&[0], messages);
            other.join().unwrap();
        });
    }
}
