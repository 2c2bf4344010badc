//! Asynchronous receive under tokio's smallest runtime, with producers in threads of their own.
#![cfg(not(feature = "loom"))]

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    thread,
};

use helix_shm::ring::{
    bell::{Ringer, Sleeper, eventfd, hints_bytes},
    receive::{AsyncReceiver, AsyncSleeper},
    segment::Segment,
    spsc::{Consumer, Producer, ring_bytes},
};
use tokio::runtime::{Builder, Runtime};

const CAPACITY: u32 = 16;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

struct Parts {
    producers: Vec<Producer>,
    consumers: Vec<(usize, Consumer)>,
    ringer: Arc<Ringer>,
    sleeper: Sleeper,
}

fn parts(lanes: &[usize]) -> Parts {
    let rings = Arc::new(Segment::create("test", lanes.len() * ring_bytes(CAPACITY)).unwrap());
    let hints = Arc::new(Segment::create("test", hints_bytes(1)).unwrap());
    let fd = eventfd().unwrap();
    let at = |i: usize| i * ring_bytes(CAPACITY);
    let consumer = |i| Consumer::new(rings.clone(), at(i), CAPACITY).unwrap();
    Parts {
        producers: (0..lanes.len()).map(|i| Producer::fresh(rings.clone(), at(i), CAPACITY).unwrap()).collect(),
        consumers: lanes.iter().enumerate().map(|(i, &lane)| (lane, consumer(i))).collect(),
        ringer: Arc::new(Ringer::new(hints.clone(), 0, fd.clone()).unwrap()),
        sleeper: Sleeper::new(hints, 0, fd).unwrap(),
    }
}

#[test]
fn every_message_of_every_thread_is_received() {
    const EACH: u64 = 30_000;
    let Parts { producers, consumers, ringer, sleeper } = parts(&[1, 500]);
    let threads: Vec<_> = producers
        .into_iter()
        .zip([1, 500])
        .map(|(mut producer, lane)| {
            let ringer = ringer.clone();
            thread::spawn(move || {
                for n in 0..EACH {
                    while producer.push(&[n; 7]).is_err() {
                        thread::yield_now();
                    }
                    ringer.ring(lane);
                }
            })
        })
        .collect();
    runtime().block_on(async {
        let mut receiver = AsyncReceiver::new(sleeper, consumers).unwrap();
        let mut next = [0; 501];
        for _ in 0..2 * EACH {
            let (lane, words) = receiver.recv().await.unwrap();
            assert_eq!(words, [next[lane]; 7]);
            next[lane] += 1;
        }
    });
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// A question and its answer at a time, so that each side sleeps before every message: a wake-up that is lost costs a
/// look's 100 ms, and ten thousand of them would be noticed by whoever runs this.
#[test]
fn a_task_and_a_thread_wake_each_other() {
    const TIMES: u64 = 10_000;
    let (mut there, mut back) = (parts(&[0]), parts(&[0]));
    let answers = back.ringer.clone();
    let other = thread::spawn(move || {
        let (_, mut consumer) = there.consumers.remove(0);
        for n in 0..TIMES {
            let words = loop {
                if let Some(words) = consumer.pop().unwrap() {
                    break words;
                }
                there.sleeper.wait(helix_shm::ring::bell::RELOOK, std::time::Duration::ZERO);
                there.sleeper.take(|_| ());
            };
            assert_eq!(words, [n; 7]);
            back.producers[0].push(&words).unwrap();
            answers.ring(0);
        }
    });
    runtime().block_on(async {
        let mut receiver = AsyncReceiver::new(back.sleeper, back.consumers).unwrap();
        for n in 0..TIMES {
            there.producers[0].push(&[n; 7]).unwrap();
            there.ringer.ring(0);
            assert_eq!(receiver.recv().await.unwrap(), (0, [n; 7]));
        }
    });
    other.join().unwrap();
}

#[test]
fn a_receive_that_is_dropped_loses_nothing_and_leaves_nobody_parked() {
    let Parts { mut producers, consumers, ringer, sleeper } = parts(&[7]);
    runtime().block_on(async {
        let mut receiver = AsyncReceiver::new(sleeper, consumers).unwrap();
        for n in 0..100 {
            {
                let mut receive = pin!(receiver.recv());
                assert!(receive.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
                producers[0].push(&[n; 7]).unwrap();
                ringer.ring(7);
            }
            assert_eq!(receiver.recv().await.unwrap(), (7, [n; 7]));
        }
    });
}

#[test]
fn a_message_that_nobody_rang_for_is_found_by_looking() {
    let Parts { mut producers, consumers, ringer: _, sleeper } = parts(&[7]);
    runtime().block_on(async {
        let mut receiver = AsyncReceiver::new(sleeper, consumers).unwrap();
        assert_eq!(receiver.try_recv(), Ok(None));
        producers[0].push(&[3; 7]).unwrap();
        assert_eq!(receiver.recv().await.unwrap(), (7, [3; 7]));
    });
}

#[test]
fn other_tasks_run_while_one_sleeps() {
    let Parts { producers: _, consumers: _, ringer, sleeper } = parts(&[7]);
    runtime().block_on(async {
        let mut sleeper = AsyncSleeper::new(sleeper).unwrap();
        // The ring comes from a task of the same thread, which runs only if the wait lets go of it.
        let task = tokio::spawn(async move { ringer.ring(9) });
        while !sleeper.wait(helix_shm::ring::bell::RELOOK).await.unwrap() {}
        sleeper.sleeper().take(|lane| assert_eq!(lane, 9));
        task.await.unwrap();
    });
}
