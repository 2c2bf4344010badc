//! The figures against their targets.

use helix_shm::results::Row;

use super::Name;
use super::figures::{Figure, Figures, arithmetic, geometric};

/// Less than this is rounding, in seconds and in shares.
const ROUNDING: f64 = 1e-6;

struct Rows<'a> {
    figures: &'a [Figures],
    command: &'a str,
    rows: Vec<Row>,
}

/// All rows whose systems were run.
pub(super) fn of(figures: &[Figures], command: &str) -> Vec<Row> {
    let mut rows = Rows { figures, command, rows: Vec::new() };
    rows.throughput();
    rows.waits();
    rows.each();
    rows.rows
}

impl Rows<'_> {
    fn add(&mut self, name: &str, value: Option<f64>, target: &str) {
        if let Some(value) = value {
            self.rows.push(Row::new(format!("paper.{name}"), value, "", target, self.command));
        }
    }

    /// A figure of a system on each workload; `None` if the system was not run.
    fn all(&self, name: Name, f: impl Fn(&Figure) -> f64) -> Option<Vec<f64>> {
        self.figures.iter().map(|w| w.of(name).map(|figure| f(&figure))).collect()
    }

    fn ratio(&self, other: Name) -> Option<f64> {
        let (ours, theirs) = (self.all(Name::Helix, |f| f.throughput)?, self.all(other, |f| f.throughput)?);
        Some(geometric(ours.iter().zip(&theirs).map(|(a, b)| a / b)))
    }

    fn throughput(&mut self) {
        let movable = self.all(Name::Helix, |f| f.of_movable);
        let least = |v: &Vec<f64>| v.iter().copied().fold(f64::INFINITY, f64::min);
        self.add("of_movable", movable.as_ref().map(|v| geometric(v.iter().copied())), ">= 0.97");
        self.add("of_movable_min", movable.as_ref().map(least), ">= 0.93");
        let perfect = self.all(Name::HelixRegroup8, |f| f.of_perfect);
        self.add("regroup8_of_perfect", perfect.map(|v| geometric(v.into_iter())), ">= 0.96");
        let perfect = self.all(Name::Helix, |f| f.of_perfect);
        self.add("of_perfect", perfect.map(|v| geometric(v.into_iter())), "");
        let against_best = |w: &Figures| {
            let best = w.systems.iter().filter(|(n, _)| n.other()).map(|(_, f)| f.throughput).reduce(f64::max)?;
            Some(w.of(Name::Helix)?.throughput / best)
        };
        let worst: Option<Vec<f64>> = self.figures.iter().map(against_best).collect();
        self.add("vs_best_other_min", worst.as_ref().map(least), ">= 1");
        for (row, other) in [
            ("throughput_vs_native2", Name::Native2),
            ("throughput_vs_native4", Name::Native4),
            ("throughput_vs_native12", Name::Native12),
            ("throughput_vs_pool", Name::PoolSample),
            ("throughput_vs_pool_batch", Name::PoolBatch),
        ] {
            self.add(row, self.ratio(other), "");
        }
    }

    fn waits(&mut self) {
        let mean = |v: Vec<f64>| arithmetic(v.into_iter());
        let ratio = |f: fn(&Figure) -> f64| {
            Some(mean(self.all(Name::Helix, f)?) / mean(self.all(Name::Native4, f)?).max(f64::MIN_POSITIVE))
        };
        let (misses, p95) = (ratio(|f| f.miss_rate), ratio(|f| f.wait_p95));
        // The paper's reductions: 67.8 % fewer misses, 87.0 % shorter waits.
        self.add("miss_rate_vs_native4", misses, "<= 0.322");
        self.add("wait_p95_vs_native4", p95, "<= 0.13");
        self.add("wait_p99_worse_on", self.worse(|f| f.wait_p99, |_| true), "= 0");
        self.add("wait_max_worse_on", self.worse(|f| f.wait_max, |_| true), "= 0");
        self.add("miss_rate_worse_on", self.worse(|f| f.miss_rate, |w| !w.decode_bound()), "= 0");
        self.add("wait_mean_worse_on", self.worse(|f| f.wait_mean, Figures::decode_bound), "= 0");
    }

    /// Workloads, of those that count, on which another system's figure is lower.
    fn worse(&self, f: fn(&Figure) -> f64, counts: fn(&Figures) -> bool) -> Option<f64> {
        let is_worse = |w: &Figures| {
            let others = w.systems.iter().filter(|(n, _)| n.other()).map(|(_, figure)| f(figure));
            Some(f(&w.of(Name::Helix)?) > others.reduce(f64::min)? + ROUNDING)
        };
        let worse: Option<Vec<bool>> = self.figures.iter().filter(|w| counts(w)).map(is_worse).collect();
        Some(worse?.into_iter().filter(|w| *w).count() as f64)
    }

    fn each(&mut self) {
        for workload in self.figures {
            for (name, f) in &workload.systems {
                for (what, value, unit) in [
                    ("throughput", f.throughput, "samples/s"),
                    ("of_perfect", f.of_perfect, ""),
                    ("of_movable", f.of_movable, ""),
                    ("miss_rate", f.miss_rate, ""),
                    ("wait_mean", f.wait_mean, "s"),
                    ("wait_p95", f.wait_p95, "s"),
                    ("wait_p99", f.wait_p99, "s"),
                    ("wait_max", f.wait_max, "s"),
                ] {
                    let row = format!("paper.{}.{}.{what}", workload.workload, name.text());
                    self.rows.push(Row::new(row, value, unit, "", self.command));
                }
            }
        }
    }
}
