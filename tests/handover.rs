//! Balance after decode, through a real daemon, workers and clients over rows whose decoding is emulated and which last
//! longer or shorter than their index says.
#![cfg(all(feature = "decode", not(feature = "loom")))]

mod common;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use common::{Daemon, MILLISECONDS, Slow, emulate, folder, status, wait_for};
use helix_shm::manifest::Writer;
use helix_shm::proto::options::{OnError, Profile, Rebalance, Weigh};
use helix_shm::proto::transform::{Resize, Transform};
use helix_shm::{Batch, Loader, Options, State};

const ROWS: u64 = 96;
const WORLD: u32 = 3;

/// Milliseconds that the index gives a row, and those that it has. Every seventh row cannot be made.
fn lasts(row: u64) -> (u64, u64) {
    let said = 100 + row * 37 % 500;
    (said, if row.is_multiple_of(3) { said * (2 + row % 5) / 2 } else { said })
}

fn is_bad(row: u64) -> bool {
    row % 7 == 3
}

fn manifest(folder: &Path) -> PathBuf {
    let path = folder.join("data.arrow");
    let mut writer = Writer::new(File::create(&path).unwrap(), "{}").unwrap();
    let row = |row: u64| {
        let (said_ms, is) = lasts(row);
        Slow { said_ms, text: if is_bad(row) { "never".into() } else { format!("{} {is}", 500 + row * 17 % 900) } }
    };
    emulate(&mut writer, &folder.join("bytes"), (0..ROWS).map(row));
    writer.finish().unwrap();
    path
}

fn options(daemon: &Daemon, data: &Path, rank: u32) -> Options {
    let resize = Resize::Exact { width: 16, height: 16 };
    Options::default()
        .socket(&daemon.socket)
        .manifest(data)
        .job("handover")
        .spawn(false)
        .rank(rank)
        .world(WORLD)
        .batch_size(4)
        .seed(3)
        .workers(2)
        .pin(false)
        .on_error(OnError::Skip)
        .profile(Profile::Own { formula: MILLISECONDS, quadratic: 0.0 })
        .transform(Transform { frames: 2, resize, ..Transform::default() })
}

/// What a rank got in a step.
#[derive(Debug, Clone, PartialEq)]
struct Got {
    ids: Vec<u64>,
    tokens: Vec<f64>,
    weight: f64,
    total: f64,
    lent: usize,
    skipped: usize,
}

/// Each sample is made of the low byte of its row's number, wherever it lies.
fn look(batch: &Batch) -> Got {
    for (i, id) in batch.ids().iter().enumerate() {
        let pixels = batch.sample(i, "video").unwrap();
        assert!(pixels.len() == 2 * 3 * 16 * 16 && pixels.iter().all(|b| *b == *id as u8), "sample {id}");
    }
    Got {
        ids: batch.ids().to_vec(),
        tokens: batch.tokens().to_vec(),
        weight: batch.weights().iter().sum(),
        total: batch.tokens_global(),
        lent: batch.handed_over(),
        skipped: batch.skipped(),
    }
}

