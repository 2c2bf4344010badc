//! In which order an epoch goes through the samples, and which of them meet in a step.
//!
//! Step `k` of an epoch is made of the `global_batch` consecutive positions from `k · global_batch`; the shuffle
//! is keyed by (seed, epoch) and is our own, so that no upgrade of a library changes a run that is resumed.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::event::Catalog;
use super::mix::Mix;
use crate::proto::options::StreamOptions;

/// Most samples of an epoch: an index takes four bytes.
pub const MAX_SAMPLES: u64 = u32::MAX as u64;

/// Epochs whose permutation is kept. Ranks are in different ones for a moment when an epoch ends.
const KEPT: usize = 3;

/// One epoch's order of the samples. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permutation {
    samples: u32,
    /// `None` when samples go in the manifest's order.
    shuffled: Option<Arc<[u32]>>,
}

impl Permutation {
    /// The manifest's order of `samples` samples.
    pub fn identity(samples: u32) -> Self {
        Permutation { samples, shuffled: None }
    }

    /// The order of `samples` samples in `epoch` under `seed`.
    pub fn shuffled(samples: u32, seed: u64, epoch: u32) -> Self {
        Permutation { samples, shuffled: Some(shuffled(samples, seed, epoch).into()) }
    }

    /// An order that lists its samples, each as often as it likes.
    pub fn listed(order: Vec<u32>) -> Self {
        Permutation { samples: order.len() as u32, shuffled: Some(order.into()) }
    }

    /// Number of samples.
    pub fn len(&self) -> u32 {
        self.samples
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// The sample at a position; positions past the end start again, which pads the last step.
    ///
    /// # Panics
    /// When there is no sample.
    pub fn at(&self, position: u64) -> u32 {
        let i = (position % u64::from(self.samples)) as u32;
        self.shuffled.as_ref().map_or(i, |order| order[i as usize])
    }
}

/// Fisher–Yates over ChaCha8: an order for ever fixed by (length, seed, epoch, purpose, number).
pub(super) fn shuffle<T>(items: &mut [T], seed: u64, epoch: u32, purpose: &[u8; 5], number: u32) {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..12].copy_from_slice(&epoch.to_le_bytes());
    key[12..17].copy_from_slice(purpose); // apart from the keys of crops and flips
    key[17..21].copy_from_slice(&number.to_le_bytes());
    let mut random = ChaCha8Rng::from_seed(key);
    for last in (1..items.len() as u32).rev() {
        items.swap(last as usize, below(&mut random, last + 1) as usize);
    }
}

/// An epoch's order of so many samples.
fn shuffled(samples: u32, seed: u64, epoch: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..samples).collect();
    shuffle(&mut order, seed, epoch, b"order", 0);
    order
}

/// Where an epoch looks for a sample in the place of one that is bad, out of so many: the `nth` try, for ever fixed.
pub fn substitute(samples: u32, seed: u64, epoch: u32, bad: u64, nth: u32) -> u32 {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..12].copy_from_slice(&epoch.to_le_bytes());
    key[12..17].copy_from_slice(b"other");
    key[17..21].copy_from_slice(&nth.to_le_bytes());
    key[21..29].copy_from_slice(&bad.to_le_bytes());
    below(&mut ChaCha8Rng::from_seed(key), samples.max(1))
}

/// A number below `n`, each equally likely: the high half of a product, redrawn where that would favour some.
fn below(random: &mut ChaCha8Rng, n: u32) -> u32 {
    loop {
        let product = u64::from(random.next_u32()) * u64::from(n);
        if product as u32 >= n.wrapping_neg() % n {
            return (product >> 32) as u32;
        }
    }
}

/// The orders of a stream's epochs; the latest few are kept.
#[derive(Debug)]
pub struct Order {
    samples: u32,
    seed: u64,
    shuffle: bool,
    mix: Option<Mix>,
    kept: Vec<(u32, Permutation)>,
}

impl Order {
    /// Orders of `samples` samples; what is beyond [`MAX_SAMPLES`] is not used.
    pub fn new(samples: u64, seed: u64, shuffle: bool) -> Self {
        let samples = samples.min(MAX_SAMPLES) as u32;
        Order { samples, seed, shuffle, mix: None, kept: Vec::new() }
    }

