//! What a user asks of a loader: the part of the options that fixes the stream, and the part that does not.

use serde::{Deserialize, Serialize};

use super::transform::{Layout, Transform};

/// An option with a value that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("option `{option}` is {found}; wanted {wanted}")]
pub struct BadOption {
    /// Name of the option.
    pub option: &'static str,
    /// What was found.
    pub found: String,
    /// What would do.
    pub wanted: &'static str,
}

/// What decides the stream. Every rank of a loader must give the same; the daemon compares them.
///
/// The stream is a pure function of (manifest, `StreamOptions`, epoch): same samples, order, pixels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Ranks that share the stream.
    pub world: u32,
    /// Samples a rank gets in a step.
    pub batch_size: u32,
    /// Seeds shuffling and augmentation.
    pub seed: u64,
    /// Whether each epoch is a new permutation; otherwise the manifest's order.
    pub shuffle: bool,
    /// Whether the samples that do not fill the last step are left out. Otherwise the last step is filled by
    /// repeating samples from the start of the epoch, as `DistributedSampler` does.
    pub drop_last: bool,
    /// How samples are dealt to ranks within a step.
    pub balance: Balance,
    /// What a sample costs the rank that receives it.
    pub profile: Profile,
    /// What happens to a sample that cannot be decoded.
    pub on_error: OnError,
    /// From clip to numbers.
    pub transform: Transform,
    /// Samples that stay together when they are dealt: a micro-batch. `batch_size` is a multiple of it.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub micro_batch: u32,
    /// Steps that share their samples, so that those of like cost meet in one step; 1 = none. It changes which samples
    /// meet, as bucketing by length does, so it is the user's choice.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub regroup: u32,
    /// Whose mean the loss is.
    #[serde(default, skip_serializing_if = "is_default")]
    pub weigh: Weigh,
    /// Parts of the manifest, in its order, and in which proportion an epoch takes from them; empty = all alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mix: Vec<Part>,
    /// Whether a step is balanced once more when its samples are decoded. It decides who receives what, so it is part of
    /// the stream.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rebalance: Rebalance,
}

/// Whether a step is balanced once more, by what its samples turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rebalance {
    /// No: each rank gets what it was dealt.
    #[default]
    Off,
    /// Yes, by the profile's tokens of the samples as they are. A batch is delivered when all samples of the step, over
    /// all ranks, are there; those that change ranks stay where they are, and the new rank reads them there.
    Tokens,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whose mean the loss is: the weights that a batch gives its samples. They sum to 1 over the global batch wherever
/// balancing has put the samples, so that under gradient averaging over `R` ranks a rank's loss is `R · Σ wᵢ·ℓᵢ`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weigh {
    /// Of all samples of the step: `1/N`.
    #[default]
    Samples,
    /// Of all tokens of the step: `Tᵢ/T`, by the profile's tokens.
    Tokens,
    /// Of the means of the ranks that the sampler dealt to: `1/(R · n)` for one of a rank's `n` samples.
    Ranks,
}

/// A part of the manifest: so many rows in a row, usually a manifest of its own before they were joined.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Rows, bad ones included.
    pub rows: u64,
    /// Its share of an epoch's samples, over the sum of all parts' weights.
    pub weight: f64,
}

fn one() -> u32 {
    1
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

/// How the samples of one step are dealt to the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// As the sampler dealt them: sample i of the step goes to rank i / batch_size.
    None,
    /// Every rank gets `batch_size` samples, of as equal a cost as can be.
    #[default]
    Cost,
    /// Ranks get as many as even their costs out, from one micro-batch to so many samples. The loss has to be
    /// weighted by them.
    Free {
        /// Most samples of a rank; memory is reserved for that many.
        most: u32,
    },
    /// Samples are packed into sequences of at most `budget` tokens, of which every rank gets the same number, as few
    /// as can be. Ranks get any number of samples; the loss has to be weighted by them.
    Packed {
        /// Most tokens of a sequence. A longer sample is a sequence of its own.
        budget: u32,
        /// Most samples of a rank; memory is reserved for that many.
        most: u32,
    },
}

