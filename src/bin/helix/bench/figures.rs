//! Means over seeds, and over workloads.

use helix_shm::sim::{Bounds, Outcome, Workload};

use super::Name;
use super::run::Run;

/// One system on one workload.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Figure {
    pub(super) throughput: f64,
    pub(super) of_perfect: f64,
    pub(super) of_movable: f64,
    pub(super) miss_rate: f64,
    pub(super) wait_mean: f64,
    pub(super) wait_p95: f64,
    pub(super) wait_p99: f64,
    /// The longest of all seeds.
    pub(super) wait_max: f64,
    pub(super) barrier: f64,
}

/// One workload.
pub(super) struct Figures {
    pub(super) workload: String,
    /// Time of decoding on all cores over that of compute as dealt.
    pub(super) decode_over_compute: f64,
    /// The movable bound as a share of the perfect one.
    pub(super) movable: f64,
    pub(super) systems: Vec<(Name, Figure)>,
}

impl Figures {
    pub(super) fn of(&self, name: Name) -> Option<Figure> {
        self.systems.iter().find(|(n, _)| *n == name).map(|(_, f)| *f)
    }

    pub(super) fn decode_bound(&self) -> bool {
        self.decode_over_compute > 1.0
    }
}

pub(super) fn average(workloads: &[&Workload], systems: &[Name], runs: &[Run]) -> Vec<Figures> {
    let of = |(at, workload): (usize, &&Workload)| {
        let runs: Vec<&Run> = runs.iter().filter(|r| r.workload == at).collect();
        let mean = |f: &dyn Fn(&Run) -> f64| runs.iter().map(|r| f(r)).sum::<f64>() / runs.len().max(1) as f64;
        let figure = |(i, name): (usize, &Name)| {
            let mean = |f: &dyn Fn(&Outcome, &Bounds) -> f64| mean(&|r| f(&r.outcomes[i], &r.bounds));
            let longest = runs.iter().map(|r| r.outcomes[i].waits[3]).fold(0.0, f64::max);
            let figure = Figure {
                throughput: mean(&|o, _| o.throughput),
                of_perfect: mean(&|o, b| o.throughput / b.perfect),
                of_movable: mean(&|o, b| o.throughput / b.movable),
                miss_rate: mean(&|o, _| o.miss_rate),
                wait_mean: mean(&|o, _| o.waits[0]),
                wait_p95: mean(&|o, _| o.waits[1]),
                wait_p99: mean(&|o, _| o.waits[2]),
                wait_max: longest,
                barrier: mean(&|o, _| o.barrier_idle),
            };
            (*name, figure)
        };
        Figures {
            workload: workload.name.clone(),
            decode_over_compute: mean(&|r| r.bounds.decode_over_compute),
            movable: mean(&|r| r.bounds.movable / r.bounds.perfect),
            systems: systems.iter().enumerate().map(figure).collect(),
        }
    };
    workloads.iter().enumerate().map(of).collect()
}

/// Geometric mean.
pub(super) fn geometric(values: impl Iterator<Item = f64>) -> f64 {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
}

/// Arithmetic mean.
pub(super) fn arithmetic(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.iter().sum::<f64>() / values.len().max(1) as f64
}
