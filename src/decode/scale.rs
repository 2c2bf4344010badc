//! From a decoded frame to small red, green and blue planes in one pass, by the frame's own colours.
//!
//! Matrix and range are what the stream says. What it leaves open is decided as players do: BT.709 from 1280 pixels
//! of width or 577 of height on and BT.601 below; limited range for YUV, full range for grey and for the `yuvj`
//! formats. Transfer and primaries are not touched: HDR stays HDR, in 8 bits. Alpha is dropped.

use std::ffi::c_int;

use ffmpeg_next::ffi::{self, AVColorRange, AVColorSpace};

use super::ffi::{Family, Frame, FrameFormat};
use super::pixels::Planes;
use super::sws::{Scratch, Sws};

/// Converts frames to one size; keeps the conversion while frames stay alike.
#[derive(Default)]
pub(super) struct Scaler {
    scratch: Scratch,
    current: Option<(FrameFormat, usize, usize, Sws)>,
}

impl Scaler {
    /// The frame as planes of `width` × `height`, not rotated.
    pub(super) fn convert(&mut self, frame: &Frame, width: usize, height: usize) -> Result<Planes<'_>, String> {
        let format = frame.format();
        if !self.current.as_ref().is_some_and(|(f, w, h, _)| (*f, *w, *h) == (format, width, height)) {
            self.current = None;
            let (matrix, full) = colours(&format)?;
            let sws =
                Sws::new(format, width, height, matrix, full).ok_or_else(|| unsupported(&format, width, height))?;
            self.scratch.resize(width, height);
            self.current = Some((format, width, height, sws));
        }
        let (.., sws) = self.current.as_mut().expect("set above");
        if !sws.convert(frame, &mut self.scratch) {
            return Err(unsupported(&format, width, height));
        }
        Ok(Planes { rgb: self.scratch.rgb(), stride: self.scratch.stride(), width, height })
    }
}

fn unsupported(format: &FrameFormat, width: usize, height: usize) -> String {
    let name = format.family().map_or_else(|| format!("number {}", format.pixels), |(_, name)| name);
    let (w, h) = (format.width, format.height);
    format!("swscale cannot turn a {w}x{h} frame of pixel format {name} into {width}x{height} RGB")
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
    fn tags_win_over_size() {
        let yuv = AVPixelFormat::AV_PIX_FMT_YUV420P;
        assert_eq!(colours(&format(yuv, 64, 64, 1, 2)), Ok((ffi::SWS_CS_ITU709, true)));
        assert_eq!(colours(&format(yuv, 1920, 1080, 6, 1)), Ok((ffi::SWS_CS_ITU601, false)));
        assert!(!colours(&format(AVPixelFormat::AV_PIX_FMT_GRAY8, 64, 64, 2, 1)).unwrap().1);
        assert!(colours(&format(yuv, 64, 64, 14, 1)).unwrap_err().contains("14"));
    }
}
