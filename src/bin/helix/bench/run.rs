//! The simulations, side by side on the cores that there are.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use helix_shm::sim::{Bounds, Outcome, Setup, Workload, simulate};

use super::Name;

/// One workload and seed under every system.
pub(super) struct Run {
    /// Which of the workloads.
    pub(super) workload: usize,
    pub(super) seed: u64,
    pub(super) bounds: Bounds,
    /// In the order of the systems.
    pub(super) outcomes: Vec<Outcome>,
}

/// All runs, by workload and seed, `longer` times as long as the workloads say. Samples, order and bounds are the same for all systems.
pub(super) fn all(
    workloads: &[&Workload],
    systems: &[Name],
    (seeds, longer): (u64, u32),
    threads: usize,
) -> Vec<Run> {
    let count = workloads.len() * seeds as usize;
    let next = AtomicUsize::new(0);
    let runs = Mutex::new(Vec::with_capacity(count));
    let work = || {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= count {
                return;
            }
            let (workload, seed) = (n / seeds as usize, n as u64 % seeds);
            let job = workloads[workload].job(seed, workloads[workload].steps * longer);
            let bounds = Bounds::new(&job);
            let outcomes = systems.iter().map(|s| simulate(&job, &bounds, Setup::new(s.system()))).collect();
            let run = Run { workload, seed, bounds, outcomes };
            runs.lock().unwrap_or_else(PoisonError::into_inner).push(run);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.max(1)) {
            scope.spawn(work);
        }
    });
    let mut runs = runs.into_inner().unwrap_or_else(PoisonError::into_inner);
    // Whoever was faster: sums of floats depend on their order.
    runs.sort_unstable_by_key(|r| (r.workload, r.seed));
    runs
}
