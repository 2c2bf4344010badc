//! How long a ticket takes on a server's worker: one linear model a codec, one speed a server.

use std::collections::BTreeMap;

use super::error::Error;
use super::fit::Fit;
use super::margin::Margin;
use super::transfer::ReadModel;
use crate::proto::transform::Codec;
use crate::sched::cost::Work;
use crate::sched::event::{Measured, ServerId};

/// Samples of a codec before its model is believed; until then twice the prior is the safe estimate.
const COLD: u32 = 50;
/// Share of tickets that may take longer than the safe estimate.
const MISSES: f64 = 0.05;
/// How fast the margin answers a miss.
const MISS_GAIN: f64 = 0.02;
/// Weight of a new sample in a server's speed and in a codec's ratio to its prior.
const SPEED_GAIN: f64 = 0.05;
/// Drift: the sum of log ratios beyond [`SLACK`] each that makes a model doubt what it knows.
const ALARM: f64 = 4.0;
/// Log ratio that is ordinary noise.
const SLACK: f64 = 0.25;

/// A model of one codec.
#[derive(Debug, Clone)]
struct Class {
    fit: Fit<5>,
    /// Geometric mean of truth to prior.
    ratio: f64,
    margin: Margin,
    seen: u32,
    /// Sums of log ratios of truth to prediction, above and below.
    drift: [f64; 2],
}

/// Features of comparable size: the fit's pull to its prior is one number for all.
fn features(work: &Work) -> [f64; 5] {
    [1.0, work.frames / 100.0, work.frames * work.megapixels / 100.0, work.megabytes / 10.0, work.output]
}

impl Class {
    fn new() -> Self {
        // In ms: see `Work::prior_ms`; scaling a kept frame is left to the last two features to learn.
        let fit = Fit::new([20.0, 10.0, 260.0, 0.0, 5.0], 0.01);
        Class { fit, ratio: 1.0, margin: Margin::new(MISSES, MISS_GAIN), seen: 0, drift: [0.0; 2] }
    }

    /// Milliseconds at speed 1.
    fn predict(&self, work: &Work) -> f64 {
        let prior = work.prior_ms() * self.ratio;
        if self.seen < COLD { prior } else { self.fit.predict(&features(work)).clamp(prior / 8.0, prior * 8.0) }
    }

    fn learn(&mut self, work: &Work, ms: f64) {
        let predicted = self.predict(work);
        self.margin.learn(ms / predicted);
        self.ratio *= (ms / (work.prior_ms() * self.ratio)).clamp(0.1, 10.0).powf(SPEED_GAIN);
        // Noise grows with the time itself; weighted so, each sample counts by its relative error.
        let weight = 1e4 / (predicted * predicted).max(1.0);
        self.fit.learn(&features(work), ms, weight);
        self.seen = self.seen.saturating_add(1);
        if self.seen >= COLD {
            self.watch((ms / predicted).ln());
        }
    }

    /// Two-sided cumulative sum: a lasting change is followed fast, a single outlier is not.
    fn watch(&mut self, log: f64) {
        for (sum, log) in self.drift.iter_mut().zip([log, -log]) {
            *sum = (*sum + log.clamp(-1.0, 1.0) - SLACK).max(0.0);
        }
        if self.drift.iter().any(|&sum| sum > ALARM) {
            self.drift = [0.0; 2];
            self.fit.doubt(0.1);
        }
    }

    /// Safe over mean.
    fn safety(&self) -> f64 {
        if self.seen < COLD {
            return 2.0;
        }
        let factor = self.margin.factor();
        // Where no margin is safe, twice the worst seen will have to do.
        if factor.is_finite() { factor.max(1.0) } else { 2.0 * self.margin.largest().max(1.0) }
    }
}

/// The online model of decoding.
#[derive(Debug, Clone)]
pub struct DecodeModel {
    classes: [Class; Codec::ALL.len()],
    /// Time on a server over time on the mean server.
    slowness: BTreeMap<ServerId, f64>,
    /// Mean time of reading, microseconds.
    read_us: f64,
    /// Reading by server and bytes.
    pub reads: ReadModel,
    /// How wrong the time of a ticket was predicted.
    pub error: Error,
}

impl Default for DecodeModel {
    fn default() -> Self {
        DecodeModel {
            classes: std::array::from_fn(|_| Class::new()),
            slowness: BTreeMap::new(),
            read_us: 0.0,
            reads: ReadModel::default(),
            error: Error::default(),
        }
    }
}

impl DecodeModel {
    /// Expected nanoseconds of a ticket on the mean server.
    pub fn expected(&self, work: &Work) -> u64 {
        nanoseconds(self.classes[work.codec as usize].predict(work))
    }

    /// How much longer a ticket takes on this server than on the mean one.
    pub fn slowness(&self, server: ServerId) -> f64 {
        self.slowness.get(&server).copied().unwrap_or(1.0)
    }

    /// Nanoseconds that all but a few tickets stay under on a server.
    pub fn safe(&self, work: &Work, server: ServerId) -> u64 {
        let class = &self.classes[work.codec as usize];
        nanoseconds(class.predict(work) * class.safety() * self.slowness(server))
    }

    /// Mean nanoseconds of reading a sample.
    pub fn read(&self) -> u64 {
        (self.read_us * 1e3) as u64
    }