/// What a sample costs the rank that receives it: the quantity that is balanced. It is computed from the
/// descriptor alone, so that the deal is the same in every run.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// The same for each sample.
    Equal,
    /// In proportion to the time that decoding takes.
    #[default]
    Decode,
    /// `s + quadratic·s²` for the `s` tokens that a model makes of the sample.
    Tokens {
        /// Whose token formula.
        model: Model,
        /// Weight of the quadratic term against the linear one, per token. 0 where attention does not matter.
        quadratic: f64,
    },
    /// As `Tokens`, by a formula of the user's.
    Own {
        /// The formula.
        formula: Formula,
        /// As in `Tokens`.
        quadratic: f64,
    },
}

/// A user's token formula: `text + (⌊(F − 1)/stride⌋ + 1) · (each + ⌈H/patch⌉ · ⌈W/patch⌉)` for the `F` frames of a clip,
/// cut to `most_frames` and taken at `fps`, and a height and width scaled down to `most_pixels`. A `patch` of 0 leaves
/// the grid out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Formula {
    /// Tokens of a sample whatever its size.
    pub text: u32,
    /// Frames that share their tokens, from the second on: the autoencoder's stride.
    pub stride: u32,
    /// Tokens of a group of frames whatever its size.
    pub each: u32,
    /// Pixels of a patch's side, the autoencoder's stride included.
    pub patch: u32,
    /// Most frames that are taken.
    pub most_frames: u32,
    /// Most pixels of a frame.
    pub most_pixels: u32,
    /// Frames taken a second; 0 = all.
    pub fps: f64,
}

impl Profile {
    /// What so many of the profile's tokens cost a rank.
    pub fn cost(&self, tokens: f64) -> f64 {
        match *self {
            Profile::Equal | Profile::Decode => tokens,
            Profile::Tokens { model: Model::TimeSformer, quadratic } => {
                // Attention over time at each place, and over places in each frame.
                let frames = (tokens - 1.0) / 196.0;
                tokens + quadratic * (196.0 * frames * frames + frames * 197.0 * 197.0)
            }
            Profile::Tokens { quadratic, .. } | Profile::Own { quadratic, .. } => {
                tokens + quadratic * tokens * tokens
            }
        }
    }

    /// The weight of the quadratic term.
    const fn quadratic(&self) -> f64 {
        match *self {
            Profile::Equal | Profile::Decode => 0.0,
            Profile::Tokens { quadratic, .. } | Profile::Own { quadratic, .. } => quadratic,
        }
    }
}

/// Models whose token formula is built in; `sched::tokens` has the formulas and their sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Model {
    /// Qwen2-VL and Qwen2.5-VL: by duration and size.
    QwenVl,
    /// Wan2.1: by frames and size.
    Wan21,
    /// HunyuanVideo: by frames and size.
    HunyuanVideo,
    /// Open-Sora 2.0: by frames and size.
    OpenSora2,
    /// CogVideoX: by frames and size.
    CogVideoX,
    /// LTX-Video: by frames and size.
    LtxVideo,
    /// LLaVA-Video: by frames.
    LlavaVideo,
    /// InternVL: by frames.
    InternVl,
    /// VideoMAE: by frames kept and size kept.
    VideoMae,
    /// ViViT-B: by frames kept and size kept.
    Vivit,
    /// TimeSformer: by frames kept; its attention is divided.
    TimeSformer,
    /// SlowFast: no tokens, but the pixels of both pathways.
    SlowFast,
}

/// What happens to a sample that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// The iteration ends with an error that names it.
    #[default]
    Raise,
    /// It is left out of its batch, reported and counted.
    Skip,
    /// Another sample of its shape takes its place: which one depends on seed, epoch and the sample alone. Reported and
    /// counted.
    Substitute,
}

