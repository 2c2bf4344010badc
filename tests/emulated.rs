//! Whole streams through daemon, workers and clients over rows whose decoding is emulated: several manifests mixed,
//! samples packed into sequences, records kept and replayed.
#![cfg(all(feature = "decode", not(feature = "loom")))]

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

use common::{Daemon, folder};
use helix_shm::decode::emulated::CONTAINER;
use helix_shm::manifest::{Manifest, Record, Writer};
use helix_shm::proto::options::{Balance, Formula, Profile, Weigh};
use helix_shm::proto::transform::{Resize, Transform};
use helix_shm::sched::record::Line;
use helix_shm::sim::{Bounds, Recording, simulate};
use helix_shm::{Batch, Loader, Options, State};

/// A manifest of rows that take a millisecond each; the `i`-th lasts for `100 + 37·i mod 500` ms.
fn manifest(folder: &Path, name: &str, rows: u64) -> PathBuf {
    let bytes = folder.join("bytes");
    if !bytes.exists() {
        std::fs::write(&bytes, [0; 64]).unwrap();
    }
    let mtime = std::fs::metadata(&bytes).unwrap().modified().unwrap().duration_since(UNIX_EPOCH).unwrap();
    let path = folder.join(name);
    let mut writer = Writer::new(File::create(&path).unwrap(), "{}").unwrap();
    for row in 0..rows {
        let record = Record {
            path: bytes.display().to_string(),
            file_len: 64,
            len: 64,
            mtime_ns: mtime.as_nanos() as i64,
            container: CONTAINER.into(),
            codec: "h264".into(),
            coded_width: 64,
            coded_height: 48,
            frames: 10,
            time_base: (1, 1000),
            duration: 100 + (row * 37 % 500) as i64,
            text: "1000".into(),
            ..Record::default()
        };
        writer.push(&record.descriptor(0)).unwrap();
    }
    writer.finish().unwrap();
    path
}

fn options(daemon: &Daemon, rank: u32) -> Options {
    let resize = Resize::Exact { width: 16, height: 16 };
    Options::default()
        .socket(&daemon.socket)
        .job("emulated")
        .spawn(false)
        .rank(rank)
        .world(2)
        .batch_size(4)
        .seed(3)
        .workers(2)
        .pin(false)
        .transform(Transform { frames: 1, resize, ..Transform::default() })
}

/// Both ranks' streams, as far as `steps`; `look` makes of a batch what is to be compared.
fn run<T: Send>(
    daemon: &Daemon,
    steps: usize,
    how: impl Fn(Options) -> Options + Sync,
    look: impl Fn(&Batch) -> T + Sync,
) -> Vec<Vec<T>> {
    std::thread::scope(|scope| {
        let (how, look) = (&how, &look);
        let rank = |rank| {
            scope.spawn(move || {
                let loader = Loader::connect(how(options(daemon, rank))).unwrap();
                loader.take(steps).map(|batch| look(&batch.unwrap())).collect()
            })
        };
        let threads: Vec<_> = (0..2).map(rank).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn several_manifests_come_in_their_proportions_and_resume_at_any_step() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let parts = [manifest(folder.path(), "a.arrow", 60), manifest(folder.path(), "b.arrow", 20)];
    let mixed = |o: Options| o.manifests([(&parts[0], 1.0), (&parts[1], 3.0)]);
    let ids = |batch: &Batch| batch.ids().to_vec();
    let whole = run(&daemon, 10, mixed, ids);
    // A quarter of the samples from the first, whose rows come first, of every stretch to within one.
    let mut first = 0;
    for step in 0..10 {
        let step_ids: Vec<u64> = whole.iter().flat_map(|rank| rank[step].clone()).collect();
        assert_eq!(step_ids.len(), 8);
        first += step_ids.iter().filter(|id| **id < 60).count();
        let share = 0.25 * 8.0 * (step + 1) as f64;
        assert!((first as f64 - share).abs() <= 1.0, "{first} of {share}");
    }
    let later = run(&daemon, 4, |o| mixed(o).state(State { epoch: 0, step: 6 }), ids);
    for (rank, later) in later.iter().enumerate() {
        assert_eq!(later[..], whole[rank][6..], "rank {rank} goes on as if it had never stopped");
    }
}

#[test]
fn packed_sequences_keep_to_their_budget_and_every_rank_has_as_many() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let data = manifest(folder.path(), "a.arrow", 80);
    // A token a millisecond.
    let formula =
        Formula { text: 0, stride: 1, each: 1, patch: 0, most_frames: u32::MAX, most_pixels: 1, fps: 1000.0 };
    let packed = |o: Options| {
        o.manifest(&data)
            .profile(Profile::Own { formula, quadratic: 1e-3 })
            .balance(Balance::Packed { budget: 800, most: 8 })
            .weigh(Weigh::Tokens)
            .slab_bytes(1 << 20)
    };
    let look = |b: &Batch| {
        let sequences = b.sequences();
        let ends: Vec<u64> = (0..sequences.len()).filter_map(|s| b.cu_seqlens(s).last().copied()).collect();
        let weight: f64 = b.weights().iter().sum();
        (ends, b.len(), weight, (b.tokens_rank(), b.tokens_global(), b.n_global()))
    };
    let ranks = run(&daemon, 10, packed, look);
    for (one, other) in ranks[0].iter().zip(&ranks[1]) {
        assert_eq!(one.0.len(), other.0.len(), "as many sequences");
        assert!(one.0.iter().chain(&other.0).all(|tokens| *tokens <= 800), "{one:?} {other:?}");
        assert_eq!((one.1 + other.1, one.3.2), (8, 8));
        assert_eq!(one.3.0 + other.3.0, one.3.1);
        assert!((one.2 + other.2 - 1.0).abs() < 1e-12, "weights sum to 1 over the ranks");
    }
}

#[test]
fn a_daemons_record_can_be_replayed() {
    let folder = folder();
    let socket = folder.path().join("d.sock");
    let mut command = Command::new(env!("CARGO_BIN_EXE_helix-shmd"));
    command.arg("--socket").arg(&socket).arg("--record").arg(folder.path());
    let daemon = Daemon::start_as(&mut command, &socket);
    let data = manifest(folder.path(), "a.arrow", 160);
    run(&daemon, 20, |o| o.manifest(&data), |batch| batch.len());
    // The ranks have left, but the last lines may still be on their way.
    let manifest = Manifest::open(&data).unwrap();
    let mut read = None;
    common::wait_for("the record", || {
        let file = BufReader::new(File::open(folder.path().join("emulated.jsonl")).unwrap());
        let lines = file.lines().map_while(|line| serde_json::from_str::<Line>(&line.ok()?).ok());
        read = Recording::read(lines, |row| manifest.facts(row)).ok();
        read.is_some()
    });
    let recording = read.unwrap();
    // The second worker may have come too late to be of use.
    assert!((1..=2).contains(&recording.workers) && recording.job.options.world == 2);
    assert!(recording.job.steps >= 8 && recording.throughput > 0.0);
    let bounds = Bounds::new(&recording.job);
    let again = simulate(&recording.job, &bounds, recording.setup);
    assert!(again.throughput > 0.0 && again.steps > 0);
}
