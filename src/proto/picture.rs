//! How a frame is brought to size, which part of it is kept, and how its colours are varied.

use serde::{Deserialize, Serialize};

use super::fit;
use super::options::BadOption;
use super::transform::{Facts, MAX_SIDE};

/// How pixels are weighed when a frame is brought to size. All of them average when it shrinks (antialias).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// A triangle.
    #[default]
    Bilinear,
    /// Cubic, a = −0.5, as Pillow's and torchvision's with antialias.
    Bicubic,
    /// The mean of what a pixel covers.
    Area,
}

/// How a frame is brought to size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resize {
    /// To exactly this width and height; the aspect ratio is not kept.
    Exact {
        /// Width, pixels.
        width: u16,
        /// Height, pixels.
        height: u16,
    },
    /// The shorter side to this many pixels, the other in proportion, rounded to the nearest even number.
    ShortSide {
        /// Shorter side, pixels.
        pixels: u16,
    },
    /// To sides that are multiples of `unit`, with an area from `least` to `most` pixels, the aspect ratio nearly kept:
    /// as Qwen2-VL and its successors do.
    Smart {
        /// What both sides are multiples of, pixels.
        unit: u16,
        /// Least area, pixels.
        least: u32,
        /// Largest area, pixels.
        most: u32,
    },
    /// Cut into square tiles, row by row, of the grid whose aspect ratio is nearest to the frame's: as InternVL does.
    /// Each of a frame's tiles is a frame of the output.
    Tiles {
        /// Side of a tile, pixels.
        side: u16,
        /// Most tiles of a frame.
        most: u16,
        /// Whether the whole frame, of a tile's size, follows them where they are more than one.
        thumbnail: bool,
    },
}

/// Which part of the resized frame is kept.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Crop {
    /// All of it.
    #[default]
    None,
    /// The middle.
    Center {
        /// Width, pixels.
        width: u16,
        /// Height, pixels.
        height: u16,
    },
    /// A place keyed by (seed, epoch, sample), the same in every frame of a clip.
    Random {
        /// Width, pixels.
        width: u16,
        /// Height, pixels.
        height: u16,
    },
    /// A part of the original frame, of random area, shape and place, brought to this size; `resize` has no say. Keyed
    /// by (seed, epoch, sample), the same in every frame of a clip. Its edges lie on the grid of the colour samples,
    /// which most video has for every second pixel.
    RandomResized {
        /// Width, pixels.
        width: u16,
        /// Height, pixels.
        height: u16,
        /// Least and largest area, as parts of the frame's.
        #[serde(default = "areas")]
        scale: [f32; 2],
        /// Least and largest width over height.
        #[serde(default = "shapes")]
        ratio: [f32; 2],
    },
}

fn areas() -> [f32; 2] {
    [0.08, 1.0]
}

fn shapes() -> [f32; 2] {
    [0.75, 4.0 / 3.0]
}

/// Random changes of colour: each names how far its factor may be from 1 (hue: from 0, in turns of the circle). Keyed by
/// (seed, epoch, sample), the same in every frame of a clip, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ColourJitter {
    /// Of brightness.
    pub brightness: f32,
    /// Of contrast, around the mean grey of each frame.
    pub contrast: f32,
    /// Of saturation.
    pub saturation: f32,
    /// Of hue, at most 0.5.
    pub hue: f32,
}

impl ColourJitter {
    /// Whether colours stay as they are.
    pub fn is_none(&self) -> bool {
        *self == ColourJitter::default()
    }

    pub(super) fn check(&self) -> Result<(), BadOption> {
        let ColourJitter { brightness, contrast, saturation, hue } = *self;
        if [brightness, contrast, saturation].iter().all(|v| (0.0..=1.0).contains(v)) && (0.0..=0.5).contains(&hue) {
            return Ok(());
        }
        let found = format!("{brightness}, {contrast}, {saturation} and hue {hue}");
        Err(BadOption { option: "transform.colour", found, wanted: "each from 0 to 1, and a hue from 0 to 0.5" })
    }
}

fn side(v: u16) -> bool {
    (1..=MAX_SIDE).contains(&v)
}

