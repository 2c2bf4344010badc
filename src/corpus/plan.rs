//! Which clips make a corpus: how long, how large, of which codec, each with its name.
//!
//! Collections have long tails: most clips are short and small, a few are many times as long or as large. With
//! under a hundred clips plain dice would make the tail a matter of luck, so durations and sizes are quantiles of
//! their distribution, one each, paired by a seeded shuffle: the same spread for every seed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::{ClipSpec, Damage, Encoder};

/// Median duration in seconds, and the spread of its logarithm; cut to [`SHORTEST`] and [`LONGEST`].
const MEDIAN: f64 = 2.4;
const SIGMA: f64 = 0.85;
const SHORTEST: f64 = 0.8;
const LONGEST: f64 = 20.0;

/// Heights with their shares. 1440 lines are the rare giant.
const HEIGHTS: [(f64, u32); 6] = [(0.15, 240), (0.29, 360), (0.26, 480), (0.21, 720), (0.075, 1080), (0.015, 1440)];
/// HEVC and VP9 take this many lines at most: their encoders are slow.
const SLOW_HEIGHT: u32 = 720;
const SLOW_SECONDS: f64 = 8.0;

const RATES: [(f64, (u32, u32)); 4] = [(0.25, (24, 1)), (0.35, (25, 1)), (0.3, (30, 1)), (0.1, (30000, 1001))];
const GOPS: [(f64, u32); 6] = [(0.15, 12), (0.2, 25), (0.2, 48), (0.2, 60), (0.15, 125), (0.1, 250)];
const BFRAMES: [(f64, u32); 3] = [(0.15, 0), (0.5, 2), (0.35, 3)];
const ENCODERS: [(f64, Encoder); 3] = [(0.76, Encoder::H264), (0.12, Encoder::Hevc), (0.12, Encoder::Vp9)];
/// Width over height.
const ASPECTS: [(f64, f64); 3] = [(0.75, 16.0 / 9.0), (0.15, 4.0 / 3.0), (0.1, 9.0 / 16.0)];

/// A file to be made.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    pub(super) name: String,
    pub(super) what: What,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum What {
    Clip(ClipSpec),
    Damaged(Damage, u64),
}

impl Item {
    pub(super) fn effort(&self) -> u64 {
        match &self.what {
            What::Clip(spec) => spec.effort(),
            What::Damaged(..) => ClipSpec { frames: 75, ..ClipSpec::default() }.effort(),
        }
    }
}

/// The files of a corpus of `clips` whole clips, the longest work first. `encoders` are those at hand.
pub(super) fn plan(clips: u32, seed: u64, encoders: &[Encoder]) -> Vec<Item> {
    let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed));
    let seconds = dice.spread(clips, |u| (MEDIAN * (SIGMA * normal_quantile(u)).exp()).clamp(SHORTEST, LONGEST));
    let heights = dice.spread(clips, |u| pick(&HEIGHTS, u));
    let codecs = dice.spread(clips, |u| pick(&ENCODERS, u));
    let mut items: Vec<Item> = (0..clips as usize)
        .map(|i| {
            let encoder = if encoders.contains(&codecs[i]) { codecs[i] } else { encoders[0] };
            dice.clip(i, seed, encoder, seconds[i], heights[i])
        })
        .collect();
    items.extend(
        Damage::ALL
            .iter()
            .map(|&damage| Item { name: format!("bad-{}.mp4", damage.name()), what: What::Damaged(damage, seed) }),
    );
    items.sort_by_key(|item| std::cmp::Reverse(item.effort()));
    items
}

struct Dice(ChaCha8Rng);

impl Dice {
    fn unit(&mut self) -> f64 {
        (f64::from(self.0.next_u32()) + 0.5) / (f64::from(u32::MAX) + 1.0)
    }

    /// One value for each of `n` equal parts of a distribution, in a shuffled order.
    fn spread<T>(&mut self, n: u32, quantile: impl Fn(f64) -> T) -> Vec<T> {
        let mut values: Vec<T> = (0..n).map(|i| quantile((f64::from(i) + 0.5) / f64::from(n))).collect();
        for i in (1..values.len()).rev() {
            values.swap(i, (self.unit() * (i + 1) as f64) as usize);
        }
        values
    }

