//! How many workers: more of them are slower where they fight for memory and caches.
//!
//! A quarter, half, three quarters and all of them are tried; through what they gave the law
//! `X = λN / (1 + α(N−1) + βN(N−1))` is laid, and its peak `√((1−α)/β)` is gone to, and looked for again from there.
//! From then on it is one worker more or less, kept only if it gives 3 % more, and fewer as long as ranks wait
//! for nothing. Pure: steps in, a number of workers out.

use std::collections::BTreeMap;

use super::online::fit::solve;

/// Steps that a number of workers is looked at for, at least.
const DWELL: u32 = 20;
/// Steps after a change that are of what was before it.
const SETTLE: u32 = 3;
/// What another worker has to give.
const GAIN: f64 = 1.03;
/// What a trial may cost, by what is known.
const RISK: f64 = 0.97;
/// Share of a step that ranks wait; with less nobody waits.
const IDLE: f64 = 0.02;
/// With more than this too many workers were taken away.
const STARVED: f64 = 0.10;
/// How often the peak is looked for again.
const REFINEMENTS: u32 = 3;
/// A trial that gave nothing is made again after so many times as long, up to this.
const MOST_PATIENCE: u32 = 16;

/// A weighted mean.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        if value.is_finite() {
            self.sum += value;
            self.weight += 1.0;
        }
    }

    fn value(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

/// What the present number of workers is tried for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The first look, at so many quarters.
    Probe(u32),
    /// The peak as the law has it, for the n-th time.
    Refine(u32),
    /// Nothing: it is the best that is known.
    Hold,
    /// Whether it is better than that many.
    Climb { from: u32 },
    /// Whether it is enough, as that many are.
    Shrink { from: u32 },
}

/// See the head of the file.
#[derive(Debug, Clone)]
pub struct Scaling {
    most: u32,
    workers: u32,
    phase: Phase,
    /// The law, once it is known: `N/X = a + b(N−1) + cN(N−1)`.
    law: Option<[f64; 3]>,
    /// Where most comes out, as far as is known.
    peak: u32,
    /// Rates seen, by number of workers; what is older weighs less.
    rates: BTreeMap<u32, Mean>,
    rate: Mean,
    waiting: Mean,
    /// Steps that were looked at since the last change.
    steps: u32,
    patience: u32,
    /// Whether one more is tried next, or one fewer.
    up: bool,
}

impl Scaling {
    /// For a job that may use `most` workers.
    pub fn new(most: u32) -> Scaling {
        let mut scaling = Scaling {
            most: most.max(1),
            workers: 1,
            phase: Phase::Probe(1),
            law: None,
            peak: most.max(1),
            rates: BTreeMap::new(),
            rate: Mean::default(),
            waiting: Mean::default(),
            steps: 0,
            patience: 1,
            up: true,
        };
        scaling.go(scaling.quarters(1), Phase::Probe(1));
        scaling
    }

    /// How many workers are to be used.
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// Whether the first looks are over.
    pub fn is_settled(&self) -> bool {
        !matches!(self.phase, Phase::Probe(_) | Phase::Refine(_))
    }

    /// A step has ended. `rate` is what came out a second, in any unit, if all that may work do; `waiting` the share of the
    /// step that ranks waited for input.
    pub fn step(&mut self, rate: f64, waiting: f64) {
        self.steps += 1;
        if self.steps > SETTLE {
            self.rate.add(rate);
            self.waiting.add(waiting);
        }
        let dwell = match self.phase {
            Phase::Probe(_) => DWELL,
            Phase::Hold => DWELL * self.patience,
            // By noise alone nothing seems better for so long.
            Phase::Refine(_) | Phase::Climb { .. } | Phase::Shrink { .. } => 3 * DWELL,
        };
        if self.steps < SETTLE + dwell {
            return;
        }
        let (Some(rate), Some(waiting)) = (self.rate.value(), self.waiting.value()) else {
            return self.go(self.workers, self.phase);
        };
        self.note();
        self.decide(rate, waiting);
    }

