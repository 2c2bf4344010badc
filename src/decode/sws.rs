//! swscale's conversions, and planes that it may write into.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use ffmpeg_next::ffi;

use super::ffi::{Family, Frame, FrameFormat, Grid, pixel_format};
use super::pixels::Rect;
use crate::proto::transform::Filter;

/// Red, green and blue planes that swscale may write into: its wide stores pass the end of a row, so rows are
/// padded and a guard follows the last.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    rgb: [Vec<u8>; 3],
    stride: usize,
    height: usize,
}

impl Scratch {
    /// Bytes behind a row's pixels that swscale may spoil: its widest store is 64 bytes.
    const GUARD: usize = 64;

    /// Makes room for frames of a size.
    pub(super) fn resize(&mut self, width: usize, height: usize) {
        self.stride = width.next_multiple_of(64) + Self::GUARD;
        self.height = height;
        let bytes = self.stride * height + Self::GUARD;
        self.rgb.iter_mut().for_each(|plane| plane.resize(bytes, 0));
    }

    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    pub(super) fn rgb(&self) -> [&[u8]; 3] {
        std::array::from_fn(|c| self.rgb[c].as_slice())
    }

    pub(super) fn rgb_mut(&mut self) -> &mut [Vec<u8>; 3] {
        &mut self.rgb
    }
}

/// The cubic's value and slope at 1: a = −0.5, as others have it; swscale's own is −0.6.
static CUBIC: [f64; 2] = [0.0, 0.5];

/// A conversion of frames of one format and size to planes of another size.
pub(super) struct Sws {
    context: NonNull<ffi::SwsContext>,
    from: FrameFormat,
    /// The part of the frame that is read, and where its bytes begin in each plane.
    part: Rect,
    grid: Grid,
    width: usize,
    height: usize,
}

impl Sws {
    /// An accurately rounding conversion of a part of frames to `width` × `height`, the same on every processor, for
    /// frames whose matrix is `SWS_CS_*` number `matrix`; `None` if swscale cannot do it.
    pub(super) fn new(
        from: FrameFormat,
        (part, grid): (Rect, Grid),
        (width, height): (usize, usize),
        filter: Filter,
        (matrix, full_range): (c_int, bool),
    ) -> Option<Sws> {
        let pixels = pixel_format(from.pixels)?;
        let (w, h) = (c_int::try_from(width).ok()?, c_int::try_from(height).ok()?);
        let (filter, parameters) = match filter {
            Filter::Bilinear => (ffi::SWS_BILINEAR, ptr::null()),
            Filter::Bicubic => (ffi::SWS_BICUBIC, CUBIC.as_ptr()),
            Filter::Area => (ffi::SWS_AREA, ptr::null()),
        };
        // Of RGB every pixel's colour counts; by default swscale takes that of every second one.
        let all = if matches!(from.family()?.0, Family::Rgb) { ffi::SWS_FULL_CHR_H_INP } else { 0 };
        let flags = filter | all | ffi::SWS_ACCURATE_RND | ffi::SWS_BITEXACT;
        let (from_width, from_height) = (c_int::try_from(part.width).ok()?, c_int::try_from(part.height).ok()?);
        // SAFETY: plain calls; the tables of coefficients are static.
        unsafe {
            let (no_filter, to) = (ptr::null_mut(), ffi::AVPixelFormat::AV_PIX_FMT_GBRP);
            let context = ffi::sws_getContext(
                from_width,
                from_height,
                pixels,
                w,
                h,
                to,
                flags,
                no_filter,
                no_filter,
                parameters,
            );
            let sws = Sws { context: NonNull::new(context)?, from, part, grid, width, height };
            let table = ffi::sws_getCoefficients(matrix);
            let unity = 1 << 16;
            let set = ffi::sws_setColorspaceDetails(context, table, full_range.into(), table, 1, 0, unity, unity);
            let has_matrix = !matches!(from.family()?.0, Family::Rgb);
            (set >= 0 || !has_matrix).then_some(sws)
        }
    }

    /// Converts a frame. `false` if swscale failed.
    ///
    /// # Panics
    /// If the frame or the scratch is not of the format and size that this conversion is for.
    pub(super) fn convert(&mut self, frame: &Frame, to: &mut Scratch) -> bool {
        assert_eq!(frame.format(), self.from, "a conversion for other frames");
        let needed = to.stride * self.height + Scratch::GUARD;
        assert!(to.stride >= self.width + Scratch::GUARD && to.height == self.height);
        assert!(to.rgb.iter().all(|plane| plane.len() >= needed));
        let [r, g, b] = &mut to.rgb;
        // Planar RGB is stored green, blue, red.
        let planes = [g.as_mut_ptr(), b.as_mut_ptr(), r.as_mut_ptr(), ptr::null_mut()];
        let stride = to.stride as c_int;
        let strides = [stride, stride, stride, 0];
        let from = frame.get();
        let Rect { x, y, height, .. } = self.part;
        let mut data = [ptr::null::<u8>(); 4];
        for (p, start) in data.iter_mut().enumerate() {
            let offset = self.grid.offset(p, x, y, from.linesize[p]);
            // SAFETY: the part begins inside the frame, so that this is inside the plane, where there is one.
            *start = if from.data[p].is_null() { ptr::null() } else { unsafe { from.data[p].offset(offset) } };
        }
        // SAFETY: the context was made for a part of frames of this format and size, which lies inside them; FFmpeg
        // keeps their planes while `frame` holds them; each plane of the scratch has `height` rows and room behind
        // them for wide stores.
        let rows = unsafe {
            let (context, linesize) = (self.context.as_ptr(), from.linesize.as_ptr());
            ffi::sws_scale(context, data.as_ptr(), linesize, 0, height as c_int, planes.as_ptr(), strides.as_ptr())
        };
        rows == self.height as c_int
    }
}

impl Drop for Sws {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once.
        unsafe { ffi::sws_freeContext(self.context.as_ptr()) };
    }
}
