//! Interleaved rounds: what is compared is measured in turn, again and again, with the floor before and after each.

use std::io;
use std::time::{Duration, Instant};

use crate::bench::{Bench, PROCESS_QUEUES, Queue, Sharing, THREAD_QUEUES, WAKERS, What};
use crate::publish::Consumes;
use crate::windows::{ROUND_TRIPS, STREAM, WAKES};

/// Samples that a median needs.
pub const ENOUGH: usize = 9;
/// A floor that moved by more than this between before and after says that something else ran.
const MOVED: f64 = 1.2;
/// A burst is meant to last this long: less than the scheduler's slice, and far more than a clock's tick.
const BURST: Duration = Duration::from_millis(2);
/// A burst that lasts longer was interrupted.
const LONGEST: Duration = Duration::from_millis(50);
/// Rounds on a machine that has both regimes at once.
const ROUNDS: usize = 40;

/// Things that are measured in turn, around one floor.
pub struct Group {
    /// What the table says above it.
    pub title: &'static str,
    /// What each is compared with.
    pub floor: What,
    /// What the floor is called.
    pub floor_name: &'static str,
    /// What is measured.
    pub items: Vec<Item>,
}

/// One thing that is measured, and what was found.
pub struct Item {
    /// Its name in the table.
    pub name: &'static str,
    what: What,
    burst: u64,
    /// What was found: what it took and what the floor took, in ns.
    pub samples: Vec<(f64, f64)>,
    /// Bursts that were dropped.
    pub dropped: usize,
}

/// The two states that a pair of cores is found in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Regime {
    /// They share a cache.
    Near,
    /// A line goes through memory or another socket.
    Far,
}

impl Regime {
    /// By the floor, in ns.
    pub fn of(floor: f64) -> Regime {
        if floor < 100.0 { Regime::Near } else { Regime::Far }
    }
}

impl Item {
    fn new(name: &'static str, what: What) -> Item {
        Item { name, what, burst: 0, samples: Vec::new(), dropped: 0 }
    }

    /// The median of its ratios to the floor, where `keep` holds of the floor; with how many there were.
    pub fn ratio(&self, keep: impl Fn(f64) -> bool) -> (Option<f64>, usize) {
        let kept: Vec<f64> = self.samples.iter().filter(|s| keep(s.1)).map(|(took, floor)| took / floor).collect();
        (median(&kept).filter(|_| kept.len() >= ENOUGH), kept.len())
    }

    /// The median of what it took, in ns.
    pub fn took(&self, keep: impl Fn(f64) -> bool) -> Option<f64> {
        let kept: Vec<f64> = self.samples.iter().filter(|s| keep(s.1)).map(|s| s.0).collect();
        median(&kept)
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
    Some((low + high) / 2.0)
}

/// Everything that is compared.
pub fn groups() -> Vec<Group> {
    let queues = |what: fn(Queue) -> What| -> Vec<Item> {
        let processes = PROCESS_QUEUES.iter().enumerate().map(|(i, name)| Item::new(name, what(Queue::Process(i))));
        let threads = THREAD_QUEUES.iter().enumerate().map(|(i, name)| Item::new(name, what(Queue::Thread(i))));
        processes.chain(threads).collect()
    };
    let wakers =
        |sharing| WAKERS.iter().enumerate().skip(1).map(|(i, n)| Item::new(n, What::Wake(i, sharing))).collect();
    let mut one_way = queues(What::OneWay);
    one_way.insert(0, Item::new("a word on a line of its sender's", What::TwoLines));
    one_way.insert(1, Item::new("a word on a line, no pause", What::BusyFloor));
    let line = "a word on a line, one way";
    let group = |title, floor, floor_name, items| Group { title, floor, floor_name, items };
    let crowd = vec![
        Item::new("helix matrix + bell", What::Crowd { ours: true }),
        Item::new("ArrayQueue", What::Crowd { ours: false }),
    ];
    let publish = |consumes| vec![Item::new("helix push + ring", What::Publish(consumes))];
    vec![
        group("one way, polled", What::Floor, line, one_way),
        group("a message of a stream, polled", What::Floor, line, queues(What::Rate)),
        group("a message of many producers, threads", What::Floor, line, crowd),
        group(
            "publish, consumer looks all the time",
            What::Flag(Consumes::Busy),
            "flag + fence, watched",
            publish(Consumes::Busy),
        ),
        group(
            "publish, consumer awake and busy",
            What::Flag(Consumes::Idle),
            "flag + fence, nobody looks",
            publish(Consumes::Idle),
        ),
        group(
            "wake a sleeper on the same core",
            What::Wake(0, Sharing::SameCore),
            "bare eventfd",
            wakers(Sharing::SameCore),
        ),
        group(
            "wake a sleeper on another core",
            What::Wake(0, Sharing::OtherCore),
            "bare eventfd",
            wakers(Sharing::OtherCore),
        ),
    ]
}

/// Doubles a burst until it lasts, so that each has a length of its own.
fn calibrate(bench: &mut Bench, what: What) -> io::Result<u64> {
    // The least that has a few windows.
    let mut n = match what {
        What::Wake(..) => 4 * WAKES,
        What::Rate(_) | What::Crowd { .. } => 4 * STREAM,
        _ => 4 * ROUND_TRIPS,
    };
    loop {
        let (ns, took) = bench.burst(what, n)?;
        if ns * n as f64 >= BURST.as_nanos() as f64 || took >= LONGEST / 2 {
            return Ok(n);
        }
        n *= 2;
    }
}

/// Measures all groups in rounds until there is enough, or `limit` has passed.
pub fn run(
    bench: &mut Bench,
    groups: &mut [Group],
    limit: Duration,
    mut tell: impl FnMut(usize),
) -> io::Result<usize> {
    let start = Instant::now();
    let mut floors = Vec::new();
    for group in groups.iter_mut() {
        floors.push(calibrate(bench, group.floor)?);
        for item in &mut group.items {
            item.burst = calibrate(bench, item.what)?;
        }
    }
    for round in 1.. {
        for (group, &n) in groups.iter_mut().zip(&floors) {
            let mut before = bench.burst(group.floor, n)?;
            for item in &mut group.items {
                let (took, lasted) = bench.burst(item.what, item.burst)?;
                let after = bench.burst(group.floor, n)?;
                let (low, high) = (before.0.min(after.0), before.0.max(after.0));
                let line = group.floor == What::Floor;
                let same = high <= low * MOVED && (!line || Regime::of(low) == Regime::of(high));
                if same && [lasted, before.1, after.1].iter().all(|&took| took <= LONGEST) {
                    item.samples.push((took, (low + high) / 2.0));
                } else {
                    item.dropped += 1;
                }
                before = after;
            }
        }
        tell(round);
        let enough = groups.iter().flat_map(|g| &g.items).all(|item| item.samples.len() >= ENOUGH);
        // Half of the time is for the other regime to come by.
        let both = [Regime::Near, Regime::Far]
            .iter()
            .all(|&r| groups[0].items.iter().all(|item| item.ratio(|floor| Regime::of(floor) == r).1 >= ENOUGH));
        let spent = start.elapsed();
        if spent >= limit || enough && round >= ROUNDS && (both || spent >= limit / 2) {
            return Ok(round);
        }
    }
    unreachable!("rounds end by time")
}
