//! The one write: from the resized planes to the batch's place, with rotation, crop, flip, layout and numbers.
//!
//! Rotation, crop and flip are one affine walk over the planes, so that each output byte is computed once and
//! written once, whatever is combined.

use crate::proto::transform::{Dtype, Layout, Transform};

/// A resized frame as coded (not yet upright): planes of red, green and blue with a common stride.
#[derive(Debug, Clone, Copy)]
pub struct Planes<'a> {
    /// Red, green, blue; row `y` of a plane starts at `y * stride`.
    pub rgb: [&'a [u8]; 3],
    /// Bytes from one row to the next, at least `width`.
    pub stride: usize,
    /// Width, pixels.
    pub width: usize,
    /// Height, pixels.
    pub height: usize,
}

/// A part of the upright frame, pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rect {
    /// Left edge.
    pub x: usize,
    /// Upper edge.
    pub y: usize,
    /// Width.
    pub width: usize,
    /// Height.
    pub height: usize,
}

/// Writes frames of one clip. Its geometry is the same for each of them.
#[derive(Debug)]
pub struct Writer {
    rotation: u16,
    crop: Rect,
    flip: bool,
    layout: Layout,
    /// Byte to number, per channel; `None` writes the bytes themselves.
    numbers: Option<Box<[[f32; 256]; 3]>>,
    line: [Vec<u8>; 3],
}

/// Where a walk over the upright, cropped, flipped frame reads: `base + x·dx + y·dy`.
#[derive(Debug, Clone, Copy)]
struct Walk {
    base: isize,
    dx: isize,
    dy: isize,
}

impl Writer {
    /// A writer of clips that are shown upright after a clockwise `rotation` by 0, 90, 180 or 270 degrees. The crop
    /// is in upright coordinates and comes before the flip.
    pub fn new(transform: &Transform, rotation: u16, crop: Rect, flip: bool) -> Writer {
        let numbers = (transform.dtype == Dtype::F32).then(|| {
            let channel =
                |c: usize| std::array::from_fn(|v| (v as f32 / 255.0 - transform.mean[c]) / transform.std[c]);
            Box::new([channel(0), channel(1), channel(2)])
        });
        Writer {
            rotation: rotation % 360,
            crop,
            flip,
            layout: transform.layout,
            numbers,
            line: std::array::from_fn(|_| vec![0; crop.width]),
        }
    }

    /// Bytes of one frame.
    pub fn frame_bytes(&self) -> usize {
        self.crop.width * self.crop.height * 3 * if self.numbers.is_some() { 4 } else { 1 }
    }

    /// Writes one frame over all of `out`.
    ///
    /// # Panics
    /// If `out` is not [`Writer::frame_bytes`] long, or the crop does not lie in the upright frame.
    pub fn write(&mut self, planes: &Planes<'_>, out: &mut [u8]) {
        assert_eq!(out.len(), self.frame_bytes(), "one frame's place");
        let walk = self.walk(planes);
        let Rect { width, height, .. } = self.crop;
        for y in 0..height {
            let start = walk.base + y as isize * walk.dy;
            let [r, g, b] = &mut self.line;
            let lines = [
                gather(planes.rgb[0], start, walk.dx, r),
                gather(planes.rgb[1], start, walk.dx, g),
                gather(planes.rgb[2], start, walk.dx, b),
            ];
            match (self.layout, &self.numbers) {
                (Layout::Tchw, None) => {
                    for (c, line) in lines.into_iter().enumerate() {
                        out[(c * height + y) * width..][..width].copy_from_slice(line);
                    }
                }
                (Layout::Tchw, Some(numbers)) => {
                    for (c, line) in lines.into_iter().enumerate() {
                        let row = &mut out[(c * height + y) * width * 4..][..width * 4];
                        for (place, &v) in row.as_chunks_mut::<4>().0.iter_mut().zip(line) {
                            *place = numbers[c][usize::from(v)].to_ne_bytes();
                        }
                    }
                }
                (Layout::Thwc | Layout::Pages | Layout::Sound, None) => {
                    let row = &mut out[y * width * 3..][..width * 3];
                    for (x, place) in row.as_chunks_mut::<3>().0.iter_mut().enumerate() {
                        *place = [lines[0][x], lines[1][x], lines[2][x]];
                    }
                }
                (Layout::Thwc | Layout::Pages | Layout::Sound, Some(numbers)) => {
                    let row = &mut out[y * width * 12..][..width * 12];
                    for (i, place) in row.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                        let (x, c) = (i / 3, i % 3);
                        *place = numbers[c][usize::from(lines[c][x])].to_ne_bytes();
                    }
                }
            }
        }
    }

    fn walk(&self, planes: &Planes<'_>) -> Walk {
        let (w, h, s) = (planes.width as isize, planes.height as isize, planes.stride as isize);
        let (mut walk, shown) = match self.rotation {
            90 => (Walk { base: (h - 1) * s, dx: -s, dy: 1 }, (h, w)),
            180 => (Walk { base: (h - 1) * s + w - 1, dx: -1, dy: -s }, (w, h)),
            270 => (Walk { base: w - 1, dx: s, dy: -1 }, (h, w)),
            _ => (Walk { base: 0, dx: 1, dy: s }, (w, h)),
        };
        let Rect { x, y, width, height } = self.crop;
        assert!(
            (x + width) as isize <= shown.0 && (y + height) as isize <= shown.1,
            "crop {:?} in a frame of {shown:?}",
            self.crop
        );
        walk.base += x as isize * walk.dx + y as isize * walk.dy;
        if self.flip {
            walk.base += (width as isize - 1) * walk.dx;
            walk.dx = -walk.dx;
        }
        walk
    }
}

