//! Colour jitter: brightness, contrast, saturation and hue of a small frame, in place, as torchvision defines them.
//!
//! The factors are drawn once a clip, so that all of its frames change alike. Each step rounds down to whole levels, as
//! torchvision does with bytes.

use super::key::{Purpose, SampleKey};
use super::pixels::Rect;
use crate::proto::transform::ColourJitter;

/// The factors of one clip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Colour {
    brightness: f32,
    contrast: f32,
    saturation: f32,
    hue: f32,
}

impl Colour {
    /// The factors that the key draws; `None` when colours stay as they are.
    pub fn draw(jitter: &ColourJitter, key: &SampleKey) -> Option<Colour> {
        if jitter.is_none() {
            return None;
        }
        let mut draws = key.draws(Purpose::Colour);
        let mut around = |middle: f32, most: f32| middle + (2.0 * draws.part() - 1.0) as f32 * most;
        Some(Colour {
            brightness: around(1.0, jitter.brightness),
            contrast: around(1.0, jitter.contrast),
            saturation: around(1.0, jitter.saturation),
            hue: around(0.0, jitter.hue),
        })
    }

    /// Changes a part of three planes, whose mean is that of the contrast.
    pub fn apply(&self, planes: &mut [Vec<u8>; 3], stride: usize, part: Rect) {
        if self.brightness != 1.0 {
            let table: [u8; 256] = std::array::from_fn(|v| blend(v as f32, 0.0, self.brightness));
            each_byte(planes, stride, part, &table);
        }
        if self.contrast != 1.0 {
            let mut sum = 0u64;
            each_row(planes, stride, part, |r, g, b| {
                sum += r.iter().zip(&*g).zip(&*b).map(|((&r, &g), &b)| u64::from(grey(r, g, b))).sum::<u64>();
            });
            let mean = sum as f32 / (part.width * part.height) as f32;
            let table: [u8; 256] = std::array::from_fn(|v| blend(v as f32, mean, self.contrast));
            each_byte(planes, stride, part, &table);
        }
        if self.saturation != 1.0 {
            each_pixel(planes, stride, part, |[r, g, b]| {
                let grey = f32::from(grey(r, g, b));
                [r, g, b].map(|v| blend(f32::from(v), grey, self.saturation))
            });
        }
        if self.hue != 0.0 {
            each_pixel(planes, stride, part, |pixel| turned(pixel, self.hue));
        }
    }
}

/// Each row of a part of three planes.
fn each_row(
    planes: &mut [Vec<u8>; 3],
    stride: usize,
    Rect { x, y, width, height }: Rect,
    mut change: impl FnMut(&mut [u8], &mut [u8], &mut [u8]),
) {
    let [r, g, b] = planes;
    for at in (y..y + height).map(|y| y * stride + x) {
        change(&mut r[at..at + width], &mut g[at..at + width], &mut b[at..at + width]);
    }
}

fn each_byte(planes: &mut [Vec<u8>; 3], stride: usize, part: Rect, table: &[u8; 256]) {
    each_row(planes, stride, part, |r, g, b| {
        [r, g, b].into_iter().flatten().for_each(|v| *v = table[usize::from(*v)]);
    });
}

fn each_pixel(planes: &mut [Vec<u8>; 3], stride: usize, part: Rect, change: impl Fn([u8; 3]) -> [u8; 3]) {
    each_row(planes, stride, part, |r, g, b| {
        for ((r, g), b) in r.iter_mut().zip(g).zip(b) {
            [*r, *g, *b] = change([*r, *g, *b]);
        }
    });
}

/// `factor` of one and the rest of the other, in whole levels.
fn blend(one: f32, other: f32, factor: f32) -> u8 {
    // A cast saturates, and drops what is behind the point.
    (factor * one + (1.0 - factor) * other) as u8
}

fn grey(r: u8, g: u8, b: u8) -> u8 {
    (0.2989 * f32::from(r) + 0.587 * f32::from(g) + 0.114 * f32::from(b)) as u8
}