/// What decides how fast the stream comes, and never what is in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunOptions {
    /// Which policy places the work.
    pub policy: Policy,
    /// Worker processes of the job; 0 = one for each core the job may use.
    pub workers: u32,
    /// Batches a rank may hold or have under way, the one in use included; 0 = as many as the slab holds.
    pub max_batches: u32,
    /// Whether workers are pinned to cores.
    pub pin: bool,
    /// Milliseconds of decoding from which on a clip that alone would miss its deadline is decoded by several workers
    /// at once, cut at key frames; 0 = never.
    #[serde(default = "split_ms")]
    pub split_ms: u32,
    /// Whether a sample whose worker is stuck is given to a second one while its rank waits.
    #[serde(default = "yes")]
    pub hedge: bool,
    /// A program of the user's own and its arguments, to be run as worker in place of the built-in decoder; empty =
    /// none. It gets the socket, the job's name and its slot as further arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub program: Vec<String>,
    /// Whether no more workers are used than give most, which is found out by trying; otherwise all of them are.
    #[serde(default)]
    pub scale: bool,
    /// Whether workers close a sandbox around themselves before they touch media; not those of a program of the user's
    /// own.
    #[serde(default = "yes")]
    pub sandbox: bool,
    /// Most private memory of a worker, bytes; one that takes more is ended, and the sample is bad. 0 = 4 GiB.
    #[serde(default)]
    pub worker_memory: u64,
    /// Milliseconds after which a worker that is still at a sample is ended; 0 = a minute, and 50 ms a frame.
    #[serde(default)]
    pub sample_ms: u64,
    /// Of the samples tried, the part that may be bad where the loader goes on without them; more ends the run, since
    /// then the data or the machine is at fault. 1 = no end.
    #[serde(default = "half")]
    pub max_bad_ratio: f32,
}

const fn yes() -> bool {
    true
}

const fn half() -> f32 {
    0.5
}

/// Bad samples before [`RunOptions::max_bad_ratio`] is asked: a few bad ones at the start are no proportion.
pub const FEW_BAD: u64 = 32;

/// Private memory of a worker when the user names no limit: the frames that a decoder of 8K in 10 bits keeps, twice.
const WORKER_MEMORY: u64 = 4 << 30;
/// Time for a sample when the user names none: slow storage, and many times what a frame takes.
const SAMPLE_MS: (u64, u64) = (60_000, 50);

/// Opening a clip once more for each part costs a hundredth of this.
const fn split_ms() -> u32 {
    2000
}

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions {
            policy: Policy::Helix,
            workers: 0,
            max_batches: 0,
            pin: true,
            split_ms: split_ms(),
            hedge: true,
            program: Vec::new(),
            scale: false,
            sandbox: true,
            worker_memory: 0,
            sample_ms: 0,
            max_bad_ratio: half(),
        }
    }
}

impl RunOptions {
    /// Most private memory of a worker, bytes.
    pub fn most_memory(&self) -> u64 {
        if self.worker_memory == 0 { WORKER_MEMORY } else { self.worker_memory }
    }

    /// Milliseconds that a worker may be at a sample of so many frames.
    pub fn most_ms(&self, frames: u32) -> u64 {
        if self.sample_ms == 0 { SAMPLE_MS.0 + SAMPLE_MS.1 * u64::from(frames) } else { self.sample_ms }
    }

    /// Refuses what cannot be served, naming the option.
    pub fn check(&self) -> Result<(), BadOption> {
        if self.max_bad_ratio > 0.0 && self.max_bad_ratio <= 1.0 {
            return Ok(());
        }
        let (option, found) = ("max_bad_ratio", self.max_bad_ratio.to_string());
        Err(BadOption { option, found, wanted: "a part above 0, to 1" })
    }
}

/// Who decodes what, and in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// By deadline: what a rank waits for first, then what has to begin first; late binding, over all workers.
    #[default]
    Helix,
    /// One first-come-first-served pool for all ranks, a task a sample.
    Pool,
    /// As PyTorch's `DataLoader`: each rank has workers of its own, a whole batch a worker, in turn, two batches
    /// ahead of each worker.
    Local,
}

