//! A rank in a process of its own: iterates a loader and writes what it got, a line a batch.

use std::io::{BufRead, Write};
use std::path::PathBuf;

use helix_shm::client::{Batch, Loader, Options, State};
use helix_shm::proto::options::{Balance, OnError, Policy, Profile, Rebalance};
use helix_shm::proto::transform::{Crop, Dtype, Layout, Resize, Sampling, Transform};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::common::MILLISECONDS;

/// Environment variable that makes this binary a rank.
pub const VARIABLE: &str = "HELIX_TEST_RANK";

/// What a rank process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    pub socket: PathBuf,
    pub manifest: PathBuf,
    pub rank: u32,
    pub world: u32,
    pub batch_size: u32,
    pub workers: u32,
    pub epoch: u32,
    pub step: u32,
    /// Steps to take; `u32::MAX` for the whole epoch.
    pub steps: u32,
    pub skip: bool,
    pub substitute: bool,
    /// 0 = the usual one.
    pub max_bad_ratio: f32,
    pub quarantine: Option<PathBuf>,
    pub drop_last: bool,
    pub balance: bool,
    pub policy: Policy,
    pub ragged: bool,
    /// From how many milliseconds on clips may be cut; and whether frames are spread over the clip, so that they can be.
    pub split_ms: u32,
    pub spread: bool,
    /// Whether what is stuck is made twice: then bytes may be copied.
    pub hedge: bool,
    pub max_batches: u32,
    pub slab_bytes: Option<u64>,
    /// Whether to wait for a line on standard input before each step.
    pub paced: bool,
    /// Batches to keep before letting the oldest go.
    pub keep: usize,
    /// Whether steps are balanced once more after decoding, by the milliseconds of the clips.
    pub handed: bool,
}

impl Spec {
    fn transform(&self) -> Transform {
        let resize = match self.ragged {
            true => Resize::ShortSide { pixels: 48 },
            false => Resize::ShortSide { pixels: 64 },
        };
        let crop = if self.ragged { Crop::None } else { Crop::Random { width: 56, height: 56 } };
        Transform {
            frames: 6,
            sampling: if self.spread { Sampling::Uniform } else { Sampling::RandomWindow { stride: 3 } },
            resize,
            crop,
            flip: 0.5,
            layout: Layout::Tchw,
            dtype: Dtype::U8,
            ..Transform::default()
        }
    }

    fn options(&self) -> Options {
        let mut options = Options::default()
            .manifest(&self.manifest)
            .rank(self.rank)
            .world(self.world)
            .batch_size(self.batch_size)
            .workers(self.workers)
            .seed(11)
            .drop_last(self.drop_last)
            .balance(if self.balance { Balance::Cost } else { Balance::None })
            .on_error(match (self.skip, self.substitute) {
                (_, true) => OnError::Substitute,
                (true, false) => OnError::Skip,
                (false, false) => OnError::Raise,
            })
            .policy(self.policy)
            .max_batches(self.max_batches)
            .split_ms(self.split_ms)
            .hedge(self.hedge)
            .transform(self.transform())
            .socket(&self.socket)
            .state(State { epoch: self.epoch, step: self.step });
        if self.handed {
            let profile = Profile::Own { formula: MILLISECONDS, quadratic: 0.0 };
            options = options.profile(profile).rebalance(Rebalance::Tokens);
        }
        if let Some(bytes) = self.slab_bytes {
            options = options.slab_bytes(bytes);
        }
        if self.max_bad_ratio > 0.0 {
            options = options.max_bad_ratio(self.max_bad_ratio);
        }
        if let Some(path) = &self.quarantine {
            options = options.quarantine(path);
        }
        options
    }
}

/// The process itself; does nothing unless this binary was started as a rank.
#[test]
fn rank_process() {
    let Ok(spec) = std::env::var(VARIABLE) else { return };
    let spec: Spec = serde_json::from_str(&spec).unwrap();
    let out = std::io::stdout();
    let say = |line: String| {
        let mut out = out.lock();
        // A parent that is gone does not care.
        let _ = writeln!(out, "{line}");
        let _ = out.flush();
    };
    // The test runner has begun a line of its own.
    say(String::new());
    match run(&spec, &say) {
        Ok(copied) => say(format!("END {copied}")),
        Err(e) => say(format!("ERR {e}")),
    }
}

fn run(spec: &Spec, say: &dyn Fn(String)) -> Result<u64, String> {
    let mut loader = Loader::connect(spec.options()).map_err(|e| e.to_string())?;
    say(format!("UP {}", std::process::id()));
    let mut lines = std::io::stdin().lock().lines();
    let mut kept = std::collections::VecDeque::new();
    for _ in 0..spec.steps {
        if spec.paced && lines.next().is_none() {
            break;
        }
        let Some(batch) = loader.next() else { break };
        // Whatever has happened to others, what is kept is what it was.
        for (batch, samples) in &kept {
            if hashes(batch)? != *samples {
                return Err(format!("the batch of step {} has changed while it was kept", Batch::step(batch)));
            }
        }
        let batch = batch.map_err(|e| e.to_string())?;
        let samples = hashes(&batch)?;
        say(format!("B {} {} {}", batch.epoch(), batch.step(), samples.join(" ")));
        kept.push_back((batch, samples));
        if kept.len() > spec.keep {
            kept.pop_front();
        }
    }
    drop(kept);
    Ok(loader.stats().copied)
}

fn hashes(batch: &Batch) -> Result<Vec<String>, String> {
    let samples = (0..batch.len()).map(|i| {
        let pixels = batch.sample(i, "video").map_err(|e| e.to_string())?;
        Ok(format!("{}:{:016x}", batch.ids()[i], xxh3_64(pixels)))
    });
    samples.collect()
}
