//! The one write: from the resized planes to the batch's place, with rotation, crop, flip, layout and numbers.
//!
//! Rotation, crop and flip are one affine walk over the planes, so that each output byte is computed once and
//! written once, whatever is combined.

use half::{bf16, f16};

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

/// A part of a frame, pixels.
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
    flip: bool,
    width: usize,
    height: usize,
    layout: Layout,
    /// Frames of the output.
    slots: usize,
    numbers: Numbers,
    line: [Vec<u8>; 3],
}

/// Byte to number, per channel.
#[derive(Debug)]
enum Numbers {
    /// The byte itself.
    One,
    Two(Box<[[[u8; 2]; 256]; 3]>),
    Four(Box<[[[u8; 4]; 256]; 3]>),
}

impl Numbers {
    fn of(transform: &Transform) -> Numbers {
        let number = |c: usize, v: usize| (v as f32 / 255.0 - transform.mean[c]) / transform.std[c];
        fn table<const N: usize>(of: impl Fn(usize, usize) -> [u8; N]) -> Box<[[[u8; N]; 256]; 3]> {
            Box::new(std::array::from_fn(|c| std::array::from_fn(|v| of(c, v))))
        }
        match transform.dtype {
            Dtype::U8 => Numbers::One,
            Dtype::F16 => Numbers::Two(table(|c, v| f16::from_f32(number(c, v)).to_ne_bytes())),
            Dtype::Bf16 => Numbers::Two(table(|c, v| bf16::from_f32(number(c, v)).to_ne_bytes())),
            Dtype::F32 => Numbers::Four(table(|c, v| number(c, v).to_ne_bytes())),
        }
    }
}

/// Where a walk over the upright, cropped, flipped frame reads: `base + x·dx + y·dy`.
#[derive(Debug, Clone, Copy)]
struct Walk {
    base: isize,
    dx: isize,
    dy: isize,
}

impl Writer {
    /// A writer of `slots` frames of this width and height, from clips that are shown upright after a clockwise
    /// `rotation` by 0, 90, 180 or 270 degrees. Whether they are mirrored is said of what is kept.
    pub fn new(
        transform: &Transform,
        slots: usize,
        (width, height): (usize, usize),
        rotation: u16,
        flip: bool,
    ) -> Writer {
        Writer {
            rotation: rotation % 360,
            flip,
            width,
            height,
            layout: transform.layout,
            slots,
            numbers: Numbers::of(transform),
            line: std::array::from_fn(|_| vec![0; width]),
        }
    }

    /// Bytes of a number.
    fn number(&self) -> usize {
        match self.numbers {
            Numbers::One => 1,
            Numbers::Two(_) => 2,
            Numbers::Four(_) => 4,
        }
    }

    /// Bytes of one frame.
    pub fn frame_bytes(&self) -> usize {
        self.width * self.height * 3 * self.number()
    }

    /// Writes what is kept, from pixel `from` of the upright frame on, to slot `at` of `out`.
    ///
    /// # Panics
    /// If `out` is not as long as all slots are, or what is kept does not lie in the upright frame.
    pub fn write(&mut self, planes: &Planes<'_>, from: (usize, usize), at: usize, out: &mut [u8]) {
        assert_eq!(out.len(), self.slots * self.frame_bytes(), "the place of all frames");
        let walk = self.walk(planes, from);
        let mut line = std::mem::take(&mut self.line);
        for y in 0..self.height {
            let start = walk.base + y as isize * walk.dy;
            let [r, g, b] = &mut line;
            let lines = [
                gather(planes.rgb[0], start, walk.dx, r),
                gather(planes.rgb[1], start, walk.dx, g),
                gather(planes.rgb[2], start, walk.dx, b),
            ];
            match &self.numbers {
                Numbers::One => self.put(lines, at, y, out, |_, v| [v]),
                Numbers::Two(table) => self.put(lines, at, y, out, |c, v| table[c][usize::from(v)]),
                Numbers::Four(table) => self.put(lines, at, y, out, |c, v| table[c][usize::from(v)]),
            }
        }
        self.line = line;
    }

    /// Writes row `y` of frame `at`, a number at a time.
    #[inline]
    fn put<const N: usize>(
        &self,
        lines: [&[u8]; 3],
        at: usize,
        y: usize,
        out: &mut [u8],
        number: impl Fn(usize, u8) -> [u8; N],
    ) {
        let Writer { width, height, .. } = *self;
        if matches!(self.layout, Layout::Thwc | Layout::Pages | Layout::Sound) {
            let row = &mut out[(at * height + y) * width * 3 * N..][..width * 3 * N];
            let (pixels, [r, g, b]) = (row.as_chunks_mut::<N>().0.as_chunks_mut::<3>().0, lines);
            for (((place, &r), &g), &b) in pixels.iter_mut().zip(r).zip(g).zip(b) {
                *place = [number(0, r), number(1, g), number(2, b)];
            }
            return;
        }
        for (c, line) in lines.into_iter().enumerate() {
            let row = &mut out[(self.plane(at, c) * height + y) * width * N..][..width * N];
            for (place, &v) in row.as_chunks_mut::<N>().0.iter_mut().zip(line) {
                *place = number(c, v);
            }
        }
    }

