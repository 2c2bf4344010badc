//! A worker that makes samples in Python: tasks out of the ring, regions to write into.

use std::os::fd::AsRawFd;
use std::os::fd::IntoRawFd;
use std::path::PathBuf;
use std::time::Duration;

use helix_shm::foreign;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;

fn error(e: foreign::WorkerError) -> PyErr {
    PyRuntimeError::new_err(e.to_string())
}

/// `PyBUF_WRITE`, which is a macro in C.
const WRITABLE: std::ffi::c_int = 0x200;

/// This process as a worker of the daemon that started it. It stays on the thread that made it.
#[pyclass(unsendable, module = "helix_shm._native")]
pub struct Worker {
    inner: foreign::Worker,
}

#[pymethods]
impl Worker {
    #[new]
    fn new(socket: PathBuf, job: &str, slot: u16) -> PyResult<Self> {
        foreign::Worker::introduce(&socket, job, slot).map(|inner| Worker { inner }).map_err(error)
    }

    /// Whether the daemon wants nothing more of this process.
    #[getter]
    fn is_over(&self) -> bool {
        self.inner.is_over()
    }

    /// Descriptors to be polled for input while there is nothing to do.
    fn fds(&self) -> [i32; 2] {
        self.inner.fds().map(|fd| fd.as_raw_fd())
    }

    /// `False` if there is news already, so that nobody is to sleep.
    fn park(&mut self) -> bool {
        self.inner.park()
    }

    fn unpark(&mut self) {
        self.inner.unpark();
    }

    /// The next task, or `None`.
    fn poll(&mut self) -> PyResult<Option<Task>> {
        let task = self.inner.poll().map_err(error)?;
        Ok(task.map(|inner| Task { inner }))
    }

    /// A descriptor of what the rank gave with a task's epoch. It is the caller's to close.
    fn brief(&mut self, task: &Task) -> PyResult<i32> {
        let fd = self.inner.brief(task.inner.session, task.inner.epoch).map_err(error)?;
        Ok(fd.into_raw_fd())
    }

    /// The task's region holds what it is to hold; `cpu` is in seconds.
    fn done(&mut self, task: &Task, cpu: f64) -> PyResult<()> {
        let cpu = Duration::try_from_secs_f64(cpu).unwrap_or_default();
        self.inner.done(&task.inner, cpu).map_err(error)
    }

    /// The task cannot be done.
    fn fail(&mut self, task: &Task, stage: &str, reason: &str) -> PyResult<()> {
        self.inner.fail(&task.inner, stage, reason).map_err(error)
    }
}

/// Something to be made.
#[pyclass(unsendable, module = "helix_shm._native")]
pub struct Task {
    inner: foreign::Task,
}

#[pymethods]
impl Task {
    #[getter]
    fn session(&self) -> u16 {
        self.inner.session
    }

    #[getter]
    fn epoch(&self) -> u32 {
        self.inner.epoch
    }

    #[getter]
    fn step(&self) -> u32 {
        self.inner.step
    }

    /// Row of the manifest: of a dataset whose samples are tasks, its index.
    #[getter]
    fn sample(&self) -> u64 {
        self.inner.sample
    }

    /// The pages that it is about: the first, and how many.
    #[getter]
    fn span(&self) -> (u16, u16) {
        let span = self.inner.span();
        (span.first, span.frames)
    }

    #[getter]
    fn len(&self) -> usize {
        self.inner.len
    }

    /// What follows is the task's own time.
    fn begin(&self) {
        self.inner.begin();
    }

    /// The region as a writable memoryview. It must be released before the task is over.
    fn region<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (memory, len) = (self.inner.address as *mut std::ffi::c_char, self.inner.len as ffi::Py_ssize_t);
        // SAFETY: the region stays mapped while the task lives, and is this worker's alone to write to; the caller
        // releases the view before it says that the task is over.
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyMemoryView_FromMemory(memory, len, WRITABLE)) }
    }
}

/// A row of a dataset: frames that are decoded, width, height, bytes, pieces that can be decoded apart, what the sample
/// costs its rank, codec.
type Row = (u32, u16, u16, u64, u32, u32, String);

/// Writes the manifest of a stream that a program of the user's own fills: what is known of each sample beforehand.
#[pyfunction]
pub fn write_rows(path: PathBuf, rows: Vec<Row>) -> PyResult<()> {
    use helix_shm::manifest::{Record, Writer};
    let file = std::fs::File::create(path)?;
    let failed = |e: helix_shm::manifest::WriteError| PyRuntimeError::new_err(e.to_string());
    let mut writer = Writer::new(file, "{}").map_err(failed)?;
    for (i, (frames, width, height, bytes, pieces, cost, codec)) in rows.into_iter().enumerate() {
        let row = Record {
            path: format!("sample {i} of a Python dataset"),
            file_len: bytes,
            len: bytes,
            codec,
            frames: frames.max(1),
            coded_width: width.max(1),
            coded_height: height.max(1),
            // It is their number that counts.
            key_frames: (0..pieces).collect(),
            key_offsets: vec![0; pieces as usize],
            // Milliseconds, which a formula of the user's own counts as tokens.
            time_base: (1, 1000),
            duration: cost.into(),
            ..Record::default()
        };
        writer.push(&row.descriptor(0)).map_err(failed)?;
    }
    writer.finish().map_err(failed)?;
    Ok(())
}
