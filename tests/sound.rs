//! Sound, from files through daemon, workers and client: beside frames and alone.
#![cfg(all(feature = "decode", not(feature = "loom")))]

mod common;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use common::{Daemon, folder};
use helix_shm::manifest::Manifest;
use helix_shm::manifest::build::Build;
use helix_shm::proto::fields::{Audio, MissingSound, SoundNumber};
use helix_shm::proto::options::OnError;
use helix_shm::proto::transform::{Layout, Resize, Transform};
use helix_shm::{Loader, Options};

fn hard(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hard").join(name)
}

fn index(folder: &Path, names: &[&str], sound: bool) -> std::path::PathBuf {
    let output = folder.join("data.arrow");
    let paths = names.iter().map(|name| hard(name)).collect();
    let build = Build { paths, root: None, output: output.clone(), jobs: 1, reuse: false, sound };
    build.run(&AtomicBool::new(false), |_| {}).expect("a manifest");
    output
}

fn audio(missing: MissingSound) -> Audio {
    Audio { rate: 16_000, channels: 2, number: SoundNumber::F32, max_ms: 4000, missing }
}

fn options(daemon: &Daemon, manifest: &Path, transform: Transform) -> Options {
    Options::default()
        .socket(&daemon.socket)
        .job("sound")
        .spawn(false)
        .manifest(manifest)
        .rank(0)
        .world(1)
        .batch_size(3)
        .shuffle(false)
        .workers(2)
        .pin(false)
        .transform(transform)
}

#[test]
fn batches_have_frames_sound_and_captions() {
    let home = folder();
    let daemon = Daemon::start(home.path());
    let manifest = index(home.path(), &["base.mp4", "audio_longer_than_video.mp4", "rot90.mp4"], false);
    let resize = Resize::Exact { width: 30, height: 21 };
    let transform =
        Transform { frames: 5, resize, audio: Some(audio(MissingSound::Silence)), ..Transform::default() };
    let plain = Transform { audio: None, ..transform.clone() };
    let mut loader = Loader::connect(options(&daemon, &manifest, transform)).expect("a loader");
    let batch = loader.next().expect("a batch").expect("a good one");
    assert_eq!(batch.len(), 3);
    let video = batch.tensor("video").expect("frames of one size");
    assert_eq!((video.shape, video.is_contiguous()), ([3, 5, 3, 21, 30], false));
    assert_eq!(video.data.len(), 2 * video.strides[0] + 5 * 3 * 21 * 30);
    let sound = batch.sound().expect("sound");
    assert_eq!(sound.lengths().iter().max(), Some(&48_000), "three seconds at most");
    let with: Vec<usize> = (0..3).filter(|&i| sound.present()[i]).collect();
    assert_eq!(with.len(), 1, "one of the files has sound");
    let heard = sound.numbers::<f32>(with[0], 1).expect("numbers");
    assert!(heard.iter().any(|n| n.abs() > 0.01));
    let silent = sound.numbers::<f32>((with[0] + 1) % 3, 0).expect("numbers");
    assert!(silent.iter().all(|&n| n == 0.0));
    let captions = batch.ragged("caption").expect("captions");
    assert_eq!((captions.len(), captions.offsets), (3, vec![0; 4]));
    assert_eq!(loader.stats().copied, 0);

    // The frames are those of a stream without sound.
    let mut alone = Loader::connect(options(&daemon, &manifest, plain).loader("plain")).expect("a loader");
    let other = alone.next().expect("a batch").expect("a good one");
    assert_eq!(other.ids(), batch.ids());
    for i in 0..3 {
        assert!(other.sample(i, "video").expect("frames") == batch.sample(i, "video").expect("frames"), "{i}");
    }
    assert_eq!(other.sound().err().expect("none").to_string(), "a batch has no field `audio`; it has `video`");
}

#[test]
fn files_of_sound_alone_are_samples() {
    let home = folder();
    let daemon = Daemon::start(home.path());
    let names =
        ["aac_priming.m4a", "mp3_gapless.mp3", "wav_extensible_5_1_24bit.wav", "audio_only.mp4", "coverart.mp3"];
    let path = index(home.path(), &names, true);
    let manifest = Manifest::open(&path).expect("it opens");
    assert_eq!(manifest.good(), 5, "{:?}", manifest.bad_rows());
    let found: Vec<(u32, u16)> = (0..5)
        .map(|row| manifest.descriptor(row).sound.expect("it was looked for"))
        .map(|s| (s.rate, s.channels))
        .collect();
    assert!(found.contains(&(96_000, 6)), "{found:?}");
    let transform = Transform {
        frames: 1,
        layout: Layout::Sound,
        audio: Some(audio(MissingSound::Error)),
        ..Transform::default()
    };
    let loader = Loader::connect(options(&daemon, &path, transform).drop_last(false)).expect("a loader");
    let mut lengths = std::collections::BTreeMap::new();
    for batch in loader {
        let batch = batch.expect("a good one");
        for (row, length) in batch.ids().iter().zip(batch.sound().expect("sound").lengths()) {
            let name = manifest.descriptor(*row).path.rsplit('/').next().unwrap_or_default();
            lengths.insert(name, length);
        }
    }
    let exact = [("aac_priming.m4a", 16_000), ("mp3_gapless.mp3", 16_000), ("wav_extensible_5_1_24bit.wav", 8000)];
    assert!(exact.iter().all(|(name, length)| lengths[name] == *length), "{lengths:?}");
    assert_eq!(lengths.len(), 5);
}

#[test]
fn a_sample_without_the_field_that_is_asked_for_is_bad() {
    let home = folder();
    let daemon = Daemon::start(home.path());
    let path = index(home.path(), &["base.mp4", "audio_longer_than_video.mp4"], false);
    let resize = Resize::Exact { width: 16, height: 16 };
    let audio = Some(audio(MissingSound::Error));
    let transform = Transform { frames: 2, resize, audio, ..Transform::default() };
    let options = options(&daemon, &path, transform).batch_size(2).on_error(OnError::Skip);
    let mut loader = Loader::connect(options).expect("a loader");
    let batch = loader.next().expect("a batch").expect("a good one");
    assert_eq!((batch.len(), batch.skipped()), (1, 1));
    assert!(loader.stats().bad_samples[0].reason.contains("no sound"));
}