    /// Which of the output's planes is a channel of a frame, where channels are apart.
    fn plane(&self, at: usize, channel: usize) -> usize {
        if self.layout == Layout::Cthw { channel * self.slots + at } else { at * 3 + channel }
    }

    /// Repeats a frame that was written to another slot.
    pub fn repeat(&self, from: usize, to: usize, out: &mut [u8]) {
        let plane = self.frame_bytes() / 3;
        for c in 0..3 {
            // Where channels are not apart a frame is three pieces in a row all the same.
            let [from, to] = [from, to].map(|at| self.plane(at, c) * plane);
            out.copy_within(from..from + plane, to);
        }
    }

    fn walk(&self, planes: &Planes<'_>, (x, y): (usize, usize)) -> Walk {
        let (w, h, s) = (planes.width as isize, planes.height as isize, planes.stride as isize);
        let (mut walk, shown) = match self.rotation {
            90 => (Walk { base: (h - 1) * s, dx: -s, dy: 1 }, (h, w)),
            180 => (Walk { base: (h - 1) * s + w - 1, dx: -1, dy: -s }, (w, h)),
            270 => (Walk { base: w - 1, dx: s, dy: -1 }, (h, w)),
            _ => (Walk { base: 0, dx: 1, dy: s }, (w, h)),
        };
        let Writer { width, height, .. } = *self;
        assert!(
            (x + width) as isize <= shown.0 && (y + height) as isize <= shown.1,
            "{width}x{height} from ({x}, {y}) on of a frame of {shown:?}"
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

    /// Frame 1 of 3, one number after the other; elsewhere `fill`.
    fn reference(image: &Image, t: &Transform, rotation: u16, crop: Rect, flip: bool, fill: u8) -> Vec<u8> {
        let (w, h, frames) = (crop.width, crop.height, usize::from(t.frames));
        let mut out = vec![fill; frames * w * h * 3 * t.dtype.size()];
        for c in 0..3 {
            for y in 0..h {
                for x in 0..w {
                    let from = if flip { w - 1 - x } else { x };
                    let v = image.upright(rotation, c, crop.x + from, crop.y + y);
                    let at = match t.layout {
                        Layout::Tchw => ((3 + c) * h + y) * w + x,
                        Layout::Thwc | Layout::Pages | Layout::Sound => ((h + y) * w + x) * 3 + c,
                        Layout::Cthw => ((c * frames + 1) * h + y) * w + x,
                    };
                    let number = (f32::from(v) / 255.0 - t.mean[c]) / t.std[c];
                    let bytes = match t.dtype {
                        Dtype::U8 => vec![v],
                        Dtype::F32 => number.to_ne_bytes().to_vec(),
                        Dtype::F16 => f16::from_f32(number).to_ne_bytes().to_vec(),
                        // To the nearest of the upper halves, from the middle to the even one.
                        Dtype::Bf16 => {
                            let bits = number.to_bits();
                            let bits = bits + 0x7fff + (bits >> 16 & 1);
                            ((bits >> 16) as u16).to_ne_bytes().to_vec()
                        }
                    };
                    out[at * bytes.len()..][..bytes.len()].copy_from_slice(&bytes);
                }
            }
        }
        out
    }

    proptest! {
        #[test]
        fn every_combination_equals_the_scalar_reference(
            w in 1usize..40, h in 1usize..40, gap in 0usize..9, seed: u64, quarter in 0u16..4, flip: bool,
            layout in 0usize..3, dtype in 0usize..4, fx in 0.0f64..1.0, fy in 0.0f64..1.0,
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
                frames: 3,
                layout: [Layout::Tchw, Layout::Thwc, Layout::Cthw][layout],
                dtype: [Dtype::U8, Dtype::F16, Dtype::Bf16, Dtype::F32][dtype],
                mean: [0.485, 0.456, 0.406],
                std: [0.229, 0.224, 0.225],
                ..Transform::default()
            };
            let from = (crop.x, crop.y);
            let mut writer = Writer::new(&t, 3, (crop.width, crop.height), quarter * 90, flip);
            let mut out = vec![0xa5; 3 * writer.frame_bytes()];
            writer.write(&image.planes(), from, 1, &mut out);
            prop_assert_eq!(&out, &reference(&image, &t, quarter * 90, crop, flip, 0xa5));
            // A repeated frame is what it would be if it were written there.
            let mut again = vec![0xa5; out.len()];
            writer.write(&image.planes(), from, 2, &mut again);
            let mut both = again.clone();
            writer.write(&image.planes(), from, 1, &mut both);
            writer.repeat(1, 2, &mut out);
            prop_assert_eq!(out, both);
        }
    }
}
