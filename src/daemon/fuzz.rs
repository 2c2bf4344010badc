//! The region tables, driven by arbitrary bytes as ranks and workers that lie might: for the fuzzer, and for a test
//! with random ones.
//!
//! What may write where is kept here a second time, by what the table answered: no two writers ever share a byte,
//! nobody writes to memory that is free, and all of it comes back in the end.

use super::regions::{Address, Made, Regions};
use crate::proto::transform::Span;
use crate::sched::event::Place;

const SLAB: u64 = 24 * 4096;
const MOST: usize = 12;

/// The bytes, taken from the front; zeros when they are used up.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end.max(1)
    }

    /// Mostly `likely`, sometimes beside it, sometimes far away.
    fn near(&mut self, likely: u64) -> u64 {
        match self.byte() {
            0..=223 => likely,
            224..=239 => likely.wrapping_add(1),
            240..=249 => likely.wrapping_sub(1),
            250..=252 => u64::from(self.byte()),
            _ => u64::MAX - u64::from(self.byte()),
        }
    }
}

/// An attempt that the table has let write, and the bytes of the slab that are its.
#[derive(Clone, Copy)]
struct Writer {
    what: Address,
    attempt: u16,
    from: u64,
    end: u64,
}

struct Model {
    table: Regions,
    writers: Vec<Writer>,
    grants: Vec<u32>,
}

/// Has a table hear what the bytes say.
///
/// # Panics
/// If two writers share a byte, one writes to free memory, or memory is lost.
pub fn tables(bytes: &[u8]) {
    let mut from = Bytes(bytes);
    let mut model = Model { table: Regions::new(SLAB), writers: Vec::new(), grants: Vec::new() };
    while !from.0.is_empty() {
        match from.byte() % 16 {
            0..=2 => model.grant(&mut from),
            3..=5 => model.assign(&mut from),
            6 => model.hedge(&mut from),
            7..=9 => model.done(&mut from),
            10 | 11 => model.give_up(&mut from),
            12 => {
                let Address { grant, slot, span } = model.address(&mut from);
                if span.first == 1 {
                    model.replace(grant, slot);
                    continue;
                }
                let told = model.table.skip(grant, slot);
                let at_home = |w: &Writer| {
                    (w.what.grant, w.what.slot) == (grant, slot)
                        && model
                            .table
                            .region(grant, slot)
                            .is_ok_and(|r| (r.offset..r.offset + r.place.bytes).contains(&w.from))
                };
                assert!(
                    !told || !model.writers.iter().any(at_home),
                    "a rank is told of a skip while one still writes"
                );
            }
            13 => {
                let grant = model.address(&mut from).grant;
                let _ = model.table.release(grant);
            }
            14 => model.reap(),
            _ => {
                let (grant, at, len) = (from.near(40) as u32, from.near(4096 * 20), from.near(4096));
                if model.table.hold(grant, at, len).is_ok() {
                    model.grants.push(grant);
                }
            }
        }
        model.check();
    }
    model.finish();
}

impl Model {
    fn address(&mut self, from: &mut Bytes<'_>) -> Address {
        let nth = from.below(self.grants.len());
        let likely = self.grants.get(nth).copied().unwrap_or_default();
        let grant = from.near(likely.into()) as u32;
        let slot = from.below(4) as u64;
        let slot = from.near(slot) as u16;
        Address {
            grant,
            slot,
            span: Span { first: u16::from(from.byte() & 1), frames: 1 + u16::from(from.byte() & 1) },
        }
    }

    fn grant(&mut self, from: &mut Bytes<'_>) {
        if self.grants.len() == MOST {
            return;
        }
        let place = |from: &mut Bytes<'_>| Place { bytes: from.near(2048), ..Place::default() };
        let places: Vec<Place> = (0..1 + from.below(4)).map(|_| place(from)).filter(|p| p.bytes < 1 << 40).collect();
        self.grants.extend(self.table.grant(1, 0, 0, &places));
    }

    /// Another sample takes the place of one that is skipped, where nobody is at it any more.
    fn replace(&mut self, grant: u32, slot: u16) {
        if self.table.replace(grant, slot, 7, 1).is_ok() {
            let at = |w: &Writer| (w.what.grant, w.what.slot) == (grant, slot);
            assert!(!self.writers.iter().any(at), "a place has another sample while one still writes the old one");
        }
    }

