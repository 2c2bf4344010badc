//! What becomes of a decoded clip: which frames, which pixels, which numbers.
//!
//! Everything here is arithmetic on a [`Facts`] and a key. The rank computes shapes from it, the daemon region
//! sizes, the worker the work itself; all must agree, hence one place.

use serde::{Deserialize, Serialize};

use super::fields::{self, Audio};
use super::key::SampleKey;
use super::options::BadOption;
pub use super::picture::{ColourJitter, Crop, Filter, Resize};
use super::sampling::{NotThere, Timeline, indices};
pub use super::sampling::{Sampling, Start};

/// What the scheduler knows of a sample before decoding: the light part of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Facts {
    /// Bytes of the sample in storage.
    pub bytes: u64,
    /// Frames that a full decode yields.
    pub frames: u32,
    /// Duration of the video stream, milliseconds.
    pub duration_ms: u32,
    /// Width in pixels as shown, rotation applied.
    pub width: u16,
    /// Height in pixels as shown, rotation applied.
    pub height: u16,
    /// Key frames.
    pub keyframes: u32,
    /// The codec's class for the cost models.
    pub codec: Codec,
}

/// Codec classes that the cost models tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Codec {
    /// H.264.
    H264 = 0,
    /// HEVC.
    Hevc = 1,
    /// VP8 or VP9.
    Vp9 = 2,
    /// AV1.
    Av1 = 3,
    /// Anything else.
    #[default]
    Other = 4,
}

impl Codec {
    /// All classes, in the order of their numbers.
    pub const ALL: [Codec; 5] = [Codec::H264, Codec::Hevc, Codec::Vp9, Codec::Av1, Codec::Other];

    /// The class of a codec by FFmpeg's name for it.
    pub fn from_name(name: &str) -> Codec {
        match name {
            "h264" => Codec::H264,
            "hevc" => Codec::Hevc,
            "vp8" | "vp9" => Codec::Vp9,
            "av1" => Codec::Av1,
            _ => Codec::Other,
        }
    }
}

/// Order of the axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Layout {
    /// Time, channel, height, width.
    #[default]
    Tchw,
    /// Time, height, width, channel.
    Thwc,
    /// Channel, time, height, width.
    Cthw,
    /// Bytes of a meaning that the workers of the user's own program give them: `frames` pages of 256 × 256.
    Pages,
    /// No video at all: one frame of no bytes, for samples that are sound alone.
    Sound,
}

/// Side of a page of [`Layout::Pages`].
pub const PAGE_SIDE: u16 = 256;

/// Type of a number in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 0–255.
    #[default]
    U8,
    /// `(v/255 − mean) / std` per channel.
    F32,
    /// The same, rounded to IEEE half precision.
    F16,
    /// The same, rounded to bfloat16.
    Bf16,
}

impl Dtype {
    /// Bytes of one number.
    pub const fn size(self) -> usize {
        match self {
            Dtype::U8 => 1,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 => 4,
        }
    }
}

/// A part of a sample: frames of the output that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The first, from 0.
    pub first: u16,
    /// How many.
    pub frames: u16,
}

impl Span {
    /// One past the last.
    pub const fn end(self) -> u32 {
        self.first as u32 + self.frames as u32
    }
}

/// The whole transform of a video sample to RGB numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transform {
    /// Frames in the output. A shorter clip repeats its last frame.
    pub frames: u16,
    /// Which frames.
    #[serde(default)]
    pub sampling: Sampling,
    /// How they are brought to size.
    pub resize: Resize,
    /// How pixels are weighed for that.
    #[serde(default)]
    pub filter: Filter,
    /// Which part is kept.
    #[serde(default)]
    pub crop: Crop,
    /// Probability of a mirror image, keyed by (seed, epoch, sample), the same for every frame of a clip.
    #[serde(default)]
    pub flip: f32,
    /// Random changes of colour.
    #[serde(default)]
    pub colour: ColourJitter,
    /// Order of the axes.
    #[serde(default)]
    pub layout: Layout,
    /// Type of a number.
    #[serde(default)]
    pub dtype: Dtype,
    /// Mean per channel, in 0..1; not for [`Dtype::U8`].
    #[serde(default)]
    pub mean: [f32; 3],
    /// Standard deviation per channel, in 0..1; not for [`Dtype::U8`].
    #[serde(default = "ones")]
    pub std: [f32; 3],
    /// The sound that goes with the frames, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio: Option<Audio>,
}

fn ones() -> [f32; 3] {
    [1.0; 3]
}

