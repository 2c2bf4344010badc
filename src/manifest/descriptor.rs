//! A descriptor: what is known of a sample before it is decoded.

use crate::proto::sampling::Timeline;
use crate::proto::transform::{Codec, Facts};

/// One row of a manifest, borrowed from its memory map.
///
/// Times are in units of [`Descriptor::time_base`]; byte ranges are absolute in the file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Descriptor<'a> {
    /// Row in the manifest: the sample's id.
    pub row: u64,
    /// Absolute path of the file.
    pub path: &'a str,
    /// Bytes of the file when it was probed: [`Descriptor::len`], or more when the sample is a part of it.
    pub file_len: u64,
    /// Where the sample starts in the file, bytes (not 0 for a member of a tar).
    pub offset: u64,
    /// Bytes of the sample in the file.
    pub len: u64,
    /// Modification time of the file when it was probed, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Container by FFmpeg's name, e.g. `mov,mp4,m4a,3gp,3g2,mj2`.
    pub container: &'a str,
    /// Codec by FFmpeg's name, e.g. `h264`.
    pub codec: &'a str,
    /// Pixel format by FFmpeg's name, e.g. `yuv420p`.
    pub pix_fmt: &'a str,
    /// Index of the video stream in the container.
    pub stream: u32,
    /// Coded width, pixels.
    pub coded_width: u16,
    /// Coded height, pixels.
    pub coded_height: u16,
    /// Clockwise rotation that shows the frame upright, degrees: 0, 90, 180 or 270.
    pub rotation: u16,
    /// Sample aspect ratio, (numerator, denominator); (1, 1) when square or unknown.
    pub sar: (u32, u32),
    /// Average frame rate, (numerator, denominator); (0, 1) when unknown.
    pub fps: (u32, u32),
    /// Unit of the times, seconds as (numerator, denominator).
    pub time_base: (u32, u32),
    /// Duration of the video stream.
    pub duration: i64,
    /// Presentation time of each frame that a full decode shows, ascending in the order they are shown. Empty when
    /// the container does not tell (then only a sequential decode is exact).
    pub pts: &'a [i64],
    /// Frames that a full decode shows: `pts.len()` when that is known.
    pub frames: u32,
    /// For each key frame: its index among the shown frames.
    pub key_frames: &'a [u32],
    /// For each key frame: where its packet starts in the file, bytes; −1 if unknown.
    pub key_offsets: &'a [i64],
    /// Whether seeking by this index gives the frames of a sequential decode (false for MPEG-TS, and for missing or
    /// non-monotonic times).
    pub seekable: bool,
    /// Label or caption; empty when there is none.
    pub text: &'a str,
    /// Its first stream of sound; `None` in a manifest of a version that did not look.
    pub sound: Option<Sound>,
}

/// What is known of a file's sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sound {
    /// Numbers a second and channel; 0 if there is no sound.
    pub rate: u32,
    /// Channels.
    pub channels: u16,
    /// Length as the container states it, milliseconds; 0 if it does not.
    pub duration_ms: u32,
}

impl Sound {
    /// Stands in a manifest for what was not looked for.
    pub(super) const UNKNOWN: Sound = Sound { rate: 0, channels: u16::MAX, duration_ms: 0 };

    /// Whether there is any.
    pub const fn is_some(&self) -> bool {
        self.rate > 0
    }
}

impl<'a> Descriptor<'a> {
    /// Whether it is sound alone: a good row without frames.
    pub fn is_sound(&self) -> bool {
        self.frames == 0 && self.sound.is_some_and(|sound| sound.is_some())
    }

    /// Width and height as shown, rotation applied.
    pub fn shown(&self) -> (u16, u16) {
        if self.rotation.is_multiple_of(180) {
            (self.coded_width, self.coded_height)
        } else {
            (self.coded_height, self.coded_width)
        }
    }

    /// The part that sampling sees.
    pub fn timeline(&self) -> Timeline<'a> {
        let Descriptor { frames, pts, duration, time_base, fps, .. } = *self;
        Timeline { frames, pts, duration, time_base, fps }
    }

    /// The part that the scheduler sees.
    pub fn facts(&self) -> Facts {
        let (width, height) = self.shown();
        let (num, den) = (i128::from(self.time_base.0), i128::from(self.time_base.1.max(1)));
        let ms = (i128::from(self.duration.max(0)) * 1000 * num / den).min(i128::from(u32::MAX));
        Facts {
            bytes: self.len,
            frames: self.frames,
            duration_ms: ms as u32,
            width,
            height,
            keyframes: self.key_frames.len() as u32,
            codec: Codec::from_name(self.codec),
        }
    }
}
