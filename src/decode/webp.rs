//! Animated WebP, by `image-webp`: FFmpeg 5.1 knows still ones alone.
//!
//! Each frame is drawn over the ones before it, so all up to the last wanted one are decoded. Alpha is dropped, as it is of
//! video.

use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};

use image_webp::{DecodingError, WebPDecoder};

use super::canvas::Easel;
use super::ffi::MAX_PIXELS;
use super::orient::is_mirrored;
use super::{Decoder, Input, Outcome, Request, SampleError, Stage};

/// Most memory that a frame may take while it is decoded.
const MOST_MEMORY: usize = 1 << 30;

/// See the head of the file.
#[derive(Default)]
pub(super) struct AnimatedWebp {
    easel: Easel,
    pixels: Vec<u8>,
    rgb: Vec<u8>,
}

impl Decoder for AnimatedWebp {
    fn decode(&mut self, input: &Input, request: &Request<'_>, out: &mut [u8]) -> Result<Outcome, SampleError> {
        let mut canvas = self.easel.mirrored_canvas(request, is_mirrored(input), out)?;
        let reader = BufReader::new(Cursor { input, at: 0 });
        let mut webp = calmly(Stage::Demux, || WebPDecoder::new(reader))?;
        webp.set_memory_limit(MOST_MEMORY);
        let (width, height) = webp.dimensions();
        let (Ok(w), Ok(h)) = (u16::try_from(width), u16::try_from(height)) else {
            return Err(SampleError::new(Stage::Demux, format!("pictures of {width}x{height} are too large")));
        };
        if i64::from(width) * i64::from(height) > MAX_PIXELS {
            return Err(SampleError::new(Stage::Demux, format!("pictures of {width}x{height} are too large")));
        }
        let channels = if webp.has_alpha() { 4 } else { 3 };
        self.pixels.resize(width as usize * height as usize * channels, 0);
        let end = canvas.wanted().last().map_or(0, |last| last + 1);
        let frames = webp.num_frames();
        for frame in 0..end {
            if frame >= frames {
                return Err(SampleError::new(Stage::Decode, format!("frame {frame} of {frames} does not come")));
            }
            calmly(Stage::Decode, || webp.read_frame(&mut self.pixels))?;
            if canvas.wanted().binary_search(&frame).is_err() {
                continue;
            }
            let rgb = if channels == 3 {
                &self.pixels
            } else {
                self.rgb.clear();
                self.rgb.extend(self.pixels.as_chunks::<4>().0.iter().flat_map(|[r, g, b, _]| [*r, *g, *b]));
                &self.rgb
            };
            canvas.put(frame, rgb, w, h)?;
        }
        canvas.finish(end)
    }
}

/// Calls the library, which panics at some damaged files: that is the sample's fault and not the worker's.
fn calmly<T>(stage: Stage, call: impl FnOnce() -> Result<T, DecodingError>) -> Result<T, SampleError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(made)) => Ok(made),
        Ok(Err(DecodingError::IoError(e))) => Err(SampleError::new(Stage::Read, e.to_string())),
        Ok(Err(other)) => Err(SampleError::new(stage, other.to_string())),
        Err(_) => Err(SampleError::new(stage, "the file is damaged in a way that the WebP decoder does not expect")),
    }
}

/// A sample's bytes as a file.
struct Cursor<'i> {
    input: &'i Input,
    at: u64,
}

impl Read for Cursor<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.input.with_bytes(self.at, out.len(), |bytes| {
            out[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        })?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Cursor<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.input.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
