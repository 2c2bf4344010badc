//! The shape of a run, fixed before the first policy and the same for all: rows, steps, memory, the clock of the
//! emulated accelerators.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use helix_shm::manifest::Record;
use helix_shm::proto::options::{Model, OnError, Policy, Profile, RunOptions, StreamOptions};
use helix_shm::proto::transform::{Crop, Resize, Sampling, Transform};
use helix_shm::sched::order::Order;
use helix_shm::sched::tokens::tokens;

use super::args::{Contender, DemoArgs};
use super::calibrate::Cost;
use super::metrics;
use super::wire::RankSpec;

/// How long a policy runs at the perfect bound, if the user does not say how many steps.
const RUN: Duration = Duration::from_secs(18);
/// Fewer steps say little.
const FEWEST_STEPS: u32 = 8;
/// Regions begin on pages, so each may waste up to one.
const PAGE: u64 = 4096;

/// Whose tokens the emulated accelerators compute.
const MODEL: Model = Model::QwenVl;

/// What becomes of each clip: 16 frames from all over it, at random places and mirrored at random.
pub(crate) fn transform() -> Transform {
    Transform {
        frames: 16,
        sampling: Sampling::Uniform,
        resize: Resize::ShortSide { pixels: 256 },
        crop: Crop::Random { width: 224, height: 224 },
        flip: 0.5,
        ..Transform::default()
    }
}

/// What is fixed for all policies.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) ranks: u32,
    pub(crate) batch_size: u32,
    pub(crate) seed: u64,
    pub(crate) lookahead: u32,
    pub(crate) cores: usize,
    /// Steps that are run, and those of them at the start that are not measured.
    pub(crate) steps: u32,
    pub(crate) warm_up: u32,
    /// Rows of the manifest: row `i` is clip `i % clips`. More than the steps take, so that decoding goes on to the
    /// end of the last one.
    pub(crate) rows: u64,
    pub(crate) clips: u64,
    pub(crate) slab_bytes: u64,
    pub(crate) ns_per_token: f64,
}

impl Plan {
    /// Plans the run over clips with their measured decode costs, one each.
    pub(crate) fn new(args: &DemoArgs, clips: &[Record], costs: &[Cost], cores: usize) -> Plan {
        let transform = transform();
        let facts: Vec<_> = clips.iter().map(|c| c.descriptor(0).facts()).collect();
        let tokens: Vec<u64> = facts.iter().map(|f| tokens(MODEL, f, &transform)).collect();
        let global = u64::from(args.ranks) * u64::from(args.batch_size);
        let mean = costs.iter().map(|c| c.cpu).sum::<Duration>().div_f64(costs.len() as f64 * cores as f64);
        let step = mean.mul_f64(global as f64 * args.load.max(1.0));
        let steps = args.steps.unwrap_or_else(|| {
            let measured = (RUN.as_secs_f64() / step.as_secs_f64().max(1e-3)).ceil() as u32;
            (measured + args.lookahead + 1).clamp(FEWEST_STEPS + args.lookahead + 1, 1000)
        });
        let warm_up = metrics::warm_up(steps as usize, args.lookahead) as u32;
        let rows = (u64::from(steps) + u64::from(args.lookahead) + 1) * global;
        let measured = u64::from(warm_up) * global..u64::from(steps) * global;
        let (decode, critical) = at_best(args, rows, measured, costs, &tokens);
        let compute_ns = args.load * decode.as_nanos() as f64 / cores as f64;
        let sample = facts.iter().map(|f| transform.max_bytes(f)).max().unwrap_or(0).next_multiple_of(PAGE);
        let batch = sample * u64::from(args.batch_size);
        Plan {
            ranks: args.ranks,
            batch_size: args.batch_size,
            seed: args.seed,
            lookahead: args.lookahead,
            cores,
            steps,
            warm_up,
            rows,
            clips: clips.len() as u64,
            slab_bytes: batch * u64::from(args.lookahead + 1) + PAGE,
            ns_per_token: compute_ns / f64::max(critical, 1.0),
        }
    }

    pub(crate) fn stream(&self, who: Contender) -> StreamOptions {
        StreamOptions {
            world: self.ranks,
            batch_size: self.batch_size,
            seed: self.seed,
            shuffle: true,
            drop_last: true,
            balance: who.balance(),
            profile: Profile::Tokens { model: MODEL, quadratic: 0.0 },
            on_error: OnError::Skip,
            transform: transform(),
            micro_batch: 1,
            regroup: 1,
            weigh: Default::default(),
            mix: Vec::new(),
            rebalance: Default::default(),
        }
    }

    /// The same memory and lookahead for each. PyTorch's loader looks ahead two batches a worker, so that its ranks
    /// have half as many workers as batches, all on the cores that the others pin one worker each to.
    pub(crate) fn run(&self, who: Contender) -> RunOptions {
        let local = who.policy() == Policy::Local;
        let workers = if local { self.ranks * self.lookahead / 2 } else { self.cores as u32 };
        RunOptions {
            policy: who.policy(),
            workers,
            max_batches: self.lookahead + 1,
            pin: !local,
            ..RunOptions::default()
        }
    }

