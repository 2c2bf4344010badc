//! The arithmetic: from rank-steps to the figures reported, and the bounds beside them.

use super::workload::{Trace, Workload};
use crate::sched::balance;
use crate::sched::order::Permutation;

/// One step of one rank, virtual nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct RankStep {
    /// When it asked for its batch.
    pub asked: u64,
    /// When it got it.
    pub got: u64,
    /// When its compute was over.
    pub computed: u64,
    /// When the last rank's was.
    pub end: u64,
    /// Samples of the batch.
    pub samples: u32,
}

/// What came of a run. Times are seconds; the warm-up is not counted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Samples a second.
    pub throughput: f64,
    /// Share of rank-steps that waited for more than 5 % of the median step.
    pub miss_rate: f64,
    /// Waits for input over rank-steps: mean, 95th and 99th percentile, longest.
    pub waits: [f64; 4],
    /// Share of the ranks' time spent waiting for other ranks.
    pub barrier_idle: f64,
    /// Core seconds of decoding, the warm-up and what was prefetched included.
    pub decode_s: f64,
    /// Bytes of prepared samples that were written across servers, the warm-up included.
    pub cross_bytes: u64,
    /// Steps that were counted.
    pub steps: u32,
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The value that a share of all is not above; values are sorted.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(at.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}

impl Outcome {
    pub(super) fn count(&mut self, steps: &[Vec<RankStep>], workload: &Workload) {
        let warmup = (workload.warmup as usize).min(steps.len().saturating_sub(1));
        let end = |k: usize| steps[k].iter().map(|r| r.end).max().unwrap_or(0);
        let begin = if warmup > 0 { end(warmup - 1) } else { 0 };
        let counted = &steps[warmup..];
        let elapsed = seconds(counted.last().map_or(0, |s| s.iter().map(|r| r.end).max().unwrap_or(0)) - begin);
        let rows = || counted.iter().flatten();
        let samples: f64 = rows().map(|r| f64::from(r.samples)).sum();
        self.throughput = samples / elapsed.max(1e-9);
        let mut waits: Vec<f64> = rows().map(|r| seconds(r.got - r.asked)).collect();
        waits.sort_unstable_by(f64::total_cmp);
        let mut lengths: Vec<f64> = (warmup.max(1)..steps.len()).map(|k| seconds(end(k) - end(k - 1))).collect();
        lengths.sort_unstable_by(f64::total_cmp);
        let limit = 0.05 * percentile(&lengths, 0.5);
        let count = waits.len().max(1) as f64;
        self.miss_rate = waits.iter().filter(|w| **w > limit).count() as f64 / count;
        let mean = waits.iter().sum::<f64>() / count;
        self.waits = [mean, percentile(&waits, 0.95), percentile(&waits, 0.99), percentile(&waits, 1.0)];
        let idle: f64 = rows().map(|r| seconds(r.end - r.computed)).sum();
        self.barrier_idle = idle / rows().map(|r| seconds(r.end - r.asked)).sum::<f64>().max(1e-9);
        self.steps = counted.len() as u32;
    }
}

/// Samples a second that no loader can beat in the long run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Compute spread evenly over ranks and decoding over cores, however small the pieces.
    pub perfect: f64,
    /// Whole samples moved between ranks, an equal number to each, as far as the workload lets them.
    pub movable: f64,
    /// Compute as the sampler dealt it.
    pub unbalanced: f64,
}

impl Bounds {
    /// The bounds of a run of so many steps with this seed.
    pub fn new(workload: &Workload, trace: &Trace, seed: u64, steps: u32) -> Bounds {
        let ranks = workload.ranks as usize;
        let global = (workload.ranks * workload.per_rank()) as usize;
        let order = Permutation::shuffled(trace.samples.len() as u32, seed, 0);
        let (mut even, mut moved, mut dealt, mut decode) = (0.0, 0.0, 0.0, 0.0);
        let counted = workload.warmup.min(steps.saturating_sub(1))..steps;
        let samples = counted.len() * global;
        for step in counted {
            let first = u64::from(step) * global as u64;
            let ids: Vec<u64> = (0..global as u64).map(|i| order.at(first + i).into()).collect();
            let costs: Vec<f64> = ids.iter().map(|i| trace.samples[*i as usize].compute_s).collect();
            let home: Vec<u32> = (0..global).map(|i| (i * ranks / global) as u32).collect();
            let worst = balance::heaviest(&costs, &home, ranks);
            let deal = balance::equal_counts(&costs, &ids, ranks);
            let best = if workload.may_move() { balance::heaviest(&costs, &deal, ranks) } else { worst };
            even += workload.step_base() + costs.iter().sum::<f64>() / ranks as f64;
            moved += workload.step_base() + best;
            dealt += workload.step_base() + worst;
            decode += ids.iter().map(|i| trace.samples[*i as usize].decode_s).sum::<f64>();
        }
        let decode = decode / f64::from(workload.cores);
        let rate = |compute: f64| samples as f64 / compute.max(decode).max(1e-9);
        Bounds { perfect: rate(even), movable: rate(moved), unbalanced: rate(dealt) }
    }
}
