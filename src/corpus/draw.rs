//! Moving pictures drawn from a seed: a panning landscape of noise, shapes that drift over it, and film grain, so
//! that encoders spend bits and decoders spend time much as they do on filmed material.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// How far the picture pans, pixels (even, so that chroma moves with luma).
const PAN: usize = 64;
/// Bytes of the grain table; rows start anywhere in it, so it is longer than the widest row by far.
const GRAIN: usize = 1 << 16;

/// A plane of a frame to draw into.
pub(super) struct Plane<'a> {
    pub(super) data: &'a mut [u8],
    pub(super) stride: usize,
}

/// A scene: everything about the pictures of one clip.
pub(super) struct Scene {
    width: usize,
    height: usize,
    backdrop: [Image; 3],
    shapes: Vec<Shape>,
    grain: Vec<i8>,
    seed: u64,
}

struct Image {
    width: usize,
    pixels: Vec<u8>,
}

struct Shape {
    round: bool,
    size: f64,
    at: [f64; 2],
    /// Pixels a second.
    speed: [f64; 2],
    colour: [u8; 3],
}

fn unit(rng: &mut ChaCha8Rng) -> f64 {
    f64::from(rng.next_u32()) / f64::from(u32::MAX)
}

impl Scene {
    /// The scene of a seed, for frames of this size (both even).
    pub(super) fn new(width: usize, height: usize, seed: u64) -> Scene {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let luma = Image::noise(&mut rng, width + PAN, height + PAN, 128.0, 90.0);
        let mut chroma = || Image::noise(&mut rng, (width + PAN) / 2, (height + PAN) / 2, 128.0, 40.0);
        let backdrop = [luma, chroma(), chroma()];
        let side = height.min(width) as f64;
        let shapes = (0..3 + rng.next_u32() % 6).map(|_| Shape::new(&mut rng, side, width, height)).collect();
        let amplitude = 1 + (rng.next_u32() % 4) as i8;
        let grain = (0..GRAIN).map(|_| (rng.next_u32() % (2 * amplitude as u32 + 1)) as i8 - amplitude).collect();
        Scene { width, height, backdrop, shapes, grain, seed }
    }

    /// Draws plane `i` (Y, U, V) of the picture `seconds` into the clip, as 4:2:0.
    pub(super) fn draw_plane(&self, frame: u32, seconds: f64, i: usize, plane: Plane<'_>) {
        let swing = |rate: f64| ((PAN / 2) as f64 * (1.0 + (seconds * rate).sin()) / 2.0) as usize;
        let half = usize::from(i > 0);
        let (width, height) = (self.width >> half, self.height >> half);
        // The pan is counted in chroma pixels, so that both kinds of plane move by whole pixels together.
        let (left, top) = (swing(0.7) << (1 - half), swing(0.9) << (1 - half));
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ (u64::from(frame) << 32));
        let image = &self.backdrop[i];
        for (y, row) in plane.data.chunks_mut(plane.stride).take(height).enumerate() {
            let row = &mut row[..width];
            row.copy_from_slice(&image.pixels[(y + top) * image.width + left..][..width]);
            for shape in &self.shapes {
                shape.draw_row(row, y, i, half, seconds, [self.width as f64, self.height as f64]);
            }
            if i == 0 {
                let start = rng.next_u32() as usize % (GRAIN - width);
                for (pixel, grain) in row.iter_mut().zip(&self.grain[start..]) {
                    *pixel = pixel.saturating_add_signed(*grain);
                }
            }
        }
    }
}

