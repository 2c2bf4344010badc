//! An epoch that takes from several parts of a manifest in given proportions.
//!
//! Position by position the part that is furthest behind its share is next, so that of every stretch from the epoch's
//! start each part has its share to within one sample, and every step is mixed alike. A part is gone through in passes,
//! each a permutation of its own, and goes on in the next epoch where it stopped: however small its share, all of its
//! samples come equally often. A pure function of (parts, seed, epoch).

use std::cmp::Ordering;

use super::event::Catalog;
use super::order::{self, Permutation};
use crate::proto::options::Part;

/// The mix of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Mix {
    /// Deliverable samples of each part: first, number.
    parts: Vec<(u32, u32)>,
    /// The part of each position of an epoch.
    turns: Vec<u8>,
    /// How many positions of an epoch each part has.
    counts: Vec<u32>,
    seed: u64,
    shuffle: bool,
}

impl Mix {
    /// The mix of a catalog's samples; an epoch is as long as the catalog. `None` when there is none to make: no parts
    /// given, or no sample. A part without a deliverable sample is left out, and rows behind the last part are too.
    pub fn new(catalog: &dyn Catalog, parts: &[Part], seed: u64, shuffle: bool) -> Option<Mix> {
        let samples = catalog.len().min(order::MAX_SAMPLES);
        let mut found = Vec::new();
        let (mut first, mut row) = (0, 0u64);
        for part in parts {
            row = row.saturating_add(part.rows);
            let end = first_at(catalog, row, first, samples);
            if end > first {
                found.push(((first as u32, (end - first) as u32), part.weight));
            }
            first = end;
        }
        let (parts, weights): (Vec<_>, Vec<f64>) = found.into_iter().unzip();
        let length = parts.iter().map(|(_, n)| u64::from(*n)).sum::<u64>() as u32;
        if parts.is_empty() {
            return None;
        }
        let turns = turns(&weights, length);
        let mut counts = vec![0; parts.len()];
        turns.iter().for_each(|part| counts[usize::from(*part)] += 1);
        Some(Mix { parts, turns, counts, seed, shuffle })
    }

    /// Samples of an epoch.
    pub fn len(&self) -> u32 {
        self.turns.len() as u32
    }

    /// Whether an epoch has none.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The order of one epoch.
    pub fn epoch(&self, epoch: u32) -> Permutation {
        let mut drawn: Vec<Passes> = (0..self.parts.len()).map(|part| self.passes(part, epoch)).collect();
        let next = |part: &u8| {
            let part = usize::from(*part);
            self.parts[part].0 + drawn[part].next(|pass| self.pass(part, pass))
        };
        Permutation::listed(self.turns.iter().map(next).collect())
    }

    /// Where a part stands at an epoch's beginning.
    fn passes(&self, part: usize, epoch: u32) -> Passes {
        let drawn = u64::from(epoch) * u64::from(self.counts[part]);
        let samples = u64::from(self.parts[part].1);
        let (pass, at) = ((drawn / samples) as u32, (drawn % samples) as u32);
        Passes { pass, at, order: self.pass(part, pass) }
    }

    fn pass(&self, part: usize, pass: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.parts[part].1).collect();
        if self.shuffle {
            order::shuffle(&mut order, self.seed, pass, b"parts", part as u32);
        }
        order
    }
}

/// A part, gone through again and again.
struct Passes {
    pass: u32,
    at: u32,
    order: Vec<u32>,
}

impl Passes {
    fn next(&mut self, order: impl Fn(u32) -> Vec<u32>) -> u32 {
        if self.at as usize == self.order.len() {
            self.pass = self.pass.wrapping_add(1);
            (self.at, self.order) = (0, order(self.pass));
        }
        self.at += 1;
        self.order[self.at as usize - 1]
    }
}

/// The first deliverable sample from `from` on whose row is not below `row`.
fn first_at(catalog: &dyn Catalog, row: u64, from: u64, samples: u64) -> u64 {
    let (mut low, mut high) = (from, samples);
    while low < high {
        let middle = low + (high - low) / 2;
        if catalog.row(middle) < row { low = middle + 1 } else { high = middle }
    }
    low
}

