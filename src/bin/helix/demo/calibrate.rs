//! What each clip costs to decode on these cores, all of them busy: measured once, before any policy runs.
//!
//! It sets the clock of the emulated accelerators and the decode bound, it warms the page cache for all policies
//! alike, and its pixels are the reference that no daemon, ring or worker had a hand in.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use helix_shm::decode::{Decoder, Decoders, Input, Request, SampleKey};
use helix_shm::manifest::Record;
use nix::time::{ClockId, clock_gettime};

use super::interrupt;
use super::plan::transform;
use super::screen::Screen;

/// One clip's cost.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Cost {
    /// CPU time of reading, decoding and transforming it.
    pub(crate) cpu: Duration,
    /// 128-bit xxh3 of its numbers as row of its own number in epoch 0; zero if it cannot be decoded.
    pub(crate) pixels: [u64; 2],
}

/// What was measured.
pub(crate) struct Calibration {
    /// A cost for each clip.
    pub(crate) costs: Vec<Cost>,
    /// Share of the cores' time that this process got while it wanted all of it. Less than 1 when others compute too.
    pub(crate) share: f64,
}

/// Measures every clip, `cores` at a time; `None` if the user asked to stop.
pub(crate) fn calibrate(clips: &[Record], seed: u64, cores: usize, screen: &Screen) -> Option<Calibration> {
    let costs = Mutex::new(vec![Cost::default(); clips.len()]);
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    screen.begin("measure", clips.len() as u64);
    let work = || {
        let (wall, cpu) = (Instant::now(), cpu_time());
        let mut decoder = Decoders::new();
        loop {
            let row = next.fetch_add(1, Ordering::Relaxed);
            if row >= clips.len() || interrupt::asked() {
                return (wall.elapsed(), cpu_time().saturating_sub(cpu));
            }
            let cost = measure(&mut decoder, &clips[row], row as u64, seed);
            costs.lock().unwrap_or_else(PoisonError::into_inner)[row] = cost;
            screen.at(done.fetch_add(1, Ordering::Relaxed) as u64 + 1, || "decoding each clip once".into());
        }
    };
    let times: Vec<(Duration, Duration)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores.min(clips.len())).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|t| t.join().ok()).collect()
    });
    screen.end();
    let sum = |f: fn(&(Duration, Duration)) -> Duration| times.iter().map(f).sum::<Duration>().as_secs_f64();
    let share = sum(|t| t.1) / sum(|t| t.0).max(1e-9);
    let costs = costs.into_inner().unwrap_or_else(PoisonError::into_inner);
    (!interrupt::asked()).then_some(Calibration { costs, share })
}

fn measure(decoder: &mut Decoders, clip: &Record, row: u64, seed: u64) -> Cost {
    let transform = transform();
    let descriptor = clip.descriptor(row);
    let mut out = vec![0; transform.max_bytes(&descriptor.facts()) as usize];
    let before = cpu_time();
    let pixels = read(clip).ok().and_then(|bytes| {
        let input = Input::from_bytes(bytes);
        let request = Request::whole(descriptor, &transform, SampleKey::new(seed, 0, row));
        // What cannot be decoded is the workers' to report; here it costs what it costs.
        let made = decoder.decode(&input, &request, &mut out).ok()?;
        Some(hash(&out[..made.written as usize]))
    });
    Cost { cpu: cpu_time().saturating_sub(before), pixels: pixels.unwrap_or_default() }
}

fn read(clip: &Record) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; clip.len as usize];
    File::open(&clip.path)?.read_exact_at(&mut bytes, clip.offset)?;
    Ok(bytes)
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The hash of a sample's numbers, as ranks report it.
pub(crate) fn hash(bytes: &[u8]) -> [u64; 2] {
    let hash = xxhash_rust::xxh3::xxh3_128(bytes);
    [hash as u64, (hash >> 64) as u64]
}
