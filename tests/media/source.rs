//! What is mutated: every small clip of the hard files, and clips of each encoder in more than one container.

use std::path::{Path, PathBuf};

use helix_shm::corpus::{ClipSpec, Encoder, clip};
use helix_shm::manifest::Manifest;

use crate::common::index;

/// Larger ones are mutated too rarely where it matters.
const MOST: u64 = 64 << 10;

/// A file, and what the manifest says of it when it is whole.
pub struct Source {
    pub bytes: Vec<u8>,
    pub extension: String,
    /// Row in the manifest of the sources.
    pub row: u64,
}

/// Makes the sources below a folder; answers them and their manifest.
pub fn sources(folder: &Path) -> (Vec<Source>, Manifest) {
    let clips = folder.join("sources");
    std::fs::create_dir_all(&clips).unwrap();
    for (i, encoder) in Encoder::ALL.into_iter().filter(|encoder| encoder.is_available()).enumerate() {
        for (j, (extension, bframes)) in [("mp4", 2), ("mkv", 0)].into_iter().enumerate() {
            let spec = ClipSpec {
                encoder,
                width: 96,
                height: 64,
                frames: 40,
                gop: 10,
                bframes,
                faststart: j == 0,
                seed: (10 * i + j) as u64,
                ..ClipSpec::default()
            };
            let extension = if encoder == Encoder::Vp9 { "webm" } else { extension };
            clip(&clips.join(format!("clip{i}{j}.{extension}")), &spec).unwrap();
        }
    }
    let manifest = folder.join("sources.arrow");
    index(&[clips, PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/hard")], &manifest);
    let manifest = Manifest::open(&manifest).unwrap();
    let rows = (0..manifest.good()).map(|i| manifest.good_row(i));
    let small = rows.filter(|&row| manifest.descriptor(row).len <= MOST);
    let source = |row| {
        let path = Path::new(manifest.descriptor(row).path);
        let extension = path.extension().unwrap().to_string_lossy().into_owned();
        Source { bytes: std::fs::read(path).unwrap(), extension, row }
    };
    (small.map(source).collect(), manifest)
}
