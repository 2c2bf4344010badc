//! Files as they also occur in collections: cut short, scribbled over, empty, or no video at all.

use std::path::Path;

use super::encode::{self, ClipSpec, Part};
use super::{CorpusError, Encoder};

/// What is wrong with a damaged file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// The second half is missing and with it the index: it cannot be opened.
    TruncatedIndex,
    /// The second half of the frames is missing, but the index in front promises them.
    TruncatedFrames,
    /// Noise in place of the middle third.
    Scribbled,
    /// No byte.
    Empty,
    /// Text with the name of a video.
    Text,
}

impl Damage {
    /// All of them.
    pub const ALL: [Damage; 5] =
        [Damage::TruncatedIndex, Damage::TruncatedFrames, Damage::Scribbled, Damage::Empty, Damage::Text];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Damage::TruncatedIndex => "truncated-index",
            Damage::TruncatedFrames => "truncated-frames",
            Damage::Scribbled => "scribbled",
            Damage::Empty => "empty",
            Damage::Text => "text",
        }
    }

    /// Makes a damaged MP4 at `path`.
    pub fn make(self, path: &Path, encoder: Encoder, seed: u64) -> Result<(), CorpusError> {
        let part = Part::new(path);
        let bytes = match self {
            Damage::Empty => Vec::new(),
            Damage::Text => "This is not a video, whatever its name says.\n".repeat(100).into_bytes(),
            _ => {
                let faststart = self != Damage::TruncatedIndex;
                let whole = ClipSpec { encoder, frames: 75, gop: 25, faststart, seed, ..ClipSpec::default() };
                encode::write(&part.path, path, &whole, &|_| true)?;
                self.apply(std::fs::read(&part.path).map_err(CorpusError::folder(path))?, seed)
            }
        };
        std::fs::write(&part.path, bytes).map_err(CorpusError::folder(path))?;
        part.finish(path)
    }

    fn apply(self, mut bytes: Vec<u8>, seed: u64) -> Vec<u8> {
        let len = bytes.len();
        match self {
            Damage::TruncatedIndex | Damage::TruncatedFrames => bytes.truncate(len / 2),
            Damage::Scribbled => {
                let mut noise = seed | 1;
                for byte in &mut bytes[len / 3..2 * len / 3] {
                    noise = noise.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    *byte = (noise >> 56) as u8;
                }
            }
            Damage::Empty | Damage::Text => {}
        }
        bytes
    }
}
