//! The decoders of a worker: which one a row of the manifest is for.

use super::emulated::{self, Emulated};
use super::webp::AnimatedWebp;
use super::{Decoder, Input, Outcome, Request, SampleError, VideoDecoder};
use crate::manifest::webp;

/// All decoders of a worker. Rows go by their container: to a decoder of the user's own that was added for it, else to
/// the built-in ones.
pub struct Decoders {
    own: Vec<(String, Box<dyn Decoder>)>,
    video: VideoDecoder,
    webp: AnimatedWebp,
    emulated: Emulated,
}

impl Decoders {
    /// The built-in ones, made anew.
    pub fn new() -> Self {
        let (video, webp) = (VideoDecoder::new(), AnimatedWebp::default());
        Decoders { own: Vec::new(), video, webp, emulated: Emulated }
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
        let container = request.descriptor.container;
        if let Some((_, decoder)) = self.own.iter_mut().rev().find(|(name, _)| name == container) {
            return decoder.decode(input, request, out);
        }
        match container {
            emulated::CONTAINER => self.emulated.decode(input, request, out),
            webp::CONTAINER => self.webp.decode(input, request, out),
            _ => self.video.decode(input, request, out),
        }
    }
}