impl Image {
    /// Value noise: three lattices of random values, each finer and fainter, blended between their points.
    fn noise(rng: &mut ChaCha8Rng, width: usize, height: usize, middle: f64, swing: f64) -> Image {
        let mut sum = vec![middle as f32; width * height];
        for (cells, share) in [(5, 0.55), (23, 0.3), (97, 0.15)] {
            let lattice: Vec<f32> =
                (0..(cells + 2) * (cells + 2)).map(|_| ((unit(rng) - 0.5) * 2.0 * swing * share) as f32).collect();
            let scale = cells as f32 / width.max(height) as f32;
            for (y, row) in sum.chunks_mut(width).enumerate() {
                let (cy, fy) = split(y as f32 * scale);
                let (upper, lower) = (&lattice[cy * (cells + 2)..], &lattice[(cy + 1) * (cells + 2)..]);
                for (x, value) in row.iter_mut().enumerate() {
                    let (cx, fx) = split(x as f32 * scale);
                    let above = upper[cx] + (upper[cx + 1] - upper[cx]) * fx;
                    let below = lower[cx] + (lower[cx + 1] - lower[cx]) * fx;
                    *value += above + (below - above) * fy;
                }
            }
        }
        Image { width, pixels: sum.into_iter().map(|v| v.clamp(16.0, 235.0) as u8).collect() }
    }
}

fn split(v: f32) -> (usize, f32) {
    (v as usize, v - v.floor())
}

impl Shape {
    fn new(rng: &mut ChaCha8Rng, side: f64, width: usize, height: usize) -> Shape {
        Shape {
            round: rng.next_u32().is_multiple_of(2),
            size: side * (0.06 + 0.2 * unit(rng)),
            at: [unit(rng) * width as f64, unit(rng) * height as f64],
            speed: [side * (unit(rng) - 0.5), side * (unit(rng) - 0.5)],
            colour: [(40 + rng.next_u32() % 180) as u8, rng.next_u32() as u8, rng.next_u32() as u8],
        }
    }

    /// Paints what of the shape lies in row `y` of plane `i`, whose pixels are `1 << half` luma pixels wide.
    fn draw_row(&self, row: &mut [u8], y: usize, i: usize, half: usize, seconds: f64, size: [f64; 2]) {
        let [cx, cy] = [0, 1].map(|a| bounce(self.at[a] + self.speed[a] * seconds, size[a]));
        let scale = f64::from(1u32 << half);
        let dy = (y as f64 * scale - cy).abs();
        if dy >= self.size {
            return;
        }
        let reach = if self.round { (self.size * self.size - dy * dy).sqrt() } else { self.size };
        let start = (((cx - reach) / scale).max(0.0) as usize).min(row.len());
        let end = (((cx + reach) / scale).max(0.0) as usize).min(row.len());
        // Luma gets stripes that move with the shape, chroma is flat.
        for (x, pixel) in row[start..end].iter_mut().enumerate() {
            let stripe = if i == 0 { ((x + y) as u8 & 24) * 2 } else { 0 };
            *pixel = self.colour[i].wrapping_add(stripe).clamp(16, 235);
        }
    }
}

/// Where a point is that runs between two walls, 0 and `range`.
fn bounce(at: f64, range: f64) -> f64 {
    let around = at.rem_euclid(2.0 * range);
    if around > range { 2.0 * range - around } else { around }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(seed: u64, frame: u32) -> Vec<u8> {
        let (w, h) = (64, 48);
        let scene = Scene::new(w, h, seed);
        let mut planes = [vec![0; w * h], vec![0; w * h / 4], vec![0; w * h / 4]];
        for (i, data) in planes.iter_mut().enumerate() {
            let stride = if i == 0 { w } else { w / 2 };
            scene.draw_plane(frame, f64::from(frame) / 25.0, i, Plane { data, stride });
        }
        planes.concat()
    }

    #[test]
    fn a_picture_depends_on_seed_and_frame_alone() {
        assert_eq!(picture(1, 0), picture(1, 0));
        assert_ne!(picture(1, 0), picture(2, 0));
        assert_ne!(picture(1, 0), picture(1, 1));
    }

    #[test]
    fn shapes_stay_between_the_walls() {
        for at in [-250.0, -1.0, 0.0, 99.0, 101.0, 350.0] {
            assert!((0.0..=100.0).contains(&bounce(at, 100.0)), "{at}");
        }
    }
}
