//! Where the time of an iteration goes: what a loader tells of itself, noted where it costs no Python.

use std::time::Instant;

use crate::batch::Batch;

/// Sums over the batches that were given out.
#[derive(Debug, Default)]
pub struct Meter {
    /// Batches.
    pub batches: u64,
    /// Seconds between batches, and of those the seconds that were spent waiting.
    pub elapsed: f64,
    /// See `elapsed`.
    pub waited: f64,
    /// Sum and maximum of what batches cost over what their step's mean rank has.
    pub spread: f64,
    /// See `spread`.
    pub spread_max: f64,
    /// Batches that were copied off the slab, and their bytes.
    pub kept_copies: u64,
    /// See `kept_copies`.
    pub copied: u64,
    last: Option<Instant>,
}

impl Meter {
    /// A new iteration: the first batch waits for its start, which says nothing of the pace.
    pub fn pause(&mut self) {
        self.last = None;
    }

    /// A batch is given out.
    pub fn note(&mut self, batch: &Batch) {
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.elapsed += now.duration_since(last).as_secs_f64();
            self.waited += batch.waited();
        }
        let spread = batch.spread();
        self.spread += spread;
        self.spread_max = self.spread_max.max(spread);
        self.batches += 1;
        let copied = batch.copied_bytes() as u64;
        self.kept_copies += u64::from(copied > 0);
        self.copied += copied;
    }
}