    fn assign(&mut self, from: &mut Bytes<'_>) {
        let what = self.address(from);
        let Ok(region) = self.table.region(what.grant, what.slot) else { return };
        let (start, bytes) = (region.offset, region.place.bytes);
        // The whole of it, or one of its halves.
        let (at, len) = match what.span {
            Span { first: 0, frames: 2 } => (0, bytes),
            Span { first, .. } => (u64::from(first) * (bytes / 2), bytes / 2),
        };
        let (at, len) = (from.near(at), from.near(len));
        if let Ok(attempt) = self.table.assign(what, (at, len)) {
            self.writers.push(Writer { what, attempt, from: start + at, end: start + at + len });
        }
    }

    fn hedge(&mut self, from: &mut Bytes<'_>) {
        let what = self.address(from);
        let Ok(Some((attempt, spare, fresh))) = self.table.hedge(what) else { return };
        let region = self.table.region(what.grant, what.slot).expect("a second attempt is at a region");
        let part = region.parts.iter().find(|part| part.span == what.span).expect("and at a part of it");
        let start = spare.map_or(region.offset + part.at, |spare| spare.offset);
        self.writers.push(Writer { what, attempt, from: start, end: start + part.len });
        if let Some(spare) = spare.filter(|_| fresh) {
            self.grants.push(spare.grant);
        }
    }

    /// One that writes, or, if it lies, anything.
    fn attempt(&mut self, from: &mut Bytes<'_>) -> (Option<usize>, Address, u16) {
        if from.byte() < 224 && !self.writers.is_empty() {
            let nth = from.below(self.writers.len());
            let Writer { what, attempt, .. } = self.writers[nth];
            return (Some(nth), what, attempt);
        }
        let (what, attempt) = (self.address(from), from.near(1) as u16);
        (self.writers.iter().position(|w| (w.what, w.attempt) == (what, attempt)), what, attempt)
    }

    fn done(&mut self, from: &mut Bytes<'_>) {
        let (nth, what, attempt) = self.attempt(from);
        let len = nth.map_or(64, |nth| self.writers[nth].end - self.writers[nth].from);
        let made = Made { what, attempt, worker: 0, written: from.near(len), shape: [1, 1, 1, 1] };
        if self.table.done(made).is_ok() {
            self.writers.swap_remove(nth.expect("nobody is done who was not let write"));
        }
    }

    fn give_up(&mut self, from: &mut Bytes<'_>) {
        let (nth, what, attempt) = self.attempt(from);
        let ended = if from.byte() & 1 == 0 {
            self.table.lost(what, attempt).is_ok()
        } else {
            // The daemon asks only for attempts that it has given out.
            nth.is_some() && self.table.fail(what, attempt).is_ok()
        };
        if ended {
            self.writers.swap_remove(nth.expect("nobody is lost who was not let write"));
        }
    }

    fn reap(&mut self) {
        let table = &mut self.table;
        self.grants.retain(|&grant| table.reap(grant).is_none());
    }

    fn check(&self) {
        let mut blocks: Vec<_> = self.table.blocks().map(|(_, b)| (b.offset, b.offset + b.len)).collect();
        blocks.sort_unstable();
        assert!(blocks.windows(2).all(|w| w[0].1 <= w[1].0), "two blocks share memory");
        assert!(blocks.iter().all(|b| b.1 <= SLAB), "a block leaves the slab");
        assert_eq!(blocks.iter().map(|b| b.1 - b.0).sum::<u64>(), self.table.used());
        let mut spans: Vec<_> = self.writers.iter().map(|w| (w.from, w.end)).collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0), "two writers share memory");
        let inside = |s: &(u64, u64)| blocks.iter().any(|b| b.0 <= s.0 && s.1 <= b.1);
        assert!(spans.iter().all(inside), "somebody writes to free memory");
    }

    /// Every worker dies, and the rank lets everything go.
    fn finish(mut self) {
        for Writer { what, attempt, .. } in std::mem::take(&mut self.writers) {
            self.table.lost(what, attempt).expect("whoever was let write can be lost");
        }
        for grant in self.grants {
            let _ = self.table.release(grant);
            assert!(self.table.reap(grant).is_some(), "grant {grant} is kept for nobody");
        }
        assert_eq!(self.table.used(), 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn whatever_is_said_no_two_write_to_one_place_and_all_memory_comes_back(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            super::tables(&bytes);
        }
    }
}
