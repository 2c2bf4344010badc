//! What a batch hands out: tensors, and why there is none.

use crate::proto::transform::Dtype;

/// What cannot be had from a batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// There is no such tensor.
    #[error("a batch has no {kind} `{name}`; it has {has}")]
    Name {
        /// What was asked for: a tensor, a ragged field, sound.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What there is of that kind.
        has: &'static str,
    },
    /// A caption could not be taken apart.
    #[error("tokens: {0}")]
    Tokens(String),
    /// There is no such sample.
    #[error("sample {index} of a batch of {len}; `len()` says how many were delivered")]
    Index {
        /// What was asked for.
        index: usize,
        /// Samples in the batch.
        len: usize,
    },
    /// The samples have different shapes, so that no tensor holds them all.
    #[error(
        "the samples of this batch have different shapes ({first:?} and {other:?}): take them one by one with \
         `sample(i)` and `shape(i)`, or give the transform a fixed size"
    )]
    Ragged {
        /// Shape of the first sample.
        first: [u16; 4],
        /// The first shape that differs.
        other: [u16; 4],
    },
    /// All samples were skipped and the transform has no fixed shape.
    #[error("every sample of this batch was skipped, and the transform has no fixed shape: look at `len()` first")]
    Empty,
}

impl BatchError {
    pub(super) fn field(kind: &'static str, name: &str, has_audio: bool) -> BatchError {
        let has = match kind {
            "ragged field" => "`text` (also as `caption`) and, with a tokenizer, `tokens`",
            _ if has_audio => "`video` and `audio`",
            _ => "`video`",
        };
        BatchError::Name { kind, name: name.to_owned(), has }
    }
}

/// A tensor on the slab: samples first, then the axes of the transform's layout. It is contiguous, unless the samples
/// have other fields behind their frames: then the first stride says how far the next sample is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tensor<'a> {
    /// Its bytes.
    pub data: &'a [u8],
    /// Its shape.
    pub shape: [usize; 5],
    /// Its strides in numbers, not bytes.
    pub strides: [usize; 5],
    /// Type of a number.
    pub dtype: Dtype,
}

impl<'a> Tensor<'a> {
    /// Whether its samples lie one behind the other.
    pub fn is_contiguous(&self) -> bool {
        let [samples, a, b, c, d] = self.shape;
        samples < 2 || self.strides[0] == a * b * c * d
    }

    /// Its numbers, if they are of the type asked for (`u8` or `f32`) and contiguous.
    pub fn numbers<T: bytemuck::Pod>(&self) -> Option<&'a [T]> {
        (size_of::<T>() == self.dtype.size() && self.is_contiguous())
            .then(|| bytemuck::try_cast_slice(self.data).ok())
            .flatten()
    }
}

/// As [`Tensor`], writable: a batch belongs to its rank alone.
#[derive(Debug)]
pub struct TensorMut<'a> {
    /// Its bytes.
    pub data: &'a mut [u8],
    /// Its shape.
    pub shape: [usize; 5],
    /// Its strides in numbers, not bytes.
    pub strides: [usize; 5],
    /// Type of a number.
    pub dtype: Dtype,
}

/// Bytes from the first number to the end of the last one.
pub(super) fn extent(shape: &[usize; 5], strides: &[usize; 5], dtype: Dtype) -> usize {
    let sample: usize = shape[1..].iter().product();
    shape[0].checked_sub(1).map_or(0, |before| before * strides[0] + sample) * dtype.size()
}
