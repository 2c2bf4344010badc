//! The Python face: a thin skin over the client of `helix_shm`.
//!
//! What is here holds the GIL for as short as can be: every wait and every lock of the client is taken without it,
//! and memory goes back to the slab on whatever thread lets it go, without it too (`dlpack`). Signatures, defaults
//! and words for users are in the Python sources beside it; this crate knows options as JSON, batches and pointers.

mod batch;
mod config;
mod dlpack;
mod errors;
mod loader;
mod log;
mod manifest;
mod meter;
mod worker;

use pyo3::prelude::*;

/// The extension of the package `helix_shm`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::batch::{Batch, Tensor};
    #[pymodule_export]
    use super::errors::{BadSampleError, DaemonError, ForkedError, HelixError, RankDiedError, TimeoutError};
    #[pymodule_export]
    use super::loader::Loader;
    #[pymodule_export]
    use super::log::take_log;
    #[pymodule_export]
    use super::manifest::Manifest;
    #[pymodule_export]
    use super::worker::{Task, Worker, write_rows};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::log::install();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