    fn clip(&mut self, i: usize, seed: u64, encoder: Encoder, seconds: f64, height: u32) -> Item {
        let slow = encoder != Encoder::H264;
        let (short, seconds) =
            if slow { (height.min(SLOW_HEIGHT), seconds.min(SLOW_SECONDS)) } else { (height, seconds) };
        let aspect = pick(&ASPECTS, self.unit());
        let even = |v: f64| (v / 2.0).round() as u32 * 2;
        let (width, height) = if aspect >= 1.0 {
            (even(f64::from(short) * aspect), short)
        } else {
            (short, even(f64::from(short) / aspect))
        };
        let fps = pick(&RATES, self.unit());
        let frames = (seconds * f64::from(fps.0) / f64::from(fps.1)).round() as u32;
        let gop = pick(&GOPS, self.unit());
        let bframes = if encoder == Encoder::Vp9 { 0 } else { pick(&BFRAMES, self.unit()) };
        let container = match (encoder, self.unit() < 0.7) {
            (Encoder::Vp9, _) => "webm",
            (_, true) => "mp4",
            (_, false) => "mkv",
        };
        let faststart = container == "mp4" && self.unit() < 0.5;
        let codec = encoder.codec();
        Item {
            name: format!("{i:04}-{codec}-{width}x{height}-{frames}f-g{gop}-b{bframes}.{container}"),
            what: What::Clip(ClipSpec {
                encoder,
                width,
                height,
                frames,
                fps,
                gop,
                bframes,
                faststart,
                seed: seed.wrapping_mul(1_000_003).wrapping_add(i as u64),
            }),
        }
    }
}

/// The entry into whose share `u` in 0..1 falls.
fn pick<T: Copy>(table: &[(f64, T)], u: f64) -> T {
    let mut rest = u;
    for &(share, value) in table {
        if rest < share {
            return value;
        }
        rest -= share;
    }
    table[table.len() - 1].1
}

/// Quantile of the standard normal distribution, by the logistic approximation (error under 0.02 in the range used).
fn normal_quantile(u: f64) -> f64 {
    let logit = (u / (1.0 - u)).ln();
    // Inverse of u ≈ 1 / (1 + exp(−1.5976·z − 0.07056·z³)), by Newton's method.
    let mut z = logit / 1.6;
    for _ in 0..8 {
        z -= (1.5976 * z + 0.07056 * z * z * z - logit) / (1.5976 + 0.21168 * z * z);
    }
    z
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(seed: u64) -> Vec<ClipSpec> {
        plan(80, seed, &Encoder::ALL)
            .into_iter()
            .filter_map(|item| match item.what {
                What::Clip(spec) => Some(spec),
                What::Damaged(..) => None,
            })
            .collect()
    }

    #[test]
    fn every_seed_has_the_same_long_tail() {
        for seed in 0..20 {
            let mut seconds: Vec<f64> = specs(seed).iter().map(ClipSpec::seconds).collect();
            seconds.sort_by(f64::total_cmp);
            assert!((seconds[40] - MEDIAN).abs() < 0.3, "median {}", seconds[40]);
            assert!(seconds[79] > 3.5 * seconds[40], "the longest, {}, is no tail", seconds[79]);
            let share = |e| specs(seed).iter().filter(|s| s.encoder == e).count();
            assert!(share(Encoder::H264) >= 56 && share(Encoder::Hevc) >= 8 && share(Encoder::Vp9) >= 8);
            assert!(specs(seed).iter().any(|s| s.width * s.height >= 1920 * 1080));
        }
    }

    #[test]
    fn names_are_unique_and_sizes_even() {
        let items = plan(96, 3, &Encoder::ALL);
        let names: std::collections::HashSet<_> = items.iter().map(|i| &i.name).collect();
        assert_eq!(names.len(), items.len());
        assert!(specs(3).iter().all(|s| s.width % 2 == 0 && s.height % 2 == 0 && s.frames > 0));
    }

    #[test]
    fn a_missing_encoder_is_replaced() {
        let items = plan(80, 0, &[Encoder::H264]);
        assert!(items.iter().all(|i| !i.name.contains("hevc") && !i.name.contains("vp9")));
    }

    #[test]
    fn the_quantile_function_is_that_of_the_normal_distribution() {
        for (u, z) in [(0.5, 0.0), (0.8413, 1.0), (0.0228, -2.0), (0.99, 2.326)] {
            assert!((normal_quantile(u) - z).abs() < 0.03, "{u}: {}", normal_quantile(u));
        }
    }
}
