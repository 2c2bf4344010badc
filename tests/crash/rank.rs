//! A rank in a process of its own. It goes where its standard input sends it, and writes a line for all that happens.

use std::io::{BufRead, Write};
use std::path::PathBuf;

use helix_shm::client::{Loader, Options, State};
use helix_shm::proto::options::{OnError, Profile, Rebalance};
use helix_shm::proto::transform::{Crop, Dtype, Layout, Resize, Sampling, Transform};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::common::MILLISECONDS;

/// Environment variable that makes this binary a rank.
pub const VARIABLE: &str = "HELIX_CRASH_RANK";

/// Ranks of a round.
pub const WORLD: u32 = 2;

/// How long a calm rank takes for a step: long enough for workers to be idle before the next.
const STEP: std::time::Duration = std::time::Duration::from_millis(15);

/// What a rank process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    pub socket: PathBuf,
    pub manifest: PathBuf,
    pub rank: u32,
    /// The last epoch to run through.
    pub last: u32,
    /// Whether to start a daemon where there is none.
    pub spawn: bool,
    /// Whether steps are balanced once more after decoding.
    pub handed: bool,
    /// Whether to take steps slowly, with little ahead and more workers than that needs.
    pub calm: bool,
}

/// What a rank says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Said {
    /// It has joined.
    Up,
    /// A batch: epoch, step, and a hash of its samples' numbers and pixels.
    Batch(u32, u32, u64),
    /// All epochs are over.
    End,
    /// The loader failed.
    Failed(String),
    /// It ends because it was told to.
    Bye,
}

/// What a rank is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Join, and run from this epoch and step to the end of the last epoch.
    Go(u32, u32),
    /// Leave.
    Quit,
}

impl Spec {
    fn options(&self, state: State) -> Options {
        Options::default()
            .manifest(&self.manifest)
            .rank(self.rank)
            .world(WORLD)
            .batch_size(3)
            .workers(if self.calm { 6 } else { 3 })
            .max_batches(if self.calm { 2 } else { 0 })
            .pin(false)
            .seed(5)
            .drop_last(true)
            .on_error(OnError::Skip)
            .profile(if self.handed {
                Profile::Own { formula: MILLISECONDS, quadratic: 0.0 }
            } else {
                Profile::Decode
            })
            .rebalance(if self.handed { Rebalance::Tokens } else { Rebalance::Off })
            .slab_bytes(8 * 36 * 1024)
            .job("crash")
            // Whatever has two key frames is cut.
            .split_ms(1)
            .socket(&self.socket)
            .spawn(self.spawn)
            .state(state)
            .transform(Transform {
                frames: 4,
                sampling: Sampling::Uniform,
                resize: Resize::ShortSide { pixels: 40 },
                crop: Crop::Random { width: 32, height: 32 },
                flip: 0.5,
                layout: Layout::Tchw,
                dtype: Dtype::U8,
                ..Transform::default()
            })
    }
}

/// The process itself.
pub fn run(spec: &str) {
    let spec: Spec = serde_json::from_str(spec).unwrap();
    let mut loader = None;
    for line in std::io::stdin().lock().lines() {
        match serde_json::from_str(&line.unwrap()).unwrap() {
            Order::Quit => {
                drop(loader.take());
                return say(&Said::Bye);
            }
            Order::Go(epoch, step) => {
                // The old one first: a rank is in a job once.
                drop(loader.take());
                match go(&spec, State { epoch, step }, &mut loader) {
                    Ok(()) => say(&Said::End),
                    Err(e) => {
                        loader = None;
                        say(&Said::Failed(e));
                    }
                }
            }
        }
    }
}

/// The loader stays when the epochs are over: it holds nothing then, which the daemon must know too.
fn go(spec: &Spec, state: State, kept: &mut Option<Loader>) -> Result<(), String> {
    let loader = kept.insert(Loader::connect(spec.options(state)).map_err(|e| e.to_string())?);
    say(&Said::Up);
    // One batch is kept while the next is used: it is held over a daemon's death.
    let mut held = None;
    while loader.state().epoch <= spec.last {
        let Some(batch) = loader.next() else { continue };
        let batch = batch.map_err(|e| e.to_string())?;
        let mut hash = Xxh3::new();
        for (i, id) in batch.ids().iter().enumerate() {
            hash.update(&id.to_le_bytes());
            hash.update(batch.sample(i, "video").map_err(|e| e.to_string())?);
        }
        say(&Said::Batch(batch.epoch(), batch.step(), hash.digest()));
        held = Some(batch);
        if spec.calm {
            std::thread::sleep(STEP);
        }
    }
    drop(held);
    Ok(())
}

fn say(said: &Said) {
    let mut out = std::io::stdout().lock();
    // A campaign that is gone does not care.
    let _ = writeln!(out, "{}", serde_json::to_string(said).unwrap());
    let _ = out.flush();
}
