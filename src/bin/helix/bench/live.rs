//! `helix bench --live`: the workloads through a real daemon, real workers, rings and clients. Only decoding and compute
//! are emulated: they sleep as long as they would take, scaled to fewer workers and to a faster clock, so that this runs
//! on few cores. Beside it stands the bound that no loader can beat at this scale.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use helix_shm::client::{Loader, Options};
use helix_shm::decode::emulated::CONTAINER;
use helix_shm::manifest::{Record, Writer};
use helix_shm::proto::options::{Balance, Formula, Policy, Profile};
use helix_shm::proto::transform::{Resize, Sampling, Transform};
use helix_shm::results::Row;
use helix_shm::sim::{Bounds, Job, Workload};

/// Units of compute in which a row tells the scheduler what it costs: its duration, milliseconds, stands for it.
const UNIT_S: f64 = 1e-4;
/// Batches that a rank may hold, the one in use included: with twelve workers a rank PyTorch's would hold as many.
const DEPTH: u32 = 25;

/// How it is to be run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    /// Workers; decoding is as much shorter than with the workload's cores, so that what binds stays the same.
    pub(super) workers: u16,
    /// Seconds of a run at the bound.
    pub(super) seconds: f64,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum LiveError {
    #[error("cannot write into {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Manifest(#[from] helix_shm::manifest::WriteError),
    #[error("rank {rank}: {why}")]
    Rank { rank: u32, why: String },
}

/// A system of the comparison.
struct Live {
    name: &'static str,
    policy: Policy,
    regroup: u32,
    balanced: bool,
}

const SYSTEMS: [Live; 4] = [
    Live { name: "native", policy: Policy::Local, regroup: 1, balanced: false },
    Live { name: "pool", policy: Policy::Pool, regroup: 1, balanced: false },
    Live { name: "helix", policy: Policy::Helix, regroup: 1, balanced: true },
    Live { name: "helix-regroup8", policy: Policy::Helix, regroup: 8, balanced: true },
];

/// What came of one run; wall seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    throughput: f64,
    miss_rate: f64,
    wait_mean: f64,
    wait_p95: f64,
    wait_max: f64,
}

/// Runs every workload under every system, printing as it goes.
pub(super) fn rows(workloads: &[&Workload], scale: Scale, work: &Path, command: &str) -> Result<Vec<Row>, LiveError> {
    let at = |source| LiveError::Write { path: work.to_owned(), source };
    std::fs::create_dir_all(work).map_err(at)?;
    let work = work.canonicalize().map_err(at)?;
    let mut rows = Vec::new();
    println!("live: {} workers, {} s a run at the bound, decoding and compute slept", scale.workers, scale.seconds);
    println!("{:20} {:16} samples/s  perfect  misses     mean      p95  longest", "workload", "system");
    for workload in workloads {
        let scaled = Scaled::new(workload, scale);
        let manifest = scaled.write(&work)?;
        for system in &SYSTEMS {
            let found = scaled.run(&manifest, system)?;
            let shares = found.throughput / scaled.bounds.perfect;
            println!(
                "{:20} {:16} {:9.2} {:7.1}% {:6.1}% {:8.3} {:8.3} {:8.3}",
                workload.name,
                system.name,
                found.throughput,
                100.0 * shares,
                100.0 * found.miss_rate,
                found.wait_mean,
                found.wait_p95,
                found.wait_max
            );
            for (what, value, unit) in [
                ("throughput", found.throughput, "samples/s"),
                ("of_perfect", shares, ""),
                ("miss_rate", found.miss_rate, ""),
                ("wait_mean", found.wait_mean, "s"),
                ("wait_p95", found.wait_p95, "s"),
                ("wait_max", found.wait_max, "s"),
            ] {
                let name = format!("live.{}.{}.{what}", workload.name, system.name);
                rows.push(Row::new(name, value, unit, "", command));
            }
        }
    }
    rows.extend(ratios(&rows, command));
    Ok(rows)
}

