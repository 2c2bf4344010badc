//! What a trainer asks for: a builder that starts from the launcher's environment.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::ConnectError;
use crate::device::{Device, host::HostDevice};
use crate::manifest::{self, Manifest};
use crate::proto::options::{
    BadOption, Balance, OnError, Part, Policy, Profile, Rebalance, RunOptions, StreamOptions, Weigh,
};
use crate::proto::transform::Transform;

/// Where a loader stands: the next batch that it will deliver. Free of topology: any number of ranks and workers
/// goes on from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Epoch.
    pub epoch: u32,
    /// Step within it; batches of earlier steps were delivered.
    pub step: u32,
}

/// Everything that [`Loader::connect`](super::Loader::connect) needs to know.
#[derive(Clone)]
pub struct Options {
    pub(super) rank: u32,
    pub(super) local_rank: u32,
    pub(super) manifest: PathBuf,
    /// Manifests that are joined, in place of `manifest`.
    pub(super) manifests: Vec<(PathBuf, f64)>,
    pub(crate) stream: StreamOptions,
    pub(super) run: RunOptions,
    pub(super) slab_bytes: Option<u64>,
    pub(super) job: Option<String>,
    pub(super) loader: String,
    pub(super) socket: Option<PathBuf>,
    pub(super) spawn: bool,
    pub(super) daemon: Option<PathBuf>,
    pub(super) state: State,
    pub(super) node: Option<u32>,
    pub(super) timeout: Option<Duration>,
    pub(super) device: Arc<dyn Device>,
    pub(super) quarantine: Option<PathBuf>,
    #[cfg(feature = "tokenizers")]
    pub(super) tokenizer: Option<PathBuf>,
}

