//! Options as Python hands them over: one JSON object. Its transform, balance, profile and policies are the crate's
//! own types, so that what is new there is known here.

use std::path::PathBuf;
use std::time::Duration;

use helix_shm::proto::options::{Balance, OnError, Policy, Profile};
use helix_shm::proto::transform::Transform;
use helix_shm::{Options, State};
use serde::Deserialize;

/// See the head of the file; each field is the option of the same name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    manifest: PathBuf,
    batch_size: u32,
    rank: Option<u32>,
    world: Option<u32>,
    local_rank: Option<u32>,
    seed: u64,
    shuffle: bool,
    drop_last: bool,
    balance: Balance,
    profile: Profile,
    on_error: OnError,
    transform: Transform,
    micro_batch: u32,
    regroup: u32,
    policy: Option<Policy>,
    split_ms: Option<u32>,
    hedge: Option<bool>,
    workers: u32,
    max_batches: u32,
    pin: Option<bool>,
    slab_bytes: Option<u64>,
    job: Option<String>,
    loader: String,
    socket: Option<PathBuf>,
    spawn: Option<bool>,
    daemon: Option<PathBuf>,
    program: Option<Vec<String>>,
    node: Option<u32>,
    timeout: Option<f64>,
    state: State,
    /// Batches that may be kept on the slab; by default half of those that it holds.
    #[serde(default)]
    pub keep: Option<u32>,
}

impl Config {
    /// The options, on top of what the environment says.
    pub fn options(&self) -> Result<Options, helix_shm::ConnectError> {
        macro_rules! given {
            ($options:ident: $($name:ident),*) => {
                $(if let Some(value) = self.$name.clone() { $options = $options.$name(value); })*
            };
        }
        let mut options = Options::from_env()?
            .manifest(&self.manifest)
            .batch_size(self.batch_size)
            .seed(self.seed)
            .shuffle(self.shuffle)
            .drop_last(self.drop_last)
            .balance(self.balance)
            .profile(self.profile)
            .on_error(self.on_error)
            .transform(self.transform.clone())
            .micro_batch(self.micro_batch)
            .regroup(self.regroup)
            .max_batches(self.max_batches)
            .loader(&self.loader)
            .state(self.state);
        if self.workers > 0 {
            options = options.workers(self.workers);
        }
        if let Some(seconds) = self.timeout {
            options = options.timeout(Duration::from_secs_f64(seconds.clamp(0.0, 1e9)));
        }
        given!(options: rank, world, local_rank, policy, split_ms, hedge, pin, slab_bytes, job, socket, spawn, daemon, program, node);
        Ok(options)
    }

    /// Batches that a rank may hold or have under way, if it was said.
    pub fn max_batches(&self) -> u32 {
        self.max_batches
    }
}
