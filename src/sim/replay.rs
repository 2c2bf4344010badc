//! A recorded run as a job: the same samples dealt the same way, decoding and compute as long as they really took.
//!
//! A worker's time for a ticket is from being given it, or from the end of the one before, to its end. A rank's compute
//! cannot be read off: a step ends for all ranks when the last has computed, so that most of them waited for it. But in
//! each step some rank did not wait; `a + b · cost` is fitted to those, beginning with the ranks that got their batches
//! last, and each step's deviation from the fit is kept.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::job::{EXTRA_STEPS, Job, Moves, Sample, Trace};
use super::layout::Layout;
use super::setup::{Setup, System};
use crate::proto::options::{Balance, Policy, RunOptions, StreamOptions};
use crate::proto::transform::Facts;
use crate::sched::cost::Work;
use crate::sched::event::Time;
use crate::sched::record::{Line, VERSION};

/// Fewer steps say nothing.
const LEAST_STEPS: usize = 8;

/// A recording that cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum BadRecording {
    /// No stream was opened in it.
    #[error("it records no stream: wanted the lines of a daemon that was started with --record")]
    Empty,
    /// Of another version.
    #[error("its lines are of version {0}, and this is version {VERSION}")]
    Version(u32),
    /// Too short.
    #[error("it has {0} steps that all ranks ended; wanted {LEAST_STEPS} at least")]
    Short(usize),
}

/// What was recorded.
#[derive(Debug, Clone)]
pub struct Recording {
    /// The samples, with what they really took.
    pub job: Job,
    /// Who decided, on which machine.
    pub setup: Setup,
    /// Workers that there were.
    pub workers: u16,
    /// Samples a second that were measured over the job's measured steps.
    pub throughput: f64,
    /// 95th percentile of the ranks' waits in them, seconds.
    pub wait_p95: f64,
}

/// A rank's part of a step.
#[derive(Debug, Clone, Default)]
struct Part {
    samples: Vec<u64>,
    costs: Vec<f64>,
    bytes: Vec<u64>,
    /// Seconds of a worker for each sample, and the tickets that it took: a long clip's parts are several.
    work: Vec<f64>,
    tickets: Vec<u16>,
    /// When its batch was there and when the rank wanted the next one, nanoseconds, and how long it had waited.
    took: Option<(Time, Time, u64)>,
}

impl Part {
    fn cost(&self) -> f64 {
        self.costs.iter().sum()
    }
}

/// A ticket under way.
struct Flight {
    worker: u16,
    given: Time,
    /// Epoch and step.
    step: (u32, u32),
    rank: u32,
    slot: u16,
}

#[derive(Default)]
struct Reading {
    stream: Option<(u16, StreamOptions, RunOptions)>,
    steps: BTreeMap<(u32, u32), Vec<Part>>,
    epochs: HashMap<(u32, u32, u32), u32>,
    flights: HashMap<u64, Flight>,
    /// When each worker ended its last ticket.
    ended: HashMap<u16, Time>,
    workers: BTreeMap<u16, u16>,
    servers: BTreeMap<u16, ()>,
    /// Batches that each rank holds, and the most that one held.
    held: HashMap<u32, i64>,
    depth: i64,
}

impl Reading {
    fn take(&mut self, line: Line) -> Result<(), BadRecording> {
        let known = |stream: u16, this: &Reading| this.stream.as_ref().is_some_and(|(id, ..)| *id == stream);
        match line {
            Line::Stream { version, .. } if version != VERSION => return Err(BadRecording::Version(version)),
            // The last one: a file may hold several runs.
            Line::Stream { stream, options, run, .. } => {
                let (workers, servers) = (std::mem::take(&mut self.workers), std::mem::take(&mut self.servers));
                let stream = Some((stream, *options, run));
                *self = Reading { stream, workers, servers, ..Reading::default() };
            }
            Line::Worker { worker, server: Some(server), .. } => {
                self.workers.insert(worker, server);
                self.servers.insert(server, ());
            }
            Line::Rank { server, .. } => {
                self.servers.insert(server, ());
            }
            Line::Batch { stream, rank, iter, epoch, step, samples, costs, bytes, .. } if known(stream, self) => {
                self.epochs.insert((rank, iter, step), epoch);
                let world = self.stream.as_ref().map_or(0, |(_, options, _)| options.world) as usize;
                let parts = self.steps.entry((epoch, step)).or_insert_with(|| vec![Part::default(); world]);
                let Some(part) = parts.get_mut(rank as usize) else { return Ok(()) };
                let (work, tickets) = (vec![0.0; samples.len()], vec![0; samples.len()]);
                *part = Part { samples, costs, bytes, work, tickets, took: None };
                let held = self.held.entry(rank).or_default();
                *held += 1;
                self.depth = self.depth.max(*held);
            }
            Line::Given { at, ticket, worker, stream, rank, iter, step, slot } if known(stream, self) => {
                if let Some(&epoch) = self.epochs.get(&(rank, iter, step)) {
                    let flight = Flight { worker, given: at, step: (epoch, step), rank, slot };
                    self.flights.insert(ticket, flight);
                }
            }
            Line::Ended { at, ticket, .. } => self.ended(at, ticket),
            Line::Step { at, stream, rank, iter, step, wait, busy } if known(stream, self) => {
                let part = self.epochs.get(&(rank, iter, step)).and_then(|epoch| self.steps.get_mut(&(*epoch, step)));
                if let Some(part) = part.and_then(|parts| parts.get_mut(rank as usize)) {
                    part.took = Some((at.saturating_sub(busy), at, wait));
                }
            }
            Line::Released { stream, rank, .. } if known(stream, self) => {
                *self.held.entry(rank).or_default() -= 1;
            }
            _ => {}
        }
        Ok(())
    }

