//! Video made on the spot, for the demo and for tests: uneven as real collections are, and the same for a seed.
//!
//! [`make`] fills a folder with a long-tailed mix of clips and a few damaged files; [`clip`] makes one file.
//! The pictures are drawn (`draw`) and encoded by FFmpeg's own encoders (`encode`), as many at a time as there
//! are cores. Every file appears whole or not at all. This room knows nothing else of ours.

mod damage;
mod draw;
mod encode;
mod folder;
mod plan;

pub use damage::Damage;
pub use encode::{ClipSpec, Encoder, clip};
pub use folder::{Corpus, CorpusOptions, Progress, make};

use std::path::PathBuf;

/// Why a corpus or a clip could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// The folder cannot be made, listed or written.
    #[error("cannot write the corpus into {path}: {source}; name a folder that can be written, with room for 200 MB")]
    Folder {
        /// The folder or file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The folder holds something else.
    #[error("{path} already holds {found}, wanted {wanted}; remove it or name another folder")]
    Occupied {
        /// The folder.
        path: PathBuf,
        /// What is in it.
        found: String,
        /// What was to be made.
        wanted: String,
    },
    /// This FFmpeg has none of the encoders.
    #[error(
        "this FFmpeg has none of the encoders {}; install one that has, or give videos of your own",
        Encoder::names()
    )]
    NoEncoder,
    /// An encoder or a muxer refused.
    #[error("cannot encode {path}: {doing}: {source}")]
    Encode {
        /// The file.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What FFmpeg said.
        source: ffmpeg_next::Error,
    },
    /// The caller asked to stop; what is finished stays and is used next time.
    #[error("stopped before the corpus was complete; the files made so far are kept")]
    Stopped,
}

impl CorpusError {
    fn folder(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> CorpusError {
        let path = path.into();
        move |source| CorpusError::Folder { path, source }
    }
}
