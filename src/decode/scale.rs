//! From a decoded frame to small red, green and blue planes in one pass, by the frame's own colours.
//!
//! Matrix and range are what the stream says. What it leaves open is decided as players do: BT.709 from 1280 pixels
//! of width or 577 of height on and BT.601 below; limited range for YUV, full range for grey and for the `yuvj`
//! formats. Transfer and primaries are not touched: HDR stays HDR, in 8 bits. Alpha is dropped.

use std::ffi::c_int;

use ffmpeg_next::ffi::{self, AVColorRange, AVColorSpace};

use super::colour::Colour;
use super::ffi::{Family, Frame, FrameFormat, Grid};
use super::pixels::{Planes, Rect};
use super::sws::{Scratch, Sws};
use crate::proto::transform::Filter;

/// What of a frame is brought to which size, and how. In the frame as coded, not upright.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Geometry {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) filter: Filter,
    /// A part of frames of this size; all of them where there is none.
    pub(super) part: Option<(Rect, (usize, usize))>,
}

impl Geometry {
    /// The part of a frame, which may have another size than expected, on the grid of its colour samples.
    fn part_of(&self, format: &FrameFormat, grid: &Grid) -> Rect {
        let (w, h) = (format.width as usize, format.height as usize);
        let Some((part, (of_width, of_height))) = self.part else { return Rect { x: 0, y: 0, width: w, height: h } };
        let (x, width) = on_grid((part.x, part.width), of_width, w, grid.shift_x);
        let (y, height) = on_grid((part.y, part.height), of_height, h, grid.shift_y);
        Rect { x, y, width, height }
    }
}

/// A stretch of `of` pixels as one of `is` pixels, outwards to the grid: what was drawn is never cut.
fn on_grid((from, len): (usize, usize), of: usize, is: usize, shift: u32) -> (usize, usize) {
    let (of, step) = (of.max(1), 1 << shift);
    let start = from * is / of / step * step;
    let end = ((from + len) * is).div_ceil(of).next_multiple_of(step).min(is);
    // A frame that is much smaller than expected still gives a pixel.
    let start = start.min((is - 1) / step * step);
    (start, end.max(start + 1) - start)
}

/// Converts frames to one size; keeps the conversion while frames stay alike.
#[derive(Default)]
pub(super) struct Scaler {
    scratch: Scratch,
    current: Option<(FrameFormat, Geometry, Sws)>,
}

impl Scaler {
    /// The frame as planes of the geometry's size, not rotated, the colours of a part of them changed.
    pub(super) fn convert(
        &mut self,
        frame: &Frame,
        geometry: &Geometry,
        colour: Option<(&Colour, Rect)>,
    ) -> Result<Planes<'_>, String> {
        let format = frame.format();
        let &Geometry { width, height, filter, .. } = geometry;
        if !self.current.as_ref().is_some_and(|(f, g, _)| (f, g) == (&format, geometry)) {
            self.current = None;
            let colours = colours(&format)?;
            let fail = || unsupported(&format, width, height);
            let grid = format.grid().ok_or_else(fail)?;
            if geometry.part.is_some() && !grid.can_be_cut {
                return Err(format!("a part of {} cannot be taken: use another crop", name_of(&format)));
            }
            let part = geometry.part_of(&format, &grid);
            let sws = Sws::new(format, (part, grid), (width, height), filter, colours).ok_or_else(fail)?;
            self.scratch.resize(width, height);
            self.current = Some((format, geometry.clone(), sws));
        }
        let (.., sws) = self.current.as_mut().expect("set above");
        if !sws.convert(frame, &mut self.scratch) {
            return Err(unsupported(&format, width, height));
        }
        if let Some((colour, part)) = colour {
            let stride = self.scratch.stride();
            colour.apply(self.scratch.rgb_mut(), stride, part);
        }
        Ok(Planes { rgb: self.scratch.rgb(), stride: self.scratch.stride(), width, height })
    }
}

fn unsupported(format: &FrameFormat, width: usize, height: usize) -> String {
    let (name, w, h) = (name_of(format), format.width, format.height);
    format!("swscale cannot turn a {w}x{h} frame of pixel format {name} into {width}x{height} RGB")
}

fn name_of(format: &FrameFormat) -> String {
    format.family().map_or_else(|| format!("number {}", format.pixels), |(_, name)| name)
}

