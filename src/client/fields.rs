//! The fields of a batch beside its frames: sound, and texts.
//!
//! The sound of a sample lies behind its frames in the same region, so that it is on the slab like them. Texts come from
//! the manifest, which this process has mapped: to send them through a worker would be to copy them twice.

use super::batch::{Batch, Piece};
use super::tensor::BatchError;
use crate::proto::fields::{Audio, SOUND_MISSING, SoundHead, sound_at};

/// The frames.
pub(super) const VIDEO: &str = "video";
/// The sound, where the transform asks for it.
pub(super) const AUDIO: &str = "audio";

/// The sound of a batch, on the slab: for each sample one channel after the other, each with room for
/// [`Audio::capacity`] numbers, of which [`lengths`](Self::lengths) belong to the sample and the rest is silence.
#[derive(Clone)]
pub struct Sound<'a> {
    /// What was asked for: rate, channels, type of a number.
    pub audio: &'a Audio,
    heads: Vec<SoundHead>,
    samples: Vec<&'a [u8]>,
}

impl<'a> Sound<'a> {
    /// What is known of a sample's sound, such as how much of it is silence because the file had none for that time.
    pub fn head(&self, i: usize) -> Option<&SoundHead> {
        self.heads.get(i)
    }

    /// Numbers of a channel of each sample.
    pub fn lengths(&self) -> Vec<u32> {
        self.heads.iter().map(|head| head.samples).collect()
    }

    /// For each sample whether its file has any sound.
    pub fn present(&self) -> Vec<bool> {
        self.heads.iter().map(|head| head.flags & SOUND_MISSING == 0).collect()
    }

    /// The bytes of a channel of a sample, as long as the sample is.
    pub fn channel(&self, i: usize, channel: u8) -> Option<&'a [u8]> {
        let size = self.audio.number.size();
        let all = self.audio.capacity() as usize * size;
        let from = (channel < self.audio.channels).then(|| usize::from(channel) * all)?;
        self.samples.get(i)?.get(from..from + self.heads.get(i)?.samples as usize * size)
    }

    /// As [`channel`](Self::channel), as numbers of the type asked for, if it is theirs (`f32` or `i16`).
    pub fn numbers<T: bytemuck::Pod>(&self, i: usize, channel: u8) -> Option<&'a [T]> {
        let bytes = self.channel(i, channel).filter(|_| size_of::<T>() == self.audio.number.size())?;
        bytemuck::try_cast_slice(bytes).ok()
    }
}

/// A field of differing lengths: all samples' bytes one behind the other, and where each begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ragged {
    /// The bytes of all samples.
    pub data: Vec<u8>,
    /// Where each sample begins in them, and where the last one ends.
    pub offsets: Vec<usize>,
}

impl Ragged {
    pub(super) fn of<'a>(samples: impl Iterator<Item = &'a [u8]>) -> Ragged {
        let mut ragged = Ragged { data: Vec::new(), offsets: vec![0] };
        for bytes in samples {
            ragged.data.extend_from_slice(bytes);
            ragged.offsets.push(ragged.data.len());
        }
        ragged
    }

    /// Samples.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers of a sample, where they are `i32` as tokens are.
    pub fn numbers(&self, i: usize) -> Option<Vec<i32>> {
        let (numbers, rest) = self.get(i)?.as_chunks::<4>();
        rest.is_empty().then(|| numbers.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect())
    }

    /// The bytes of a sample.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        self.data.get(*self.offsets.get(i)?..*self.offsets.get(i + 1)?)
    }
}

impl Batch {
    /// The sound of all samples. No byte is copied.
    pub fn sound(&self) -> Result<Sound<'_>, BatchError> {
        let audio = self.audio.as_ref().ok_or_else(|| BatchError::field("field", AUDIO, false))?;
        let samples = (0..self.len()).map(|i| self.sample(i, AUDIO)).collect::<Result<_, _>>()?;
        let heads = (0..self.len()).filter_map(|i| self.sound_head(i)).collect();
        Ok(Sound { audio, heads, samples })
    }

    /// A field of differing lengths: `text` (also as `caption`), the label or caption that the manifest has of each
    /// sample, as UTF-8; with a tokenizer also `tokens`, its ids as `i32`.
    pub fn ragged(&self, name: &str) -> Result<Ragged, BatchError> {
        if let ("tokens", Some(made)) = (name, &self.token_ids) {
            return made.clone().map_err(BatchError::Tokens);
        }
        match (name, &self.manifest) {
            ("text" | "caption", Some(manifest)) => {
                Ok(Ragged::of(self.ids.iter().map(|&row| manifest.descriptor(row).text.as_bytes())))
            }
            _ => Err(BatchError::field("ragged field", name, self.audio.is_some())),
        }
    }

    /// Where a field begins in a sample's region, and its bytes.
    pub(super) fn field(&self, i: usize, name: &str) -> Result<(u64, u64), BatchError> {
        let video = self.video_bytes(self.piece(i)?);
        match (name, &self.audio) {
            (VIDEO, _) => Ok((0, video)),
            (AUDIO, Some(audio)) => Ok((sound_at(video) + size_of::<SoundHead>() as u64, audio.numbers_bytes())),
            (_, audio) => Err(BatchError::field("field", name, audio.is_some())),
        }
    }

    fn video_bytes(&self, piece: &Piece) -> u64 {
        match self.audio {
            None => piece.bytes,
            Some(_) => piece.shape.iter().map(|&n| u64::from(n)).product::<u64>() * self.dtype.size() as u64,
        }
    }

    /// What the worker said of a sample's sound; `None` where the transform asks for none.
    pub(super) fn sound_head(&self, i: usize) -> Option<SoundHead> {
        let audio = self.audio.as_ref()?;
        let at = sound_at(self.video_bytes(self.piece(i).ok()?));
        Some(SoundHead::read(self.within(i, at, size_of::<SoundHead>() as u64), audio))
    }
}
