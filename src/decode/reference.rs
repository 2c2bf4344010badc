//! Resizing as it is defined, a pixel at a time in double precision: what the fast conversion is held against. That it
//! is Pillow's own definition is tested too.

use super::SampleKey;
use super::testing::{self, Clip, picture};
use crate::corpus::{ClipSpec, Encoder, clip};
use crate::proto::transform::{Filter, Layout, Resize, Transform};

/// Red, green and blue bytes, row by row.
pub(super) struct Picture {
    pub(super) bytes: Vec<u8>,
    pub(super) width: usize,
    pub(super) height: usize,
}

impl Picture {
    /// Its brightness, by the weights of BT.601.
    fn grey(&self) -> Vec<u8> {
        let grey = |&[r, g, b]: &[u8; 3]| (299 * u32::from(r) + 587 * u32::from(g) + 114 * u32::from(b) + 500) / 1000;
        self.bytes.as_chunks::<3>().0.iter().map(|pixel| grey(pixel) as u8).collect()
    }
}

/// What each pixel of a row is made of: (first, weights).
type Weights = Vec<(usize, Vec<f64>)>;

/// The weights by which `to` pixels are made of `from`: the filter stretched by what it shrinks (antialias), cut at the
/// edges, summing to 1.
fn weights(filter: Filter, from: usize, to: usize) -> Weights {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0);
    let weigh = |i: usize| -> (usize, Vec<f64>) {
        let centre = (i as f64 + 0.5) * scale;
        let of = |j: usize| match filter {
            Filter::Bilinear => (1.0 - ((j as f64 + 0.5 - centre) / stretch).abs()).max(0.0),
            Filter::Bicubic => cubic(((j as f64 + 0.5 - centre) / stretch).abs()),
            // How much of pixel j the stretch around the centre covers.
            Filter::Area => {
                let (low, high) = (centre - stretch / 2.0, centre + stretch / 2.0);
                (high.min(j as f64 + 1.0) - low.max(j as f64)).max(0.0)
            }
        };
        let all: Vec<f64> = (0..from).map(of).collect();
        let first = all.iter().position(|&w| w != 0.0).unwrap_or(0);
        let last = all.iter().rposition(|&w| w != 0.0).unwrap_or(0);
        let sum: f64 = all.iter().sum();
        (first, all[first..=last].iter().map(|w| w / sum).collect())
    };
    (0..to).map(weigh).collect()
}

fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    match x {
        ..1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        ..2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
        _ => 0.0,
    }
}

/// A picture of another size; rounded between the two directions, as Pillow does.
pub(super) fn resize(picture: &Picture, filter: Filter, width: usize, height: usize) -> Picture {
    let byte = |v: f64| v.round().clamp(0.0, 255.0) as u8;
    let (across, down) = (weights(filter, picture.width, width), weights(filter, picture.height, height));
    let mut rows = vec![0u8; picture.height * width * 3];
    for (at, v) in rows.iter_mut().enumerate() {
        let (y, x, c) = (at / 3 / width, at / 3 % width, at % 3);
        let (first, weights) = &across[x];
        let pixel = |j: usize| f64::from(picture.bytes[(y * picture.width + first + j) * 3 + c]);
        *v = byte(weights.iter().enumerate().map(|(j, w)| w * pixel(j)).sum());
    }
    let mut bytes = vec![0u8; height * width * 3];
    for (at, v) in bytes.iter_mut().enumerate() {
        let (y, x, c) = (at / 3 / width, at / 3 % width, at % 3);
        let (first, weights) = &down[y];
        let pixel = |j: usize| f64::from(rows[((first + j) * width + x) * 3 + c]);
        *v = byte(weights.iter().enumerate().map(|(j, w)| w * pixel(j)).sum());
    }
    Picture { bytes, width, height }
}

