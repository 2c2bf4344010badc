//! Rings, bells and slabs between processes, with kill -9.
//!
//! The other process is this test binary, run again for one test that does nothing in an ordinary run. Its standard
//! input is the socket over which it is handed its descriptors.
#![cfg(not(feature = "loom"))]

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
};

use helix_shm::ring::{
    bell::{EventFd, RELOOK, Ringer, Sleeper, eventfd, hints_bytes},
    fds::{recv_packet, send_packet},
    segment::Segment,
    slab::{Slab, SlabOptions},
    spsc::{Consumer, Producer, PushError, Words, ring_bytes},
};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

const CAPACITY: u32 = 64;
const SLAB: usize = 1 << 20;
const ROLE: &str = "HELIX_RING_TEST_ROLE";

fn message(n: u64) -> Words {
    std::array::from_fn(|i| (n * 8 + i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// What both processes share.
struct Shared {
    ring: Arc<Segment>,
    hints: Arc<Segment>,
    bell: EventFd,
    slab: Slab,
}

impl Shared {
    fn create() -> Shared {
        let options = SlabOptions { prefault: false, huge: false, node: None };
        Shared {
            ring: Arc::new(Segment::create("ring", ring_bytes(CAPACITY)).unwrap()),
            hints: Arc::new(Segment::create("hints", hints_bytes(1)).unwrap()),
            bell: eventfd().unwrap(),
            slab: Slab::create("slab", SLAB, options).unwrap(),
        }
    }

    fn spawn(&self, role: &str) -> Child {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_other_process", "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let fds = [self.ring.fd().unwrap(), self.hints.fd().unwrap(), self.bell.fd(), self.slab.fd().unwrap()];
        send_packet(ours.as_fd(), b"shared", &fds).unwrap();
        child
    }

    fn receive() -> Shared {
        let (_, fds) = recv_packet(io::stdin().as_fd(), &mut Vec::new(), 64, 4).unwrap().unwrap();
        let [ring, hints, bell, slab]: [OwnedFd; 4] = fds.try_into().unwrap();
        Shared {
            ring: Arc::new(Segment::open(ring, ring_bytes(CAPACITY)).unwrap()),
            hints: Arc::new(Segment::open(hints, hints_bytes(1)).unwrap()),
            bell: bell.into(),
            slab: Slab::open(slab, SLAB).unwrap(),
        }
    }

    fn sleeper(&self) -> Sleeper {
        Sleeper::new(self.hints.clone(), 0, self.bell.clone()).unwrap()
    }

    fn ringer(&self) -> Ringer {
        Ringer::new(self.hints.clone(), 0, self.bell.clone()).unwrap()
    }

    fn consumer(&self) -> Consumer {
        Consumer::new(self.ring.clone(), 0, CAPACITY).unwrap()
    }

    fn producer(&self) -> Producer {
        Producer::resume(self.ring.clone(), 0, CAPACITY).unwrap()
    }
}

fn push(producer: &mut Producer, ringer: &Ringer, words: &Words) {
    while let Err(error) = producer.push(words) {
        assert_eq!(error, PushError::Full);
        thread::yield_now();
    }
    ringer.ring(7);
}

/// Not a test of its own: what the other process does.
#[test]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let shared = Shared::receive();
    let (mut producer, ringer) = (shared.producer(), shared.ringer());
    match role.as_str() {
        "pixels" => {
            for n in 0..256 {
                let range = shared.slab.range(n * 4096, 4096).unwrap();
                // SAFETY: nobody reads these bytes before the message below.
                unsafe { shared.slab.slice_mut(range.start, range.len()) }.fill(n as u8);
                push(&mut producer, &ringer, &message(n));
            }
        }
        until => {
            let until: u64 = until.parse().unwrap();
            // A predecessor may have published and not rung.
            ringer.ring_anyway(7);
            for n in producer.pushed()..until {
                push(&mut producer, &ringer, &message(n));
            }
        }
    }
}

/// Takes messages, each checked, until `done` says so.
fn take(sleeper: &Sleeper, consumer: &mut Consumer, mut done: impl FnMut(u64) -> bool) {
    loop {
        // Where it rings is not looked at: whoever was killed may have published and not rung.
        sleeper.wait(RELOOK, RELOOK / 5000);
        sleeper.take(|_| ());
        while let Some(words) = consumer.pop().unwrap() {
            let n = consumer.popped() - 1;
            assert_eq!(words, message(n));
            if done(n) {
                return;
            }
        }
    }
}

#[test]
fn a_million_messages_reach_another_process() {
    const MESSAGES: u64 = 1_000_000;
    let shared = Shared::create();
    let mut consumer = shared.consumer();
    let mut child = shared.spawn(&MESSAGES.to_string());
    take(&shared.sleeper(), &mut consumer, |n| n == MESSAGES - 1);
    assert!(child.wait().unwrap().success());
    assert_eq!(consumer.pop(), Ok(None));
}

#[test]
fn pixels_that_were_written_before_a_message_are_there_after_it() {
    let shared = Shared::create();
    let mut child = shared.spawn("pixels");
    take(&shared.sleeper(), &mut shared.consumer(), |n| {
        let range = shared.slab.range(n * 4096, 4096).unwrap();
        // SAFETY: the other process wrote these bytes before the message, and never again.
        assert!(unsafe { shared.slab.slice(range.start, range.len()) }.iter().all(|&b| b == n as u8));
        n == 255
    });
    assert!(child.wait().unwrap().success());
}

#[test]
fn whoever_follows_a_killed_producer_loses_and_repeats_nothing() {
    let shared = Shared::create();
    let (sleeper, mut consumer) = (shared.sleeper(), shared.consumer());
    let mut seed = 11u64;
    for _ in 0..30 {
        let mut child = shared.spawn(&u64::MAX.to_string());
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Killed after as many more messages, wherever in its next publish it then is.
        let last = consumer.popped() + (seed >> 33) % 3000;
        take(&sleeper, &mut consumer, |n| n == last);
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
    // What the last one left, and a message from one that ends well.
    let left = shared.producer().pushed();
    let mut child = shared.spawn(&(left + 1).to_string());
    take(&sleeper, &mut consumer, |n| n == left);
    assert!(child.wait().unwrap().success());
    assert_eq!(consumer.pop(), Ok(None));
}
