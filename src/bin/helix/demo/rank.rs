//! One rank process: a trainer with an emulated accelerator.
//!
//! A step is: ask the loader for the batch (timed), upload it, compute. The upload is a real copy to the host
//! device, behind which the batch is released; the computing is a sleep until the tokens' time is over since the
//! batch came. The pixels are hashed as they arrived on the device, inside that sleep, so that checking costs no
//! policy a moment unless a step is shorter than its hashing, which is then said.

use std::io::{self, BufReader};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use helix_shm::client::{Batch, Loader, Options, Stats};
use helix_shm::device::host::HostDevice;
use helix_shm::device::{Buffer, Device, Queue};
use helix_shm::proto::session::BadSample;
use nix::sys::prctl;
use nix::sys::signal::Signal;

use super::calibrate::hash;
use super::wire::{self, BadClip, FromRank, RankSpec, Sample, StepReport, ToRank};

type Failure = Box<dyn std::error::Error>;

/// The subcommand `demo-rank`, which the demo starts and nobody else.
pub(crate) fn main() -> ExitCode {
    // The demo ends its ranks by closing their stdin. Should it be killed, they go with it.
    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
    let orders = orders();
    let Ok(ToRank::Be(spec)) = orders.recv() else {
        eprintln!("demo-rank is started by `helix demo`");
        return ExitCode::FAILURE;
    };
    match run(&spec, &orders) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If nobody listens any more there is nobody to tell.
            let _ = say(&FromRank::Failed(error.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// What the demo says. When it stops speaking, this process ends, wherever it waits: memory, sockets and leases go
/// back as they do for any rank that dies.
fn orders() -> Receiver<ToRank> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut stdin = BufReader::new(io::stdin());
        while let Ok(Some(order)) = wire::receive(&mut stdin) {
            if sender.send(order).is_err() {
                return;
            }
        }
        std::process::exit(1);
    });
    receiver
}

fn say(message: &FromRank) -> io::Result<()> {
    wire::send(&mut io::stdout().lock(), message)
}

fn run(spec: &RankSpec, orders: &Receiver<ToRank>) -> Result<(), Failure> {
    let mut accelerator = Accelerator::new(spec.ns_per_token)?;
    let mut loader = Loader::connect(options(spec, &accelerator.device))?;
    let mut told = 0;
    say(&FromRank::Joined { daemon: loader.daemon_pid() })?;
    for step in 0..spec.steps {
        orders.recv()?;
        let asked = Instant::now();
        let batch = loader.next().ok_or("the stream ended early")??;
        let wait = asked.elapsed();
        let skipped = batch.skipped() as u32;
        let samples = accelerator.step(batch)?;
        if skipped > 0 {
            told = tell_bad(&loader.stats(), told)?;
        }
        say(&FromRank::Step(StepReport { rank: spec.rank, step, wait, samples, skipped, late: accelerator.late }))?;
    }
    // The last barrier: nobody leaves while another computes.
    orders.recv()?;
    let stats = loader.stats();
    tell_bad(&stats, told)?;
    drop(loader);
    say(&FromRank::Left { copied: stats.copied, uploaded: accelerator.uploaded() })?;
    Ok(())
}

/// Tells of the bad samples that were not told of; gives the number of all.
fn tell_bad(stats: &Stats, told: usize) -> io::Result<usize> {
    for bad in &stats.bad_samples[told.min(stats.bad_samples.len())..] {
        let BadSample { sample, path, stage, reason, .. } = bad.clone();
        say(&FromRank::Bad(BadClip { sample, path, stage, reason }))?;
    }
    Ok(stats.bad_samples.len())
}

fn options(spec: &RankSpec, device: &Arc<dyn Device>) -> Options {
    let RankSpec { stream, run, .. } = spec;
    Options::default()
        .manifest(&spec.manifest)
        .job(&spec.job)
        .rank(spec.rank)
        .local_rank(spec.rank)
        .world(stream.world)
        .batch_size(stream.batch_size)
        .seed(stream.seed)
        .shuffle(stream.shuffle)
        .drop_last(stream.drop_last)
        .balance(stream.balance)
        .profile(stream.profile)
        .on_error(stream.on_error)
        .transform(stream.transform.clone())
        .policy(run.policy)
        .workers(run.workers)
        .max_batches(run.max_batches)
        .pin(run.pin)
        .slab_bytes(spec.slab_bytes)
        .device(Arc::clone(device))
}

/// The emulated accelerator.
struct Accelerator {
    device: Arc<dyn Device>,
    queue: Box<dyn Queue>,
    buffer: Arc<dyn Buffer>,
    /// For the check: a sample back from the device.
    scratch: Vec<u8>,
    ns_per_token: f64,
    /// How long after its time the last step ended, because uploading and hashing took longer than computing.
    late: Duration,
}

impl Accelerator {
    fn new(ns_per_token: f64) -> Result<Accelerator, Failure> {
        let device: Arc<dyn Device> = Arc::new(HostDevice::new());
        let queue = device.queue()?;
        let buffer = device.allocate(0)?;
        Ok(Accelerator { device, queue, buffer, scratch: Vec::new(), ns_per_token, late: Duration::ZERO })
    }

    fn step(&mut self, batch: Batch) -> Result<Vec<Sample>, Failure> {
        let began = Instant::now();
        let mut samples = Vec::with_capacity(batch.len());
        let mut lengths = Vec::with_capacity(batch.len());
        for (i, ((&id, &home), &tokens)) in batch.ids().iter().zip(batch.home_ranks()).zip(batch.tokens()).enumerate()
        {
            let compute = Duration::from_nanos((tokens * self.ns_per_token) as u64);
            samples.push(Sample { id, home, compute, pixels: [0; 2] });
            lengths.push(batch.sample(i, "video")?.len());
        }
        self.upload(batch, lengths.iter().sum())?;
        let mut offset = 0;
        for (sample, len) in samples.iter_mut().zip(lengths) {
            self.scratch.resize(len, 0);
            self.buffer.read(offset, &mut self.scratch)?;
            sample.pixels = hash(&self.scratch);
            offset += len;
        }
        let compute: Duration = samples.iter().map(|s| s.compute).sum();
        let left = compute.checked_sub(began.elapsed());
        self.late = if left.is_none() { began.elapsed() - compute } else { Duration::ZERO };
        std::thread::sleep(left.unwrap_or_default());
        Ok(samples)
    }

    /// Copies the batch to the device and waits until it is there. The batch is released behind the copy.
    fn upload(&mut self, batch: Batch, bytes: usize) -> Result<(), Failure> {
        if self.buffer.len() < bytes {
            self.buffer = self.device.allocate(bytes)?;
        }
        self.queue.upload(Box::new(batch), &self.buffer, 0)?.wait(None)?;
        Ok(())
    }

    fn uploaded(&self) -> u64 {
        let counters = self.device.counters();
        counters.registered + counters.pageable
    }
}
