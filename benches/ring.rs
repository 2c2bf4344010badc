//! What the ring and the bell cost, each beside the least that it could cost.
//!
//! The pairs of threads show how a change compares with the one before on the same machine; latency between
//! processes is measured elsewhere, with the floor taken around every burst. With the feature `loom` there is
//! nothing to measure.

#[cfg(feature = "loom")]
fn main() {}

#[cfg(not(feature = "loom"))]
criterion::criterion_group!(benches, measured::one_thread, measured::publish, measured::wake, measured::two_threads);
#[cfg(not(feature = "loom"))]
criterion::criterion_main!(benches);

#[cfg(not(feature = "loom"))]
mod measured {
    use std::{
        hint::{black_box, spin_loop},
        sync::{
            Arc,
            atomic::{AtomicU32, AtomicU64, Ordering, fence},
        },
        thread,
        time::{Duration, Instant},
    };

    use criterion::{BenchmarkId, Criterion, Throughput};
    use helix_shm::ring::{
        bell::{EventFd, Ringer, Sleeper, eventfd, hints_bytes},
        segment::Segment,
        spsc::{Consumer, Producer, Words, ring_bytes},
    };

    fn ring(capacity: u32) -> (Producer, Consumer) {
        let segment = Arc::new(Segment::create("bench", ring_bytes(capacity)).unwrap());
        let producer = Producer::fresh(segment.clone(), 0, capacity).unwrap();
        (producer, Consumer::new(segment, 0, capacity).unwrap())
    }

    fn bell() -> (Ringer, Sleeper, EventFd) {
        let hints = Arc::new(Segment::create("bench", hints_bytes(1)).unwrap());
        let fd = eventfd().unwrap();
        let ringer = Ringer::new(hints.clone(), 0, fd.clone()).unwrap();
        (ringer, Sleeper::new(hints, 0, fd.clone()).unwrap(), fd)
    }

    /// The bare instructions: both sides in one thread, every line in its cache.
    pub(crate) fn one_thread(c: &mut Criterion) {
        let mut group = c.benchmark_group("one thread");
        group.throughput(Throughput::Elements(1));
        for capacity in [16, 256] {
            let (mut producer, mut consumer) = ring(capacity);
            group.bench_function(BenchmarkId::new("push and pop", capacity), |b| {
                b.iter(|| {
                    producer.push(black_box(&[7; 7])).unwrap();
                    consumer.pop().unwrap()
                });
            });
        }
        group.finish();
    }

    /// Publishing to a consumer that is awake, in bursts that are taken between the measurements.
    pub(crate) fn publish(c: &mut Criterion) {
        const BURST: u64 = 64;
        let mut group = c.benchmark_group("publish");
        let (flag, parked) = (AtomicU64::new(0), AtomicU32::new(0));
        group.bench_function("floor: flag and fence", |b| {
            b.iter(|| {
                flag.store(1, Ordering::Release);
                fence(Ordering::SeqCst);
                black_box(parked.load(Ordering::Relaxed))
            });
        });
        let (mut producer, mut consumer) = ring(BURST as u32);
        let (ringer, sleeper, _) = bell();
        group.bench_function("push and ring, consumer awake", |b| {
            b.iter_custom(|iterations| {
                let mut spent = Duration::ZERO;
                let mut left = iterations;
                while left > 0 {
                    let burst = left.min(BURST);
                    let start = Instant::now();
                    for n in 0..burst {
                        producer.push(black_box(&[n; 7])).unwrap();
                        ringer.ring(3);
                    }
                    spent += start.elapsed();
                    left -= burst;
                    sleeper.take(|_| ());
                    while consumer.pop().unwrap().is_some() {}
                }
                spent
            });
        });
        group.finish();
    }

    /// The system calls of a wake-up, without the switch between threads that they cause.
    pub(crate) fn wake(c: &mut Criterion) {
        let mut group = c.benchmark_group("wake");
        let (ringer, sleeper, fd) = bell();
        group.bench_function("floor: eventfd write and read", |b| {
            b.iter(|| {
                nix::unistd::write(fd.fd(), &1u64.to_ne_bytes()).unwrap();
                nix::unistd::read(fd.fd(), &mut [0; 8]).unwrap()
            });
        });
        group.bench_function("park, ring, unpark, take", |b| {
            b.iter(|| {
                assert!(sleeper.park());
                ringer.ring(3);
                sleeper.unpark();
                sleeper.take(|lane| assert_eq!(lane, 3));
            });
        });
        group.finish();
    }

    fn pop(consumer: &mut Consumer) -> Words {
        loop {
            if let Some(words) = consumer.pop().unwrap() {
                return words;
            }
            spin_loop();
        }
    }

    /// There and back between two threads that look all the time; a last message of `u64::MAX` ends the other.
    pub(crate) fn two_threads(c: &mut Criterion) {
        let mut group = c.benchmark_group("two threads");
        let line = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let other = thread::spawn({
            let line = line.clone();
            move || {
                for n in 1.. {
                    let found = loop {
                        match line[0].load(Ordering::Acquire) {
                            found if found >= n => break found,
                            _ => spin_loop(),
                        }
                    };
                    line[1].store(n, Ordering::Release);
                    if found == u64::MAX {
                        return;
                    }
                }
            }
        });
        let mut n = 0;
        group.bench_function("floor: round trip over one line", |b| {
            b.iter(|| {
                n += 1;
                line[0].store(n, Ordering::Release);
                while line[1].load(Ordering::Acquire) != n {
                    spin_loop();
                }
            });
        });
        line[0].store(u64::MAX, Ordering::Release);
        other.join().unwrap();

        let ((mut to, mut there), (mut back, mut from)) = (ring(64), ring(64));
        let other = thread::spawn(move || {
            loop {
                let words = pop(&mut there);
                back.push(&words).unwrap();
                if words[0] == u64::MAX {
                    return;
                }
            }
        });
        group.bench_function("round trip over two rings", |b| {
            b.iter(|| {
                to.push(black_box(&[1; 7])).unwrap();
                pop(&mut from)
            });
        });
        to.push(&[u64::MAX; 7]).unwrap();
        other.join().unwrap();

        group.throughput(Throughput::Elements(1));
        group.bench_function("one way, as many as it takes", |b| {
            b.iter_custom(|messages| {
                let (mut producer, mut consumer) = ring(1024);
                let other = thread::spawn(move || (0..messages).for_each(|_| assert_ne!(pop(&mut consumer)[6], 0)));
                let start = Instant::now();
                for n in 0..messages {
                    while producer.push(&[n + 1; 7]).is_err() {
                        spin_loop();
                    }
                }
                other.join().unwrap();
                start.elapsed()
            });
        });
        group.finish();
    }
}
