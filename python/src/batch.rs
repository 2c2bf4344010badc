//! A batch as Python has it: numbers that say what it is, and tensors over its memory.
//!
//! The memory is a [`Block`]: a lease on the slab, or a copy for whoever keeps more batches than the slab has room
//! for. Every tensor holds it by an `Arc`, so that it lives as long as the last of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use helix_shm::Batch as Delivered;
use helix_shm::client::BatchError;
use helix_shm::proto::fields::SoundNumber;
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

/// Type of a number, whatever field it is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    U8,
    I16,
    F16,
    Bf16,
    F32,
}

impl Number {
    const fn size(self) -> usize {
        match self {
            Number::U8 => 1,
            Number::I16 | Number::F16 | Number::Bf16 => 2,
            Number::F32 => 4,
        }
    }

    /// As `__array_interface__`, if it has it, and a framework call it.
    const fn names(self) -> (Option<&'static str>, &'static str) {
        match self {
            Number::U8 => (Some("|u1"), "uint8"),
            Number::I16 => (Some("<i2"), "int16"),
            Number::F16 => (Some("<f2"), "float16"),
            Number::Bf16 => (None, "bfloat16"),
            Number::F32 => (Some("<f4"), "float32"),
        }
    }
}

impl From<Dtype> for Number {
    fn from(dtype: Dtype) -> Number {
        match dtype {
            Dtype::U8 => Number::U8,
            Dtype::F16 => Number::F16,
            Dtype::Bf16 => Number::Bf16,
            Dtype::F32 => Number::F32,
        }
    }
}

impl From<SoundNumber> for Number {
    fn from(number: SoundNumber) -> Number {
        match number {
            SoundNumber::F32 => Number::F32,
            SoundNumber::I16 => Number::I16,
        }
    }
}

/// A tensor somewhere in a block: dense, but for the first axis where samples have other fields behind this one.
#[derive(Clone)]
pub struct View {
    /// Where it begins.
    pub address: usize,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its strides in numbers.
    pub strides: Vec<usize>,
    /// Type of a number.
    pub number: Number,
}

impl View {
    fn dense(address: usize, shape: Vec<usize>, number: Number) -> View {
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        View { address, shape, strides, number }
    }

    /// Samples of one shape, as far apart as they are; dense if there is none or one.
    fn of(samples: &[View]) -> Option<View> {
        let first = samples.first()?;
        let whole = View::dense(first.address, [&[samples.len()], &first.shape[..]].concat(), first.number);
        let Some(second) = samples.get(1) else { return Some(whole) };
        let step = second.address.checked_sub(first.address)?;
        let even = samples.windows(2).all(|w| w[1].address.checked_sub(w[0].address) == Some(step));
        let strides = [&[step / first.number.size()], &first.strides[..]].concat();
        even.then_some(View { strides, ..whole })
    }

    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.number.size()
    }
}

/// The sound of a batch.
struct Sound {
    samples: Vec<View>,
    whole: Option<View>,
    /// Numbers of a channel that belong to each sample; whether its file has sound; when it begins, seconds.
    lengths: Vec<u32>,
    present: Vec<bool>,
    starts: Vec<f64>,
    rate: u32,
}

impl Sound {
    fn of(batch: &mut Delivered, count: usize) -> Result<Option<Sound>, BatchError> {
        let Ok(sound) = batch.sound() else { return Ok(None) };
        let mut lengths = sound.lengths();
        let mut present = sound.present();
        lengths.truncate(count);
        present.truncate(count);
        let starts = (0..count).map(|i| sound.head(i).map_or(0.0, |head| head.start_us as f64 / 1e6)).collect();
        let (audio, number) = (sound.audio.clone(), Number::from(sound.audio.number));
        let shape = vec![usize::from(audio.channels), audio.capacity() as usize];
        let address = |i| batch.sample_mut(i, "audio").map(|bytes| bytes.as_mut_ptr() as usize);
        let samples: Vec<View> = (0..count)
            .map(address)
            .map(|at| at.map(|at| View::dense(at, shape.clone(), number)))
            .collect::<Result<_, _>>()?;
        Ok(Some(Sound { whole: View::of(&samples), samples, lengths, present, starts, rate: audio.rate }))
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
    sound: Option<Sound>,
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
            strides: t.strides.to_vec(),
            number: t.dtype.into(),
        });
        let number = batch.dtype().into();
        let mut samples = Vec::with_capacity(count);
        for i in 0..count {
            let shape = batch.shape(i)?.map(usize::from).to_vec();
            let address = batch.sample_mut(i, "video")?.as_mut_ptr() as usize;
            samples.push(View::dense(address, shape, number));
        }
        let mut sound = Sound::of(&mut batch, count)?;
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
                let (lines, bytes) = copy_out(&batch, &mut samples, sound.as_mut())?;
                facts.copied = bytes;
                let address = lines.as_ptr() as usize;
                let whole = whole.map(|w| View::dense(address, w.shape, w.number));
                (Block { _memory: Memory::Heap(lines), live: None }, whole)
            }
        };
        Ok(Batch { block: Arc::new(block), samples, whole, sound, facts })
    }

    /// Seconds that `next` waited for it.
    pub fn waited(&self) -> f64 {
        self.facts.wait
    }

    /// What it costs over what the step's mean rank has.
    pub fn spread(&self) -> f64 {
        let (own, mean) = self.facts.cost;
        if mean > 0.0 { f64::from(own / mean) } else { 1.0 }
    }

    /// Bytes that were copied to take it off the slab.
    pub fn copied_bytes(&self) -> usize {
        self.facts.copied
    }
}