/// The part of each of so many positions: of the parts that may have the next one without running ahead of their share
/// by one, the one whose next would be overdue first (Still's quota method), so that no part is ever a sample off.
fn turns(weights: &[f64], length: u32) -> Vec<u8> {
    let total: f64 = weights.iter().sum();
    let shares: Vec<f64> = weights.iter().map(|w| w / total).collect();
    let mut counts = vec![0u32; shares.len()];
    let turn = |position: u32| {
        let allowed = |part: &usize| f64::from(counts[*part]) < shares[*part] * f64::from(position + 1);
        let deadline = |part: usize| f64::from(counts[part] + 1) / shares[part];
        let earlier = |a: &usize, b: &usize| match deadline(*a).total_cmp(&deadline(*b)) {
            Ordering::Equal => a.cmp(b),
            unequal => unequal,
        };
        let part = (0..shares.len()).filter(allowed).min_by(earlier).unwrap_or(0);
        counts[part] += 1;
        part as u8
    };
    (0..length).map(turn).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto::transform::Facts;

    /// Rows of which every fifth is bad.
    struct Rows(u64);

    impl Catalog for Rows {
        fn len(&self) -> u64 {
            self.0
        }
        fn row(&self, i: u64) -> u64 {
            i + i / 4
        }
        fn facts(&self, _: u64) -> Facts {
            Facts::default()
        }
    }

    fn parts(parts: &[(u64, f64)]) -> Vec<Part> {
        parts.iter().map(|&(rows, weight)| Part { rows, weight }).collect()
    }

    proptest! {
        #[test]
        fn every_part_has_its_share_of_every_stretch_to_within_a_sample(
            weights in proptest::collection::vec(0.01f64..10.0, 1..9), length in 1u32..400,
        ) {
            let turns = turns(&weights, length);
            let total: f64 = weights.iter().sum();
            let mut counts = vec![0u32; weights.len()];
            for (position, part) in turns.iter().enumerate() {
                counts[usize::from(*part)] += 1;
                for (count, weight) in counts.iter().zip(&weights) {
                    let share = weight / total * (position + 1) as f64;
                    prop_assert!((f64::from(*count) - share).abs() < 1.0 + 1e-6, "{count} of {share}");
                }
            }
        }
    }

    #[test]
    fn samples_of_a_part_come_equally_often_over_the_epochs() {
        let mix = Mix::new(&Rows(80), &parts(&[(50, 3.0), (50, 1.0)]), 7, true).expect("there are samples");
        // 40 deliverable samples each; an epoch of 80 takes 60 of the first and 20 of the second.
        assert_eq!((mix.len(), &mix.counts[..]), (80, &[60, 20][..]));
        let mut seen = [0u32; 80];
        for epoch in 0..4 {
            let order = mix.epoch(epoch);
            (0..80).for_each(|position| seen[order.at(position) as usize] += 1);
        }
        assert!(seen[..40].iter().all(|n| *n == 6) && seen[40..].iter().all(|n| *n == 2), "{seen:?}");
        assert_ne!(mix.epoch(0), mix.epoch(1));
        assert_eq!(mix.epoch(3), mix.clone().epoch(3), "an epoch needs none before it");
    }

    #[test]
    fn without_shuffling_parts_are_gone_through_in_their_order() {
        let mix = Mix::new(&Rows(8), &parts(&[(5, 1.0), (5, 1.0)]), 7, false).expect("there are samples");
        let order = mix.epoch(0);
        assert_eq!((0..8).map(|p| order.at(p)).collect::<Vec<_>>(), [0, 4, 1, 5, 2, 6, 3, 7]);
    }

    #[test]
    fn parts_without_samples_are_left_out() {
        assert_eq!(Mix::new(&Rows(8), &[], 1, true), None);
        assert_eq!(Mix::new(&Rows(0), &parts(&[(5, 1.0)]), 1, true), None);
        // Rows 0..5, none from 10 on, and more than there are.
        let mix = Mix::new(&Rows(4), &parts(&[(5, 1.0), (5, 9.0)]), 1, true).expect("there are samples");
        assert_eq!((mix.len(), mix.parts.len()), (4, 1));
    }
}
