//! The loader: what a trainer holds and iterates over.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::Serialize;

use super::batch::Batch;
use super::collect::{Collector, establish};
use super::embed;
use super::error::{ConnectError, LoaderError};
use super::ledger::{Grant, Ledger};
use super::options::{Options, State};
use super::shared::{Setup, Shared};
use super::store::Store;
use crate::crash;
use crate::device::Device;
use crate::manifest::Manifest;
use crate::proto::order::Order;
use crate::proto::session::{BadSample, Given};
use crate::ring::bell::eventfd;

/// A wait that deserves a word: long before a collective operation of the trainer times out elsewhere.
const STALL: Duration = Duration::from_secs(10);

/// One rank's stream of batches.
///
/// It is an iterator. Each `for` over `&mut loader` runs to the end of the epoch, the next one goes on with the
/// epoch after it; [`Loader::start`] goes elsewhere. A background thread keeps batches ready, so that `next()` on
/// one that is ready costs next to nothing.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = helix_shm::Options::from_env()?.manifest("data.arrow").batch_size(8);
/// let mut loader = helix_shm::Loader::connect(options)?;
/// for batch in &mut loader {
///     let batch = batch?;
///     let video = batch.tensor("video")?; // on the slab, no copy
///     println!("step {}: {:?}, ids {:?}", batch.step(), video.shape, batch.ids());
/// }
/// # Ok(())
/// # }
/// ```
///
/// Errors are values and end the iteration: the item is the error, and `None` follows. An error of the session is
/// final; whoever goes on asking gets it again. Dropping the loader leaves the job within two seconds.
pub struct Loader {
    shared: Arc<Shared>,
    collector: Option<JoinHandle<()>>,
    owner: u32,
    steps: u32,
    samples: u64,
    state: State,
    /// Whether an iteration is under way.
    running: bool,
    /// Whether the last item was an error, after which comes `None`.
    failed: bool,
    last: Option<Last>,
    counts: Counts,
}

/// The batch that was delivered last, until its step ends.
struct Last {
    grant: Grant,
    /// The plan by which its step was balanced.
    plan: u32,
    wait_ns: u64,
    delivered: Instant,
}

#[derive(Default, Clone, Copy)]
struct Counts {
    batches: u64,
    samples: u64,
    skipped: u64,
    wait: Duration,
    longest_wait: Duration,
    stalls: u64,
}

/// What a loader did so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Batches delivered.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Samples that were left out of them.
    pub skipped: u64,
    /// Time spent in `next()`, all in all.
    pub wait: Duration,
    /// The longest time in one `next()`.
    pub longest_wait: Duration,
    /// Waits of over ten seconds.
    pub stalls: u64,
    /// Bytes that were copied on the host after decoding: by `Batch::tensor` where skipped samples had left gaps.
    pub copied: u64,
    /// Bad samples reported, in batches delivered or not.
    pub bad: u64,
    /// The first thousand of them, with their reasons.
    pub bad_samples: Vec<BadSample>,
    /// Daemons that were replaced.
    pub restarts: u32,
}

impl Loader {
    /// Makes the rank's slab, reaches the job's daemon, starting it if need be, and joins the loader's other ranks.
    ///
    /// Nothing is decoded before the first iteration begins.
    pub fn connect(mut options: Options) -> Result<Loader, ConnectError> {
        crash::arm("rank");
        options.check()?;
        let system = |doing| move |source| ConnectError::System { doing, source };
        let job = options.job.clone().unwrap_or_else(|| embed::default_job(|name| std::env::var(name).ok()));
        let path = match &options.socket {
            Some(path) => std::path::absolute(path).map_err(system("resolve the socket's path"))?,
            None => embed::default_socket(&job)?,
        };
        let manifest = Arc::new(options.open_manifest()?);
        let store = Arc::new(Store::create(&options, &manifest)?);
        crash::point("slab.made");
        let transform = &options.stream.transform;
        let fixed = transform.is_uniform().then(|| transform.shape(&Default::default()));
        #[cfg(feature = "tokenizers")]
        let encode = options.tokenizer.as_deref().map(super::tokens::open).transpose();
        #[cfg(feature = "tokenizers")]
        let encode = encode.map_err(system("read the tokenizer"))?;
        #[cfg(not(feature = "tokenizers"))]
        let encode = None;
        let state = options.state;
        let setup = Setup { options, job, path, manifest, store, fixed, encode };
        let wake = eventfd().map_err(system("make an eventfd"))?;
        let shared = Arc::new(Shared::new(setup, Ledger::new(), wake));
        let (session, outlet, _) = establish(&shared, &|| false)?;
        crash::point("joined");
        let (steps, samples) = (session.opened.steps, session.opened.samples);
        let collector = Collector::new(Arc::clone(&shared), session, outlet);
        let thread = std::thread::Builder::new().name("helix-rank".into()).spawn(|| collector.run());
        Ok(Loader {
            shared,
            collector: Some(thread.map_err(system("start the loader's thread"))?),
            owner: std::process::id(),
            steps,
            samples,
            state,
            running: false,
            failed: false,
            last: None,
            counts: Counts::default(),
        })
    }