    /// Keeps what was seen; half of what was known before is forgotten.
    fn note(&mut self) {
        let known = self.rates.entry(self.workers).or_default();
        known.sum = known.sum / 2.0 + self.rate.sum;
        known.weight = known.weight / 2.0 + self.rate.weight;
    }

    fn decide(&mut self, rate: f64, waiting: f64) {
        let enough = waiting < IDLE;
        match self.phase {
            // What does for all ranks at a quarter needs no look at more.
            Phase::Probe(_) if enough => self.go(self.workers, Phase::Hold),
            Phase::Probe(n @ 1..=3) => self.go(self.quarters(n + 1), Phase::Probe(n + 1)),
            Phase::Probe(_) => self.seek_the_peak(1),
            Phase::Refine(n) => self.seek_the_peak(n + 1),
            Phase::Hold => self.venture(waiting),
            Phase::Climb { from } => {
                let before = self.rates.get(&from).and_then(Mean::value).unwrap_or(0.0);
                let better = rate > GAIN * before;
                self.up ^= !better;
                self.settle(better, from);
            }
            Phase::Shrink { from } => self.settle(enough, from),
        }
    }

    /// Tries one worker more or less.
    fn venture(&mut self, waiting: f64) {
        if waiting < IDLE && self.workers > 1 {
            return self.go(self.workers - 1, Phase::Shrink { from: self.workers });
        }
        if waiting > STARVED && self.workers < self.peak {
            self.patience = 1;
            return self.go(self.peak, Phase::Hold);
        }
        let other = if self.up { self.workers + 1 } else { self.workers - 1 };
        if (1..=self.most).contains(&other) && self.is_worth_a_trial(other) {
            self.go(other, Phase::Climb { from: self.workers });
        } else {
            self.up = !self.up;
            self.go(self.workers, Phase::Hold);
        }
    }

    /// Whether not much is lost by so many workers, as far as is known.
    fn is_worth_a_trial(&self, workers: u32) -> bool {
        let seen = |n: u32| self.rates.get(&n).and_then(Mean::value);
        let rate = |n: u32| self.law.map(|law| predicted(law, n)).or_else(|| seen(n));
        rate(workers).zip(rate(self.workers)).is_none_or(|(there, here)| there >= RISK * here)
    }

    /// Ends a trial.
    fn settle(&mut self, well: bool, from: u32) {
        self.patience = if well { 1 } else { (2 * self.patience).min(MOST_PATIENCE) };
        self.go(if well { self.workers } else { from }, Phase::Hold);
    }

    fn seek_the_peak(&mut self, nth: u32) {
        self.law = self.fitted();
        let peak = self.law.map(|[a, b, c]| if c > 0.0 { ((a - b) / c).max(0.0).sqrt() } else { f64::INFINITY });
        self.peak = peak.map_or_else(|| self.best(), |peak| peak.round().clamp(1.0, self.most.into()) as u32);
        let near = self.peak.abs_diff(self.workers) <= 1;
        let over = nth > REFINEMENTS || (near && nth > 1);
        self.go(self.peak, if over { Phase::Hold } else { Phase::Refine(nth) });
    }

    /// The best that was seen.
    fn best(&self) -> u32 {
        let rate = |(n, mean): (&u32, &Mean)| Some((*n, mean.value()?));
        let best = self.rates.iter().filter_map(rate).max_by(|a, b| a.1.total_cmp(&b.1));
        best.map_or(self.most, |(n, _)| n)
    }

    /// The law through what was seen: it is linear in its coefficients.
    fn fitted(&self) -> Option<[f64; 3]> {
        let (mut normal, mut moment, mut points) = ([[0.0; 3]; 3], [0.0; 3], 0);
        for (&n, mean) in &self.rates {
            let Some(rate) = mean.value().filter(|rate| *rate > 0.0) else { continue };
            let n = f64::from(n);
            let (x, y) = ([1.0, n - 1.0, n * (n - 1.0)], n / rate);
            // Noise is in proportion to the rate.
            let weight = mean.weight / (y * y);
            for i in 0..3 {
                for j in 0..3 {
                    normal[i][j] += weight * x[i] * x[j];
                }
                moment[i] += weight * x[i] * y;
            }
            points += 1;
        }
        if points >= 3 { solve(normal, moment) } else { None }
    }