/// One row of the output from a plane; borrowed in place where the walk allows.
fn gather<'a>(plane: &'a [u8], start: isize, dx: isize, line: &'a mut [u8]) -> &'a [u8] {
    let width = line.len();
    if dx == 1 {
        return &plane[start as usize..][..width];
    }
    if dx == -1 {
        let first = start as usize + 1 - width;
        for (to, &from) in line.iter_mut().zip(plane[first..][..width].iter().rev()) {
            *to = from;
        }
    } else {
        let mut at = start;
        for to in line.iter_mut() {
            *to = plane[at as usize];
            at += dx;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::key::{Purpose, SampleKey};
    use proptest::prelude::*;

    struct Image {
        planes: [Vec<u8>; 3],
        stride: usize,
        width: usize,
        height: usize,
    }

    impl Image {
        fn random(width: usize, height: usize, gap: usize, seed: u64) -> Image {
            let mut draws = SampleKey::new(seed, 0, 0).draws(Purpose::Crop);
            let stride = width + gap;
            let planes = std::array::from_fn(|_| (0..stride * height).map(|_| draws.below(256) as u8).collect());
            Image { planes, stride, width, height }
        }

        fn planes(&self) -> Planes<'_> {
            let rgb = std::array::from_fn(|c| self.planes[c].as_slice());
            Planes { rgb, stride: self.stride, width: self.width, height: self.height }
        }

        /// Pixel (x, y) of the upright image, by turning it clockwise a quarter at a time.
        fn upright(&self, rotation: u16, c: usize, x: usize, y: usize) -> u8 {
            let (mut x, mut y, mut w, mut h) = (x, y, self.width, self.height);
            if !rotation.is_multiple_of(180) {
                (w, h) = (h, w);
            }
            for _ in 0..rotation / 90 {
                // A quarter turn clockwise moves (a, b) of a frame of height n to (n − 1 − b, a).
                (x, y) = (y, w - 1 - x);
                (w, h) = (h, w);
            }
            self.planes[c][y * self.stride + x]
        }
    }

    fn reference(image: &Image, t: &Transform, rotation: u16, crop: Rect, flip: bool) -> Vec<u8> {
        let (w, h) = (crop.width, crop.height);
        let mut out = vec![0u8; w * h * 3 * t.dtype.size()];
        for c in 0..3 {
            for y in 0..h {
                for x in 0..w {
                    let from = if flip { w - 1 - x } else { x };
                    let v = image.upright(rotation, c, crop.x + from, crop.y + y);
                    let at = match t.layout {
                        Layout::Tchw => (c * h + y) * w + x,
                        Layout::Thwc | Layout::Pages | Layout::Sound => (y * w + x) * 3 + c,
                    };
                    match t.dtype {
                        Dtype::U8 => out[at] = v,
                        Dtype::F32 => {
                            let number = (f32::from(v) / 255.0 - t.mean[c]) / t.std[c];
                            out[at * 4..at * 4 + 4].copy_from_slice(&number.to_ne_bytes());
                        }
                    }
                }
            }
        }
        out
    }

    proptest! {
        #[test]
        fn every_combination_equals_the_scalar_reference(
            w in 1usize..40, h in 1usize..40, gap in 0usize..9, seed: u64, quarter in 0u16..4, flip: bool,
            thwc: bool, f32: bool, fx in 0.0f64..1.0, fy in 0.0f64..1.0,
        ) {
            let image = Image::random(w, h, gap, seed);
            let (sw, sh) = if quarter % 2 == 1 { (h, w) } else { (w, h) };
            let crop = Rect {
                x: (fx * sw as f64) as usize,
                y: (fy * sh as f64) as usize,
                width: sw - (fx * sw as f64) as usize,
                height: sh - (fy * sh as f64) as usize,
            };
            let t = Transform {
                layout: if thwc { Layout::Thwc } else { Layout::Tchw },
                dtype: if f32 { Dtype::F32 } else { Dtype::U8 },
                mean: [0.485, 0.456, 0.406],
                std: [0.229, 0.224, 0.225],
                ..Transform::default()
            };
            let mut writer = Writer::new(&t, quarter * 90, crop, flip);
            let mut out = vec![0xa5; writer.frame_bytes()];
            writer.write(&image.planes(), &mut out);
            prop_assert_eq!(out, reference(&image, &t, quarter * 90, crop, flip));
        }
    }
}