/// A colour with its hue moved around the circle, where 1 is once around.
fn turned([r, g, b]: [u8; 3], turn: f32) -> [u8; 3] {
    let (max, min) = (r.max(g).max(b), r.min(g).min(b));
    if max == min {
        return [r, g, b];
    }
    let spread = f32::from(max - min);
    let (r, g, b) = (f32::from(r), f32::from(g), f32::from(b));
    let value = f32::from(max);
    let sixths = if value == r {
        (g - b) / spread
    } else if value == g {
        2.0 + (b - r) / spread
    } else {
        4.0 + (r - g) / spread
    };
    let sixths = (sixths / 6.0 + turn).rem_euclid(1.0) * 6.0;
    let channel = |shift: f32| {
        // How far this channel is from the brightest, by the distance on the circle: 0 near, 1 far.
        let k = (shift + sixths).rem_euclid(6.0);
        let part = k.min(4.0 - k).clamp(0.0, 1.0);
        (value - spread * part + 0.5) as u8
    };
    [channel(5.0), channel(3.0), channel(1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colour(brightness: f32, contrast: f32, saturation: f32, hue: f32) -> Colour {
        Colour { brightness, contrast, saturation, hue }
    }

    fn changed(colour: Colour, pixels: &[[u8; 3]]) -> Vec<[u8; 3]> {
        // A row above and a pixel on either side do not take part.
        let stride = pixels.len() + 2;
        let row = |c: usize| [77].into_iter().chain(pixels.iter().map(move |p| p[c])).chain([77]);
        let mut planes: [Vec<u8>; 3] = std::array::from_fn(|c| vec![77; stride].into_iter().chain(row(c)).collect());
        colour.apply(&mut planes, stride, Rect { x: 1, y: 1, width: pixels.len(), height: 1 });
        for plane in &planes {
            assert!(plane[..=stride].iter().chain(plane.last()).all(|&v| v == 77), "{plane:?}");
        }
        (0..pixels.len()).map(|i| std::array::from_fn(|c| planes[c][stride + 1 + i])).collect()
    }

    const PIXELS: [[u8; 3]; 4] = [[200, 100, 50], [10, 20, 30], [128, 128, 128], [0, 255, 40]];

    #[test]
    fn steps_are_torchvisions() {
        // By torchvision.transforms.v2.functional.adjust_* on a uint8 tensor.
        assert_eq!(changed(colour(1.5, 1.0, 1.0, 0.0), &PIXELS)[..2], [[255, 150, 75], [15, 30, 45]]);
        assert_eq!(changed(colour(0.5, 1.0, 1.0, 0.0), &PIXELS)[..2], [[100, 50, 25], [5, 10, 15]]);
        // Greys 124, 18, 127, 154: the mean is 105.75.
        assert_eq!(changed(colour(1.0, 0.5, 1.0, 0.0), &PIXELS)[0], [152, 102, 77]);
        assert_eq!(changed(colour(1.0, 1.0, 0.0, 0.0), &PIXELS)[..2], [[124; 3], [18; 3]]);
    }

    #[test]
    fn a_turn_of_hue_moves_primaries_on() {
        let third = 1.0 / 3.0;
        assert_eq!(changed(colour(1.0, 1.0, 1.0, third), &[[255, 0, 0], [9, 9, 9]]), [[0, 255, 0], [9, 9, 9]]);
        assert_eq!(changed(colour(1.0, 1.0, 1.0, -third), &[[255, 0, 0]]), [[0, 0, 255]]);
        let near = |a: [u8; 3], b: [u8; 3]| a.iter().zip(b).all(|(&a, b)| a.abs_diff(b) <= 1);
        for p in PIXELS {
            let half = changed(colour(1.0, 1.0, 1.0, 0.5), &[p]);
            assert!(near(changed(colour(1.0, 1.0, 1.0, 0.5), &half)[0], p), "{p:?} {half:?}");
        }
    }

    #[test]
    fn factors_are_keyed_and_within_what_was_asked_for() {
        let jitter = ColourJitter { brightness: 0.4, contrast: 0.0, saturation: 0.2, hue: 0.1 };
        let draw = |sample| Colour::draw(&jitter, &SampleKey::new(3, 1, sample)).unwrap();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        for c in (0..200).map(draw) {
            assert!((0.6..=1.4).contains(&c.brightness) && c.contrast == 1.0);
            assert!((0.8..=1.2).contains(&c.saturation) && (-0.1..=0.1).contains(&c.hue));
        }
        assert_eq!(Colour::draw(&ColourJitter::default(), &SampleKey::new(0, 0, 0)), None);
    }
}
