//! Draws from a workload's distributions, keyed by what they are for.

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use xxhash_rust::xxh3::xxh3_64;

/// A stream of draws.
pub(super) struct Draws(ChaCha8Rng);

impl Draws {
    /// The draws of this name, seed and number.
    pub(super) fn new(name: &str, seed: u64, number: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&xxh3_64(name.as_bytes()).to_le_bytes());
        key[8..16].copy_from_slice(&seed.to_le_bytes());
        key[16..24].copy_from_slice(&number.to_le_bytes());
        Draws(ChaCha8Rng::from_seed(key))
    }

    /// In 0..1.
    pub(super) fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// In `low..=high`.
    pub(super) fn between(&mut self, low: u32, high: u32) -> u32 {
        low + (self.uniform() * f64::from(high.saturating_sub(low) + 1)) as u32
    }

    /// Of mean 0 and deviation 1.
    pub(super) fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.uniform(), self.uniform());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// Of median 1.
    pub(super) fn lognormal(&mut self, sigma: f64) -> f64 {
        (sigma * self.normal()).exp()
    }

    /// A key of a table of probabilities, as a number; 0 of an empty one.
    pub(super) fn pick(&mut self, table: &BTreeMap<String, f64>) -> f64 {
        let mut left = self.uniform() * table.values().sum::<f64>();
        let mut found = None;
        for (value, p) in table {
            found = Some(value);
            left -= p;
            if left < 0.0 {
                break;
            }
        }
        found.and_then(|v| v.parse().ok()).unwrap_or(0.0)
    }
}