/// Geometric means over the workloads.
fn ratios(rows: &[Row], command: &str) -> Vec<Row> {
    let of = |system: &str| -> Vec<f64> {
        let end = format!(".{system}.of_perfect");
        rows.iter().filter(|r| r.name.ends_with(&end)).map(|r| r.value).collect()
    };
    let mean = |system: &str| super::figures::geometric(of(system).into_iter());
    let row = |name: &str, value, target: &str| Row::new(format!("live.{name}"), value, "", target, command);
    vec![
        row("helix_of_perfect", mean("helix"), ""),
        row("helix_regroup8_of_perfect", mean("helix-regroup8"), ""),
        row("helix_vs_native", mean("helix") / mean("native"), "> 1"),
        row("helix_vs_pool", mean("helix") / mean("pool"), "> 1"),
    ]
}

/// A workload at the scale of this machine: all times are wall times.
struct Scaled {
    name: String,
    job: Job,
    bounds: Bounds,
}

impl Scaled {
    fn new(workload: &Workload, scale: Scale) -> Scaled {
        let job = workload.job(0, workload.steps);
        // Samples of one shape meet in micro-batches of their own, which a manifest does not tell: they come whole.
        let balance = job.options.balance;
        let mut job = if job.trace.shapes.is_empty() { job } else { job.in_batches() };
        job.options.balance = balance;
        let bounds = Bounds::new(&job);
        let counted = f64::from(job.steps - job.warmup) * job.options.global_batch() as f64;
        let faster = counted / bounds.perfect / scale.seconds;
        let cores = f64::from(scale.workers) / f64::from(job.cores);
        let mut trace = (*job.trace).clone();
        for s in &mut trace.samples {
            s.decode_s *= cores / faster;
            s.compute_s /= faster;
            s.predicted_s /= faster;
            s.count = 1;
        }
        job.trace = trace.into();
        job.step_base /= faster;
        job.cores = scale.workers;
        let bounds = Bounds::new(&job);
        Scaled { name: workload.name.clone(), job, bounds }
    }

