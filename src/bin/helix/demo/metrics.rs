//! The arithmetic: from what the ranks report of each step to the numbers that are printed. Pure functions.

use std::time::Duration;

use super::calibrate::Cost;
use super::wire::{BadClip, StepReport};

/// What happened in one step under one policy.
#[derive(Debug, Clone, Default)]
pub(crate) struct Step {
    /// From the end of the barrier before to the end of this step's.
    pub(crate) took: Duration,
    /// One report a rank, in the order of ranks.
    pub(crate) ranks: Vec<StepReport>,
    /// How long each rank waited at the barrier for the last one.
    pub(crate) idle: Vec<Duration>,
}

/// All steps of one policy.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) steps: Vec<Step>,
    /// Samples that could not be decoded, each once.
    pub(crate) bad: Vec<BadClip>,
    /// Bytes that were copied on the host between decoding and upload, over all ranks.
    pub(crate) copied: u64,
    /// Bytes uploaded, over all ranks.
    pub(crate) uploaded: u64,
}

/// The pixels and ids of a step, whoever got them: a sum, so that order does not matter, of one hash a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Digest {
    pub(crate) sum: u128,
    pub(crate) samples: usize,
    pub(crate) skipped: usize,
}

impl Step {
    pub(crate) fn digest(&self) -> Digest {
        self.ranks.iter().fold(Digest::default(), |d, r| Digest {
            sum: r.samples.iter().fold(d.sum, |sum, s| sum.wrapping_add(s.hash())),
            samples: d.samples + r.samples.len(),
            skipped: d.skipped + r.skipped as usize,
        })
    }

    /// Compute of the step if the accelerators shared it as well as whole samples can be shared.
    fn balanced(&self) -> Duration {
        let costs = || self.ranks.iter().flat_map(|r| &r.samples).map(|s| s.compute);
        let mean = costs().sum::<Duration>() / self.ranks.len().max(1) as u32;
        mean.max(costs().max().unwrap_or_default())
    }

    /// Compute of the slowest rank if each had the samples that the sampler dealt it.
    fn as_dealt(&self) -> Duration {
        let mut loads = vec![Duration::ZERO; self.ranks.len()];
        for sample in self.ranks.iter().flat_map(|r| &r.samples) {
            if let Some(load) = loads.get_mut(sample.home as usize) {
                *load += sample.compute;
            }
        }
        loads.into_iter().max().unwrap_or_default()
    }
}

/// The same numbers for each policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summary {
    /// Samples a second.
    pub(crate) throughput: f64,
    /// Share of rank-steps that waited longer than the first and the second threshold.
    pub(crate) misses: [f64; 2],
    pub(crate) wait_mean: Duration,
    pub(crate) wait_p95: Duration,
    pub(crate) wait_p99: Duration,
    pub(crate) wait_max: Duration,
    /// Share of the ranks' time that was spent at the barrier.
    pub(crate) barrier_idle: f64,
    /// Share of the ranks' time by which uploading and hashing outlasted the emulated compute.
    pub(crate) late: f64,
}

/// Steps that are left out at the start: a tenth, and no fewer than were prefetched before the first was asked for.
pub(crate) fn warm_up(steps: usize, lookahead: u32) -> usize {
    steps.div_ceil(10).max(lookahead as usize + 1).min(steps.saturating_sub(1))
}

