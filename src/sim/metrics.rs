//! The arithmetic: from rank-steps to the figures reported, and the bounds beside them.

use super::job::{Job, Moves};
use crate::proto::options::Balance;
use crate::sched::balance;

/// Share of the median step beyond which a wait is a deadline missed.
const MISS: f64 = 0.05;

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
    /// Share of rank-steps that waited for more than 5 % of the median step as the sampler dealt it: the same
    /// threshold for all systems.
    pub miss_rate: f64,
    /// Waits for input over rank-steps: mean, 95th and 99th percentile, longest.
    pub waits: [f64; 4],
    /// Share of the ranks' time spent waiting for input.
    pub wait_share: f64,
    /// Share of the ranks' time spent waiting for other ranks.
    pub barrier_idle: f64,
    /// Core seconds of decoding, the warm-up and what was prefetched included.
    pub decode_s: f64,
    /// Seconds of the whole run.
    pub run_s: f64,
    /// Bytes of prepared samples, the warm-up included.
    pub bytes: u64,
    /// Of these the ones that were made on another server than their rank's.
    pub cross_bytes: u64,
    /// Steps that were counted.
    pub steps: u32,
    /// Tickets done.
    pub tickets: u64,
    /// Steps in which samples moved once more after they were decoded.
    pub plans: u32,
    /// Bytes that were copied between devices then.
    pub moved_bytes: u64,
    /// Where each ticket was done, if that was asked for.
    pub placed: Vec<Placed>,
    /// What each server did.
    pub servers: Vec<Share>,
}

/// A server's share of a run, the warm-up included.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Share {
    /// Core seconds of decoding.
    pub decode_s: f64,
    /// Bytes of prepared samples that it made for ranks of other servers.
    pub sent_bytes: u64,
    /// Bytes that others made for its ranks.
    pub taken_bytes: u64,
}

/// A ticket that was done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placed {
    /// Step of its batch.
    pub step: u32,
    /// Server of its rank.
    pub home: u16,
    /// Server of its worker.
    pub server: u16,
    /// Bytes of the prepared sample.
    pub bytes: u64,
    /// Seconds of a core, undisturbed.
    pub work_s: f64,
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
    pub(super) fn count(&mut self, steps: &[Vec<RankStep>], warmup: u32, bounds: &Bounds) {
        let warmup = (warmup as usize).min(steps.len().saturating_sub(1));
        let end = |k: usize| steps[k].iter().map(|r| r.end).max().unwrap_or(0);
        let begin = if warmup > 0 { end(warmup - 1) } else { 0 };
        let counted = &steps[warmup..];
        let last = counted.last().map_or(0, |s| s.iter().map(|r| r.end).max().unwrap_or(0));
        let rows = || counted.iter().flatten();
        let samples: f64 = rows().map(|r| f64::from(r.samples)).sum();
        self.throughput = samples / seconds(last - begin).max(1e-9);
        self.run_s = seconds(last);
        let mut waits: Vec<f64> = rows().map(|r| seconds(r.got - r.asked)).collect();
        waits.sort_unstable_by(f64::total_cmp);
        let limit = MISS * bounds.median_step_s;
        let count = waits.len().max(1) as f64;
        self.miss_rate = waits.iter().filter(|w| **w > limit).count() as f64 / count;
        let all = waits.iter().sum::<f64>();
        self.waits = [all / count, percentile(&waits, 0.95), percentile(&waits, 0.99), percentile(&waits, 1.0)];
        let span = rows().map(|r| seconds(r.end - r.asked)).sum::<f64>().max(1e-9);
        self.wait_share = all / span;
        self.barrier_idle = rows().map(|r| seconds(r.end - r.computed)).sum::<f64>() / span;
        self.steps = counted.len() as u32;
    }
}

/// Samples a second that no loader can beat in the long run; what was prefetched in the warm-up can lend a little.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Compute spread evenly over ranks and decoding over cores, however small the pieces.
    pub perfect: f64,
    /// Whole micro-batches moved between ranks as far as the job lets them, the largest first to the lightest rank.
    pub movable: f64,
    /// Compute as the sampler dealt it.
    pub unbalanced: f64,
    /// Decoding alone, on all cores.
    pub decode: f64,
    /// Time of decoding on all cores over that of compute as dealt; above 1 a job is bound by decoding.
    pub decode_over_compute: f64,
    /// The median step as dealt, if nobody waits for input.
    pub median_step_s: f64,
}

impl Bounds {
    /// The bounds of a job's measured steps.
    pub fn new(job: &Job) -> Bounds {
        let (trace, units, ranks) = (&job.trace, job.units(), job.options.world as usize);
        let per_step = ranks * job.options.units() as usize;
        let (mut even, mut moved, mut dealt, mut decode, mut samples) = (0.0, 0.0, 0.0, 0.0, 0u64);
        let mut steps = Vec::new();
        let free = matches!(job.options.balance, Balance::Free { .. });
        for step in job.warmup.min(job.steps.saturating_sub(1))..job.steps.min(units.steps(&job.options)) {
            let first = u64::from(step) * per_step as u64;
            let mut costs = vec![0.0; per_step];
            for (unit, cost) in costs.iter_mut().enumerate() {
                for sample in units.unit(first + unit as u64).map(|i| &trace.samples[i as usize]) {
                    *cost += sample.compute_s;
                    decode += sample.decode_s;
                    samples += u64::from(sample.count);
                }
            }
            let ids: Vec<u64> = (0..per_step as u64).collect();
            let home: Vec<u32> = (0..per_step).map(|i| (i * ranks / per_step) as u32).collect();
            let worst = balance::heaviest(&costs, &home, ranks);
            let room = if free { per_step } else { per_step.div_ceil(ranks) };
            let best = match job.moves {
                Moves::Nothing => worst,
                Moves::MicroBatches => {
                    balance::heaviest(&costs, &balance::largest_first(&costs, &ids, ranks, room), ranks)
                }
            };
            even += job.step_base + costs.iter().sum::<f64>() / ranks as f64;
            moved += job.step_base + best.min(worst);
            dealt += job.step_base + worst;
            steps.push(job.step_base + worst);
        }
        steps.sort_unstable_by(f64::total_cmp);
        let decode = decode / f64::from(job.cores.max(1));
        let rate = |compute: f64| samples as f64 / compute.max(decode).max(1e-9);
        Bounds {
            perfect: rate(even),
            movable: rate(moved),
            unbalanced: rate(dealt),
            decode: rate(0.0),
            decode_over_compute: decode / dealt.max(1e-9),
            median_step_s: percentile(&steps, 0.5),
        }
    }
}