    /// A manifest of rows that take as long as the samples do. All read the same few bytes.
    fn write(&self, work: &Path) -> Result<PathBuf, LiveError> {
        let at = |source| LiveError::Write { path: work.to_owned(), source };
        let data = work.join("bytes");
        std::fs::write(&data, [0; 4096]).map_err(at)?;
        let meta = std::fs::metadata(&data).map_err(at)?;
        let mtime = meta.modified().map_err(at)?.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i64;
        let path = work.join(format!("{}.arrow", self.name));
        let mut writer = Writer::new(File::create(&path).map_err(at)?, r#"{"emulated":true}"#)?;
        for s in &self.job.trace.samples {
            let record = Record {
                path: data.display().to_string(),
                file_len: 4096,
                len: 4096,
                mtime_ns: mtime,
                container: CONTAINER.into(),
                codec: "h264".into(),
                coded_width: s.facts.width.max(1),
                coded_height: s.facts.height.max(1),
                // One frame is kept, from the middle, without a key frame before it: the half of them is decoded.
                frames: (2.0 * s.work.frames).max(1.0) as u32,
                time_base: (1, 1000),
                duration: (s.compute_s / UNIT_S).round().max(1.0) as i64,
                text: ((s.decode_s * 1e6).round() as u64).to_string(),
                ..Record::default()
            };
            writer.push(&record.descriptor(0))?;
        }
        writer.finish()?;
        Ok(path)
    }

    fn options(&self, manifest: &Path, system: &Live, rank: u32) -> Options {
        let stream = &self.job.options;
        // As many tokens as the row has milliseconds: what its compute was said to be.
        let formula = Formula {
            text: 0,
            stride: 1,
            each: 1,
            patch: 0,
            most_frames: u32::MAX,
            most_pixels: u32::MAX,
            fps: 1000.0,
        };
        let resize = Resize::Exact { width: 224, height: 224 };
        let transform = Transform { frames: 1, sampling: Sampling::Uniform, resize, ..Transform::default() };
        let batch = u64::from(stream.largest_batch()) * transform.max_bytes(&Default::default());
        let world = stream.world;
        let depth = if system.policy == Policy::Local { 2 * u32::from(self.job.cores) / world + 1 } else { DEPTH };
        Options::default()
            .manifest(manifest)
            .job(format!("bench-{}-{}-{}", std::process::id(), self.name, system.name))
            .rank(rank)
            .local_rank(rank)
            .world(world)
            .batch_size(stream.batch_size)
            .micro_batch(stream.micro_batch)
            .seed(stream.seed)
            .shuffle(stream.shuffle)
            .drop_last(true)
            .balance(if system.balanced { stream.balance } else { Balance::None })
            .regroup(system.regroup)
            .profile(Profile::Own { formula, quadratic: 0.0 })
            .transform(transform)
            .policy(system.policy)
            .workers(self.job.cores.into())
            .max_batches(depth)
            .pin(false)
            .slab_bytes(u64::from(depth.min(8)) * (batch + 4096))
    }

    fn run(&self, manifest: &Path, system: &Live) -> Result<Figures, LiveError> {
        let world = self.job.options.world;
        let (barrier, failed) = (Barrier::new(world as usize), Mutex::new(None));
        let fail = |rank, why: String| {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(LiveError::Rank { rank, why });
        };
        let ranks: Vec<Vec<Step>> = std::thread::scope(|scope| {
            let rank = |rank| {
                let (barrier, fail) = (&barrier, &fail);
                scope.spawn(move || {
                    let connected = Loader::connect(self.options(manifest, system, rank));
                    let mut loader = connected.map_err(|e| fail(rank, e.to_string())).ok();
                    let mut steps = Vec::new();
                    for _ in 0..self.job.steps {
                        // A rank that has failed still comes to the barriers, or the others would wait for ever.
                        match loader.as_mut().map(|l| self.step(l)) {
                            Some(Ok(step)) => steps.push(step),
                            Some(Err(why)) => {
                                fail(rank, why);
                                loader = None;
                            }
                            None => {}
                        }
                        barrier.wait();
                        if let Some(last) = steps.last_mut() {
                            last.end = Instant::now();
                        }
                    }
                    steps
                })
            };
            let threads: Vec<_> = (0..world).map(rank).collect();
            threads.into_iter().filter_map(|t| t.join().ok()).collect()
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(self.figures(&ranks)),
        }
    }

    /// Asks for a batch and computes.
    fn step(&self, loader: &mut Loader) -> Result<Step, String> {
        let asked = Instant::now();
        let batch = loader.next().ok_or("the stream ended early")?.map_err(|e| e.to_string())?;
        let wait = asked.elapsed();
        let compute = self.job.step_base + batch.tokens_rank() * UNIT_S;
        let samples = batch.len();
        // As with an upload: the memory is free while the rank computes.
        drop(batch);
        std::thread::sleep(Duration::from_secs_f64(compute));
        Ok(Step { wait, samples, end: Instant::now() })
    }

    fn figures(&self, ranks: &[Vec<Step>]) -> Figures {
        let warmup = self.job.warmup.max(1) as usize;
        let end = |k: usize| ranks.iter().filter_map(|r| r.get(k)).map(|s| s.end).max();
        let (Some(begin), Some(last)) = (end(warmup - 1), end(self.job.steps as usize - 1)) else {
            return Figures::default();
        };
        let counted = || ranks.iter().flat_map(|r| r.iter().skip(warmup));
        let samples: usize = counted().map(|s| s.samples).sum();
        let mut waits: Vec<f64> = counted().map(|s| s.wait.as_secs_f64()).collect();
        waits.sort_unstable_by(f64::total_cmp);
        let limit = (0.05 * self.bounds.median_step_s).max(1e-3);
        let n = waits.len().max(1);
        Figures {
            throughput: samples as f64 / last.duration_since(begin).as_secs_f64().max(1e-9),
            miss_rate: waits.iter().filter(|w| **w > limit).count() as f64 / n as f64,
            wait_mean: waits.iter().sum::<f64>() / n as f64,
            wait_p95: waits.get((0.95 * n as f64).ceil() as usize - 1).copied().unwrap_or(0.0),
            wait_max: waits.last().copied().unwrap_or(0.0),
        }
    }
}

/// One rank's part of a step.
#[derive(Debug, Clone, Copy)]
struct Step {
    wait: Duration,
    samples: usize,
    end: Instant,
}
