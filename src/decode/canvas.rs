//! The way into the batch for decoders that make pictures of red, green and blue bytes themselves: they give the frames
//! that are wanted, and every transform is done to these as to FFmpeg's.

use super::ffi::Frame;
use super::target::{Scalers, Target};
use super::{Outcome, Request, SampleError, Stage};

/// What is dear to make between samples: a decoder keeps one.
pub struct Easel {
    scalers: Scalers,
    frame: Frame,
}

impl Default for Easel {
    fn default() -> Self {
        Easel::new()
    }
}

impl Easel {
    /// An easel.
    pub fn new() -> Easel {
        Easel { scalers: Scalers::default(), frame: Frame::new() }
    }

    /// Checks a request and finds the places of its frames in `out`.
    pub fn canvas<'e, 'o>(
        &'e mut self,
        request: &Request<'_>,
        out: &'o mut [u8],
    ) -> Result<Canvas<'e, 'o>, SampleError> {
        self.mirrored_canvas(request, false, out)
    }

    /// As [`canvas`](Self::canvas), for pictures that are to be mirrored after they are turned upright.
    pub fn mirrored_canvas<'e, 'o>(
        &'e mut self,
        request: &Request<'_>,
        mirrored: bool,
        out: &'o mut [u8],
    ) -> Result<Canvas<'e, 'o>, SampleError> {
        let target = Target::new(request, mirrored, out)?;
        let written = vec![false; target.frames.len()];
        Ok(Canvas { easel: self, target, written })
    }
}

/// One sample on its way. Each wanted frame is put on it once.
pub struct Canvas<'e, 'o> {
    easel: &'e mut Easel,
    target: Target<'o>,
    written: Vec<bool>,
}

impl Canvas<'_, '_> {
    /// Numbers of the clip's frames that are wanted, each once, ascending.
    pub fn wanted(&self) -> &[u32] {
        &self.target.frames
    }

    /// Puts a frame to its places: `width` × `height` pixels of red, green and blue, row by row without gaps, as coded
    /// (the descriptor's rotation turns it upright). Frames that are not wanted are let go.
    pub fn put(&mut self, frame: u32, rgb: &[u8], width: u16, height: u16) -> Result<(), SampleError> {
        let Ok(which) = self.target.frames.binary_search(&frame) else { return Ok(()) };
        let fail = |reason: String| SampleError::new(Stage::Transform, format!("frame {frame}: {reason}"));
        self.easel.frame.fill(rgb, width, height).map_err(fail)?;
        self.target.write(which, &self.easel.frame, &mut self.easel.scalers).map_err(fail)?;
        self.written[which] = true;
        Ok(())
    }

    /// Ends the sample, for which so many frames were decoded; an error if a wanted one did not come.
    pub fn finish(self, frames_decoded: u32) -> Result<Outcome, SampleError> {
        match self.written.iter().position(|written| !written) {
            None => Ok(self.target.outcome(frames_decoded)),
            Some(which) => {
                let frame = self.target.frames[which];
                Err(SampleError::new(Stage::Decode, format!("frame {frame} did not come")))
            }
        }
    }
}