impl Default for Transform {
    fn default() -> Self {
        Transform {
            frames: 16,
            sampling: Sampling::Uniform,
            resize: Resize::Exact { width: 224, height: 224 },
            filter: Filter::Bilinear,
            crop: Crop::None,
            flip: 0.0,
            colour: ColourJitter::default(),
            layout: Layout::Tchw,
            dtype: Dtype::U8,
            mean: [0.0; 3],
            std: ones(),
            audio: None,
        }
    }
}

/// Largest side of an output frame, pixels: what swscale takes and a shape field holds.
pub const MAX_SIDE: u16 = 16_384;

impl Transform {
    /// Refuses what cannot be done, naming the option.
    pub fn check(&self) -> Result<(), BadOption> {
        let bad = |option, found: String, wanted| Err(BadOption { option, found, wanted });
        if self.frames == 0 {
            return bad("transform.frames", "0".into(), "at least 1");
        }
        self.sampling.check(self.frames)?;
        self.resize.check(self.frames)?;
        self.crop.check(&self.resize)?;
        self.colour.check()?;
        if self.layout == Layout::Pages && (self.dtype != Dtype::U8 || !self.is_uniform()) {
            return bad("transform.layout", "pages".into(), "bytes, all samples of one size, with this layout");
        }
        self.check_audio()?;
        if !(0.0..=1.0).contains(&self.flip) {
            return bad("transform.flip", self.flip.to_string(), "a probability from 0 to 1");
        }
        if self.std.iter().any(|&s| !s.is_finite() || s <= 0.0) || self.mean.iter().any(|m| !m.is_finite()) {
            return bad("transform.std", format!("{:?}", self.std), "finite means and positive deviations");
        }
        Ok(())
    }

    fn check_audio(&self) -> Result<(), BadOption> {
        let bad = |found: &str, wanted| Err(BadOption { option: "transform.layout", found: found.into(), wanted });
        match &self.audio {
            Some(_) if self.layout == Layout::Pages => bad("pages", "another layout where there is `audio`"),
            Some(audio) => audio.check(),
            None if self.layout == Layout::Sound => bad("SOUND", "`audio` with this layout"),
            None => Ok(()),
        }?;
        if self.layout == Layout::Sound && self.frames != 1 {
            let (option, found) = ("transform.frames", self.frames.to_string());
            return Err(BadOption { option, found, wanted: "1 with the layout SOUND" });
        }
        Ok(())
    }

    /// Numbers of the clip's frames that are kept, in the order of the output, never descending.
    pub fn wanted(&self, clip: &Timeline<'_>, key: &SampleKey) -> Result<Vec<u32>, NotThere> {
        indices(&self.sampling, clip, self.frames, key)
    }

    /// Width and height of a frame after resizing and before cropping.
    pub fn resized(&self, facts: &Facts) -> (u16, u16) {
        match self.crop {
            Crop::RandomResized { width, height, .. } => (width, height),
            _ => self.resize.size(facts),
        }
    }

    /// Width and height of a frame of the output.
    pub fn frame(&self, facts: &Facts) -> (u16, u16) {
        match (self.crop.size(), self.resize) {
            (Some(size), _) => size,
            (None, Resize::Tiles { side, .. }) => (side, side),
            (None, _) => self.resize.size(facts),
        }
    }

    /// Frames of the output that a frame of the clip gives: 1, or its tiles.
    pub fn pieces(&self, facts: &Facts) -> u16 {
        if let Crop::RandomResized { .. } = self.crop {
            return 1;
        }
        let (columns, rows) = self.resize.grid(facts);
        columns * rows + u16::from(self.resize.has_thumbnail(facts))
    }

    /// Shape of the output in the order of its layout.
    pub fn shape(&self, facts: &Facts) -> [u16; 4] {
        let (w, h) = self.frame(facts);
        let frames = self.frames.saturating_mul(self.pieces(facts));
        match self.layout {
            Layout::Tchw => [frames, 3, h, w],
            Layout::Thwc => [frames, h, w, 3],
            Layout::Cthw => [3, frames, h, w],
            Layout::Pages => [frames, PAGE_SIDE, PAGE_SIDE, 1],
            Layout::Sound => [self.frames, 0, 0, 0],
        }
    }

    /// Frames, height and width of the output.
    pub fn extent(&self, facts: &Facts) -> [u16; 3] {
        match (self.layout, self.shape(facts)) {
            (Layout::Tchw, [frames, _, h, w]) | (Layout::Cthw, [_, frames, h, w]) => [frames, h, w],
            (Layout::Thwc | Layout::Pages | Layout::Sound, [frames, h, w, _]) => [frames, h, w],
        }
    }

    /// Bytes of the frames.
    pub fn video_bytes(&self, facts: &Facts) -> u64 {
        self.video_bytes_of(self.shape(facts))
    }

