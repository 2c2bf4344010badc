//! Errors of the client as Python exceptions. All but wrong options are a `HelixError`, which is a `RuntimeError`.

use helix_shm::client::BatchError;
use helix_shm::manifest::ManifestError;
use helix_shm::{ConnectError, LoaderError};
use pyo3::create_exception;
use pyo3::exceptions::{PyFileNotFoundError, PyIndexError, PyKeyError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(helix_shm, HelixError, PyRuntimeError, "What went wrong in helix-shm, and what to do.");
create_exception!(helix_shm, BadSampleError, HelixError, "A sample could not be made, and the loader raises.");
create_exception!(helix_shm, RankDiedError, HelixError, "Another rank of the loader died.");
create_exception!(helix_shm, DaemonError, HelixError, "The daemon could not be reached, started or replaced.");
create_exception!(helix_shm, ForkedError, HelixError, "A fork()ed child touched a loader of its parent.");
create_exception!(helix_shm, TimeoutError, HelixError, "A batch did not come in time.");

/// Why a loader could not be made.
pub fn connect(error: ConnectError) -> PyErr {
    let text = error.to_string();
    match error {
        ConnectError::Option(_) | ConnectError::Environment { .. } => PyValueError::new_err(text),
        ConnectError::Manifest(error) => manifest(error),
        ConnectError::Dial(_) | ConnectError::Protocol(_) => DaemonError::new_err(text),
        _ => HelixError::new_err(text),
    }
}

/// Why an iteration ended.
pub fn loader(error: LoaderError) -> PyErr {
    let text = error.to_string();
    match error {
        LoaderError::RankDied { .. } => RankDiedError::new_err(text),
        LoaderError::BadSample(bad) => Python::attach(|py| {
            let error = BadSampleError::new_err(text);
            let value = error.value(py);
            // What a handler looks at; a plain exception takes any attribute.
            let _ = value.setattr("sample", bad.sample);
            let _ = value.setattr("path", bad.path);
            let _ = value.setattr("stage", bad.stage);
            let _ = value.setattr("reason", bad.reason);
            error
        }),
        LoaderError::DaemonGone { .. } | LoaderError::Protocol { .. } => DaemonError::new_err(text),
        LoaderError::Forked { .. } => ForkedError::new_err(text),
        LoaderError::Timeout { .. } => TimeoutError::new_err(text),
        _ => HelixError::new_err(text),
    }
}

/// What cannot be had from a batch.
pub fn batch(error: BatchError) -> PyErr {
    let text = error.to_string();
    match error {
        BatchError::Name { .. } => PyKeyError::new_err(text),
        BatchError::Index { .. } => PyIndexError::new_err(text),
        _ => PyValueError::new_err(text),
    }
}

/// Why a manifest does not open.
pub fn manifest(error: ManifestError) -> PyErr {
    let text = error.to_string();
    match error {
        ManifestError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            PyFileNotFoundError::new_err(text)
        }
        _ => PyValueError::new_err(text),
    }
}