impl Default for Options {
    /// One rank alone, in batches of one.
    fn default() -> Self {
        let stream = StreamOptions {
            world: 1,
            batch_size: 1,
            seed: 0,
            shuffle: true,
            drop_last: false,
            balance: Balance::default(),
            profile: Profile::default(),
            on_error: OnError::default(),
            transform: Transform::default(),
            micro_batch: 1,
            regroup: 1,
            weigh: Default::default(),
            mix: Vec::new(),
            rebalance: Default::default(),
        };
        Options {
            rank: 0,
            local_rank: 0,
            manifest: PathBuf::new(),
            manifests: Vec::new(),
            stream,
            run: RunOptions::default(),
            slab_bytes: None,
            job: None,
            loader: "train".into(),
            socket: None,
            spawn: true,
            daemon: None,
            state: State::default(),
            node: None,
            timeout: None,
            device: Arc::new(HostDevice::new()),
            quarantine: None,
            #[cfg(feature = "tokenizers")]
            tokenizer: None,
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty => $($field:ident).+ = $value:expr;)*) => {
        $($(#[$doc])* #[must_use] pub fn $name(mut self, $name: $type) -> Self { self.$($field).+ = $value; self })*
    };
}

impl Options {
    /// Starts from what the launcher and the user put into the environment:
    ///
    /// | variable | meaning |
    /// |---|---|
    /// | `RANK`, `WORLD_SIZE`, `LOCAL_RANK` | as torchrun sets them; without them one rank alone |
    /// | `HELIX_SHM_MANIFEST` | path of the manifest |
    /// | `HELIX_SHM_SOCKET` | the daemon's socket |
    /// | `HELIX_SHM_JOB` | name of the job |
    /// | `HELIX_SHM_SLAB` | bytes of this rank's slab, e.g. `4G` |
    /// | `HELIX_SHM_WORKERS` | worker processes of the job |
    /// | `HELIX_SHM_QUARANTINE` | the list of bad samples, or `off` for none |
    /// | `HELIX_SHM_SANDBOX` | `off`: workers close no sandbox around themselves |
    /// | `HELIX_SHM_RECORD` | folder, by its whole path, in which the daemon that is started keeps a record of the job |
    pub fn from_env() -> Result<Self, ConnectError> {
        Self::from_vars(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    fn from_vars(var: impl Fn(&'static str) -> Option<String>) -> Result<Self, ConnectError> {
        let number = |name: &'static str| {
            let wanted = "a whole number";
            let parse = |found: String| {
                found.trim().parse::<u32>().map_err(|_| ConnectError::Environment { name, found, wanted })
            };
            var(name).map(parse).transpose()
        };
        let mut options = Options::default();
        let unset = |name, wanted| ConnectError::Environment { name, found: "unset".into(), wanted };
        match (number("RANK")?, number("WORLD_SIZE")?) {
            (None, None) => {}
            (Some(rank), Some(world)) => (options.rank, options.stream.world) = (rank, world),
            (Some(_), None) => return Err(unset("WORLD_SIZE", "the number of ranks, since RANK is set")),
            (None, Some(_)) => return Err(unset("RANK", "this rank's number, since WORLD_SIZE is set")),
        }
        options.local_rank = number("LOCAL_RANK")?.unwrap_or(options.rank);
        options.run.workers = number("HELIX_SHM_WORKERS")?.unwrap_or(0);
        options.manifest = var("HELIX_SHM_MANIFEST").map(PathBuf::from).unwrap_or_default();
        options.socket = var("HELIX_SHM_SOCKET").filter(|s| !s.is_empty()).map(PathBuf::from);
        options.job = var("HELIX_SHM_JOB").filter(|s| !s.is_empty());
        if let Some(found) = var("HELIX_SHM_SANDBOX").filter(|s| !s.is_empty()) {
            options.run.sandbox = match found.as_str() {
                "on" => true,
                "off" => false,
                _ => {
                    let wanted = "`on` or `off`";
                    return Err(ConnectError::Environment { name: "HELIX_SHM_SANDBOX", found, wanted });
                }
            };
        }
        if let Some(found) = var("HELIX_SHM_SLAB") {
            let wanted = "a number of bytes such as 4G, 512M or 1073741824";
            let Some(bytes) = bytes(&found) else {
                return Err(ConnectError::Environment { name: "HELIX_SHM_SLAB", found, wanted });
            };
            options.slab_bytes = Some(bytes);
        }
        Ok(options)
    }

    /// A `tokenizer.json`: batches then have the field `tokens`, the ids of each caption.
    #[cfg(feature = "tokenizers")]
    #[must_use]
    pub fn tokenizer(mut self, path: impl Into<PathBuf>) -> Self {
        self.tokenizer = Some(path.into());
        self
    }

    setters! {
        /// Path of the manifest that `helix index` made.
        manifest: impl Into<PathBuf> => manifest = manifest.into();
        /// This rank, from 0.
        rank: u32 => rank = rank;
        /// Ranks that share the stream.
        world: u32 => stream.world = world;
        /// This rank's number on its machine.
        local_rank: u32 => local_rank = local_rank;
        /// Samples a rank gets in a step.
        batch_size: u32 => stream.batch_size = batch_size;
        /// Seeds shuffling and augmentation.
        seed: u64 => stream.seed = seed;
        /// Whether each epoch is a new permutation.
        shuffle: bool => stream.shuffle = shuffle;
        /// Whether the samples that do not fill the last step are left out.
        drop_last: bool => stream.drop_last = drop_last;
        /// How samples are dealt to ranks within a step.
        balance: Balance => stream.balance = balance;
        /// What a sample costs the rank that receives it.
        profile: Profile => stream.profile = profile;
        /// What happens to a sample that cannot be decoded.
        on_error: OnError => stream.on_error = on_error;
        /// From clip to numbers.
        transform: Transform => stream.transform = transform;
        /// Samples that stay together when they are dealt.
        micro_batch: u32 => stream.micro_batch = micro_batch;
        /// Steps that share their samples, so that those of like cost meet in one step; 1 = none.
        regroup: u32 => stream.regroup = regroup;
        /// Whether a step is balanced once more by what its samples turned out to be; off by default.
        rebalance: Rebalance => stream.rebalance = rebalance;
        /// Whose mean the loss is: what [`Batch::weights`](super::Batch::weights) are.
        weigh: Weigh => stream.weigh = weigh;
        /// Parts of the manifest and in which proportion an epoch takes from them.
        mix: Vec<Part> => stream.mix = mix;
        /// Which policy places the work.
        policy: Policy => run.policy = policy;
        /// Worker processes of the job; 0 = one for each core that it may use.
        workers: u32 => run.workers = workers;
        /// Batches that this rank may hold or have under way; 0 = as many as the slab holds.
        max_batches: u32 => run.max_batches = max_batches;
        /// Whether workers are pinned to cores.
        pin: bool => run.pin = pin;
        /// Milliseconds of decoding from which on a clip may be decoded by several workers at once; 0 = never.
        split_ms: u32 => run.split_ms = split_ms;
        /// Whether a sample whose worker is stuck is given to a second one while its rank waits; yes by default.
        hedge: bool => run.hedge = hedge;
        /// Whether the number of workers used is found out by trying, with `workers` as the most; no by default.
        scale: bool => run.scale = scale;
        /// Whether workers close a sandbox around themselves before they touch media; yes by default.
        sandbox: bool => run.sandbox = sandbox;
        /// Most private memory of a worker, bytes; 0 = 4 GiB.
        worker_memory: u64 => run.worker_memory = worker_memory;
        /// Milliseconds after which a worker that is still at a sample is ended; 0 = a minute, and 50 ms a frame.
        sample_ms: u64 => run.sample_ms = sample_ms;
        /// Of the samples tried, the part that may be bad where the loader goes on without them; more ends the run.
        max_bad_ratio: f32 => run.max_bad_ratio = max_bad_ratio;
        /// Bytes of this rank's slab: the budget of all that it holds or has under way. By default room for eight
        /// of the largest batches, or for as many as fit into memory.
        slab_bytes: u64 => slab_bytes = Some(slab_bytes);
        /// NUMA node for the slab's pages. By default that of this process's cores, if they are all of one.
        node: u32 => node = Some(node);
        /// Name of the job; its ranks share the workers. By default from the launcher.
        job: impl Into<String> => job = Some(job.into());
        /// Name of the loader within the job; `train` by default.
        loader: impl Into<String> => loader = loader.into();
        /// The daemon's socket; by default one of the job's own.
        socket: impl Into<PathBuf> => socket = Some(socket.into());
        /// Whether a daemon may be started when none listens; yes by default.
        spawn: bool => spawn = spawn;
        /// The helix-shmd to start, unless HELIX_SHMD names another; by default it is looked for beside this program and
        /// in PATH.
        daemon: impl Into<PathBuf> => daemon = Some(daemon.into());
        /// A program of the user's own and its arguments, which workers run in place of the built-in decoder.
        program: Vec<String> => run.program = program;
        /// Where the first iteration begins; see [`Loader::state`](super::Loader::state).
        state: State => state = state;
        /// The epoch in which the first iteration begins, at its first step.
        epoch: u32 => state = State { epoch, step: 0 };
        /// How long `next()` may wait for a batch; for ever by default.
        timeout: Duration => timeout = Some(timeout);
        /// The list to which each bad sample is added as a line of JSON; by default `HELIX_SHM_QUARANTINE`, or
        /// `helix-shm/quarantine.jsonl` in the user's state (`~/.local/state`).
        quarantine: impl Into<PathBuf> => quarantine = Some(quarantine.into());
        /// Where batches will be uploaded to; the slab is registered with it. By default the host.
        device: Arc<dyn Device> => device = device;
    }

    /// Manifests that are mixed in these proportions: position by position the one that is furthest behind its share is
    /// next. They are joined in memory at the start; each must be the same on every rank.
    #[must_use]
    pub fn manifests<P: Into<PathBuf>>(mut self, parts: impl IntoIterator<Item = (P, f64)>) -> Self {
        self.manifests = parts.into_iter().map(|(path, weight)| (path.into(), weight)).collect();
        self
    }

    /// Opens the manifest, or joins the manifests and notes where each one's rows end.
    pub(super) fn open_manifest(&mut self) -> Result<Manifest, ConnectError> {
        if self.manifests.is_empty() {
            return Ok(Manifest::open(&self.manifest)?);
        }
        let parts: Vec<Manifest> =
            self.manifests.iter().map(|(path, _)| Manifest::open(path)).collect::<Result<_, _>>()?;
        let weights = self.manifests.iter().map(|(_, weight)| *weight);
        // An empty one gives nothing to any mix.
        let rows = parts.iter().map(Manifest::len).zip(weights).filter(|(rows, _)| *rows > 0);
        self.stream.mix = rows.map(|(rows, weight)| Part { rows, weight }).collect();
        self.stream.check()?;
        Ok(manifest::join(&parts)?)
    }

    /// Refuses what cannot be served.
    pub(super) fn check(&self) -> Result<(), ConnectError> {
        self.stream.check()?;
        self.run.check()?;
        let bad = |option, found: String, wanted| Err(BadOption { option, found, wanted }.into());
        if self.rank >= self.stream.world {
            return bad(
                "rank",
                format!("{} of {}", self.rank, self.stream.world),
                "a rank below the number of ranks",
            );
        }
        if self.manifest.as_os_str().is_empty() && self.manifests.is_empty() {
            return bad("manifest", "not given".into(), "the path of a manifest, as `helix index` makes it");
        }
        if self.loader.is_empty() || self.loader.len() > 64 {
            return bad("loader", format!("`{}`", self.loader), "a name of 1 to 64 bytes");
        }
        if self.slab_bytes == Some(0) {
            return bad("slab_bytes", "0".into(), "room for two batches at least");
        }
        Ok(())
    }
}

/// A number of bytes with an optional binary suffix.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].trim_start().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|b| *b > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(vars: &[(&'static str, &str)]) -> Result<Options, ConnectError> {
        Options::from_vars(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn the_launcher_says_who_we_are() {
        let o =
            options(&[("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1"), ("HELIX_SHM_SLAB", "4G")]).unwrap();
        assert_eq!((o.rank, o.stream.world, o.local_rank, o.slab_bytes), (5, 8, 1, Some(4 << 30)));
        let alone = options(&[]).unwrap();
        assert_eq!((alone.rank, alone.stream.world, alone.local_rank, alone.slab_bytes), (0, 1, 0, None));
    }

    #[test]
    fn half_an_environment_is_named() {
        for (vars, name) in [
            (&[("RANK", "1")][..], "WORLD_SIZE"),
            (&[("WORLD_SIZE", "2")], "RANK"),
            (&[("RANK", "one"), ("WORLD_SIZE", "2")], "RANK"),
            (&[("HELIX_SHM_SLAB", "lots")], "HELIX_SHM_SLAB"),
            (&[("HELIX_SHM_WORKERS", "-1")], "HELIX_SHM_WORKERS"),
        ] {
            match options(vars) {
                Err(ConnectError::Environment { name: found, .. }) => assert_eq!(found, name),
                Err(other) => panic!("{other}"),
                Ok(_) => panic!("{vars:?} was taken"),
            }
        }
    }

    #[test]
    fn sizes_have_binary_suffixes() {
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes(" 2 KiB "), Some(2048));
        assert_eq!(bytes("1t"), Some(1 << 40));
        for bad in ["", "G", "0", "4X", "-1", "99999999999T"] {
            assert_eq!(bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_rank_outside_its_world_and_a_missing_manifest_are_named() {
        let named = |o: Options| match o.check() {
            Err(ConnectError::Option(bad)) => bad.option,
            other => panic!("{other:?}"),
        };
        assert_eq!(named(Options::default()), "manifest");
        let o = Options::default().manifest("m");
        assert_eq!(named(o.clone().rank(1)), "rank");
        assert_eq!(named(o.clone().batch_size(0)), "batch_size");
        assert_eq!(named(o.clone().slab_bytes(0)), "slab_bytes");
        assert_eq!(named(o.clone().loader("")), "loader");
        assert!(o.check().is_ok());
    }
}
