//! A batch as Python has it: numbers that say what it is, and tensors over its memory.
//!
//! The memory is a [`Block`]: a lease on the slab, or a copy for whoever keeps more batches than the slab has room
//! for. Every tensor holds it by an `Arc`, so that it lives as long as the last of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use helix_shm::Batch as Delivered;
use helix_shm::client::BatchError;
use helix_shm::proto::transform::Dtype;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::{dlpack, errors};

/// Memory that tensors lie in.
pub struct Block {
    _memory: Memory,
    /// Counts the blocks of a loader that are on its slab.
    live: Option<Arc<AtomicU32>>,
}

enum Memory {
    /// A lease: dropping it gives the memory back to the daemon.
    Slab(#[allow(dead_code, reason = "held, not read")] Box<Delivered>),
    Heap(#[allow(dead_code, reason = "held, not read")] Vec<Line>),
}

/// Copies are aligned as the slab's regions are.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "written and read through pointers")] [u8; 64]);

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(live) = &self.live {
            live.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A dense tensor somewhere in a block.
#[derive(Clone)]
pub struct View {
    /// Where it begins.
    pub address: usize,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Type of a number.
    pub dtype: Dtype,
}

impl View {
    /// Its strides in numbers: the last axis is the densest.
    pub fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.shape.len()];
        for axis in (1..self.shape.len()).rev() {
            strides[axis - 1] = strides[axis] * self.shape[axis];
        }
        strides
    }

    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}

/// What a rank gets for a step.
#[pyclass(frozen, module = "helix_shm._native")]
pub struct Batch {
    block: Arc<Block>,
    /// The samples, in order.
    samples: Vec<View>,
    /// All of them, where they have one shape.
    whole: Result<View, BatchError>,
    facts: Facts,
}

/// What is known of a batch besides its numbers.
struct Facts {
    ids: Vec<u64>,
    weights: Vec<f64>,
    tokens: Vec<f64>,
    home_ranks: Vec<u32>,
    epoch: u32,
    step: u32,
    skipped: usize,
    n_global: u32,
    cost: (f32, f32),
    wait: f64,
    copied: usize,
}

impl Batch {
    /// Takes a batch over. With `live` it stays on the slab and is counted there, without it is copied out.
    /// `limit` cuts off what repeats samples to fill an epoch's last step.
    pub fn new(
        mut batch: Delivered,
        live: Option<Arc<AtomicU32>>,
        limit: Option<usize>,
    ) -> Result<Batch, BatchError> {
        let count = limit.unwrap_or(usize::MAX).min(batch.len());
        // First, since it may move samples together where skipped ones had left gaps.
        let whole = batch.tensor_mut("video").map(|t| View {
            address: t.data.as_mut_ptr() as usize,
            shape: [&[count][..], &t.shape[1..]].concat(),
            dtype: t.dtype,
        });
        let dtype = batch.dtype();
        let mut samples = Vec::with_capacity(count);
        for i in 0..count {
            let shape = batch.shape(i)?.map(usize::from).to_vec();
            let address = batch.sample_mut(i, "video")?.as_mut_ptr() as usize;
            samples.push(View { address, shape, dtype });
        }
        let mut facts = Facts {
            ids: batch.ids()[..count].to_vec(),
            weights: batch.weights()[..count].to_vec(),
            tokens: batch.tokens()[..count].to_vec(),
            home_ranks: batch.home_ranks()[..count].to_vec(),
            epoch: batch.epoch(),
            step: batch.step(),
            skipped: batch.skipped(),
            n_global: batch.n_global(),
            cost: batch.cost(),
            wait: batch.wait().as_secs_f64(),
            copied: 0,
        };
        let (block, whole) = match live {
            Some(live) => {
                live.fetch_add(1, Ordering::Relaxed);
                (Block { _memory: Memory::Slab(Box::new(batch)), live: Some(live) }, whole)
            }
            None => {
                let (lines, bytes) = copy_out(&batch, &mut samples)?;
                facts.copied = bytes;
                let address = lines.as_ptr() as usize;
                (Block { _memory: Memory::Heap(lines), live: None }, whole.map(|w| View { address, ..w }))
            }
        };
        Ok(Batch { block: Arc::new(block), samples, whole, facts })
    }

