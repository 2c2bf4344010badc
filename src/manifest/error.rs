//! What can be wrong with a manifest, read or written.

use std::io;
use std::path::{Path, PathBuf};

use arrow_schema::ArrowError;

/// Why a manifest cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The system refused.
    #[error("cannot {doing} manifest {}: {source}", path.display())]
    Io {
        /// The manifest.
        path: PathBuf,
        /// What was tried: `open`, `map`.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not a manifest that this version reads.
    #[error("{} is not a manifest of this version: {found}; make it again with `helix index`", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What was found, and what was wanted.
        found: String,
    },
    /// A row contradicts itself.
    #[error("row {row} of manifest {} is damaged: {found}; make it again with `helix index`", path.display())]
    Row {
        /// The manifest.
        path: PathBuf,
        /// The row.
        row: u64,
        /// What was found, and what was wanted.
        found: String,
    },
}

impl ManifestError {
    pub(super) fn io(path: &Path, doing: &'static str, source: io::Error) -> Self {
        ManifestError::Io { path: path.to_owned(), doing, source }
    }

    pub(super) fn format(path: &Path, found: impl Into<String>) -> Self {
        ManifestError::Format { path: path.to_owned(), found: found.into() }
    }
}

/// Why a manifest cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file cannot be made.
    #[error("cannot create {}: {source}", path.display())]
    Create {
        /// The file, or the folder it would be in.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Writing failed, as on a full disk. Nothing is left behind and a former file is untouched.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A row that no reader would take.
    #[error("row {row} ({path}) cannot be written: {found}")]
    Row {
        /// The row.
        row: u64,
        /// Path of its file.
        path: String,
        /// What is wrong.
        found: String,
    },
    /// The Arrow library refused.
    #[error("cannot encode the manifest: {0}")]
    Arrow(arrow_schema::ArrowError),
}

impl From<ArrowError> for WriteError {
    fn from(e: ArrowError) -> Self {
        match e {
            ArrowError::IoError(_, source) => WriteError::Io(source),
            other => WriteError::Arrow(other),
        }
    }
}
