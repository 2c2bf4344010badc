//! Tiny clips, made once, so that a round costs little more than the starts of its processes.

use std::fs::File;
use std::path::{Path, PathBuf};

use helix_shm::corpus::{ClipSpec, Damage, Encoder, clip};
use helix_shm::manifest::{Manifest, Writer};

use crate::common::{Slow, emulate, index};

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
    let row = |n: u64| Slow { said_ms: 200 + 40 * n, text: format!("{} {}", 300 + n * 100, 200 + n * 397 % 1500) };
    emulate(&mut writer, &root.join("bytes"), (0..EMULATED).map(row));
    writer.finish().unwrap();
}