    /// The orders that a stream's options make of a catalog's samples.
    pub fn of(options: &StreamOptions, catalog: &dyn Catalog) -> Self {
        let order = Order::new(catalog.len(), options.seed, options.shuffle);
        match Mix::new(catalog, &options.mix, options.seed, options.shuffle) {
            Some(mix) => Order { samples: mix.len(), mix: Some(mix), ..order },
            None => order,
        }
    }

    /// Samples of an epoch.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// The order of one epoch.
    pub fn epoch(&mut self, epoch: u32) -> Permutation {
        if !self.shuffle && self.mix.is_none() {
            return Permutation::identity(self.samples);
        }
        if let Some(found) = self.kept.iter().position(|(e, _)| *e == epoch) {
            return self.kept[found].1.clone();
        }
        if self.kept.len() == KEPT {
            self.kept.remove(0);
        }
        let order = match &self.mix {
            Some(mix) => mix.epoch(epoch),
            None => Permutation::shuffled(self.samples, self.seed, epoch),
        };
        self.kept.push((epoch, order.clone()));
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shuffle_never_changes() {
        // Computed by another implementation of ChaCha8 and of the shuffle.
        assert_eq!(shuffled(10, 0, 0), [2, 8, 6, 9, 3, 1, 4, 5, 0, 7]);
        assert_eq!(shuffled(10, 7, 3), [9, 2, 1, 8, 4, 0, 7, 6, 5, 3]);
    }

    #[test]
    fn every_sample_comes_once() {
        for n in [0, 1, 2, 3, 1000] {
            let mut order = shuffled(n, 42, 1);
            order.sort_unstable();
            assert!(order.into_iter().eq(0..n));
        }
    }

    #[test]
    fn substitutes_are_spread_over_the_epoch() {
        let other = |epoch, bad, nth| substitute(1000, 7, epoch, bad, nth);
        assert_eq!(other(0, 5, 0), other(0, 5, 0));
        let asked: std::collections::HashSet<u32> = (0..100).map(|nth| other(0, 5, nth)).collect();
        assert!(asked.len() > 90 && asked.iter().all(|&i| i < 1000));
        assert_ne!((other(0, 5, 0), other(0, 5, 1)), (other(1, 5, 0), other(1, 5, 1)));
        assert_ne!((other(0, 5, 0), other(0, 5, 1)), (other(0, 6, 0), other(0, 6, 1)));
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let base = Permutation::shuffled(100, 1, 0);
        assert_ne!(base, Permutation::shuffled(100, 1, 1));
        assert_ne!(base, Permutation::shuffled(100, 2, 0));
        assert_eq!(base, Permutation::shuffled(100, 1, 0));
    }

    #[test]
    fn every_place_is_equally_likely() {
        // Chi-squared over where sample 0 lands: 15 degrees of freedom, .999 quantile 37.7.
        let mut seen = [0u32; 16];
        for seed in 0..8000 {
            let place = shuffled(16, seed, 0).iter().position(|&s| s == 0);
            seen[place.unwrap_or_default()] += 1;
        }
        let chi: f64 = seen.iter().map(|&n| (f64::from(n) - 500.0).powi(2) / 500.0).sum();
        assert!(chi < 37.7, "{chi}");
    }

    #[test]
    fn positions_past_the_end_repeat_from_the_start() {
        let order = Permutation::shuffled(5, 3, 0);
        assert_eq!((5..8).map(|p| order.at(p)).collect::<Vec<_>>(), (0..3).map(|p| order.at(p)).collect::<Vec<_>>());
    }

    #[test]
    fn ranks_in_several_epochs_share_permutations() {
        let mut order = Order::new(50, 9, true);
        let first = order.epoch(0);
        let second = order.epoch(1);
        assert_ne!(first, second);
        for epoch in 2..6 {
            order.epoch(epoch);
        }
        assert_eq!(order.epoch(0), first);
        assert_eq!(Order::new(50, 9, false).epoch(4), Permutation::identity(50));
    }
}