    fn ended(&mut self, at: Time, ticket: u64) {
        let Some(Flight { worker, given, step, rank, slot }) = self.flights.remove(&ticket) else { return };
        let begun = self.ended.insert(worker, at).map_or(given, |last| last.max(given));
        let part = self.steps.get_mut(&step).and_then(|parts| parts.get_mut(rank as usize));
        let Some(part) = part else { return };
        if let (Some(work), Some(tickets)) = (part.work.get_mut(slot as usize), part.tickets.get_mut(slot as usize)) {
            // A sample that was decoded in parts, or again, takes the sum.
            *work += at.saturating_sub(begun) as f64 / 1e9;
            *tickets = tickets.saturating_add(1);
        }
    }
}

impl Recording {
    /// Reads a recording; `facts` tells what is known of a row before it is decoded.
    pub fn read(
        lines: impl IntoIterator<Item = Line>,
        facts: impl Fn(u64) -> Facts,
    ) -> Result<Recording, BadRecording> {
        let mut reading = Reading::default();
        lines.into_iter().try_for_each(|line| reading.take(line))?;
        let Some((_, options, run)) = reading.stream.take() else { return Err(BadRecording::Empty) };
        let whole = |parts: &Vec<Part>| parts.iter().all(|p| p.took.is_some());
        let steps: Vec<Vec<Part>> = reading.steps.into_values().skip_while(|s| !whole(s)).take_while(whole).collect();
        if steps.len() < LEAST_STEPS {
            return Err(BadRecording::Short(steps.len()));
        }
        let warmup = (steps.len() / 10).max(1);
        let workers = reading.workers.len().clamp(1, u16::MAX.into()) as u16;
        let system = match run.policy {
            Policy::Helix => System::HELIX,
            Policy::Pool => System::Pool { batches: false },
            Policy::Local => System::Native { workers: (workers / options.world as u16).max(1) },
        };
        let (servers, depth) = (reading.servers.len().max(1) as u16, reading.depth.max(2) as u32);
        let RunOptions { split_ms, scale, .. } = run;
        let setup = Setup { layout: Layout::Even(servers), depth, split_ms, scale, ..Setup::new(system) };
        let (throughput, wait_p95) = measured(&steps[warmup..]);
        let job = job(&steps, &options, warmup, workers, facts);
        Ok(Recording { job, setup, workers, throughput, wait_p95 })
    }

    /// The same run with another number of workers.
    pub fn with_workers(&self, workers: u16) -> (Job, Setup) {
        let mut setup = self.setup.clone();
        if let System::Native { workers: each } = &mut setup.system {
            *each = (workers / self.job.options.world as u16).max(1);
        }
        (Job { cores: workers, ..self.job.clone() }, setup)
    }
}

/// Samples a second, and the 95th percentile of waits.
fn measured(steps: &[Vec<Part>]) -> (f64, f64) {
    let took = || steps.iter().flatten().filter_map(|p| p.took);
    // From the moment that the first rank asked for the first of them to the last one's end.
    let begin = took().map(|(got, _, wait)| got.saturating_sub(wait)).min().unwrap_or(0);
    let end = took().map(|(_, end, _)| end).max().unwrap_or(0);
    let samples: usize = steps.iter().flatten().map(|p| p.samples.len()).sum();
    let mut waits: Vec<u64> = took().map(|(_, _, wait)| wait).collect();
    waits.sort_unstable();
    let at = (0.95 * waits.len() as f64).ceil() as usize;
    let p95 = waits.get(at.max(1) - 1).copied().unwrap_or(0);
    (samples as f64 / (end.saturating_sub(begin) as f64 / 1e9).max(1e-9), p95 as f64 / 1e9)
}