impl StreamOptions {
    /// Refuses what cannot be served, naming the option.
    pub fn check(&self) -> Result<(), BadOption> {
        let range = |option, found: u32, max: u32, wanted| {
            if (1..=max).contains(&found) {
                Ok(())
            } else {
                Err(BadOption { option, found: found.to_string(), wanted })
            }
        };
        range("world", self.world, MAX_WORLD, "from 1 to 4096 ranks")?;
        range("batch_size", self.batch_size, MAX_BATCH, "from 1 to 16384 samples")?;
        range("regroup", self.regroup, MAX_REGROUP, "from 1 to 256 steps")?;
        range("micro_batch", self.micro_batch, self.batch_size, "from 1 to batch_size")?;
        if !self.batch_size.is_multiple_of(self.micro_batch) {
            let found = self.micro_batch.to_string();
            return Err(BadOption { option: "micro_batch", found, wanted: "a divisor of batch_size" });
        }
        self.check_balance()?;
        self.check_rebalance()?;
        let quadratic = self.profile.quadratic();
        if !(quadratic.is_finite() && quadratic >= 0.0) {
            let (option, found) = ("profile.quadratic", quadratic.to_string());
            return Err(BadOption { option, found, wanted: "a number ≥ 0" });
        }
        if let Profile::Own { formula, .. } = self.profile
            && (formula.stride == 0 || !formula.fps.is_finite() || formula.fps < 0.0)
        {
            let found = format!("stride {} and fps {}", formula.stride, formula.fps);
            return Err(BadOption { option: "profile.formula", found, wanted: "a stride ≥ 1 and an fps ≥ 0" });
        }
        self.check_mix()?;
        if self.on_error == OnError::Substitute && self.transform.layout == Layout::Pages {
            let (option, found) = ("on_error", "substitute".into());
            return Err(BadOption {
                option,
                found,
                wanted: "raise or skip where a program of one's own makes the samples",
            });
        }
        self.transform.check()
    }

    fn check_balance(&self) -> Result<(), BadOption> {
        let most = self.largest_batch();
        if !(self.batch_size..=MAX_BATCH).contains(&most) {
            let wanted = "from batch_size to 16384 samples";
            return Err(BadOption { option: "balance.most", found: most.to_string(), wanted });
        }
        let Balance::Packed { budget, .. } = self.balance else { return Ok(()) };
        if budget == 0 {
            return Err(BadOption { option: "balance.packed.budget", found: "0".into(), wanted: "a token at least" });
        }
        if self.micro_batch > 1 {
            let (option, found) = ("micro_batch", self.micro_batch.to_string());
            return Err(BadOption { option, found, wanted: "1, as packing makes micro-batches itself" });
        }
        Ok(())
    }

    fn check_rebalance(&self) -> Result<(), BadOption> {
        let bad = |found: &str, wanted| Err(BadOption { option: "rebalance", found: found.into(), wanted });
        match (self.rebalance, self.balance, self.transform.layout) {
            (Rebalance::Off, ..) => Ok(()),
            (_, Balance::Packed { .. }, _) => bad("tokens", "off, as packed sequences would come apart"),
            (.., Layout::Pages) => bad("tokens", "off, as batches of a program of the user's own stay whole"),
            _ => Ok(()),
        }
    }

    fn check_mix(&self) -> Result<(), BadOption> {
        if self.mix.len() > MAX_PARTS {
            let (option, found) = ("mix", format!("of {} parts", self.mix.len()));
            return Err(BadOption { option, found, wanted: "at most 256 parts" });
        }
        let bad = |p: &&Part| !(p.weight.is_finite() && p.weight > 0.0) || p.rows == 0;
        let Some(part) = self.mix.iter().find(bad) else { return Ok(()) };
        let found = format!("{} rows of weight {}", part.rows, part.weight);
        Err(BadOption { option: "mix", found, wanted: "parts of a row at least and of a weight above 0" })
    }

    /// Most samples of a rank in a step.
    pub fn largest_batch(&self) -> u32 {
        match self.balance {
            Balance::Free { most } | Balance::Packed { most, .. } => most,
            Balance::None | Balance::Cost => self.batch_size,
        }
    }

    /// Micro-batches of a rank in a step, as the sampler deals them.
    pub fn units(&self) -> u32 {
        self.batch_size / self.micro_batch.max(1)
    }

    /// Samples in a step over all ranks.
    pub fn global_batch(&self) -> u64 {
        u64::from(self.world) * u64::from(self.batch_size)
    }

    /// Steps in an epoch over `samples` samples; the same on every rank.
    pub fn steps(&self, samples: u64) -> u32 {
        let global = self.global_batch();
        let steps = if self.drop_last { samples / global } else { samples.div_ceil(global) };
        u32::try_from(steps).unwrap_or(u32::MAX)
    }
}

/// Most ranks of a stream: what a session number can name with room for several loaders.
pub const MAX_WORLD: u32 = 4096;
/// Most samples in a rank's batch: what a slot number in a message can name.
pub const MAX_BATCH: u32 = 16_384;
/// Most steps that share their samples: a rank that resumes plans all of them.
pub const MAX_REGROUP: u32 = 256;
/// Most parts of a mix: what an epoch's order names in a byte.
pub const MAX_PARTS: usize = 256;
