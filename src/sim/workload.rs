//! Workloads: distributions of clips, what a model takes of a clip, and what a step of it costs.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::job::{EXTRA_STEPS, Job, Moves, Sample, Trace};
use super::random::Draws;
use crate::proto::options::{Balance, OnError, Profile, StreamOptions};
use crate::proto::transform::{Codec, Facts, Transform};
use crate::sched::cost::Work;

/// Where ranks may get any number of samples, one gets at most so many times the mean.
const FREE: u32 = 4;

/// A file of workloads.
#[derive(Debug, Clone, Deserialize)]
pub struct Suite {
    machine: Machine,
    decode: BTreeMap<String, f64>,
    datasets: BTreeMap<String, Dataset>,
    workloads: Vec<Workload>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Machine {
    ranks: u32,
    cores: u16,
}

/// A file of workloads that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadSuite {
    /// It is not what was expected.
    #[error("the file of workloads cannot be read: {0}; wanted the layout of benches/workloads.json")]
    Json(#[from] serde_json::Error),
    /// A workload names a dataset that the file does not hold.
    #[error("workload `{workload}` is drawn from dataset `{dataset}`, which the file does not hold")]
    Dataset {
        /// The workload.
        workload: String,
        /// What it names.
        dataset: String,
    },
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Dataset {
    duration: Duration,
    fps: BTreeMap<String, f64>,
    heights: BTreeMap<String, f64>,
    aspects: BTreeMap<String, f64>,
    keyframe_interval: BTreeMap<String, f64>,
    bytes_per_mp_s: f64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Duration {
    Clip { full: f64, share_full: f64, min: f64 },
    Lognormal { median: f64, sigma: f64, min: f64, max: f64 },
}

impl Default for Duration {
    fn default() -> Self {
        Duration::Clip { full: 10.0, share_full: 1.0, min: 10.0 }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Sampling {
    Window { count: u32, span: u32 },
    Uniform { count: [u32; 2] },
    Rate { fps: f64, min: u32, max: u32 },
    Full { count: BTreeMap<String, f64> },
}

#[derive(Debug, Clone, Deserialize)]
struct Tokens {
    formula: String,
    #[serde(default)]
    t: u32,
    #[serde(default)]
    each: f64,
    #[serde(default)]
    text: f64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Compute {
    step_base: f64,
    fixed: f64,
    a: f64,
    b: f64,
}

fn yes() -> bool {
    true
}

/// A workload.
#[derive(Debug, Clone, Deserialize)]
pub struct Workload {
    /// Its name.
    pub name: String,
    dataset: String,
    stored_short_side: Option<f64>,
    sampling: Sampling,
    out: [u32; 2],
    out_frames: Option<u32>,
    #[serde(default)]
    decode: BTreeMap<String, f64>,
    batch: u32,
    accum: u32,
    r#move: String,
    #[serde(default = "yes")]
    equal_counts: bool,
    buckets: Option<BTreeMap<String, u32>>,
    tokens: Tokens,
    compute: Compute,
    /// Steps of a run, the warm-up included.
    pub steps: u32,
    /// Steps that are not counted.
    pub warmup: u32,
    #[serde(skip)]
    data: Dataset,
    /// Ranks of the machine.
    #[serde(skip)]
    pub ranks: u32,
    /// Its cores.
    #[serde(skip)]
    pub cores: u16,
}

impl Suite {
    /// Reads a file of workloads.
    pub fn parse(json: &str) -> Result<Suite, BadSuite> {
        let mut suite: Suite = serde_json::from_str(json)?;
        for w in &mut suite.workloads {
            let missing = || BadSuite::Dataset { workload: w.name.clone(), dataset: w.dataset.clone() };
            w.data = suite.datasets.get(&w.dataset).ok_or_else(missing)?.clone();
            (w.ranks, w.cores) = (suite.machine.ranks, suite.machine.cores);
            for (name, value) in &suite.decode {
                w.decode.entry(name.clone()).or_insert(*value);
            }
        }
        Ok(suite)
    }

    /// Its workloads.
    pub fn workloads(&self) -> &[Workload] {
        &self.workloads
    }
}

impl Workload {
    fn cost(&self, name: &str) -> f64 {
        self.decode.get(name).copied().unwrap_or(0.0)
    }

    /// The `i`-th clip of the workload's endless trace.
    pub fn draw(&self, seed: u64, i: u64) -> Sample {
        let mut draws = Draws::new(&self.name, seed, i);
        let (facts, gop) = self.clip(&mut draws);
        let (kept, decoded, all, chunks) = self.sample(&mut draws, &facts, gop);
        let mp = f64::from(facts.width) * f64::from(facts.height) / 1e6;
        let to_rgb = if all { facts.frames } else { kept };
        let frame = self.cost("frame_ms") + self.cost("frame_mp_ms") * self.cost("content") * mp;
        let ms = self.cost("fixed_ms")
            + f64::from(decoded) * frame * draws.lognormal(self.cost("sigma"))
            + f64::from(to_rgb) * self.cost("rgb_mp_ms") * mp
            + f64::from(kept) * self.cost("resize_mp_ms") * mp;
        let tokens = self.tokens_of(&mut draws, &facts, kept);
        let Compute { fixed, a, b, .. } = self.compute;
        let out_bytes = u64::from(self.out_frames.unwrap_or(kept)) * u64::from(self.out[0] * self.out[1]) * 3;
        let work = Work {
            codec: Codec::H264,
            frames: decoded.into(),
            kept: kept.into(),
            megapixels: mp,
            megabytes: facts.bytes as f64 / 1e6,
            output: out_bytes as f64 / 3e6,
        };
        let decode_s = ms / 1e3 / self.cost("core_speed").max(1e-3);
        let compute_s = fixed + a * tokens + b * tokens * tokens;
        let open_s = self.cost("fixed_ms") / 1e3 / self.cost("core_speed").max(1e-3);
        let (shape, predicted_s) = (self.shape_of(kept), compute_s);
        Sample { facts, work, out_bytes, shape, count: 1, chunks, decode_s, open_s, compute_s, predicted_s }
    }

    /// A clip, and the distance of its key frames.
    fn clip(&self, draws: &mut Draws) -> (Facts, u32) {
        let data = &self.data;
        let height = draws.pick(&data.heights).min(self.stored_short_side.unwrap_or(f64::INFINITY));
        let width = (height * draws.pick(&data.aspects) / 2.0).round() * 2.0;
        let fps = draws.pick(&data.fps);
        let duration = match data.duration {
            Duration::Clip { full, share_full, .. } if draws.uniform() < share_full => full,
            Duration::Clip { full, min, .. } => min + (full - min) * draws.uniform(),
            Duration::Lognormal { median, sigma, min, max } => (median * draws.lognormal(sigma)).clamp(min, max),
        };
        let frames = ((duration * fps) as u32).max(2);
        let mp = width * height / 1e6;
        let bytes = data.bytes_per_mp_s * mp.powf(0.75) * duration * draws.lognormal(0.3);
        let gop = (draws.pick(&data.keyframe_interval) as u32).max(1);
        let facts = Facts {
            bytes: bytes as u64,
            frames,
            duration_ms: (duration * 1e3) as u32,
            width: width as u16,
            height: height as u16,
            keyframes: frames.div_ceil(gop),
            codec: Codec::H264,
        };
        (facts, gop)
    }

    /// Frames kept, frames decoded, whether the whole clip is decoded, and from how many key frames.
    fn sample(&self, draws: &mut Draws, facts: &Facts, gop: u32) -> (u32, u32, bool, u16) {
        let n = facts.frames;
        let spread = |k: u32| (0..k).map(move |i| (2 * i + 1) * n / (2 * k));
        match &self.sampling {
            Sampling::Window { count, span } => {
                let span = (*span).min(n);
                let (start, k) = (draws.between(0, n - span), (*count).min(span));
                let at = (0..k).map(|i| start + i * (span - 1) / (k - 1).max(1));
                (k, frames_to_decode(at.clone(), gop), false, groups(at, gop))
            }
            Sampling::Uniform { count: [low, high] } => {
                let k = draws.between(*low, *high).min(n);
                (k, frames_to_decode(spread(k), gop), false, groups(spread(k), gop))
            }
            Sampling::Rate { fps, min, max } => {
                let wanted = (f64::from(facts.duration_ms) / 1e3 * fps) as u32 / 2 * 2;
                let k = wanted.clamp(*min, *max).min(n);
                (k, frames_to_decode(spread(k), gop), false, groups(spread(k), gop))
            }
            Sampling::Full { count } => {
                let choice = draws.pick(count) as u32;
                let fits = count.keys().filter_map(|c| c.parse().ok()).filter(|c: &u32| *c <= n);
                let kept = if choice <= n { choice } else { fits.max().unwrap_or(n) };
                (kept, n, true, groups(spread(kept), gop))
            }
        }
    }

    fn tokens_of(&self, draws: &mut Draws, facts: &Facts, kept: u32) -> f64 {
        let t = &self.tokens;
        let text = if t.text > 0.0 { (t.text * draws.lognormal(0.5)).floor() } else { 0.0 };
        let grid = f64::from(self.out[0] / 16 * (self.out[1] / 16));
        match t.formula.as_str() {
            "tubelet" => f64::from(self.out_frames.unwrap_or(kept) / t.t.max(1)) * grid,
            "per_frame" => f64::from(kept) * t.each + text,
            "qwen" => {
                let frames_ms = u64::from(kept) * 500;
                crate::sched::tokens::qwen_vl(frames_ms, facts.height.into(), facts.width.into()) as f64 + text
            }
            "latent" => f64::from((kept - 1) / t.t.max(1) + 1) * grid + text,
            _ => f64::from(kept),
        }
    }

    /// The shape of a sample of so many frames, where batches are of one.
    fn shape_of(&self, kept: u32) -> Option<usize> {
        self.buckets.as_ref()?.keys().position(|frames| frames.parse() == Ok(kept))
    }

    /// The samples of a run of so many steps, and more, so that nobody runs dry within it.
    fn trace(&self, seed: u64, steps: u32) -> Trace {
        let shapes: Vec<u32> = self.buckets.iter().flat_map(BTreeMap::values).copied().collect();
        let count = u64::from(steps + EXTRA_STEPS) * u64::from(self.ranks * self.batch * self.accum);
        Trace { samples: (0..count).map(|i| self.draw(seed, i)).collect(), shapes }
    }

    /// The workload as a job of so many steps. Who knows the model knows what a sample will cost it, so that the
    /// scheduler is told the compute; how long decoding takes it is not.
    pub fn job(&self, seed: u64, steps: u32) -> Job {
        let batch_size = self.batch * self.accum;
        let balance = if self.equal_counts { Balance::Cost } else { Balance::Free { most: FREE * batch_size } };
        let moves = if self.r#move == "none" { Moves::Nothing } else { Moves::MicroBatches };
        let options = StreamOptions {
            world: self.ranks,
            batch_size,
            seed,
            shuffle: true,
            drop_last: true,
            balance: if moves == Moves::Nothing { Balance::None } else { balance },
            // The trace appraises its samples itself; any profile but `Equal` asks for it.
            profile: Profile::Decode,
            on_error: OnError::Raise,
            transform: Transform::default(),
            micro_batch: if self.r#move == "microbatch" { self.batch } else { 1 },
            regroup: 1,
            weigh: Default::default(),
            mix: Vec::new(),
            rebalance: Default::default(),
        };
        Job {
            trace: Arc::new(self.trace(seed, steps)),
            options,
            moves,
            batch: self.batch,
            step_base: self.compute.step_base,
            steps,
            warmup: self.warmup.min(steps / 2),
            cores: self.cores,
        }
    }
}

/// Key frames from which ascending frames are reached.
fn groups(at: impl Iterator<Item = u32>, gop: u32) -> u16 {
    let mut last = None;
    at.filter(|p| last.replace(p / gop) != Some(p / gop)).count().min(u16::MAX.into()) as u16
}

/// Frames that a reader decodes who seeks to a key frame where that saves frames.
fn frames_to_decode(at: impl Iterator<Item = u32>, gop: u32) -> u32 {
    let mut next = 0;
    let mut total = 0;
    for p in at {
        total += (p + 1 - next).min(p % gop + 1);
        next = p + 1;
    }
    total
}