    /// Begins an iteration at a step of an epoch; what is under way is dropped.
    pub fn start(&mut self, epoch: u32, step: u32) -> Result<&mut Self, LoaderError> {
        self.begin(State { epoch, step }, None)
    }

    /// As [`start`](Self::start), with the epoch's micro-batches as a sampler of the user's own has made them. With
    /// another order the epoch must be another one, since the daemon keeps the first that it was given.
    pub fn start_ordered(&mut self, epoch: u32, step: u32, order: &Order) -> Result<&mut Self, LoaderError> {
        let mut bytes = Vec::new();
        order.write(&mut bytes).map_err(|e| system("pass on the sampler's order", &e))?;
        let file = memory("helix-order", &bytes).map_err(|e| system("pass on the sampler's order", &e))?;
        self.begin(State { epoch, step }, Some((Given::Order, file)))
    }

    /// As [`start`](Self::start), where workers run a program of the user's own ([`Options::program`] of the run): it
    /// is given `brief` with the epoch, which has so many steps.
    pub fn start_briefed(
        &mut self,
        epoch: u32,
        step: u32,
        steps: u32,
        brief: &[u8],
    ) -> Result<&mut Self, LoaderError> {
        let file = memory("helix-brief", brief).map_err(|e| system("pass on what the workers need", &e))?;
        self.begin(State { epoch, step }, Some((Given::Brief { steps }, file)))
    }

    /// As [`start_briefed`](Self::start_briefed), where each task of the program is a sample of the manifest: those of
    /// `order`, or without one the stream's own.
    pub fn start_samples(
        &mut self,
        epoch: u32,
        step: u32,
        order: Option<&Order>,
        brief: &[u8],
    ) -> Result<&mut Self, LoaderError> {
        let mut bytes = brief.to_vec();
        if let Some(order) = order {
            order.write(&mut bytes).map_err(|e| system("pass on the sampler's order", &e))?;
        }
        let order = (bytes.len() - brief.len()) as u64;
        let file = memory("helix-brief", &bytes).map_err(|e| system("pass on what the workers need", &e))?;
        self.begin(State { epoch, step }, Some((Given::Samples { order }, file)))
    }

    fn begin(&mut self, at: State, given: Option<(Given, OwnedFd)>) -> Result<&mut Self, LoaderError> {
        self.must_be_owner()?;
        self.shared.start(at, given)?;
        (self.state, self.running, self.failed) = (at, true, false);
        Ok(self)
    }

    /// Begins an epoch at its first step.
    pub fn epoch(&mut self, epoch: u32) -> Result<&mut Self, LoaderError> {
        self.start(epoch, 0)
    }

    /// Where the loader stands: batches before it were delivered. It can be had at any time, and another loader
    /// with [`Options::state`] goes on from it.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether `next()` would return at once: with a batch, the end, or an error.
    pub fn is_ready(&self) -> bool {
        if self.must_be_owner().is_err() {
            return true;
        }
        let core = self.shared.lock();
        self.failed || !core.queue.is_empty() || core.error.is_some() || (self.running && core.over)
    }

    /// As `next()`, and asks `stop` about every `every` while it waits; when that says true,
    /// [`LoaderError::Interrupted`] comes back and nothing is lost. For callers that must not be deaf while they
    /// wait, such as an interpreter with signals to handle. No lock is held while `stop` is asked.
    pub fn next_unless(
        &mut self,
        every: Duration,
        stop: &mut dyn FnMut() -> bool,
    ) -> Option<Result<Batch, LoaderError>> {
        if std::mem::take(&mut self.failed) {
            return None;
        }
        let item = self.deliver(every, stop).transpose();
        self.failed = matches!(&item, Some(Err(error)) if *error != LoaderError::Interrupted);
        item
    }

    /// The largest batches that the slab holds at once. Who keeps more of them than this waits for ever.
    pub fn depth(&self) -> u32 {
        self.shared.setup.store.depth
    }

    /// Where the slab lies in this process, and its length in bytes: for whoever registers it with a driver of his own.
    /// It stays there as long as the loader or any of its batches does.
    pub fn slab(&self) -> (usize, usize) {
        let slab = &self.shared.setup.store.slab;
        (slab.as_ptr() as usize, slab.len())
    }