/// `a + b · cost` seconds of the ranks that others waited for.
fn compute_fit(steps: &[Vec<Part>]) -> (f64, f64) {
    let (mut a, mut b) = (0.0, 0.0);
    for _ in 0..8 {
        let critical: Vec<(f64, f64)> = steps.iter().filter_map(|s| critical(s, a, b)).collect();
        let n = critical.len() as f64;
        let mean = |f: fn(&(f64, f64)) -> f64| critical.iter().map(f).sum::<f64>() / n.max(1.0);
        let (x, y) = (mean(|c| c.0), mean(|c| c.1));
        let spread = critical.iter().map(|c| (c.0 - x).powi(2)).sum::<f64>();
        let slope = critical.iter().map(|c| (c.0 - x) * (c.1 - y)).sum::<f64>() / spread;
        // Neither part of a step takes less than no time.
        b = if slope.is_finite() { slope.clamp(0.0, (y / x.max(f64::MIN_POSITIVE)).max(0.0)) } else { 0.0 };
        a = (y - b * x).max(0.0);
    }
    (a, b)
}

/// Cost and busy seconds of the rank that the others of a step waited for, as far as a fit tells.
fn critical(step: &[Part], a: f64, b: f64) -> Option<(f64, f64)> {
    let end = |p: &Part| p.took.map(|(got, ..)| got as f64 / 1e9 + a + b * p.cost());
    let last = step.iter().max_by(|p, q| end(p).unwrap_or(0.0).total_cmp(&end(q).unwrap_or(0.0)))?;
    let (got, end, _) = last.took?;
    Some((last.cost(), end.saturating_sub(got) as f64 / 1e9))
}

fn job(steps: &[Vec<Part>], options: &StreamOptions, warmup: usize, cores: u16, facts: impl Fn(u64) -> Facts) -> Job {
    let (a, b) = compute_fit(steps);
    let most = steps.iter().flatten().map(|p| p.samples.len()).max().unwrap_or(1).max(1);
    let mut samples = Vec::new();
    // Steps behind the recorded ones repeat the first: workers go on with something.
    for step in steps.iter().chain(steps.iter().cycle().take(EXTRA_STEPS as usize)) {
        let scale = critical(step, a, b).map_or(1.0, |(cost, busy)| busy / (a + b * cost).max(1e-12));
        for part in step {
            let busy = part.took.map_or(0.0, |(got, end, _)| end.saturating_sub(got) as f64 / 1e9);
            let compute = (scale * (a + b * part.cost())).min(busy);
            samples.extend(part_of(part, compute, options, &facts));
            // All batches of a job are of one size: what is not there takes nothing.
            samples.extend((part.samples.len()..most).map(|_| nothing()));
        }
    }
    let trace = Arc::new(Trace { samples, shapes: Vec::new() });
    let options = StreamOptions {
        batch_size: most as u32,
        shuffle: false,
        drop_last: true,
        balance: Balance::None,
        micro_batch: 1,
        regroup: 1,
        mix: Vec::new(),
        rebalance: Default::default(),
        ..options.clone()
    };
    let (steps, warmup) = (steps.len() as u32, warmup as u32);
    Job { trace, options, moves: Moves::Nothing, batch: most as u32, step_base: 0.0, steps, warmup, cores }
}

/// A rank's samples of a step, which take it so many seconds to compute.
fn part_of<'a>(
    part: &'a Part,
    compute: f64,
    options: &'a StreamOptions,
    facts: &'a impl Fn(u64) -> Facts,
) -> impl Iterator<Item = Sample> + 'a {
    let cost = part.cost();
    (0..part.samples.len()).map(move |i| {
        let share = if cost > 0.0 { part.costs[i] / cost } else { 1.0 / part.samples.len() as f64 };
        let facts = facts(part.samples[i]);
        let (work, compute_s) = (Work::of(&facts, &options.transform), compute * share);
        // A clip can be cut where it has key frames, as the run's scheduler could; each part opened it once more.
        let chunks = facts.keyframes.clamp(part.tickets[i].max(1).into(), u16::MAX.into()) as u16;
        let open_s = (Work::default().prior_ms() / 1e3).min(part.work[i] / f64::from(part.tickets[i].max(1)));
        let decode_s = part.work[i] - open_s * f64::from(part.tickets[i].saturating_sub(1));
        let (out_bytes, predicted_s) = (part.bytes[i], compute_s);
        Sample { facts, work, out_bytes, shape: None, count: 1, chunks, decode_s, open_s, compute_s, predicted_s }
    })
}

fn nothing() -> Sample {
    Sample {
        facts: Facts::default(),
        work: Work::default(),
        out_bytes: 0,
        shape: None,
        count: 0,
        chunks: 1,
        decode_s: 0.0,
        open_s: 0.0,
        compute_s: 0.0,
        predicted_s: 0.0,
    }
}
