//! Recursive least squares with forgetting, kept as normal equations.
//!
//! The usual recursion on the covariance blows up in directions that the data stop exciting (all clips alike, for
//! hours). Here a small pull towards the prior is forgotten and renewed at the same rate, so that such a direction
//! returns to the prior, and the 5×5 system can always be solved.

/// Weight left to a sample after the next one: half a weight after 138 samples.
pub const FORGETTING: f64 = 0.995;

/// A linear model of `N` features.
#[derive(Debug, Clone)]
pub struct Fit<const N: usize> {
    prior: [f64; N],
    pull: f64,
    normal: [[f64; N]; N],
    moment: [f64; N],
    theta: [f64; N],
}

impl<const N: usize> Fit<N> {
    /// A model that starts at `prior` and is pulled to it with the weight of `pull` samples of unit features.
    pub fn new(prior: [f64; N], pull: f64) -> Self {
        let mut normal = [[0.0; N]; N];
        for (i, row) in normal.iter_mut().enumerate() {
            row[i] = pull;
        }
        Fit { prior, pull, normal, moment: prior.map(|p| p * pull), theta: prior }
    }

    /// The prediction for `x`.
    pub fn predict(&self, x: &[f64; N]) -> f64 {
        x.iter().zip(&self.theta).map(|(a, b)| a * b).sum()
    }

    #[cfg(test)]
    fn coefficients(&self) -> &[f64; N] {
        &self.theta
    }

    /// Learns that `x` gave `y`, with a weight that should fall where noise grows.
    pub fn learn(&mut self, x: &[f64; N], y: f64, weight: f64) {
        if !y.is_finite() || !weight.is_finite() || x.iter().any(|v| !v.is_finite()) {
            return;
        }
        let renewed = (1.0 - FORGETTING) * self.pull;
        for i in 0..N {
            for j in 0..N {
                self.normal[i][j] = FORGETTING * self.normal[i][j] + weight * x[i] * x[j];
            }
            self.normal[i][i] += renewed;
            self.moment[i] = FORGETTING * self.moment[i] + weight * x[i] * y + renewed * self.prior[i];
        }
        if let Some(theta) = solve(self.normal, self.moment) {
            self.theta = theta;
        }
    }

    /// Leaves only a part of the weight of what was learnt: for when the world has changed.
    pub fn doubt(&mut self, keep: f64) {
        for i in 0..N {
            for j in 0..N {
                self.normal[i][j] *= keep;
            }
            self.normal[i][i] += (1.0 - keep) * self.pull;
            self.moment[i] = keep * self.moment[i] + (1.0 - keep) * self.pull * self.prior[i];
        }
    }
}

/// Solves a symmetric positive definite system by Cholesky's method; `None` when rounding has made it singular.
pub(in crate::sched) fn solve<const N: usize>(mut a: [[f64; N]; N], mut b: [f64; N]) -> Option<[f64; N]> {
    for i in 0..N {
        for j in 0..=i {
            let dot: f64 = (0..j).map(|k| a[i][k] * a[j][k]).sum();
            let rest = a[i][j] - dot;
            a[i][j] = if i > j {
                rest / a[j][j]
            } else if rest > 0.0 {
                rest.sqrt()
            } else {
                return None;
            };
        }
    }
    for i in 0..N {
        let dot: f64 = (0..i).map(|k| a[i][k] * b[k]).sum();
        b[i] = (b[i] - dot) / a[i][i];
    }
    for i in (0..N).rev() {
        let dot: f64 = (i + 1..N).map(|k| a[k][i] * b[k]).sum();
        b[i] = (b[i] - dot) / a[i][i];
    }
    b.iter().all(|v| v.is_finite()).then_some(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::online::margin::tests::Noise;

    #[test]
    fn it_finds_the_coefficients() {
        let mut noise = Noise::new(1);
        let mut fit = Fit::new([1.0, 1.0, 1.0], 0.1);
        for _ in 0..1000 {
            let x = [1.0, noise.uniform(), noise.uniform()];
            fit.learn(&x, 3.0 + 5.0 * x[1] - 2.0 * x[2], 1.0);
        }
        for (found, wanted) in fit.coefficients().iter().zip([3.0, 5.0, -2.0]) {
            assert!((found - wanted).abs() < 0.05, "{found} for {wanted}");
        }
    }

    #[test]
    fn a_direction_without_news_returns_to_its_prior_and_never_blows_up() {
        let mut fit = Fit::new([0.0, 2.0], 0.1);
        for _ in 0..200_000 {
            fit.learn(&[1.0, 0.0], 7.0, 1.0);
        }
        assert!((fit.coefficients()[0] - 7.0).abs() < 0.01);
        assert!((fit.coefficients()[1] - 2.0).abs() < 1e-6);
    }

    #[test]
    fn it_follows_a_change() {
        let mut fit = Fit::new([0.0], 0.01);
        for _ in 0..1000 {
            fit.learn(&[1.0], 1.0, 1.0);
        }
        fit.doubt(0.05);
        for _ in 0..30 {
            fit.learn(&[1.0], 3.0, 1.0);
        }
        assert!((fit.coefficients()[0] - 3.0).abs() < 0.6, "{:?}", fit.coefficients());
    }

    #[test]
    fn nonsense_is_not_learnt() {
        let mut fit = Fit::new([1.0], 0.1);
        for (x, y, w) in [(f64::NAN, 1.0, 1.0), (1.0, f64::INFINITY, 1.0), (1.0, 1.0, f64::NAN)] {
            fit.learn(&[x], y, w);
        }
        assert_eq!(fit.coefficients(), &[1.0]);
    }
}