/// Sums up the steps after the warm-up.
pub(crate) fn summary(steps: &[Step], thresholds: [Duration; 2]) -> Summary {
    let elapsed: Duration = steps.iter().map(|s| s.took).sum();
    let samples: usize = steps.iter().flat_map(|s| &s.ranks).map(|r| r.samples.len()).sum();
    let mut waits: Vec<Duration> = steps.iter().flat_map(|s| &s.ranks).map(|r| r.wait).collect();
    waits.sort();
    let idle: Duration = steps.iter().flat_map(|s| &s.idle).sum();
    let late: Duration = steps.iter().flat_map(|s| &s.ranks).map(|r| r.late).sum();
    let ranks = steps.first().map_or(1, |s| s.ranks.len().max(1));
    let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
    let missed = |theta| share(waits.iter().filter(|&&w| w > theta).count() as f64, waits.len() as f64);
    Summary {
        throughput: share(samples as f64, elapsed.as_secs_f64()),
        misses: thresholds.map(missed),
        wait_mean: waits.iter().sum::<Duration>() / waits.len().max(1) as u32,
        wait_p95: percentile(&waits, 0.95),
        wait_p99: percentile(&waits, 0.99),
        wait_max: waits.last().copied().unwrap_or_default(),
        barrier_idle: share(idle.as_secs_f64(), elapsed.as_secs_f64() * ranks as f64),
        late: share(late.as_secs_f64(), elapsed.as_secs_f64() * ranks as f64),
    }
}

/// The smallest value that at least a share `p` of the (sorted) values does not exceed.
fn percentile(sorted: &[Duration], p: f64) -> Duration {
    let rank = (p * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or_default()
}

/// The perfect bound for these steps, samples a second: nobody can be faster than balanced accelerators that never
/// wait, nor than all cores decoding all the time. `decode` is the CPU time that the steps' samples take to decode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bound {
    pub(crate) throughput: f64,
    /// Time of the balanced accelerators.
    pub(crate) compute: Duration,
    /// Decode CPU time over the cores.
    pub(crate) decode: Duration,
}

pub(crate) fn bound(steps: &[Step], decode: Duration, cores: usize) -> Bound {
    let compute: Duration = steps.iter().map(Step::balanced).sum();
    let decode = decode / cores.max(1) as u32;
    let samples: usize = steps.iter().flat_map(|s| &s.ranks).map(|r| r.samples.len()).sum();
    let longest = compute.max(decode).as_secs_f64();
    Bound { throughput: if longest > 0.0 { samples as f64 / longest } else { 0.0 }, compute, decode }
}

/// The median step as the sampler dealt it, compute alone: a yardstick for waits that is the same for all policies.
pub(crate) fn median_step(steps: &[Step]) -> Duration {
    let mut dealt: Vec<Duration> = steps.iter().map(Step::as_dealt).collect();
    dealt.sort();
    percentile(&dealt, 0.5)
}

/// The first step in which two policies did not deliver the same, if there is one.
pub(crate) fn first_difference(a: &Outcome, b: &Outcome) -> Option<usize> {
    let differ = a.steps.iter().zip(&b.steps).position(|(a, b)| a.digest() != b.digest());
    differ.or_else(|| (a.steps.len() != b.steps.len()).then(|| a.steps.len().min(b.steps.len())))
}

/// How the samples compare with the pixels that were decoded apart from all of this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Reference {
    pub(crate) compared: usize,
    pub(crate) different: usize,
}

/// Compares the rows that were calibrated, the first ones, with what the ranks received.
pub(crate) fn reference(outcome: &Outcome, costs: &[Cost]) -> Reference {
    let samples = outcome.steps.iter().flat_map(|s| &s.ranks).flat_map(|r| &r.samples);
    samples.filter_map(|s| Some((costs.get(s.id as usize)?.pixels, s.pixels))).fold(
        Reference::default(),
        |r, (a, b)| Reference { compared: r.compared + 1, different: r.different + usize::from(a != b) },
    )
}

#[cfg(test)]
mod tests {
    use super::super::wire::Sample;
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn sample(id: u64, home: u32, compute: Duration) -> Sample {
        Sample { id, home, compute, pixels: [id, 0] }
    }

    fn report(rank: u32, wait: Duration, samples: Vec<Sample>) -> StepReport {
        StepReport { rank, step: 0, wait, samples, skipped: 0, late: Duration::ZERO }
    }

