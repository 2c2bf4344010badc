//! The simulations, side by side on the cores that there are.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use helix_shm::sim::{Bounds, Outcome, Setup, Workload, simulate};

use super::Name;

/// One workload and seed under every system.
pub(super) struct Run {
    /// Which of the workloads.
    pub(super) workload: usize,
    pub(super) bounds: Bounds,
    /// In the order of the systems.
    pub(super) outcomes: Vec<Outcome>,
}

/// All runs, by workload and seed, `longer` times as long as the workloads say. Samples, order and bounds are the same
/// for all systems.
pub(super) fn all(
    workloads: &[&Workload],
    systems: &[Name],
    (seeds, longer): (u64, u32),
    threads: usize,
) -> Vec<Run> {
    side_by_side(workloads.len() * seeds as usize, threads, |n| {
        let (workload, seed) = (n / seeds as usize, n as u64 % seeds);
        let job = workloads[workload].job(seed, workloads[workload].steps * longer);
        let bounds = Bounds::new(&job);
        let outcomes = systems.iter().map(|s| simulate(&job, &bounds, Setup::new(s.system()))).collect();
        Run { workload, bounds, outcomes }
    })
}

/// The results of `count` pieces of work, in their order, whoever was faster: sums of floats depend on it.
pub(super) fn side_by_side<T: Send>(count: usize, threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(count));
    let turn = || {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= count {
                return;
            }
            let result = work(n);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((n, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.max(1)) {
            scope.spawn(turn);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(n, _)| *n);
    done.into_iter().map(|(_, result)| result).collect()
}