/// The frame's matrix as swscale numbers it, and whether its range is full.
fn colours(format: &FrameFormat) -> Result<(c_int, bool), String> {
    let (family, _) = format.family().ok_or_else(|| format!("unknown pixel format {}", format.pixels))?;
    let full = match family {
        Family::Rgb | Family::YuvFull => true,
        _ if format.range == AVColorRange::AVCOL_RANGE_JPEG as u32 => true,
        _ if format.range == AVColorRange::AVCOL_RANGE_MPEG as u32 => false,
        Family::Grey => true,
        Family::Yuv => false,
    };
    let by_size = if format.width >= 1280 || format.height > 576 { ffi::SWS_CS_ITU709 } else { ffi::SWS_CS_ITU601 };
    if matches!(family, Family::Rgb | Family::Grey) {
        return Ok((by_size, full));
    }
    const BT709: u32 = AVColorSpace::AVCOL_SPC_BT709 as u32;
    const FCC: u32 = AVColorSpace::AVCOL_SPC_FCC as u32;
    const BT470BG: u32 = AVColorSpace::AVCOL_SPC_BT470BG as u32;
    const SMPTE170M: u32 = AVColorSpace::AVCOL_SPC_SMPTE170M as u32;
    const SMPTE240M: u32 = AVColorSpace::AVCOL_SPC_SMPTE240M as u32;
    const BT2020_NCL: u32 = AVColorSpace::AVCOL_SPC_BT2020_NCL as u32;
    const BT2020_CL: u32 = AVColorSpace::AVCOL_SPC_BT2020_CL as u32;
    const RGB: u32 = AVColorSpace::AVCOL_SPC_RGB as u32;
    const UNSPECIFIED: u32 = AVColorSpace::AVCOL_SPC_UNSPECIFIED as u32;
    const RESERVED: u32 = AVColorSpace::AVCOL_SPC_RESERVED as u32;
    let matrix = match format.matrix {
        BT709 => ffi::SWS_CS_ITU709,
        FCC => ffi::SWS_CS_FCC,
        BT470BG | SMPTE170M => ffi::SWS_CS_ITU601,
        SMPTE240M => ffi::SWS_CS_SMPTE240M,
        BT2020_NCL | BT2020_CL => ffi::SWS_CS_BT2020,
        RGB | UNSPECIFIED | RESERVED => by_size,
        other => {
            return Err(format!(
                "the stream's colour matrix (number {other} of H.273) is not one that can be converted"
            ));
        }
    };
    Ok((matrix, full))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ffmpeg_next::ffi::AVPixelFormat;

    fn format(pixels: AVPixelFormat, width: c_int, height: c_int, matrix: u32, range: u32) -> FrameFormat {
        FrameFormat { width, height, pixels: pixels as c_int, matrix, range }
    }

    #[test]
    fn untagged_colours_go_by_size_and_family() {
        let yuv = AVPixelFormat::AV_PIX_FMT_YUV420P;
        assert_eq!(colours(&format(yuv, 720, 576, 2, 0)), Ok((ffi::SWS_CS_ITU601, false)));
        assert_eq!(colours(&format(yuv, 1280, 720, 2, 0)), Ok((ffi::SWS_CS_ITU709, false)));
        assert!(colours(&format(AVPixelFormat::AV_PIX_FMT_GRAY16LE, 64, 64, 2, 0)).unwrap().1);
        assert!(colours(&format(AVPixelFormat::AV_PIX_FMT_YUVJ420P, 64, 64, 2, 0)).unwrap().1);
    }

    #[test]
    fn parts_grow_to_the_grid_and_stay_inside() {
        assert_eq!(on_grid((3, 4), 100, 100, 1), (2, 6));
        assert_eq!(on_grid((3, 4), 100, 100, 0), (3, 4));
        assert_eq!(on_grid((96, 5), 101, 101, 1), (96, 5), "the last column of an odd width is alone");
        assert_eq!(on_grid((90, 10), 100, 50, 0), (45, 5));
        for (from, is) in [(0, 1), (99, 1), (99, 3), (50, 1)] {
            let (start, len) = on_grid((from, 1), 100, is, 1);
            assert!(len > 0 && start + len <= is && start % 2 == 0, "{start} {len} of {is}");
        }
    }

    #[test]
    fn tags_win_over_size() {
        let yuv = AVPixelFormat::AV_PIX_FMT_YUV420P;
        assert_eq!(colours(&format(yuv, 64, 64, 1, 2)), Ok((ffi::SWS_CS_ITU709, true)));
        assert_eq!(colours(&format(yuv, 1920, 1080, 6, 1)), Ok((ffi::SWS_CS_ITU601, false)));
        assert!(!colours(&format(AVPixelFormat::AV_PIX_FMT_GRAY8, 64, 64, 2, 1)).unwrap().1);
        assert!(colours(&format(yuv, 64, 64, 14, 1)).unwrap_err().contains("14"));
    }
}
