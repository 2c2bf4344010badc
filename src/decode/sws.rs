//! swscale's conversions, and planes that it may write into.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use ffmpeg_next::ffi;

use super::ffi::{Family, Frame, FrameFormat, pixel_format};

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
}

/// A conversion of frames of one format and size to planes of another size.
pub(super) struct Sws {
    context: NonNull<ffi::SwsContext>,
    from: FrameFormat,
    width: usize,
    height: usize,
}

impl Sws {
    /// A bilinear (when it shrinks: area-weighted), accurately rounding conversion to `width` × `height`, for frames
    /// whose matrix is `SWS_CS_*` number `matrix`; `None` if swscale cannot do it.
    pub(super) fn new(
        from: FrameFormat,
        width: usize,
        height: usize,
        matrix: c_int,
        full_range: bool,
    ) -> Option<Sws> {
        let pixels = pixel_format(from.pixels)?;
        let (w, h) = (c_int::try_from(width).ok()?, c_int::try_from(height).ok()?);
        let flags = ffi::SWS_BILINEAR | ffi::SWS_ACCURATE_RND;
        // SAFETY: plain calls; the tables of coefficients are static.
        unsafe {
            let (no_filter, to) = (ptr::null_mut(), ffi::AVPixelFormat::AV_PIX_FMT_GBRP);
            let context = ffi::sws_getContext(
                from.width,
                from.height,
                pixels,
                w,
                h,
                to,
                flags,
                no_filter,
                no_filter,
                ptr::null(),
            );
            let sws = Sws { context: NonNull::new(context)?, from, width, height };
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
        // SAFETY: the context was made for a frame of this format and size, whose planes FFmpeg keeps while `frame`
        // holds it; each plane of the scratch has `height` rows and room behind them for wide stores.
        let rows = unsafe {
            let data = from.data.as_ptr().cast::<*const u8>();
            let context = self.context.as_ptr();
            ffi::sws_scale(context, data, from.linesize.as_ptr(), 0, from.height, planes.as_ptr(), strides.as_ptr())
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
