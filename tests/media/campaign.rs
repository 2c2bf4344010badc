//! The campaign: mutated files in rounds, each through the descriptors of the whole files and through an index of what
//! they are now.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use helix_shm::client::Stats;
use helix_shm::manifest::descriptor::Descriptor;
use helix_shm::manifest::{Manifest, Writer};
use helix_shm::proto::options::OnError;
use helix_shm::proto::transform::{Resize, Sampling, Transform};
use helix_shm::{Loader, Options};

use crate::common::{Daemon, folder, kill, status};
use crate::mutate::{Dice, mutant};
use crate::source::{Source, sources};
use crate::{number, record, row};

/// Mutants of a round.
const ROUND: u64 = 120;
const WORLD: u32 = 2;
/// No file takes a hundredth of it.
const SAMPLE_MS: u64 = 20_000;
/// The daemon's memory may grow by this much while it gets to know its first jobs, whatever their number, bytes.
const SETTLING: u64 = 4 << 20;

#[derive(Default)]
struct Tally {
    mutants: u64,
    delivered: u64,
    bad: u64,
    daemon_deaths: u64,
    worker_deaths: u64,
    index_deaths: u64,
    /// Bad samples by the stage at which they failed.
    stages: BTreeMap<String, u64>,
    unexplained: Vec<String>,
    /// What cost a worker its life, or asked for all its memory or time, and where it is kept.
    finds: Vec<String>,
}

#[test]
fn mutated_files_are_bad_samples_and_nothing_worse() {
    let (mutants, seed) = (number("MEDIA_MUTANTS", 240), number("MEDIA_SEED", 1));
    let root = folder();
    let (sources, whole) = sources(root.path());
    assert!(sources.len() > 30, "{} sources", sources.len());
    let mut daemon = Daemon::start(root.path());
    let mut tally = Tally::default();
    let mut first_rss = 0;
    for (round, begun) in (0..mutants).step_by(ROUND as usize).enumerate() {
        let dir = root.path().join(format!("round{round}"));
        std::fs::create_dir(&dir).unwrap();
        let numbers: Vec<u64> = (begun..mutants.min(begun + ROUND)).map(|n| seed << 32 | n).collect();
        let told = make(&dir, &numbers, &sources, &whole);
        tally.mutants += numbers.len() as u64;
        play(&daemon, &told, round, &mut tally);
        if let Some(found) = index_again(&dir, &mut tally) {
            play(&daemon, &found, round, &mut tally);
        }
        if daemon.child.try_wait().unwrap().is_some() {
            tally.daemon_deaths += 1;
            daemon = Daemon::start(root.path());
        }
        if round == 0 {
            first_rss = rss(daemon.child.id());
        }
        std::fs::remove_dir_all(&dir).unwrap();
        if mutants > 1000 {
            println!("{} mutants: {} bad, {} workers lost", tally.mutants, tally.bad, tally.worker_deaths);
        }
    }
    let grown = rss(daemon.child.id()).saturating_sub(first_rss);
    let none = "= 0";
    println!("bad by stage: {:?}", tally.stages);
    tally.finds.iter().for_each(|find| println!("kept: {find}"));
    tally.unexplained.iter().for_each(|error| println!("unexplained: {error}"));
    record(vec![
        row("media.mutants", tally.mutants as f64, "", &format!(">= {mutants}")),
        row("media.daemon_deaths", tally.daemon_deaths as f64, "", none),
        row("media.index_deaths", tally.index_deaths as f64, "", none),
        row("media.rank_errors_unexplained", tally.unexplained.len() as f64, "", none),
        row("media.worker_deaths", tally.worker_deaths as f64, "", ""),
        row("media.bad", tally.bad as f64, "", ""),
        row("media.delivered", tally.delivered as f64, "", ""),
        row("media.daemon_grown_mb", grown as f64 / 1e6, "MB", ""),
    ]);
    assert_eq!((tally.daemon_deaths, tally.index_deaths), (0, 0));
    assert!(tally.unexplained.is_empty(), "{:?}", tally.unexplained);
    assert!(grown <= SETTLING, "the daemon has grown by {grown} bytes");
    assert!(tally.bad > 0 && tally.delivered > 0, "{} bad, {} delivered", tally.bad, tally.delivered);
}

/// Makes mutants, and a manifest that says of each what was true of the file that it was made of.
fn make(dir: &Path, numbers: &[u64], sources: &[Source], whole: &Manifest) -> PathBuf {
    let clips = dir.join("clips");
    std::fs::create_dir(&clips).unwrap();
    let manifest = dir.join("told.arrow");
    let mut writer = Writer::new(File::create(&manifest).unwrap(), "{}").unwrap();
    for (i, &number) in (0..).zip(numbers) {
        let mut dice = Dice::new(number);
        let (source, other) = (&sources[dice.below(sources.len())], &sources[dice.below(sources.len())]);
        let bytes = mutant(&source.bytes, &other.bytes, &mut dice);
        let path = clips.join(format!("{number:x}.{}", source.extension));
        std::fs::write(&path, &bytes).unwrap();
        let about = std::fs::metadata(&path).unwrap();
        let (len, mtime_ns) = (bytes.len() as u64, about.mtime() * 1_000_000_000 + about.mtime_nsec());
        let path = path.to_str().unwrap();
        let row = Descriptor { row: i, path, len, file_len: len, mtime_ns, ..whole.descriptor(source.row) };
        writer.push(&row).unwrap();
    }
    writer.finish().unwrap();
    manifest
}