/// Mean and largest difference.
pub(super) fn apart(a: &[u8], b: &[u8]) -> (f64, u8) {
    assert_eq!(a.len(), b.len());
    let differences = || a.iter().zip(b).map(|(a, b)| a.abs_diff(*b));
    let sum: u64 = differences().map(u64::from).sum();
    (sum as f64 / a.len() as f64, differences().max().unwrap_or(0))
}

fn scene() -> Picture {
    let bytes = std::fs::read(picture("rgb.png.rgb")).unwrap();
    Picture { bytes, width: 64, height: 48 }
}

#[test]
fn the_reference_is_pillow_s() {
    let sized = std::fs::read(picture("resized.bin")).unwrap();
    let mut rest = &sized[..];
    let mut check = |filter, width: usize, height: usize| {
        let (theirs, behind) = rest.split_at(width * height * 3);
        rest = behind;
        let (mean, most) = apart(&resize(&scene(), filter, width, height).bytes, theirs);
        // It rounds its weights to 22 bits, which turns some halves down.
        assert!(most <= 1 && mean < 0.15, "{filter:?} {width}x{height}: {mean} {most}");
    };
    for (width, height) in [(24, 20), (90, 70), (13, 48), (100, 11)] {
        check(Filter::Bilinear, width, height);
        check(Filter::Bicubic, width, height);
    }
    check(Filter::Area, 16, 12);
    assert!(rest.is_empty());
}

fn decoded(clip: &Clip, resize: Resize, filter: Filter) -> Picture {
    let t = Transform { frames: 1, resize, filter, layout: Layout::Thwc, ..Transform::default() };
    let out = testing::decode(&clip.input(), &clip.descriptor(), &t, SampleKey::new(0, 0, 0)).unwrap();
    let [_, height, width, _] = out.outcome.shape.map(usize::from);
    Picture { bytes: out.bytes, width, height }
}

/// How far sizes may be from the reference: mean and largest difference of a channel where frames shrink, the mean of
/// brightness. `docs/transforms.md` says why.
struct Tolerance {
    mean: f64,
    most: u8,
    grey: f64,
}

fn compare(clip: &Clip, name: &str, tolerance: &Tolerance) {
    let (width, height) = clip.descriptor().shown();
    let full = decoded(clip, Resize::Exact { width, height }, Filter::Bilinear);
    for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Area] {
        for (n, d) in [(1, 2), (3, 8), (2, 9), (4, 3), (7, 5)] {
            let side = |side: u16| (u32::from(side) * n / d) as u16;
            let ours = decoded(clip, Resize::Exact { width: side(width), height: side(height) }, filter);
            let reference = resize(&full, filter, ours.width, ours.height);
            let (mean, most) = apart(&ours.bytes, &reference.bytes);
            let (grey, _) = apart(&ours.grey(), &reference.grey());
            let said = format!("{name} to {n}/{d} by {filter:?}: mean {mean:.2}, most {most}, grey {grey:.2}");
            assert!(mean <= tolerance.mean && grey <= tolerance.grey, "{said}");
            assert!(most <= tolerance.most || n > d, "{said}");
        }
    }
}

#[test]
fn sizes_are_those_of_the_reference_where_colour_is_whole() {
    for name in ["rgb.png", "palette.png", "444.jpg"] {
        compare(&Clip::at(&picture(name)), name, &Tolerance { mean: 0.6, most: 4, grey: 0.6 });
    }
}

#[test]
fn brightness_is_that_of_the_reference_where_colour_has_half_the_size() {
    let some = |mean| Tolerance { mean, most: u8::MAX, grey: 0.7 };
    compare(&Clip::at(&picture("420.jpg")), "420.jpg", &some(4.5));
    let dir = tempfile::tempdir().unwrap();
    for encoder in [Encoder::H264, Encoder::Vp9] {
        let path = dir.path().join(format!("{}.mkv", encoder.name()));
        clip(&path, &ClipSpec { encoder, frames: 2, ..ClipSpec::default() }).unwrap();
        compare(&Clip::at(&path), encoder.name(), &some(1.4));
    }
}