    /// Steps in an epoch; the same on every rank.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// Samples in the manifest that can be delivered.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The manifest, e.g. to look up what `Batch::ids` names.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.shared.setup.manifest
    }

    /// The device that the slab is registered with.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.shared.setup.options.device
    }

    /// Process id of the daemon at present.
    pub fn daemon_pid(&self) -> i32 {
        self.shared.lock().daemon
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        let Counts { batches, samples, skipped, wait, longest_wait, stalls } = self.counts;
        let core = self.shared.lock();
        Stats {
            batches,
            samples,
            skipped,
            wait,
            longest_wait,
            stalls,
            copied: self.shared.ledger.copied_total(),
            bad: core.bad_count,
            bad_samples: core.bad.clone(),
            restarts: core.restarts,
        }
    }

    /// A fork()ed child has neither the thread nor the slab of this loader.
    fn must_be_owner(&self) -> Result<(), LoaderError> {
        let (owner, child) = (self.owner, std::process::id());
        if owner == child { Ok(()) } else { Err(LoaderError::Forked { owner, child }) }
    }

    fn deliver(&mut self, every: Duration, stop: &mut dyn FnMut() -> bool) -> Result<Option<Batch>, LoaderError> {
        self.must_be_owner()?;
        let called = Instant::now();
        if let Some(Last { grant, plan, wait_ns, delivered }) = self.last.take() {
            let busy = called.duration_since(delivered);
            self.shared.ledger.step_end(grant, wait_ns, nanos(busy), plan);
        }
        if !self.running {
            let State { epoch, step } = self.state;
            self.start(epoch, step)?;
        }
        let Some(mut batch) = self.take(called, every, stop)? else {
            (self.running, self.state) = (false, State { epoch: self.state.epoch.saturating_add(1), step: 0 });
            return Ok(None);
        };
        crash::point("leased");
        let delivered = Instant::now();
        let wait = delivered.duration_since(called);
        batch.waited(nanos(wait));
        self.state = State { epoch: batch.epoch(), step: batch.step().saturating_add(1) };
        self.last = Some(Last { grant: batch.grant(), plan: batch.plan(), wait_ns: nanos(wait), delivered });
        self.counts.batches += 1;
        self.counts.samples += batch.len() as u64;
        self.counts.skipped += batch.skipped() as u64;
        self.counts.wait += wait;
        self.counts.longest_wait = self.counts.longest_wait.max(wait);
        Ok(Some(batch))
    }

    /// Waits for the next batch, or for the end of the epoch.
    fn take(
        &mut self,
        called: Instant,
        every: Duration,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Batch>, LoaderError> {
        let Setup { options, manifest, .. } = &self.shared.setup;
        let State { epoch, step } = self.state;
        let mut said = false;
        let mut core = self.shared.lock();
        loop {
            if let Some(error) = &core.error {
                return Err(error.clone());
            }
            if let Some(batch) = core.queue.pop_front() {
                return Ok(Some(batch));
            }
            if core.over {
                return Ok(None);
            }
            let waited = called.elapsed();
            if options.timeout.is_some_and(|limit| waited >= limit) {
                let missing = core.missing(manifest);
                return Err(LoaderError::Timeout { rank: options.rank, epoch, step, waited, missing });
            }
            if !said && waited >= STALL {
                let (rank, missing) = (options.rank, core.missing(manifest));
                tracing::warn!("rank {rank} has waited {waited:.1?} for epoch {epoch}, step {step}: {missing}");
                self.counts.stalls += 1;
                said = true;
            }
            let until_limit = options.timeout.map_or(STALL, |limit| limit.saturating_sub(waited));
            let until_stall = if said { STALL } else { STALL.saturating_sub(waited) };
            let slept = Instant::now();
            let woken = self.shared.ready.wait_timeout(core, until_limit.min(until_stall).min(every));
            core = woken.unwrap_or_else(std::sync::PoisonError::into_inner).0;
            if slept.elapsed() >= every {
                drop(core);
                if stop() {
                    return Err(LoaderError::Interrupted);
                }
                core = self.shared.lock();
            }
        }
    }
}

fn system(doing: &'static str, reason: &dyn std::fmt::Display) -> LoaderError {
    LoaderError::System { doing, reason: reason.to_string() }
}

/// A memory file with these bytes, that nobody changes any more.
pub(super) fn memory(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file.into())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Iterator for Loader {
    type Item = Result<Batch, LoaderError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_unless(STALL, &mut || false)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let Some(collector) = self.collector.take() else { return };
        if self.must_be_owner().is_err() {
            std::mem::forget(collector); // a thread of the parent's
            return;
        }
        self.shared.leave();
        if collector.join().is_err() {
            tracing::error!("the loader's thread panicked; this is a bug of helix-shm");
        }
    }
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Options { rank, loader, .. } = &self.shared.setup.options;
        write!(f, "Loader({loader}, rank {rank}, {:?})", self.state)
    }
}