    fn go(&mut self, workers: u32, phase: Phase) {
        self.workers = workers.clamp(1, self.most);
        self.phase = phase;
        (self.rate, self.waiting, self.steps) = (Mean::default(), Mean::default(), 0);
    }

    fn quarters(&self, n: u32) -> u32 {
        (self.most * n).div_ceil(4)
    }
}

/// What a law says that so many workers give.
fn predicted([a, b, c]: [f64; 3], workers: u32) -> f64 {
    let n = f64::from(workers);
    n / (a + b * (n - 1.0) + c * n * (n - 1.0)).max(1e-300)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sched::online::margin::tests::Noise;

    fn law(n: u32, alpha: f64, beta: f64) -> f64 {
        let n = f64::from(n);
        100.0 * n / (1.0 + alpha * (n - 1.0) + beta * n * (n - 1.0))
    }

    proptest! {
        #[test]
        fn under_the_law_with_noise_it_ends_at_the_peak_and_stays(
            seed: u64, most in 1u32..200, alpha in 0.0f64..0.1, beta in 0.0f64..0.02,
        ) {
            let (mut scaling, mut noise) = (Scaling::new(most), Noise::new(seed));
            let mut held = Vec::new();
            for step in 0..4000 {
                if step >= 3000 {
                    held.push(scaling.workers());
                }
                let rate = law(scaling.workers(), alpha, beta) * noise.lognormal(0.05);
                scaling.step(rate, 0.5);
            }
            let best = (1..=most).map(|n| law(n, alpha, beta)).fold(0.0, f64::max);
            let mean = held.iter().map(|n| law(*n, alpha, beta)).sum::<f64>() / held.len() as f64;
            prop_assert!(mean >= 0.97 * best, "{mean} of {best} with {} of {most}", scaling.workers());
            // Between one number and its neighbour: never two away from where it is at home.
            let mut home: Vec<u32> = held.clone();
            home.sort_unstable();
            let home = home[home.len() / 2];
            prop_assert!(held.iter().all(|n| n.abs_diff(home) <= 1), "{home} of {most}: {held:?}");
        }

        #[test]
        fn whatever_comes_it_stays_within_its_bounds(seed: u64, most in 0u32..50, steps in 0usize..3000) {
            let (mut scaling, mut noise) = (Scaling::new(most), Noise::new(seed));
            for _ in 0..steps {
                let odd = [f64::NAN, f64::INFINITY, 0.0, -1.0, 1e300, noise.lognormal(2.0)];
                let [rate, waiting] = [0, 1].map(|_| odd[(noise.next() % 6) as usize]);
                scaling.step(rate, waiting);
                prop_assert!((1..=most.max(1)).contains(&scaling.workers()));
            }
        }
    }

    #[test]
    fn who_waits_for_nothing_needs_fewer() {
        // Ranks want what twelve workers make.
        let mut scaling = Scaling::new(64);
        for _ in 0..3000 {
            let n = scaling.workers();
            scaling.step(f64::from(n), if n >= 12 { 0.0 } else { 1.0 - f64::from(n) / 12.0 });
        }
        assert!((11..=13).contains(&scaling.workers()), "{}", scaling.workers());
    }

    #[test]
    fn when_ranks_starve_it_returns_seek_the_peak_at_once() {
        let mut scaling = Scaling::new(16);
        for step in 0..2000 {
            let wanted = if step < 1500 { 3.0 } else { 40.0 };
            let n = scaling.workers();
            scaling.step(f64::from(n), (1.0 - f64::from(n) / wanted).max(0.0));
            if step == 1400 {
                assert!((2..=4).contains(&scaling.workers()), "{}", scaling.workers());
            }
        }
        assert!(scaling.workers() >= 15, "{}", scaling.workers());
    }
}
