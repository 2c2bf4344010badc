//! What is run on the box: samples with their true costs, the stream's options, and what a step costs.

use std::sync::Arc;

use super::random::Draws;
use crate::proto::options::{Balance, Profile, StreamOptions};
use crate::proto::transform::{Facts, Span};
use crate::sched::cost::Work;
use crate::sched::event::{Catalog, Chunk};
use crate::sched::order::Order;
use crate::sched::units::Units;

/// Steps behind the measured ones, so that no system runs dry within the measurement; more than any looks ahead.
pub(super) const EXTRA_STEPS: u32 = 26;

/// A clip as a job uses it.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// What the scheduler may know of the clip.
    pub facts: Facts,
    /// What it takes to decode it.
    pub work: Work,
    /// Bytes of the prepared sample.
    pub out_bytes: u64,
    /// Which of the trace's shapes it has; `None` if it fits none.
    pub shape: Option<usize>,
    /// Samples that it stands for.
    pub count: u32,
    /// Pieces of about equal length, cut at key frames, that can be decoded apart; 1 where there are none.
    pub chunks: u16,
    /// Seconds of one core to decode it; hidden from the scheduler.
    pub decode_s: f64,
    /// Of these what each worker that decodes a part of it pays again.
    pub open_s: f64,
    /// Seconds of an accelerator to compute on it.
    pub compute_s: f64,
    /// What the scheduler takes that to be before the sample is decoded.
    pub predicted_s: f64,
}

impl Sample {
    /// A part of it, of 1. Its frames are its chunks: which of them a decoder keeps does not matter here.
    pub(super) fn share(&self, part: Option<Span>) -> f64 {
        part.map_or(1.0, |part| f64::from(part.frames) / f64::from(self.chunks.max(1)))
    }

    /// Seconds of one core to decode a part of it.
    pub(super) fn part_s(&self, part: Option<Span>) -> f64 {
        self.open_s + (self.decode_s - self.open_s) * self.share(part)
    }
}

/// Samples, as a catalog. A sample's cost and tokens are the compute predicted for it.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// The samples.
    pub samples: Vec<Sample>,
    /// Samples of a micro-batch of each shape; empty where all are alike.
    pub shapes: Vec<u32>,
}

impl Catalog for Trace {
    fn len(&self) -> u64 {
        self.samples.len() as u64
    }
    fn row(&self, i: u64) -> u64 {
        i
    }
    fn facts(&self, i: u64) -> Facts {
        self.samples[i as usize].facts
    }
    fn appraise(&self, i: u64, _options: &StreamOptions) -> (Work, f64) {
        let sample = &self.samples[i as usize];
        (sample.work, sample.predicted_s)
    }
    fn tokens(&self, i: u64, _options: &StreamOptions) -> f64 {
        self.samples[i as usize].predicted_s
    }
    fn chunks(&self, row: u64, _epoch: u32, _options: &StreamOptions) -> Vec<Chunk> {
        let Some(sample) = self.samples.get(row as usize) else { return Vec::new() };
        let work = sample.work.share(1.0 / f64::from(sample.chunks.max(1)));
        (0..sample.chunks).map(|first| Chunk { span: Span { first, frames: 1 }, work }).collect()
    }
    fn shapes(&self) -> &[u32] {
        &self.shapes
    }
    fn shape(&self, i: u64) -> Option<usize> {
        self.samples[i as usize].shape
    }
}

/// What may go to another rank than the sampler's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moves {
    /// The options' micro-batches; a sample each, where those are of one.
    MicroBatches,
    /// Nothing.
    Nothing,
}

/// A job.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its samples.
    pub trace: Arc<Trace>,
    /// The stream, with the balance that the job allows. A system that does not balance leaves it out.
    pub options: StreamOptions,
    /// What may move.
    pub moves: Moves,
    /// Samples that a loader hands out at once; a rank's step takes one or several such batches.
    pub batch: u32,
    /// Seconds of a step on top of its samples'.
    pub step_base: f64,
    /// Steps of a run, the warm-up included.
    pub steps: u32,
    /// Steps that are not counted.
    pub warmup: u32,
    /// Cores that decode.
    pub cores: u16,
}

/// How fast machine and model are, for a job that is made of a manifest.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Speed of a core over that of the prior's.
    pub core_speed: f64,
    /// Seconds of a sample of mean cost.
    pub sample_s: f64,
    /// Seconds of a step on top of its samples'.
    pub step_base: f64,
}

/// Noise of a decode time around its prior.
const DECODE_SIGMA: f64 = 0.25;

