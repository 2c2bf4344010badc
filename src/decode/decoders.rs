//! The decoders of a worker: which one a row of the manifest is for.

use super::audio::AudioDecoder;
use super::emulated::{self, Emulated, sound_of};
use super::webp::AnimatedWebp;
use super::{Decoder, Input, Outcome, Request, SampleError, Stage, VideoDecoder};
use crate::manifest::webp;
use crate::proto::transform::Layout;

/// All decoders of a worker. Rows go by their container: to a decoder of the user's own that was added for it, else to
/// the built-in ones.
pub struct Decoders {
    own: Vec<(String, Box<dyn Decoder>)>,
    video: VideoDecoder,
    audio: AudioDecoder,
    webp: AnimatedWebp,
    emulated: Emulated,
}

impl Decoders {
    /// The built-in ones, made anew.
    pub fn new() -> Self {
        let (video, audio, webp) = (VideoDecoder::new(), AudioDecoder::new(), AnimatedWebp::default());
        Decoders { own: Vec::new(), video, audio, webp, emulated: Emulated }
    }

    /// Adds a decoder for the rows whose container has this name; it comes before a built-in one for the same.
    #[must_use]
    pub fn with(mut self, container: &str, decoder: impl Decoder + 'static) -> Self {
        self.own.push((container.into(), Box::new(decoder)));
        self
    }
}

impl Default for Decoders {
    fn default() -> Self {
        Decoders::new()
    }
}

impl Decoder for Decoders {
    fn decode(&mut self, input: &Input, request: &Request<'_>, out: &mut [u8]) -> Result<Outcome, SampleError> {
        let Request { descriptor, transform, .. } = request;
        if descriptor.container == emulated::CONTAINER {
            return self.emulated.decode(input, request, out);
        }
        let outcome = if transform.layout == Layout::Sound {
            transform.check().map_err(|e| SampleError::new(Stage::Transform, e.to_string()))?;
            let facts = descriptor.facts();
            let (written, shape) = (transform.max_bytes(&facts), transform.shape(&facts));
            Outcome { written, shape, frames_decoded: 0, actual: None }
        } else {
            self.frames(input, request, out)?
        };
        if let Some((from, audio)) = sound_of(request) {
            let room = out.len();
            let place = usize::try_from(outcome.written).ok().and_then(|end| out.get_mut(..end));
            let place = place.and_then(|place| place.get_mut(from..)).ok_or_else(|| {
                SampleError::new(Stage::Transform, format!("its place has {room} bytes, and the sound is behind it"))
            })?;
            self.audio.decode(input, request, audio, place)?;
        }
        Ok(outcome)
    }
}

impl Decoders {
    /// The frames alone.
    fn frames(&mut self, input: &Input, request: &Request<'_>, out: &mut [u8]) -> Result<Outcome, SampleError> {
        let container = request.descriptor.container;
        if let Some((_, decoder)) = self.own.iter_mut().rev().find(|(name, _)| name == container) {
            return decoder.decode(input, request, out);
        }
        match container {
            webp::CONTAINER => self.webp.decode(input, request, out),
            _ => self.video.decode(input, request, out),
        }
    }
}