    /// As [`video_bytes`](Self::video_bytes), by the shape.
    pub fn video_bytes_of(&self, shape: [u16; 4]) -> u64 {
        shape.iter().map(|&n| u64::from(n)).product::<u64>() * self.dtype.size() as u64
    }

    /// Bytes of the output with all its fields: what the region must hold.
    pub fn max_bytes(&self, facts: &Facts) -> u64 {
        self.bytes_of(self.shape(facts))
    }

    /// As [`max_bytes`](Self::max_bytes), by the shape.
    pub fn bytes_of(&self, shape: [u16; 4]) -> u64 {
        fields::region_bytes(self.video_bytes_of(shape), self.audio.as_ref())
    }

    /// All frames of the output.
    pub const fn whole(&self) -> Span {
        Span { first: 0, frames: self.frames }
    }

    /// Whether the frames of the output lie one behind the other: only then can several workers make a sample.
    pub const fn has_parts(&self) -> bool {
        match self.layout {
            Layout::Tchw | Layout::Thwc | Layout::Pages => true,
            // Each channel has all frames behind each other.
            Layout::Cthw | Layout::Sound => false,
        }
    }

    /// Where a part of a sample lies in its region: (bytes from the region's start, bytes). `None` if it has no such
    /// frames, or if its frames do not lie together and it is not all of the sample.
    pub fn place(&self, facts: &Facts, span: Span) -> Option<(u64, u64)> {
        self.place_in(self.shape(facts), span)
    }

    /// As [`place`](Self::place), by the shape. What is behind the frames belongs to the part that has the last one.
    pub fn place_in(&self, shape: [u16; 4], span: Span) -> Option<(u64, u64)> {
        let bytes = self.bytes_of(shape);
        if span == self.whole() {
            return Some((0, bytes));
        }
        let frame = self.video_bytes_of(shape).checked_div(self.frames.into()).filter(|_| self.has_parts())?;
        let frames = u32::from(self.frames);
        let fits = span.frames > 0 && span.end() <= frames;
        let from = u64::from(span.first) * frame;
        let end = if span.end() == frames { bytes } else { u64::from(span.end()) * frame };
        fits.then(|| (from, end - from))
    }

    /// Whether every sample has the same shape, whatever its size: then a batch is one tensor.
    pub fn is_uniform(&self) -> bool {
        matches!(self.resize, Resize::Exact { .. }) || self.crop.size().is_some() || self.layout == Layout::Sound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_side_keeps_the_aspect_ratio() {
        let t = Transform { resize: Resize::ShortSide { pixels: 256 }, ..Transform::default() };
        assert_eq!(t.resized(&Facts { width: 1280, height: 720, ..Facts::default() }), (456, 256));
        assert_eq!(t.resized(&Facts { width: 720, height: 1280, ..Facts::default() }), (256, 456));
        assert_eq!(t.resized(&Facts { width: 100, height: 100, ..Facts::default() }), (256, 256));
        assert_eq!(t.resized(&Facts { width: 0, height: 0, ..Facts::default() }), (256, 256));
        assert!(!t.is_uniform());
    }

    #[test]
    fn shapes_follow_layout_and_crop() {
        let facts = Facts { width: 1280, height: 720, ..Facts::default() };
        let t = Transform { crop: Crop::Center { width: 112, height: 96 }, ..Transform::default() };
        assert_eq!(t.shape(&facts), [16, 3, 96, 112]);
        assert_eq!(t.max_bytes(&facts), 16 * 3 * 96 * 112);
        let t = Transform { layout: Layout::Thwc, dtype: Dtype::F32, ..t };
        assert_eq!(t.shape(&facts), [16, 96, 112, 3]);
        assert_eq!(t.max_bytes(&facts), 4 * 16 * 3 * 96 * 112);
    }

    #[test]
    fn parts_lie_behind_each_other() {
        let facts = Facts::default();
        let t = Transform { frames: 5, dtype: Dtype::F32, ..Transform::default() };
        let frame = 4 * 3 * 224 * 224;
        let part = |first, frames| t.place(&facts, Span { first, frames });
        assert_eq!(part(0, 5), Some((0, t.max_bytes(&facts))));
        assert_eq!((part(0, 2), part(2, 3)), (Some((0, 2 * frame)), Some((2 * frame, 3 * frame))));
        assert_eq!((part(2, 4), part(5, 0), part(u16::MAX, u16::MAX)), (None, None, None));
    }

    #[test]
    fn impossible_transforms_name_their_option() {
        let big = Transform { crop: Crop::Center { width: 225, height: 10 }, ..Transform::default() };
        assert_eq!(big.check().unwrap_err().option, "transform.crop");
        let none = Transform { frames: 0, ..Transform::default() };
        assert_eq!(none.check().unwrap_err().option, "transform.frames");
        assert!(Transform::default().check().is_ok());
    }
}