    /// Rank 0 gets 10 ms and 30 ms of compute, rank 1 gets 20 ms; the sampler had dealt both large ones to rank 1.
    fn step() -> Step {
        let a = report(0, ms(0), vec![sample(1, 0, ms(10)), sample(2, 1, ms(30))]);
        let b = report(1, ms(4), vec![sample(3, 1, ms(20))]);
        Step { took: ms(60), ranks: vec![a, b], idle: vec![ms(0), ms(12)] }
    }

    #[test]
    fn a_summary_counts_what_the_ranks_saw() {
        let s = summary(&[step(), step()], [ms(1), ms(5)]);
        assert_eq!(s.throughput, 50.0);
        assert_eq!(s.misses, [0.5, 0.0]);
        assert_eq!((s.wait_mean, s.wait_p95, s.wait_max), (ms(2), ms(4), ms(4)));
        assert_eq!(s.barrier_idle, 0.1);
    }

    #[test]
    fn the_bound_is_the_slower_of_accelerators_and_cores() {
        let steps = [step()];
        let compute = bound(&steps, ms(20), 2);
        assert_eq!((compute.compute, compute.throughput), (ms(30), 100.0));
        assert_eq!(bound(&steps, ms(120), 2).throughput, 50.0);
    }

    #[test]
    fn one_large_sample_bounds_a_step_whatever_the_balance() {
        let lonely =
            Step { ranks: vec![report(0, ms(0), vec![sample(1, 0, ms(90))]), report(1, ms(0), vec![])], ..step() };
        assert_eq!(lonely.balanced(), ms(90));
    }

    #[test]
    fn the_median_step_is_that_of_the_sampler() {
        assert_eq!(median_step(&[step()]), ms(50));
    }

    #[test]
    fn a_digest_ignores_who_got_a_sample_and_sees_a_changed_pixel() {
        let mut swapped = step();
        swapped.ranks.swap(0, 1);
        assert_eq!(step().digest(), swapped.digest());
        let mut changed = step();
        changed.ranks[1].samples[0].pixels[0] ^= 1;
        assert_ne!(step().digest(), changed.digest());
        let mut exchanged = step();
        exchanged.ranks[0].samples[0].pixels = [3, 0];
        exchanged.ranks[1].samples[0].pixels = [1, 0];
        assert_ne!(step().digest(), exchanged.digest(), "the pixels of two samples were exchanged");
    }

    #[test]
    fn streams_of_different_length_differ_where_the_shorter_ends() {
        let long = Outcome { steps: vec![step(), step()], ..Outcome::default() };
        let short = Outcome { steps: vec![step()], ..Outcome::default() };
        assert_eq!(first_difference(&long, &long), None);
        assert_eq!(first_difference(&long, &short), Some(1));
    }

    #[test]
    fn the_reference_sees_the_rows_that_it_knows() {
        let costs = [1, 2].map(|id| Cost { cpu: ms(1), pixels: [id, 0] });
        let step = Step { ranks: vec![report(0, ms(0), vec![sample(1, 0, ms(1)), sample(9, 0, ms(1))])], ..step() };
        let outcome = Outcome { steps: vec![step], ..Outcome::default() };
        // Row 1 arrived as [1, 0], the reference says [2, 0]; row 9 is not among the calibrated ones.
        assert_eq!(reference(&outcome, &costs), Reference { compared: 1, different: 1 });
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let waits: Vec<Duration> = (1..=100).map(ms).collect();
        assert_eq!((percentile(&waits, 0.95), percentile(&waits, 0.99)), (ms(95), ms(99)));
        assert_eq!(percentile(&[], 0.95), Duration::ZERO);
        assert_eq!(percentile(&waits[..1], 0.5), ms(1));
    }

    #[test]
    fn the_warm_up_covers_what_was_prefetched_and_leaves_a_step() {
        assert_eq!(warm_up(100, 4), 10);
        assert_eq!(warm_up(30, 4), 5);
        assert_eq!(warm_up(3, 4), 2);
        assert_eq!(warm_up(0, 4), 0);
    }
}
