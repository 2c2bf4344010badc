//! How wrong predictions are: a metric, and no input of any decision.

use serde::Serialize;

/// Weight of a new prediction in the means.
const GAIN: f64 = 0.02;

/// The error of one kind of prediction, over its recent past.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Error {
    /// Predictions that were held against the truth.
    pub count: u64,
    /// Mean of `|ln(truth / prediction)|`: 0.1 is off by a tenth, either way.
    pub spread: f64,
    /// Mean of `ln(truth / prediction)`: above 0 where things take longer than predicted.
    pub bias: f64,
}

impl Error {
    /// Notes a prediction and what became of it.
    pub fn note(&mut self, predicted: f64, truth: f64) {
        let log = (truth / predicted).ln();
        if !log.is_finite() {
            return;
        }
        self.count += 1;
        // The first ones count alike; then the past fades.
        let gain = GAIN.max(1.0 / self.count as f64);
        self.spread += gain * (log.abs() - self.spread);
        self.bias += gain * (log - self.bias);
    }

    /// Of several, the mean by their numbers.
    pub fn mean(errors: impl Iterator<Item = Error>) -> Error {
        errors.fold(Error::default(), |all, e| {
            let count = all.count + e.count;
            let part = if count == 0 { 0.0 } else { e.count as f64 / count as f64 };
            let mix = |a: f64, b: f64| a + part * (b - a);
            Error { count, spread: mix(all.spread, e.spread), bias: mix(all.bias, e.bias) }
        })
    }
}

/// The errors of all that is predicted online.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Errors {
    /// Time of a ticket on its worker.
    pub decode: Error,
    /// Time of its reads.
    pub read: Error,
    /// What a ticket takes longer that writes across servers.
    pub transfer: Error,
    /// Time of a rank's step.
    pub step: Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bias_and_spread_are_told_apart() {
        let mut even = Error::default();
        let mut long = Error::default();
        for i in 0..1000 {
            even.note(1.0, if i % 2 == 0 { 1.25 } else { 0.8 });
            long.note(1.0, 1.25);
        }
        let wanted = 1.25f64.ln();
        assert!((even.spread - wanted).abs() < 1e-9 && even.bias.abs() < 0.01, "{even:?}");
        assert!((long.spread - wanted).abs() < 1e-9 && (long.bias - wanted).abs() < 1e-9, "{long:?}");
        let mean = Error::mean([long, Error::default(), long].into_iter());
        assert!(mean.count == 2000 && (mean.bias - wanted).abs() < 1e-9);
    }

    #[test]
    fn nonsense_is_not_counted() {
        let mut error = Error::default();
        for (predicted, truth) in [(0.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0), (-1.0, 1.0)] {
            error.note(predicted, truth);
        }
        assert_eq!(error, Error::default());
    }
}