    /// What a rank process is told.
    pub(crate) fn spec(&self, who: Contender, rank: u32, job: &str, manifest: &Path) -> RankSpec {
        RankSpec {
            rank,
            job: job.to_owned(),
            manifest: manifest.to_owned(),
            stream: self.stream(who),
            run: self.run(who),
            slab_bytes: self.slab_bytes,
            steps: self.steps,
            ns_per_token: self.ns_per_token,
        }
    }

    /// CPU time that decoding takes for the samples delivered.
    pub(crate) fn decode_time(&self, ids: impl Iterator<Item = u64>, costs: &[Cost]) -> Duration {
        ids.filter_map(|id| costs.get((id % self.clips) as usize)).map(|c| c.cpu).sum()
    }

    /// What the user has to know to judge the numbers.
    pub(crate) fn words(&self, files: &str) -> String {
        let passes = self.rows as f64 / self.clips as f64;
        format!(
            "{files}; each clip is used {passes:.1} times, each time cropped anew\n\
             {} ranks × {} samples a step, {} steps, the first {} of them not measured\n\
             all policies: {} cores, {} batches ahead of the one in use, {} MiB of slab a rank\n\
             local: {} workers a rank (prefetch 2) on all cores; pool and helix: a worker pinned to each core\n\
             accelerators are emulated: a step is the upload, then sleep up to {:.1} µs a token (Qwen2.5-VL's formula),\n\
             set so that at best compute and decoding take equally long (--load); pixels are hashed in that sleep",
            self.ranks,
            self.batch_size,
            self.steps,
            self.warm_up,
            self.cores,
            self.lookahead,
            self.slab_bytes >> 20,
            self.lookahead / 2,
            self.ns_per_token / 1e3,
        )
    }
}

/// What the measured samples, given by their positions in the stream, take at best: CPU time of decoding them, and
/// tokens that one accelerator computes if the ranks of each step share its samples evenly. The sampler's order is
/// known before anything runs.
fn at_best(args: &DemoArgs, rows: u64, measured: Range<u64>, costs: &[Cost], tokens: &[u64]) -> (Duration, f64) {
    let order = Order::new(rows, args.seed, true).epoch(0);
    let clips: Vec<usize> = measured.map(|position| order.at(position) as usize % tokens.len()).collect();
    let decode = clips.iter().map(|&c| costs[c].cpu).sum();
    let step = |clips: &[usize]| {
        let (sum, most) = clips.iter().map(|&c| tokens[c]).fold((0, 0), |(s, m), t| (s + t, t.max(m)));
        f64::max(sum as f64 / f64::from(args.ranks), most as f64)
    };
    let global = (args.ranks * args.batch_size) as usize;
    (decode, clips.chunks(global).map(step).sum())
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        demo: DemoArgs,
    }

    /// A plan over 40 equal clips on 4 cores.
    pub(crate) fn plan(args: &[&str]) -> Plan {
        let args = Cli::parse_from([&["demo"], args].concat()).demo;
        let clip = Record {
            coded_width: 640,
            coded_height: 360,
            frames: 50,
            duration: 2,
            time_base: (1, 1),
            ..Record::default()
        };
        let costs = vec![Cost { cpu: Duration::from_millis(100), pixels: [0, 0] }; 40];
        Plan::new(&args, &vec![clip; 40], &costs, 4)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::plan;
    use super::*;

    #[test]
    fn all_compute_takes_as_long_as_all_decoding_at_best() {
        let plan = plan(&[]);
        let clip_tokens = plan_tokens();
        // 16 samples a step: 1600 ms of decoding on 4 cores; two samples a rank.
        let compute_ms = 2.0 * clip_tokens * plan.ns_per_token / 1e6;
        assert!((compute_ms - 400.0).abs() < 1.0, "{compute_ms}");
    }

    fn plan_tokens() -> f64 {
        let facts = helix_shm::proto::transform::Facts {
            width: 640,
            height: 360,
            duration_ms: 2000,
            frames: 50,
            ..Default::default()
        };
        tokens(MODEL, &facts, &transform()) as f64
    }

    #[test]
    fn steps_follow_from_the_time_and_rows_outlast_them() {
        let auto = plan(&[]);
        assert_eq!(auto.steps, 45 + 5);
        assert_eq!(auto.rows, (50 + 5) * 16);
        assert_eq!(plan(&["--steps", "9"]).steps, 9);
    }

    #[test]
    fn policies_get_the_same_memory_and_lookahead() {
        let plan = plan(&["--lookahead", "6"]);
        let [local, pool, helix] = [Contender::Local, Contender::Pool, Contender::Helix].map(|who| plan.run(who));
        assert_eq!((local.max_batches, pool.max_batches, helix.max_batches), (7, 7, 7));
        assert_eq!((local.workers, pool.workers, helix.workers), (8 * 3, 4, 4));
        assert!(!local.pin && pool.pin && helix.pin);
    }
}
