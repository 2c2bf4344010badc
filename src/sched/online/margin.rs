//! How far above a prediction the truth may lie: adaptive conformal inference (Gibbs and Candès, arXiv 2106.00170).
//!
//! The margin is a quantile of the recent ratios of truth to prediction. Which quantile is steered by whether the
//! last margins held: whatever the data do, a threefold jump included, the share of misses over `T` samples is
//! within `(max(α₁, 1 − α₁) + γ) / (γT)` of the target.

use std::collections::VecDeque;

/// Ratios that the quantile is taken of.
const WINDOW: usize = 200;

/// A running upper quantile of ratios.
#[derive(Debug, Clone)]
pub struct Margin {
    /// Share of misses wanted.
    target: f64,
    /// How fast a miss is answered.
    gain: f64,
    /// The share of misses aimed at now; leaves 0..1 for a moment when the past was no guide.
    alpha: f64,
    recent: VecDeque<f64>,
    sorted: Vec<f64>,
}

impl Margin {
    /// A margin that is to hold for all but a share of `target`.
    pub fn new(target: f64, gain: f64) -> Self {
        Margin { target, gain, alpha: target, recent: VecDeque::new(), sorted: Vec::new() }
    }

    /// The factor that the next ratio should not exceed: infinite when nothing is safe, 0 when anything is.
    pub fn factor(&self) -> f64 {
        if self.alpha <= 0.0 || self.sorted.is_empty() {
            return f64::INFINITY;
        }
        if self.alpha >= 1.0 {
            return 0.0;
        }
        let rank = ((1.0 - self.alpha) * (self.sorted.len() + 1) as f64).ceil() as usize;
        self.sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::INFINITY)
    }

    /// The largest ratio seen lately, 1 when none was.
    pub fn largest(&self) -> f64 {
        self.sorted.last().copied().unwrap_or(1.0)
    }

    /// Learns a ratio of truth to prediction. Answers whether the margin had held.
    pub fn learn(&mut self, ratio: f64) -> bool {
        if !ratio.is_finite() {
            return true;
        }
        let held = ratio <= self.factor();
        self.alpha += self.gain * (self.target - f64::from(u8::from(!held)));
        if self.recent.len() == WINDOW
            && let Some(old) = self.recent.pop_front()
        {
            let at = self.sorted.partition_point(|&r| r < old);
            self.sorted.remove(at);
        }
        self.recent.push_back(ratio);
        let at = self.sorted.partition_point(|&r| r < ratio);
        self.sorted.insert(at, ratio);
        held
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Seeded noise for tests.
    pub(crate) struct Noise(u64);

    impl Noise {
        pub(crate) fn new(seed: u64) -> Self {
            Noise(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
        }

        pub(crate) fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        }

        /// In 0..1.
        pub(crate) fn uniform(&mut self) -> f64 {
            (self.next() >> 11) as f64 / (1u64 << 53) as f64
        }

        /// Median 1.
        pub(crate) fn lognormal(&mut self, sigma: f64) -> f64 {
            let (u, v) = (self.uniform().max(1e-300), self.uniform());
            (sigma * (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()).exp()
        }
    }

    proptest! {
        #[test]
        fn coverage_holds_under_a_threefold_jump(seed: u64, jump in 0.2f64..5.0, at in 0usize..2000) {
            let (target, gain, total) = (0.05, 0.02, 2000);
            let mut margin = Margin::new(target, gain);
            let mut noise = Noise::new(seed);
            let mut missed = 0;
            for i in 0..total {
                let ratio = noise.lognormal(0.5) * if i >= at { jump } else { 1.0 };
                missed += u32::from(!margin.learn(ratio));
            }
            let bound = ((1.0 - target) + gain) / (gain * f64::from(total as u32));
            let share = f64::from(missed) / f64::from(total as u32);
            prop_assert!((share - target).abs() <= bound, "missed {share}, wanted {target} within {bound}");
        }
    }

    #[test]
    fn the_factor_is_a_quantile() {
        let mut margin = Margin::new(0.1, 0.0);
        for i in 1..=99 {
            margin.learn(f64::from(i));
        }
        assert_eq!(margin.factor(), 90.0);
        assert_eq!(margin.largest(), 99.0);
        for _ in 0..WINDOW {
            margin.learn(1.0);
        }
        assert_eq!(margin.factor(), 1.0);
    }
}