/// Indexes the mutants, in a process of its own. `None` if nothing of them can be used.
fn index_again(dir: &Path, tally: &mut Tally) -> Option<PathBuf> {
    let found = dir.join("found.arrow");
    let mut index = Command::new(env!("CARGO_BIN_EXE_helix"));
    index.arg("index").arg(dir.join("clips")).arg("-o").arg(&found);
    let mut index = index.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = std::time::Instant::now();
    let ended = loop {
        match index.try_wait().unwrap() {
            Some(ended) => break ended,
            None if begun.elapsed() > Duration::from_secs(240) => kill(index.id() as i32),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if ended.signal().is_some() {
        tally.index_deaths += 1;
        keep_all(dir, tally, &format!("index: {ended}"));
    }
    found.exists().then_some(found)
}

/// Has two ranks go through a manifest, and counts what they meet.
fn play(daemon: &Daemon, manifest: &Path, round: usize, tally: &mut Tally) {
    let samples = Manifest::open(manifest).unwrap().good();
    let said: Vec<Result<(Stats, u64), String>> = std::thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..WORLD).map(|rank| scope.spawn(move || iterate(daemon, manifest, round, rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| Err("a rank panicked".into()))).collect()
    });
    let (mut here, mut failed) = (0, false);
    for said in said {
        match said {
            Ok((stats, restarts)) => {
                tally.worker_deaths += restarts;
                here += stats.samples + stats.skipped;
                (tally.delivered, tally.bad) = (tally.delivered + stats.samples, tally.bad + stats.skipped);
                for bad in &stats.bad_samples {
                    *tally.stages.entry(bad.stage.clone()).or_default() += 1;
                }
                for bad in stats.bad_samples.iter().filter(|bad| ["worker", "stuck", "memory"].contains(&&*bad.stage))
                {
                    keep(Path::new(&bad.path), tally, &format!("{}: {}", bad.stage, bad.reason));
                }
            }
            Err(e) => {
                failed = true;
                tally.unexplained.push(e);
            }
        }
    }
    // The last step is filled with samples from the epoch's start.
    if !failed && here < samples {
        tally.unexplained.push(format!("of {samples} samples {here} were delivered or skipped"));
    }
}

fn name(round: usize, manifest: &Path) -> String {
    format!("media-{round}-{}", manifest.file_stem().unwrap().to_string_lossy())
}

fn iterate(daemon: &Daemon, manifest: &Path, round: usize, rank: u32) -> Result<(Stats, u64), String> {
    let transform = Transform {
        frames: 4,
        sampling: Sampling::Uniform,
        resize: Resize::Exact { width: 32, height: 32 },
        ..Transform::default()
    };
    let options = Options::default()
        .manifest(manifest)
        .socket(&daemon.socket)
        .spawn(false)
        .job(name(round, manifest))
        .rank(rank)
        .world(WORLD)
        .workers(2)
        .pin(false)
        .batch_size(8)
        .drop_last(false)
        .on_error(OnError::Skip)
        .max_bad_ratio(1.0)
        .sample_ms(SAMPLE_MS)
        .worker_memory(1 << 30)
        .slab_bytes(4 << 20)
        .transform(transform);
    let mut loader = Loader::connect(options).map_err(|e| e.to_string())?;
    for batch in &mut loader {
        drop(batch.map_err(|e| e.to_string())?);
    }
    // One of them asks, while the job is there.
    let jobs = status(&daemon.socket).unwrap_or_default()["jobs"].as_array().cloned().unwrap_or_default();
    let ours = jobs.iter().filter(|job| rank == 0 && job["job"] == name(round, manifest));
    let restarts = ours.filter_map(|job| job["stats"]["restarts"].as_u64()).sum();
    Ok((loader.stats(), restarts))
}

/// Keeps a mutant that did more than to be bad.
fn keep(path: &Path, tally: &mut Tally, why: &str) {
    let finds = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("media-finds");
    let _ = std::fs::create_dir_all(&finds);
    let to = finds.join(path.file_name().unwrap());
    let _ = std::fs::copy(path, &to);
    tally.finds.push(format!("{} ({why})", to.display()));
}

fn keep_all(dir: &Path, tally: &mut Tally, why: &str) {
    for entry in std::fs::read_dir(dir.join("clips")).into_iter().flatten().flatten() {
        keep(&entry.path(), tally, why);
    }
}

/// Private memory of a process that is in use, bytes.
pub fn rss(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let mut pages = statm.split(' ').skip(1).map(|n| n.parse::<u64>().unwrap_or(0));
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared) * 4096
}