impl Resize {
    pub(super) fn check(&self, frames: u16) -> Result<(), BadOption> {
        let bad = |found: String, wanted| Err(BadOption { option: "transform.resize", found, wanted });
        let sizes = match *self {
            Resize::Exact { width, height } => [width, height],
            Resize::ShortSide { pixels } => [pixels, pixels],
            Resize::Smart { unit, least, most } => {
                // What is rounded up to the least area must not be beyond the largest.
                if unit == 0 || least > most || most < u32::from(unit).pow(2) || most > 1 << 26 {
                    let found = format!("multiples of {unit} and an area from {least} to {most}");
                    return bad(found, "unit² ≤ most ≤ 67108864 pixels, and least ≤ most");
                }
                [unit, unit]
            }
            Resize::Tiles { side, most, .. } => {
                let length = u32::from(side) * u32::from(most);
                let all = u32::from(frames) * (u32::from(most) + 1);
                if most == 0 || length > u32::from(MAX_SIDE) || all > u32::from(u16::MAX) {
                    let found = format!("up to {most} tiles of {side} pixels for {frames} frames");
                    return bad(found, "a tile at least, all in a row at most 16384 pixels, at most 65535 in all");
                }
                [side, side]
            }
        };
        if !sizes.into_iter().all(side) {
            return bad(format!("{sizes:?}"), "sides from 1 to 16384 pixels");
        }
        Ok(())
    }

    /// Columns and rows of tiles that a frame of this size is cut into.
    pub fn grid(&self, facts: &Facts) -> (u16, u16) {
        let Resize::Tiles { side, most, .. } = *self else { return (1, 1) };
        let (w, h) = (u64::from(facts.width.max(1)), u64::from(facts.height.max(1)));
        let (columns, rows) = fit::tiles(h, w, side.into(), most.into());
        (columns as u16, rows as u16)
    }

    /// Whether the whole frame follows its tiles.
    pub fn has_thumbnail(&self, facts: &Facts) -> bool {
        matches!(self, Resize::Tiles { thumbnail: true, .. }) && self.grid(facts) != (1, 1)
    }

    /// Width and height of a frame of this size after resizing.
    pub(super) fn size(&self, facts: &Facts) -> (u16, u16) {
        let (w, h) = (u64::from(facts.width.max(1)), u64::from(facts.height.max(1)));
        match *self {
            Resize::Exact { width, height } => (width, height),
            Resize::ShortSide { pixels } => {
                // Nearest even number of pixels: (2·long·short_out + short) / (2·short), kept even and in range.
                let scale = |long: u64, short: u64| {
                    let exact = (long * u64::from(pixels) + short) / (2 * short) * 2;
                    exact.clamp(u64::from(pixels), u64::from(MAX_SIDE)) as u16
                };
                if w <= h { (pixels, scale(h, w)) } else { (scale(w, h), pixels) }
            }
            Resize::Smart { unit, least, most } => {
                let (h, w) = fit::smart(h, w, unit.into(), least.into(), most.into());
                let unit = u64::from(unit);
                let side = |side: u64| side.min(u64::from(MAX_SIDE) / unit * unit) as u16;
                (side(w), side(h))
            }
            Resize::Tiles { side, .. } => {
                let (columns, rows) = self.grid(facts);
                (columns * side, rows * side)
            }
        }
    }
}

impl Crop {
    pub(super) fn check(&self, resize: &Resize) -> Result<(), BadOption> {
        let bad = |found: String, wanted| Err(BadOption { option: "transform.crop", found, wanted });
        let (width, height) = match *self {
            Crop::None => return Ok(()),
            Crop::Center { width, height }
            | Crop::Random { width, height }
            | Crop::RandomResized { width, height, .. } => (width, height),
        };
        if !side(width) || !side(height) {
            return bad(format!("{width}x{height}"), "sides from 1 to 16384 pixels");
        }
        if let Crop::RandomResized { scale, ratio, .. } = *self {
            let ascend = |[low, high]: [f32; 2], most| low > 0.0 && low <= high && high <= most;
            if !ascend(scale, 1.0) || !ascend(ratio, 1000.0) {
                let found = format!("of scale {scale:?} and ratio {ratio:?}");
                return bad(found, "ascending positive numbers, a scale of at most 1");
            }
            return Ok(());
        }
        let fits = match *resize {
            Resize::Exact { width: w, height: h } => width <= w && height <= h,
            Resize::ShortSide { pixels } => width <= pixels && height <= pixels,
            Resize::Smart { .. } | Resize::Tiles { .. } => {
                return bad(format!("{width}x{height}"), "none with this resize, which makes sizes of its own");
            }
        };
        if fits { Ok(()) } else { bad(format!("{width}x{height}"), "no larger than the resized frame") }
    }

    /// Width and height of what is kept, where it does not depend on the frame.
    pub(super) fn size(&self) -> Option<(u16, u16)> {
        match *self {
            Crop::None => None,
            Crop::Center { width, height }
            | Crop::Random { width, height }
            | Crop::RandomResized { width, height, .. } => Some((width, height)),
        }
    }
}
