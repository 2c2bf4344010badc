//! Samples that cannot be made: replaced in the same way by every run, written down, and too many of them an end.

use std::collections::BTreeSet;

use helix_shm::corpus::{Damage, Encoder};

use crate::harness::{Daemon, Rank, Said, Stream, data, folder, index, run, spec};
use crate::rank::Spec;

fn specs(daemon: &Daemon, change: impl Fn(&mut Spec)) -> Vec<Spec> {
    let one = |rank| {
        let mut spec = spec(&daemon.socket, rank, 2);
        (spec.manifest, spec.spread) = (data().mixed.clone(), true);
        change(&mut spec);
        spec
    };
    (0..2).map(one).collect()
}

fn samples(stream: &Stream) -> usize {
    stream.values().flatten().map(Vec::len).sum()
}

#[test]
fn other_samples_take_the_places_of_bad_ones_and_every_run_takes_the_same() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let skipped = run(&specs(&daemon, |s| s.skip = true));
    let one = run(&specs(&daemon, |s| (s.substitute, s.workers, s.split_ms) = (true, 1, 0)));
    let four = run(&specs(&daemon, |s| (s.substitute, s.workers, s.split_ms) = (true, 4, 1)));
    assert_eq!(one, four);
    assert!(samples(&skipped) < samples(&one), "some of the samples are bad");
    assert!(one.values().flatten().all(|batch| batch.len() == 3), "no place stays empty");
    // What is good is where it was.
    for (at, ranks) in &skipped {
        for (rank, batch) in ranks.iter().enumerate() {
            let full: BTreeSet<_> = one[at][rank].iter().collect();
            assert!(batch.iter().all(|sample| full.contains(sample)), "{at:?}: {batch:?} of {full:?}");
        }
    }
    // The rest is made of samples that are in the epoch anyway, with other crops for none of them.
    let all: BTreeSet<&str> = one.values().flatten().flatten().map(String::as_str).collect();
    let kept: BTreeSet<&str> = skipped.values().flatten().flatten().map(String::as_str).collect();
    let new: Vec<_> = all.difference(&kept).collect();
    assert!(new.len() <= 7, "{new:?}");
    let other = run(&specs(&daemon, |s| (s.substitute, s.epoch) = (true, 1)));
    assert_ne!(one, other);
}

#[test]
fn policies_replace_alike() {
    use helix_shm::proto::options::Policy;
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let [helix, pool, local] = [Policy::Helix, Policy::Pool, Policy::Local]
        .map(|policy| run(&specs(&daemon, |s| (s.substitute, s.policy) = (true, policy))));
    assert_eq!(helix, pool);
    assert_eq!(helix, local);
}

#[test]
fn too_many_bad_samples_end_the_run_and_each_is_listed() {
    let folder = folder();
    let clips = folder.path().join("clips");
    std::fs::create_dir(&clips).unwrap();
    Damage::Scribbled.make(&clips.join("noise.mp4"), Encoder::H264, 0).unwrap();
    for i in 0..50 {
        std::fs::copy(clips.join("noise.mp4"), clips.join(format!("noise{i}.mp4"))).unwrap();
    }
    let manifest = folder.path().join("noise.arrow");
    index(std::slice::from_ref(&clips), &manifest);
    let daemon = Daemon::start(folder.path());
    let list = folder.path().join("list/quarantine.jsonl");
    let mut spec = spec(&daemon.socket, 0, 1);
    (spec.manifest, spec.skip, spec.spread, spec.quarantine) = (manifest, true, true, Some(list.clone()));
    let ended = |spec: &Spec| {
        let mut rank = Rank::start(spec);
        let said: Vec<Said> = std::iter::from_fn(|| rank.hear()).collect();
        said.last().cloned().unwrap()
    };
    let Said::Err(reason) = ended(&spec) else { panic!("it went on") };
    for part in ["33 of 33 samples", "max_bad_ratio is 0.5", "noise", "repair the data"] {
        assert!(reason.contains(part), "`{part}` in {reason}");
    }
    let lines = std::fs::read_to_string(&list).unwrap();
    let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert!(first["path"].as_str().unwrap().contains("clips/noise"), "{first}");
    assert!(first["id"].is_u64() && first["stage"].is_string() && first["reason"].is_string(), "{first}");
    assert_eq!(lines.lines().count(), 33);
    spec.max_bad_ratio = 1.0;
    assert_eq!(ended(&spec), Said::End(0));
    (spec.skip, spec.substitute) = (false, true);
    let Said::Err(reason) = ended(&spec) else { panic!("bad samples for bad samples") };
    assert!(reason.contains("of the samples of its shape none"), "{reason}");
}
