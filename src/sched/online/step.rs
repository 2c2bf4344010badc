//! How long a rank's step takes, by the cost of the step's heaviest rank: ranks that wait for each other at the
//! step's end all take as long as that one.

use super::error::Error;
use super::fit::Fit;

/// `time = a + b · cost`, fitted online.
#[derive(Debug, Clone)]
pub struct StepModel {
    fit: Fit<2>,
    /// Brings costs to about 1; the first cost seen.
    scale: f64,
    seen: bool,
    /// How wrong it was.
    pub error: Error,
}

impl Default for StepModel {
    fn default() -> Self {
        StepModel { fit: Fit::new([0.0, 0.0], 1e-3), scale: 1.0, seen: false, error: Error::default() }
    }
}

impl StepModel {
    /// Whether any step has been seen; before, nothing is predicted.
    pub fn known(&self) -> bool {
        self.seen
    }

    /// Learns that a step of this cost kept the rank busy for so long.
    pub fn learn(&mut self, cost: f64, busy_ns: u64) {
        let busy = busy_ns as f64 / 1e6;
        if self.seen {
            self.error.note(self.predict(1, cost) as f64, busy_ns as f64);
        } else {
            self.scale = if cost.is_finite() && cost > 0.0 { cost } else { 1.0 };
            // Until costs have varied, half of the time is taken to follow them.
            self.fit = Fit::new([busy / 2.0, busy / 2.0], 0.05);
            self.seen = true;
        }
        self.fit.learn(&[1.0, cost / self.scale], busy, 1.0);
    }

    /// Nanoseconds that `steps` steps take whose costs sum to `cost`.
    pub fn predict(&self, steps: u32, cost: f64) -> u64 {
        let ms = self.fit.predict(&[f64::from(steps), cost / self.scale]);
        (ms * 1e6).round().max(0.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::online::margin::tests::Noise;

    #[test]
    fn steps_follow_their_cost() {
        let (mut model, mut noise) = (StepModel::default(), Noise::new(7));
        assert!(!model.known());
        let truth = |cost: f64| ((100.0 + 0.02 * cost) * 1e6) as u64;
        for _ in 0..300 {
            let cost = 1000.0 + 20_000.0 * noise.uniform();
            model.learn(cost, truth(cost));
        }
        for cost in [1000.0, 8000.0, 20_000.0] {
            let error = model.predict(1, cost) as f64 / truth(cost) as f64;
            assert!((error - 1.0).abs() < 0.05, "{error}");
        }
        let two = model.predict(2, 9000.0) as f64;
        assert!((two / (truth(1000.0) + truth(8000.0)) as f64 - 1.0).abs() < 0.05);
    }

    #[test]
    fn equal_costs_are_enough() {
        let mut model = StepModel::default();
        for _ in 0..10 {
            model.learn(1.0, 50_000_000);
        }
        assert!(model.predict(1, 1.0).abs_diff(50_000_000) < 1_000_000);
        model.learn(f64::NAN, 1);
        assert!(model.predict(4, 4.0).abs_diff(200_000_000) < 4_000_000);
    }
}