/// All ranks' streams, as far as `steps`.
fn run<T: Send>(
    daemon: &Daemon,
    data: &Path,
    steps: usize,
    how: impl Fn(Options) -> Options + Sync,
    look: impl Fn(&mut Batch, &Loader) -> T + Sync,
) -> Vec<Vec<T>> {
    std::thread::scope(|scope| {
        let (how, look) = (&how, &look);
        let rank = |rank| {
            scope.spawn(move || {
                let mut loader = Loader::connect(how(options(daemon, data, rank))).unwrap();
                let mut got = Vec::new();
                while got.len() < steps {
                    let Some(batch) = loader.next() else { break };
                    got.push(look(&mut batch.unwrap(), &loader));
                }
                got
            })
        };
        let threads: Vec<_> = (0..WORLD).map(rank).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn rows_of(ranks: &[Vec<Got>], step: usize) -> Vec<u64> {
    let mut rows: Vec<u64> = ranks.iter().flat_map(|rank| rank[step].ids.clone()).collect();
    rows.sort_unstable();
    rows
}

/// Tokens of each rank, as the samples are; the heaviest over the mean.
fn spread(ranks: &[Vec<Got>], step: usize) -> f64 {
    let load = |rank: &Vec<Got>| rank[step].ids.iter().map(|id| lasts(*id).1 as f64).sum::<f64>();
    let loads: Vec<f64> = ranks.iter().map(load).collect();
    loads.iter().copied().fold(0.0, f64::max) * loads.len() as f64 / loads.iter().sum::<f64>()
}

#[test]
fn ranks_even_out_what_the_index_had_wrong_and_lose_no_sample() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let data = manifest(folder.path());
    let see = |batch: &mut Batch, _: &Loader| look(batch);
    let tokens = |o: Options| o.weigh(Weigh::Tokens);
    let plain = run(&daemon, &data, 8, tokens, see);
    let balanced = run(&daemon, &data, 8, |o| tokens(o).rebalance(Rebalance::Tokens), see);
    let (mut before, mut after, mut lent) = (0.0, 0.0, 0);
    for step in 0..8 {
        assert_eq!(rows_of(&plain, step), rows_of(&balanced, step), "the same samples in step {step}");
        before += spread(&plain, step) / 8.0;
        after += spread(&balanced, step) / 8.0;
        let all: f64 = balanced.iter().flat_map(|rank| &rank[step].tokens).sum();
        let skipped: usize = balanced.iter().map(|rank| rank[step].skipped).sum();
        let weight: f64 = balanced.iter().map(|rank| rank[step].weight).sum();
        for rank in &balanced {
            let got = &rank[step];
            lent += got.lent;
            assert_eq!(got.total, balanced[0][step].total);
            assert!(got.ids.iter().zip(&got.tokens).all(|(id, tokens)| lasts(*id).1 as f64 == *tokens));
        }
        if skipped == 0 {
            assert_eq!(all, balanced[0][step].total);
            assert!((weight - 1.0).abs() < 1e-12, "weights sum to 1 over the ranks");
        }
    }
    assert!(lent > 8, "{lent} samples were handed over");
    assert!(after < 1.05 && before > after + 0.1, "heaviest over mean: {before} before, {after} after");
}

#[test]
fn who_gets_what_is_the_same_with_any_number_of_workers_and_from_any_step_on() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let data = manifest(folder.path());
    let ids = |batch: &mut Batch, _: &Loader| look(batch).ids;
    let balanced = |o: Options| o.rebalance(Rebalance::Tokens);
    let whole = run(&daemon, &data, 8, balanced, ids);
    let crowd = run(&daemon, &data, 8, |o| balanced(o).workers(7).job("crowd").max_batches(2), ids);
    assert_eq!(whole, crowd);
    let later = run(&daemon, &data, 3, |o| balanced(o).state(State { epoch: 0, step: 5 }).job("later"), ids);
    for (rank, later) in later.iter().enumerate() {
        assert_eq!(later[..], whole[rank][5..], "rank {rank}");
    }
}

#[test]
fn what_was_handed_over_can_be_written_to_and_a_tensor_of_it_is_a_counted_copy() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let data = manifest(folder.path());
    let look = |batch: &mut Batch, loader: &Loader| {
        assert_eq!(loader.stats().copied, 0, "nothing was copied to hand it over");
        for i in 0..batch.len() {
            let row = batch.ids()[i] as u8;
            let pixels = batch.sample_mut(i, "video").unwrap();
            assert!(pixels.iter().all(|b| *b == row), "another rank's writing is not seen");
            pixels.fill(!row);
        }
        batch.handed_over()
    };
    let lent = run(&daemon, &data, 8, |o| o.rebalance(Rebalance::Tokens), look);
    assert!(lent.iter().flatten().sum::<usize>() > 8);
    let tensor = |batch: &mut Batch, loader: &Loader| {
        let before = loader.stats().copied;
        let rows: Vec<u8> = batch.ids().iter().map(|id| *id as u8).collect();
        let tensor = batch.tensor("video").unwrap();
        let bytes = tensor.data.len() as u64;
        let first: Vec<u8> = tensor.data.chunks(2 * 3 * 16 * 16).map(|sample| sample[7]).collect();
        assert_eq!(first, rows);
        (batch.handed_over(), loader.stats().copied - before, bytes)
    };
    let copied = run(&daemon, &data, 8, |o| o.rebalance(Rebalance::Tokens).job("tensor"), tensor);
    for (lent, copied, bytes) in copied.into_iter().flatten() {
        assert!(lent == 0 || copied == bytes);
    }
}