/// Copies samples to memory of their own, field by field and one behind the other, and has their views point there.
fn copy_out(
    batch: &Delivered,
    samples: &mut [View],
    sound: Option<&mut Sound>,
) -> Result<(Vec<Line>, usize), BatchError> {
    let total = |views: &[View]| views.iter().map(View::bytes).sum::<usize>();
    // Each field begins on a line.
    let video = total(samples).next_multiple_of(64);
    let bytes = video + sound.as_ref().map_or(0, |sound| total(&sound.samples));
    let mut lines = vec![Line([0; 64]); bytes.div_ceil(64)];
    let base = lines.as_mut_ptr().cast::<u8>();
    let mut copied = 0;
    let mut copy = |name: &str, views: &mut [View], mut at: usize| -> Result<(), BatchError> {
        for (i, view) in views.iter_mut().enumerate() {
            let from = batch.sample(i, name)?;
            // SAFETY: the lines have room for all fields of all samples, and nobody else knows them yet.
            let to = unsafe { std::slice::from_raw_parts_mut(base.add(at), from.len()) };
            to.copy_from_slice(from);
            view.address = to.as_ptr() as usize;
            at += from.len();
            copied += from.len();
        }
        Ok(())
    };
    copy("video", samples, 0)?;
    if let Some(sound) = sound {
        copy("audio", &mut sound.samples, video)?;
        sound.whole = View::of(&sound.samples);
    }
    Ok((lines, copied))
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

    /// The sound of all samples as one tensor, padded with silence; `None` where none was asked for.
    fn audio(&self) -> PyResult<Option<Tensor>> {
        let Some(sound) = &self.sound else { return Ok(None) };
        let view = sound.whole.clone().ok_or_else(|| {
            let text = "this batch's samples are in several places, so that their sound is no one tensor: take it \
                        sample by sample, or look at the video first";
            errors::HelixError::new_err(text)
        })?;
        Ok(Some(Tensor { block: Arc::clone(&self.block), view }))
    }

    /// The sound of one sample, as long as it is.
    fn audio_sample(&self, i: usize) -> PyResult<Tensor> {
        let found = self.sound.as_ref().and_then(|sound| Some((sound.samples.get(i)?, *sound.lengths.get(i)?)));
        let (view, length) = found.ok_or_else(|| PyIndexError::new_err(format!("no sound of a sample {i}")))?;
        let mut view = view.clone();
        view.shape[1] = length as usize;
        Ok(Tensor { block: Arc::clone(&self.block), view })
    }

    /// What is said of the sound: numbers a second; of each sample numbers of a channel, whether its file has sound,
    /// when it begins, seconds. `None` where none was asked for.
    #[getter]
    #[allow(clippy::type_complexity, reason = "a tuple for one caller")]
    fn audio_facts(&self) -> Option<(u32, Vec<u32>, Vec<bool>, Vec<f64>)> {
        let sound = self.sound.as_ref()?;
        Some((sound.rate, sound.lengths.clone(), sound.present.clone(), sound.starts.clone()))
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

/// A tensor on the host. Frameworks take it by `__dlpack__`, NumPy by `__array_interface__`; neither copies.
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
        let Some(code) = self.view.number.names().0 else {
            let text = "NumPy has no bfloat16: use torch, or float16 or float32";
            return Err(pyo3::exceptions::PyAttributeError::new_err(text));
        };
        dict.set_item("typestr", code)?;
        let strides = self.view.strides.iter().map(|n| n * self.view.number.size());
        dict.set_item("strides", PyTuple::new(py, strides.collect::<Vec<_>>())?)?;
        Ok(dict)
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.view.shape)
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.view.number.names().1
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
