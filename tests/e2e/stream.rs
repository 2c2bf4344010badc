//! The stream is a pure function of manifest, seed, epoch and options.

use std::collections::BTreeSet;

use helix_shm::proto::options::Policy;

use crate::deaths::march;
use crate::harness::{self, Daemon, Stream, data, folder, run, spec};
use crate::rank::Spec;

fn specs(daemon: &Daemon, world: u32, change: impl Fn(&mut Spec)) -> Vec<Spec> {
    let one = |rank| {
        let mut spec = spec(&daemon.socket, rank, world);
        change(&mut spec);
        spec
    };
    (0..world).map(one).collect()
}

/// The samples of each step, whoever got them.
fn by_step(stream: &Stream) -> Vec<((u32, u32), BTreeSet<String>)> {
    stream.iter().map(|(&at, ranks)| (at, ranks.iter().flatten().cloned().collect())).collect()
}

#[test]
fn one_and_four_workers_deliver_the_same_stream() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let one = run(&specs(&daemon, 2, |s| s.workers = 1));
    drop(daemon);
    let daemon = Daemon::start(folder.path());
    let four = run(&specs(&daemon, 2, |s| s.workers = 4));
    assert_eq!(one.len(), 8, "48 clips, 2 ranks with 3 each");
    assert_eq!(one, four);
    let all: BTreeSet<_> = one.values().flatten().flatten().map(|s| s.split(':').next().unwrap()).collect();
    assert_eq!(all.len(), 48, "every sample once");
}

#[test]
fn clips_in_parts_are_the_stream_of_whole_clips() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    for (manifest, skip) in [(data().good.clone(), false), (data().mixed.clone(), true)] {
        let specs = |split_ms, workers| {
            specs(&daemon, 2, |s| {
                (s.manifest, s.skip, s.spread) = (manifest.clone(), skip, true);
                (s.split_ms, s.workers, s.paced) = (split_ms, workers, split_ms > 0);
            })
        };
        let whole = run(&specs(0, 2));
        let mut ranks: Vec<_> = specs(1, 4).iter().map(harness::Rank::start).collect();
        let mut parts = 0;
        let cut = march(&mut ranks, |_, _| {
            parts = harness::status(&daemon.socket).unwrap()["jobs"][0]["stats"]["parts"].as_u64().unwrap();
        });
        assert_eq!(cut, whole);
        assert!(parts > 30, "{parts} parts");
    }
}

#[test]
fn every_policy_delivers_the_same_samples_in_every_step() {
    let folder = folder();
    let streams = [Policy::Helix, Policy::Pool, Policy::Local].map(|policy| {
        let daemon = Daemon::start(folder.path());
        by_step(&run(&specs(&daemon, 2, |s| {
            s.policy = policy;
            s.balance = policy == Policy::Helix;
            s.max_batches = 3;
        })))
    });
    assert_eq!(streams[0], streams[1]);
    assert_eq!(streams[0], streams[2]);
}

#[test]
fn resuming_at_any_step_gives_the_same_rest() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let whole = run(&specs(&daemon, 2, |s| s.epoch = 3));
    for step in [1, 4, 7] {
        let rest = run(&specs(&daemon, 2, |s| (s.epoch, s.step) = (3, step)));
        let expected: Stream = whole.iter().filter(|((_, s), _)| *s >= step).map(|(k, v)| (*k, v.clone())).collect();
        assert_eq!(rest, expected, "from step {step}");
    }
}

#[test]
fn resuming_on_another_number_of_ranks_gives_the_same_samples_in_every_step() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let two = run(&specs(&daemon, 2, |s| s.batch_size = 6));
    let four = run(&specs(&daemon, 4, |s| {
        s.batch_size = 3;
        s.step = 2;
    }));
    let expected: Vec<_> = by_step(&two).into_iter().filter(|((_, step), _)| *step >= 2).collect();
    assert_eq!(by_step(&four), expected);
}

#[test]
fn two_epochs_differ_and_the_same_epoch_does_not() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let first = run(&specs(&daemon, 1, |s| s.steps = 3));
    let again = run(&specs(&daemon, 1, |s| s.steps = 3));
    let other = run(&specs(&daemon, 1, |s| (s.steps, s.epoch) = (3, 1)));
    assert_eq!(first, again);
    assert_ne!(first.values().collect::<Vec<_>>(), other.values().collect::<Vec<_>>());
}

#[test]
fn samples_that_fail_in_decoding_are_skipped_and_the_rest_is_as_without_them() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let skipping = |workers| {
        run(&specs(&daemon, 2, |s| {
            s.manifest = data().mixed.clone();
            s.skip = true;
            s.workers = workers;
        }))
    };
    let (one, two) = (skipping(1), skipping(2));
    assert_eq!(one, two);
    let delivered = one.values().flatten().map(Vec::len).sum::<usize>();
    assert!(delivered >= 42 && one.values().flatten().any(|samples| samples.len() < 3), "{delivered} delivered");
}

#[test]
fn samples_of_differing_shapes_come_as_views() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let ragged = run(&specs(&daemon, 2, |s| s.ragged = true));
    assert_eq!(ragged.len(), 8);
}

#[test]
fn batches_that_are_kept_wait_for_no_one_and_stay_whole() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let plain = run(&specs(&daemon, 1, |s| s.steps = 8));
    let kept = run(&specs(&daemon, 1, |s| (s.steps, s.keep, s.slab_bytes) = (8, 3, Some(6 * 180 * 1024))));
    assert_eq!(plain, kept);
}

#[test]
fn the_daemon_maps_no_slab() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let mut paced = spec(&daemon.socket, 0, 1);
    paced.paced = true;
    let mut rank = harness::Rank::start(&paced);
    rank.step();
    rank.hear_batch();
    let maps = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    assert!(maps(rank.child.id()).contains("slab"), "the rank maps its slab under a name that this test knows");
    let daemons = maps(daemon.child.id());
    assert!(daemons.contains("helix-inbox") && !daemons.contains("slab"), "{daemons}");
}

/// Clips read in place from tars give the stream of the files that were packed, pixel for pixel.
#[test]
fn members_of_tars_give_the_stream_of_their_files() {
    let folder = folder();
    let clips = data().good.with_file_name("good");
    let mut names: Vec<_> = std::fs::read_dir(&clips).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    let mut shards = Vec::new();
    for (i, part) in names.chunks(17).enumerate() {
        let shard = folder.path().join(format!("shard-{i}.tar"));
        let mut tar = tar::Builder::new(std::fs::File::create(&shard).unwrap());
        part.iter().for_each(|name| tar.append_path_with_name(clips.join(name), name).unwrap());
        tar.finish().unwrap();
        shards.push(shard);
    }
    let packed = folder.path().join("packed.arrow");
    harness::index(&shards, &packed);
    let daemon = Daemon::start(folder.path());
    let files = run(&specs(&daemon, 2, |_| ()));
    let members = run(&specs(&daemon, 2, |s| s.manifest = packed.clone()));
    assert_eq!(files.len(), 8);
    assert_eq!(files, members);
}

#[test]
fn a_batch_of_more_samples_than_a_lane_has_messages_is_delivered() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let large = run(&specs(&daemon, 1, |s| {
        (s.batch_size, s.drop_last, s.slab_bytes) = (300, false, Some(40 << 20));
    }));
    let delivered: Vec<_> = large.values().flatten().flatten().collect();
    assert_eq!(delivered.len(), 300, "48 clips, repeated until the step is full");
}