    /// Bytes that were copied to take it off the slab.
    pub fn copied_bytes(&self) -> usize {
        self.facts.copied
    }
}

/// Copies samples to memory of their own, one behind the other, and has their views point there.
fn copy_out(batch: &Delivered, samples: &mut [View]) -> Result<(Vec<Line>, usize), BatchError> {
    let bytes: usize = samples.iter().map(View::bytes).sum();
    let mut lines = vec![Line([0; 64]); bytes.div_ceil(64)];
    let base = lines.as_mut_ptr().cast::<u8>();
    let mut at = 0;
    for (i, view) in samples.iter_mut().enumerate() {
        let from = batch.sample(i, "video")?;
        // SAFETY: the lines have room for all samples, and nobody else knows them yet.
        let to = unsafe { std::slice::from_raw_parts_mut(base.add(at), from.len()) };
        to.copy_from_slice(from);
        view.address = to.as_ptr() as usize;
        at += from.len();
    }
    Ok((lines, bytes))
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.samples.len()
    }

    fn __repr__(&self) -> String {
        let Facts { epoch, step, .. } = self.facts;
        format!("Batch(epoch {epoch}, step {step}, {} samples)", self.samples.len())
    }

    /// All samples as one tensor.
    fn tensor(&self) -> PyResult<Tensor> {
        let view = self.whole.clone().map_err(errors::batch)?;
        Ok(Tensor { block: Arc::clone(&self.block), view })
    }

    /// One sample.
    fn sample(&self, i: usize) -> PyResult<Tensor> {
        let view = self.samples.get(i).cloned();
        let view = view.ok_or_else(|| PyIndexError::new_err(format!("sample {i} of {}", self.samples.len())))?;
        Ok(Tensor { block: Arc::clone(&self.block), view })
    }

    /// Whether the samples have one shape.
    #[getter]
    fn is_uniform(&self) -> bool {
        self.whole.is_ok()
    }

    #[getter]
    fn ids(&self) -> Vec<u64> {
        self.facts.ids.clone()
    }

    #[getter]
    fn weights(&self) -> Vec<f64> {
        self.facts.weights.clone()
    }

    #[getter]
    fn tokens(&self) -> Vec<f64> {
        self.facts.tokens.clone()
    }

    #[getter]
    fn home_ranks(&self) -> Vec<u32> {
        self.facts.home_ranks.clone()
    }

    #[getter]
    fn epoch(&self) -> u32 {
        self.facts.epoch
    }

    #[getter]
    fn step(&self) -> u32 {
        self.facts.step
    }

    #[getter]
    fn skipped(&self) -> usize {
        self.facts.skipped
    }

    #[getter]
    fn n_global(&self) -> u32 {
        self.facts.n_global
    }

    #[getter]
    fn cost(&self) -> (f32, f32) {
        self.facts.cost
    }

    #[getter]
    fn wait(&self) -> f64 {
        self.facts.wait
    }

    #[getter]
    fn copied(&self) -> usize {
        self.facts.copied
    }
}

/// A dense tensor on the host. Frameworks take it by `__dlpack__`, NumPy by `__array_interface__`; neither copies.
#[pyclass(frozen, module = "helix_shm._native")]
pub struct Tensor {
    block: Arc<Block>,
    view: View,
}

#[pymethods]
impl Tensor {
    /// A capsule for `from_dlpack`. The arguments of later versions of the protocol are taken; what they may ask for
    /// is a writable tensor on the host, which this is.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<Bound<'_, PyAny>>,
        max_version: Option<Bound<'_, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let _ = (stream, max_version);
        if dl_device.is_some_and(|device| device != dlpack::CPU) || copy == Some(true) {
            let what = "this tensor lies on the host and is not copied: take it there, then copy or move it";
            return Err(pyo3::exceptions::PyBufferError::new_err(what));
        }
        dlpack::capsule(py, &self.block, &self.view)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("version", 3)?;
        dict.set_item("shape", self.shape(py)?)?;
        dict.set_item("data", (self.view.address, false))?;
        let code = match self.view.dtype {
            Dtype::U8 => "|u1",
            Dtype::F16 => "<f2",
            Dtype::F32 => "<f4",
            Dtype::Bf16 => {
                let text = "NumPy has no bfloat16: use torch, or float16 or float32";
                return Err(pyo3::exceptions::PyAttributeError::new_err(text));
            }
        };
        dict.set_item("typestr", code)?;
        Ok(dict)
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.view.shape)
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        match self.view.dtype {
            Dtype::U8 => "uint8",
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
            Dtype::F32 => "float32",
        }
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.view.bytes()
    }

    /// Where it begins.
    #[getter]
    fn data_ptr(&self) -> usize {
        self.view.address
    }

    fn __repr__(&self) -> String {
        format!("Tensor(shape={:?}, dtype={})", self.view.shape, self.dtype())
    }
}
