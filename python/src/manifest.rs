//! A manifest, as a sequence of the samples that can be delivered.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors;

/// A manifest that `helix index` made, mapped read-only: `len()` counts the samples that can be delivered.
#[pyclass(frozen, module = "helix_shm")]
pub struct Manifest {
    inner: Arc<helix_shm::manifest::Manifest>,
}

#[pymethods]
impl Manifest {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let opened = py.detach(|| helix_shm::manifest::Manifest::open(&path));
        Ok(Manifest { inner: Arc::new(opened.map_err(errors::manifest)?) })
    }

    fn __len__(&self) -> usize {
        self.inner.good() as usize
    }

    fn __repr__(&self) -> String {
        let (good, rows) = (self.inner.good(), self.inner.len());
        format!("Manifest({:?}, {good} of {rows} samples)", self.inner.path().display().to_string())
    }

    /// Where it was opened.
    #[getter]
    fn path(&self) -> PathBuf {
        self.inner.path().to_owned()
    }

    /// Hash of all that fixes the stream.
    #[getter]
    fn fingerprint(&self) -> &str {
        self.inner.fingerprint()
    }

    /// Rows, good and bad; `batch.ids` are numbers of rows.
    #[getter]
    fn rows(&self) -> u64 {
        self.inner.len()
    }

    /// The row of the i-th sample that can be delivered.
    fn row(&self, i: u64) -> PyResult<u64> {
        if i >= self.inner.good() {
            return Err(PyIndexError::new_err(format!("sample {i} of {}", self.inner.good())));
        }
        Ok(self.inner.good_row(i))
    }

    /// The bad rows with the reason of each.
    #[getter]
    fn bad(&self) -> Vec<(u64, String)> {
        let reason = |row| self.inner.error(row).unwrap_or_default().to_owned();
        self.inner.bad_rows().iter().map(|&row| (row, reason(row))).collect()
    }

    /// Label or caption of a row; empty when it has none.
    fn text(&self, row: u64) -> PyResult<&str> {
        self.check(row)?;
        Ok(self.inner.descriptor(row).text)
    }

    /// What is known of a row before it is decoded.
    fn describe<'py>(&self, py: Python<'py>, row: u64) -> PyResult<Bound<'py, PyDict>> {
        self.check(row)?;
        let d = self.inner.descriptor(row);
        let facts = d.facts();
        let dict = PyDict::new(py);
        dict.set_item("row", row)?;
        dict.set_item("path", d.path)?;
        dict.set_item("codec", d.codec)?;
        dict.set_item("frames", d.frames)?;
        dict.set_item("width", facts.width)?;
        dict.set_item("height", facts.height)?;
        dict.set_item("fps", f64::from(d.fps.0) / f64::from(d.fps.1.max(1)))?;
        dict.set_item("duration", f64::from(facts.duration_ms) / 1000.0)?;
        dict.set_item("bytes", d.len)?;
        dict.set_item("keyframes", facts.keyframes)?;
        dict.set_item("text", d.text)?;
        dict.set_item("error", self.inner.error(row))?;
        Ok(dict)
    }
}

impl Manifest {
    fn check(&self, row: u64) -> PyResult<()> {
        let rows = self.inner.len();
        if row < rows { Ok(()) } else { Err(PyIndexError::new_err(format!("row {row} of {rows}"))) }
    }
}