#[test]
fn batches_that_are_kept_stay_whole_while_others_go_on() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let data = manifest(folder.path());
    let run = |rank| {
        let how = options(&daemon, &data, rank).rebalance(Rebalance::Tokens);
        let mut loader = Loader::connect(how).unwrap();
        let mut kept = Vec::new();
        for _ in 0..4 {
            kept.push(loader.next().unwrap().unwrap());
        }
        // The rank leaves while it reads of the others' slabs.
        drop(loader);
        kept.iter().for_each(|batch| drop(look(batch)));
        kept
    };
    let kept: Vec<Vec<Batch>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WORLD).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    kept.iter().flatten().for_each(|batch| drop(look(batch)));
}

#[test]
fn all_memory_is_free_when_all_was_given_back() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let data = manifest(folder.path());
    let barrier = Barrier::new(WORLD as usize);
    let run = |rank| {
        let mut loader = Loader::connect(options(&daemon, &data, rank).rebalance(Rebalance::Tokens)).unwrap();
        let lent: usize = loader.by_ref().map(|batch| look(&batch.unwrap()).lent).sum();
        barrier.wait();
        if rank == 0 {
            wait_for("all blocks to be free", || {
                let sessions = status(&daemon.socket).unwrap()["jobs"][0]["sessions"].as_array().cloned().unwrap();
                sessions.len() == WORLD as usize && sessions.iter().all(|s| s["blocks"] == 0 && s["slab_used"] == 0)
            });
        }
        barrier.wait();
        lent
    };
    let lent: usize = std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..WORLD).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    let said = status(&daemon.socket).map(|s| s["jobs"][0]["stats"]["handed"].as_u64());
    // The job may have ended since.
    assert!(lent > 8 && said.flatten().is_none_or(|said| said == lent as u64));
}

#[test]
fn who_leaves_early_ends_the_others_wait_in_words() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let data = manifest(folder.path());
    let run = |rank, steps| {
        let mut loader = Loader::connect(options(&daemon, &data, rank).rebalance(Rebalance::Tokens)).unwrap();
        loader.by_ref().take(steps).map(|batch| batch.map(|batch| batch.step()).map_err(|e| e.to_string())).collect()
    };
    let said: Vec<Vec<Result<u32, String>>> = std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> =
            [2, 8, 8].into_iter().zip(0..).map(|(n, rank)| scope.spawn(move || run(rank, n))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(said[0], [Ok(0), Ok(1)]);
    for said in &said[1..] {
        let (end, before) = said.split_last().unwrap();
        let reason = end.as_ref().unwrap_err();
        assert!(reason.contains("rank 0") && reason.contains("left"), "{said:?}");
        assert!(before.iter().zip(0..).all(|(got, step)| *got == Ok(step)), "{said:?}");
    }
    // One of them had all that was balanced with the first rank's part, and waited; that ends the other at once.
    assert!(said[1..].iter().any(|said| said.len() > 2), "{said:?}");
}
