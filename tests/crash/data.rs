//! Tiny clips, made once, so that a round costs little more than the starts of its processes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use helix_shm::corpus::{ClipSpec, Damage, Encoder, clip};
use helix_shm::decode::emulated::CONTAINER;
use helix_shm::manifest::{Manifest, Record, Writer};

use crate::common::index;

const CLIPS: u64 = 30;
/// These pass indexing and fail when they are decoded.
const NOISE: u64 = 2;

/// These only take their time, and last longer or shorter than the manifest says.
const EMULATED: u64 = 16;

/// The manifest of the clips.
pub fn manifest() -> PathBuf {
    let parent = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let root = parent.join("crash-clips-v4");
    let manifest = root.join("data.arrow");
    std::fs::create_dir_all(&parent).unwrap();
    let lock = std::fs::File::create(parent.join("crash-clips.lock")).unwrap();
    lock.lock().unwrap();
    // Also when it is of another version.
    if Manifest::open(&manifest).is_err() {
        make(&root, &manifest);
    }
    manifest
}

fn make(root: &Path, manifest: &Path) {
    let _ = std::fs::remove_dir_all(root);
    let clips = root.join("clips");
    std::fs::create_dir_all(&clips).unwrap();
    for seed in 0..CLIPS {
        let (width, height) = [(64, 48), (48, 64), (96, 64)][seed as usize % 3];
        let frames = 4 + (seed * 7 % 20) as u32;
        let spec = ClipSpec { encoder: Encoder::H264, width, height, frames, gop: 8, seed, ..ClipSpec::default() };
        clip(&clips.join(format!("clip{seed:02}.mp4")), &spec).unwrap();
    }
    for seed in 0..NOISE {
        Damage::Scribbled.make(&clips.join(format!("noise{seed}.mp4")), Encoder::H264, seed).unwrap();
    }
    let indexed = root.join("clips.arrow");
    index(&[clips], &indexed);
    let indexed = Manifest::open(&indexed).unwrap();
    let mut writer = Writer::new(File::create(manifest).unwrap(), "{}").unwrap();
    for row in 0..indexed.len() {
        writer.push(&indexed.descriptor(row)).unwrap();
    }
    let bytes = root.join("bytes");
    std::fs::write(&bytes, [0; 64]).unwrap();
    let mtime = std::fs::metadata(&bytes).unwrap().modified().unwrap().duration_since(UNIX_EPOCH).unwrap();
    for n in 0..EMULATED {
        let (said, is) = (200 + 40 * n, 200 + n * 397 % 1500);
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
            duration: said as i64,
            text: format!("{} {is}", 300 + n * 100),
            ..Record::default()
        };
        writer.push(&record.descriptor(0)).unwrap();
    }
    writer.finish().unwrap();
}