impl Job {
    /// A job over the samples of a catalog: decoding takes as long as the priors say, with their noise, and compute
    /// is in proportion to the cost under the options' profile. No more samples are taken than the steps need; where
    /// there are fewer the epoch repeats.
    pub fn of(catalog: &dyn Catalog, options: &StreamOptions, pace: Pace, steps: u32, cores: u16) -> Job {
        let needed = u64::from(steps + EXTRA_STEPS) * options.global_batch();
        let have = catalog.len();
        let order = Order::new(have, options.seed, options.shuffle).epoch(0);
        let mut samples = Vec::with_capacity(needed as usize);
        for n in (0..needed).take_while(|_| have > 0) {
            let i = u64::from(order.at(n));
            let (facts, (work, cost)) = (catalog.facts(i), catalog.appraise(i, options));
            let noise = Draws::new("decode", options.seed, n).lognormal(DECODE_SIGMA);
            samples.push(Sample {
                facts,
                work,
                out_bytes: options.transform.max_bytes(&facts),
                shape: None,
                count: 1,
                chunks: catalog.chunks(catalog.row(i), 0, options).len().max(1) as u16,
                decode_s: work.prior_ms() / 1e3 * noise / pace.core_speed,
                open_s: Work::default().prior_ms() / 1e3 / pace.core_speed,
                compute_s: if options.profile == Profile::Equal { 1.0 } else { cost },
                predicted_s: 0.0,
            });
        }
        let mean = samples.iter().map(|s| s.compute_s).sum::<f64>() / samples.len().max(1) as f64;
        for s in &mut samples {
            s.compute_s *= pace.sample_s / mean.max(1e-12);
            s.predicted_s = s.compute_s;
        }
        // The samples are in the epoch's order already.
        let options = StreamOptions { shuffle: false, drop_last: true, ..options.clone() };
        let moves = if options.balance == Balance::None { Moves::Nothing } else { Moves::MicroBatches };
        let warmup = (steps / 10).max(EXTRA_STEPS).min(steps / 2);
        let batch = options.batch_size;
        let trace = Arc::new(Trace { samples, shapes: Vec::new() });
        Job { trace, options, moves, batch, step_base: pace.step_base, steps, warmup, cores }
    }

    /// The same job where compute is not what was predicted, but that times noise of this deviation.
    pub fn misjudged(&self, sigma: f64) -> Job {
        let mut trace = (*self.trace).clone();
        for (i, s) in (0..).zip(&mut trace.samples) {
            s.compute_s = s.predicted_s * Draws::new("compute", self.options.seed, i).lognormal(sigma);
        }
        Job { trace: Arc::new(trace), ..self.clone() }
    }

    /// The micro-batches that move, in the order of the job's first epoch.
    pub(super) fn units(&self) -> Units {
        self.units_of(&self.options)
    }

    fn units_of(&self, options: &StreamOptions) -> Units {
        let order = Order::new(self.trace.len(), options.seed, options.shuffle).epoch(0);
        Units::new(options, &*self.trace, order, 0)
    }

    /// The micro-batches that a rank's samples of a step are made of.
    pub(super) fn units_in<'a>(&'a self, samples: &'a [u64]) -> impl Iterator<Item = &'a [u64]> {
        let mut rest = samples;
        std::iter::from_fn(move || {
            let first = *rest.first()?;
            let shape = self.trace.samples[first as usize].shape.and_then(|s| self.trace.shapes.get(s));
            let size = shape.copied().unwrap_or(self.options.micro_batch).max(1) as usize;
            let (unit, others) = rest.split_at(size.min(rest.len()));
            rest = others;
            Some(unit)
        })
    }

    /// The same job for a system that knows batches only: each is one task, in the sampler's order.
    pub fn in_batches(&self) -> Job {
        let options = StreamOptions { micro_batch: self.batch, ..self.options.clone() };
        let units = self.units_of(&options);
        let count = u64::from(units.steps(&options)) * u64::from(options.world * options.units());
        let merged = |n: u64| {
            let parts: Vec<&Sample> = units.unit(n).map(|i| &self.trace.samples[i as usize]).collect();
            let mut whole = *parts[0];
            (whole.decode_s, whole.compute_s, whole.predicted_s) = (0.0, 0.0, 0.0);
            (whole.out_bytes, whole.count) = (0, 0);
            for part in parts {
                whole.decode_s += part.decode_s;
                whole.compute_s += part.compute_s;
                whole.chunks = 1;
                whole.predicted_s += part.predicted_s;
                whole.out_bytes += part.out_bytes;
                whole.count += part.count;
            }
            whole
        };
        let trace = Arc::new(Trace { samples: (0..count).map(merged).collect(), shapes: Vec::new() });
        let options = StreamOptions {
            batch_size: options.units(),
            micro_batch: 1,
            shuffle: false,
            balance: Balance::None,
            regroup: 1,
            ..options
        };
        Job { trace, options, batch: 1, moves: Moves::Nothing, ..self.clone() }
    }
}
