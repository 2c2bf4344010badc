//! Randomness of a sample: keyed by (seed, epoch, sample) and what it is for, never by who decodes it or when.
//!
//! Each purpose has a ChaCha8 generator of its own, whose 32-byte key is, little-endian,
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | the ASCII text `helix/v1` |
//! | 8..16 | seed |
//! | 16..24 | sample: its row in the manifest |
//! | 24..28 | epoch |
//! | 28..32 | purpose: 1 sampling, 2 crop, 3 flip, 4 colour |
//!
//! with nonce and counter zero. A number below `n` is the high word of `n ×` the next 64 bits; an event of
//! probability `p` happens when the next 32 bits are below `p · 2³²`. Both are part of the stream's definition: to
//! change them is to change every user's pixels, so the tests pin values. ChaCha8 is defined by its specification,
//! not by a crate's version, and separate keys keep one purpose's draws from shifting another's.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// What random numbers are drawn for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Which frames.
    Sampling = 1,
    /// Where the crop is.
    Crop = 2,
    /// Whether the clip is mirrored.
    Flip = 3,
    /// How its colours are changed.
    Colour = 4,
}

/// The key of one sample in one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SampleKey {
    seed: u64,
    epoch: u32,
    sample: u64,
}

impl SampleKey {
    /// The key of a sample, by its row in the manifest.
    pub const fn new(seed: u64, epoch: u32, sample: u64) -> SampleKey {
        SampleKey { seed, epoch, sample }
    }

    /// A fresh generator for one purpose; calling it again starts from the same numbers.
    pub fn draws(&self, purpose: Purpose) -> Draws {
        let mut key = [0u8; 32];
        key[..8].copy_from_slice(b"helix/v1");
        key[8..16].copy_from_slice(&self.seed.to_le_bytes());
        key[16..24].copy_from_slice(&self.sample.to_le_bytes());
        key[24..28].copy_from_slice(&self.epoch.to_le_bytes());
        key[28..].copy_from_slice(&(purpose as u32).to_le_bytes());
        Draws(ChaCha8Rng::from_seed(key))
    }
}

/// Random numbers of one sample for one purpose.
#[derive(Debug, Clone)]
pub struct Draws(ChaCha8Rng);

impl Draws {
    /// A number in `0..n`, uniform to within n / 2⁶⁴; 0 when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// A number from 0 to below 1, one of 2⁵³ equally likely ones.
    pub fn part(&mut self) -> f64 {
        self.below(1 << 53) as f64 / (1u64 << 53) as f64
    }

    /// True with probability `p`: never for 0, always for 1.
    pub fn chance(&mut self, p: f32) -> bool {
        f64::from(self.0.next_u32()) < f64::from(p) * 4_294_967_296.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(key: SampleKey, purpose: Purpose) -> [u64; 4] {
        let mut draws = key.draws(purpose);
        std::array::from_fn(|_| draws.below(1_000_000))
    }

    #[test]
    fn drawn_values_never_change() {
        let key = SampleKey::new(42, 3, 1_000_007);
        assert_eq!(first(key, Purpose::Sampling), PINNED[0]);
        assert_eq!(first(key, Purpose::Crop), PINNED[1]);
        assert_eq!(first(key, Purpose::Flip), PINNED[2]);
        let flips: String = (0..32)
            .map(|s| SampleKey::new(7, 0, s).draws(Purpose::Flip).chance(0.5))
            .map(|f| if f { '1' } else { '0' })
            .collect();
        assert_eq!(flips, PINNED_FLIPS);
    }

    // Computed by a second implementation of the table above and of ChaCha8, in Python.
    const PINNED: [[u64; 4]; 3] =
        [[717806, 590671, 198291, 292197], [700830, 864070, 347694, 868772], [471545, 298276, 802783, 679555]];
    const PINNED_FLIPS: &str = "00001001001100001101100001100011";

    #[test]
    fn each_part_of_the_key_matters() {
        let base = first(SampleKey::new(1, 2, 3), Purpose::Crop);
        for other in [SampleKey::new(2, 2, 3), SampleKey::new(1, 3, 3), SampleKey::new(1, 2, 4)] {
            assert_ne!(base, first(other, Purpose::Crop));
        }
        assert_ne!(base, first(SampleKey::new(1, 2, 3), Purpose::Flip));
        assert_eq!(base, first(SampleKey::new(1, 2, 3), Purpose::Crop));
    }

    #[test]
    fn the_ends_of_a_range_are_exact() {
        let mut draws = SampleKey::new(0, 0, 0).draws(Purpose::Flip);
        for _ in 0..1000 {
            assert!(!draws.chance(0.0));
            assert!(draws.chance(1.0));
            assert_eq!(draws.below(1), 0);
            assert_eq!(draws.below(0), 0);
            assert!(draws.below(3) < 3);
        }
    }
}
