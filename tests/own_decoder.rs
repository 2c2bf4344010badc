//! The example's decoder, in workers of a real daemon.
#![cfg(all(feature = "decode", not(feature = "loom")))]

mod common;
#[path = "../examples/own_decoder.rs"]
mod own_decoder;

use std::path::Path;

use common::{Daemon, folder};
use helix_shm::decode::worker;
use helix_shm::proto::options::OnError;
use helix_shm::proto::transform::{Layout, Resize, Sampling, Transform};
use helix_shm::{Loader, Options};

/// Not a test of its own: the program of the workers below.
#[test]
fn is_worker() {
    if std::env::var_os("HELIX_SHM_TOKEN").is_some() {
        worker::serve(own_decoder::decoders).unwrap();
    }
}

fn options(daemon: &Daemon, data: &Path) -> Options {
    let program = std::env::current_exe().unwrap();
    let resize = Resize::Exact { width: 6, height: 4 };
    Options::default()
        .socket(&daemon.socket)
        .job("own")
        .spawn(false)
        .manifest(data)
        .rank(0)
        .world(1)
        .batch_size(2)
        .shuffle(false)
        .workers(1)
        .pin(false)
        .program(vec![program.display().to_string(), "is_worker".into(), "--exact".into()])
        .transform(Transform {
            frames: 2,
            sampling: Sampling::Indices { at: vec![3, 90] },
            resize,
            layout: Layout::Thwc,
            ..Transform::default()
        })
}

/// A clip of 100 frames of 6 by 4 pixels, frame `n` of the colour (n, 2n, seed).
fn npy(path: &Path, seed: u8) {
    let text = "{'descr': '|u1', 'fortran_order': False, 'shape': (100, 4, 6, 3), }";
    let mut bytes = b"\x93NUMPY\x01\0".to_vec();
    bytes.extend(118u16.to_le_bytes());
    bytes.extend(format!("{text:<117}\n").bytes());
    bytes.extend((0..100u8).flat_map(|n| [n, 2 * n, seed].repeat(24)));
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_decoder_of_ones_own_feeds_ranks_through_real_workers() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let clips: Vec<_> = (0..4).map(|n| folder.path().join(format!("{n}.npy"))).collect();
    (10..).zip(&clips).for_each(|(seed, clip)| npy(clip, seed));
    let data = folder.path().join("data.arrow");
    own_decoder::index(&data, clips.iter()).unwrap();
    let loader = Loader::connect(options(&daemon, &data)).unwrap();
    let mut seen = 0;
    for batch in loader {
        let batch = batch.unwrap();
        for i in 0..batch.len() {
            let (sample, seed) = (batch.sample(i, "video").unwrap(), 10 + batch.ids()[i] as u8);
            for (frame, n) in sample.chunks_exact(4 * 6 * 3).zip([3u8, 90]) {
                for pixel in frame.chunks_exact(3) {
                    let near = pixel.iter().zip([n, 2 * n, seed]).all(|(a, b)| a.abs_diff(b) <= 2);
                    assert!(near, "frame {n} of sample {}: {pixel:?}", batch.ids()[i]);
                }
            }
            seen += 1;
        }
    }
    assert_eq!(seen, 4);
}

#[test]
fn what_it_cannot_read_is_a_bad_sample() {
    let folder = folder();
    let daemon = Daemon::start(folder.path());
    let clips = [folder.path().join("a.npy"), folder.path().join("b.npy")];
    clips.iter().for_each(|clip| npy(clip, 1));
    let data = folder.path().join("data.arrow");
    own_decoder::index(&data, clips.iter()).unwrap();
    // Its header says something else now; its length and time are as before.
    let time = std::fs::metadata(&clips[1]).unwrap().modified().unwrap();
    let mut bytes = std::fs::read(&clips[1]).unwrap();
    bytes[..6].copy_from_slice(b"nonpy!");
    std::fs::write(&clips[1], bytes).unwrap();
    std::fs::File::options().write(true).open(&clips[1]).unwrap().set_modified(time).unwrap();
    let loader = Loader::connect(options(&daemon, &data).on_error(OnError::Raise)).unwrap();
    let error = loader.map(|batch| batch.map(drop)).find_map(Result::err).expect("a bad sample").to_string();
    assert!(error.contains("it is no NumPy file"), "{error}");
}