    /// Learns what a ticket took on a server.
    pub fn learn(&mut self, work: &Work, server: ServerId, measured: &Measured) {
        self.read_us += SPEED_GAIN * (f64::from(measured.read_us) - self.read_us);
        self.reads.learn(server, f64::from(measured.bytes), measured.read_us);
        if measured.wall_us == 0 {
            return; // nothing was measured
        }
        let ms = f64::from(measured.wall_us) / 1e3;
        let class = &mut self.classes[work.codec as usize];
        let speed = self.slowness.entry(server).or_insert(1.0);
        let ratio = ms / (class.predict(work) * *speed);
        self.error.note(1.0, ratio);
        class.learn(work, ms / *speed);
        if self.slowness.len() > 1 {
            self.compare(server, ratio);
        }
    }

    /// Moves a server's slowness; the geometric mean over servers stays 1, so that it says nothing of the codecs.
    fn compare(&mut self, server: ServerId, ratio: f64) {
        let Some(speed) = self.slowness.get_mut(&server) else { return };
        *speed *= ratio.clamp(0.2, 5.0).powf(SPEED_GAIN);
        let mean = self.slowness.values().map(|s| s.ln()).sum::<f64>() / self.slowness.len() as f64;
        for speed in self.slowness.values_mut() {
            *speed = (*speed / mean.exp()).clamp(0.05, 20.0);
        }
    }
}

fn nanoseconds(ms: f64) -> u64 {
    // Below a microsecond nothing is believed; the cast saturates.
    (ms * 1e6).max(1e3) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::online::margin::tests::Noise;

    fn work(noise: &mut Noise) -> Work {
        let megapixels = [0.08, 0.4, 0.9, 2.07][(noise.next() % 4) as usize];
        let frames = (10.0 + 290.0 * noise.uniform()).round();
        Work { codec: Codec::H264, frames, kept: 16.0, megapixels, megabytes: frames * 0.01, output: 0.8 }
    }

    fn took(ms: f64) -> Measured {
        Measured { wall_us: (ms * 1e3) as u32, read_us: 500, ..Measured::default() }
    }

    /// The truth of these tests: another machine than the prior's.
    fn truth(work: &Work) -> f64 {
        35.0 + work.frames * (0.3 + 6.0 * work.megapixels)
    }

    const ONE: ServerId = ServerId(0);
    const TWO: ServerId = ServerId(1);

    #[test]
    fn cold_it_says_twice_the_prior_to_be_safe() {
        let model = DecodeModel::default();
        let work = work(&mut Noise::new(1));
        assert_eq!(model.expected(&work), nanoseconds(work.prior_ms()));
        assert_eq!(model.safe(&work, ONE), nanoseconds(2.0 * work.prior_ms()));
    }

    #[test]
    fn it_learns_a_machine_that_is_not_the_priors() {
        let (mut model, mut noise) = (DecodeModel::default(), Noise::new(2));
        for _ in 0..500 {
            let work = work(&mut noise);
            model.learn(&work, ONE, &took(truth(&work) * noise.lognormal(0.1)));
        }
        let mut error = 0.0;
        for _ in 0..100 {
            let work = work(&mut noise);
            error += (model.expected(&work) as f64 / 1e6 / truth(&work)).ln().abs() / 100.0;
        }
        assert!(error < 0.08, "mean relative error {error}");
        assert!(model.read() > 400_000);
    }

    #[test]
    fn it_tells_a_slow_server_from_a_fast_one() {
        let (mut model, mut noise) = (DecodeModel::default(), Noise::new(3));
        for i in 0..2000 {
            let work = work(&mut noise);
            let (server, slow) = if i % 2 == 0 { (ONE, 1.0) } else { (TWO, 2.0) };
            model.learn(&work, server, &took(truth(&work) * slow * noise.lognormal(0.1)));
        }
        let found = model.slowness(TWO) / model.slowness(ONE);
        assert!((found - 2.0).abs() < 0.2, "{found}");
    }

    #[test]
    fn the_safe_estimate_covers_even_when_costs_triple() {
        let (mut model, mut noise) = (DecodeModel::default(), Noise::new(4));
        let (mut missed, mut total) = (0u32, 0u32);
        for i in 0..4000 {
            let work = work(&mut noise);
            let ms = truth(&work) * noise.lognormal(0.25) * if i >= 2000 { 3.0 } else { 1.0 };
            if i >= COLD {
                total += 1;
                missed += u32::from(ms * 1e6 > model.safe(&work, ONE) as f64);
            }
            model.learn(&work, ONE, &took(ms));
        }
        let share = f64::from(missed) / f64::from(total);
        let bound = (1.0 - MISSES + MISS_GAIN) / (MISS_GAIN * f64::from(total));
        assert!(share <= MISSES + bound, "missed {share}, may miss {MISSES} and {bound}");
    }

    #[test]
    fn a_jump_is_followed_within_a_hundred_samples() {
        let (mut model, mut noise) = (DecodeModel::default(), Noise::new(5));
        for i in 0..1100 {
            let work = work(&mut noise);
            model.learn(&work, ONE, &took(truth(&work) * if i >= 1000 { 3.0 } else { 1.0 }));
        }
        let work = work(&mut noise);
        let ratio = model.expected(&work) as f64 / 1e6 / (3.0 * truth(&work));
        assert!((0.75..1.25).contains(&ratio), "{ratio}");
    }
}
