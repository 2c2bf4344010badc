//! Which part of a frame is kept: before it is resized, or after.
//!
//! Parts are found in the upright frame, as it is shown, and turned back to where they lie in the frame as coded.

use super::key::{Purpose, SampleKey};
use super::pixels::Rect;
use crate::proto::transform::{Crop, Transform};

/// How often an area and a shape are drawn that do not fit into the frame, before the middle is taken.
const TRIES: u32 = 10;

/// The part of the upright, resized frame that is kept.
pub(super) fn after(transform: &Transform, (width, height): (usize, usize), key: &SampleKey) -> Rect {
    match transform.crop {
        Crop::None | Crop::RandomResized { .. } => Rect { x: 0, y: 0, width, height },
        Crop::Center { width: w, height: h } => {
            let (w, h) = (usize::from(w), usize::from(h));
            Rect { x: (width - w) / 2, y: (height - h) / 2, width: w, height: h }
        }
        Crop::Random { width: w, height: h } => {
            let (w, h) = (usize::from(w), usize::from(h));
            let mut draws = key.draws(Purpose::Crop);
            let x = draws.below((width - w) as u64 + 1) as usize;
            let y = draws.below((height - h) as u64 + 1) as usize;
            Rect { x, y, width: w, height: h }
        }
    }
}

/// The part of the upright frame, before it is resized, that is kept; `None` for all of it.
pub(super) fn before(transform: &Transform, (width, height): (usize, usize), key: &SampleKey) -> Option<Rect> {
    let Crop::RandomResized { scale, ratio, .. } = transform.crop else { return None };
    let mut draws = key.draws(Purpose::Crop);
    let [scale, ratio] = [scale, ratio].map(|range| range.map(f64::from));
    let area = (width * height) as f64;
    for _ in 0..TRIES {
        let target = area * (scale[0] + draws.part() * (scale[1] - scale[0]));
        // Evenly on the logarithm's scale: as often wider than high as higher than wide.
        let shape = ratio[0] * power(ratio[1] / ratio[0], draws.part());
        let (w, h) = ((target * shape).sqrt().round() as usize, (target / shape).sqrt().round() as usize);
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let x = draws.below((width - w) as u64 + 1) as usize;
            let y = draws.below((height - h) as u64 + 1) as usize;
            return Some(Rect { x, y, width: w, height: h });
        }
    }
    let own = width as f64 / height as f64;
    let (w, h) = if own < ratio[0] {
        (width, ((width as f64 / ratio[0]).round() as usize).clamp(1, height))
    } else if own > ratio[1] {
        (((height as f64 * ratio[1]).round() as usize).clamp(1, width), height)
    } else {
        (width, height)
    };
    Some(Rect { x: (width - w) / 2, y: (height - h) / 2, width: w, height: h })
}

/// `base` to the power of a part from 0 to 1, by square roots alone: they are exact on every processor, and the
/// logarithms of two C libraries are not the same.
fn power(base: f64, part: f64) -> f64 {
    let mut bits = (part * (1u64 << 32) as f64) as u64;
    let (mut root, mut result) = (base, 1.0);
    for _ in 0..32 {
        root = root.sqrt();
        bits <<= 1;
        if bits & (1 << 32) != 0 {
            result *= root;
        }
    }
    result
}

/// A part of the upright frame as it lies in the frame as coded, of this size.
pub(super) fn as_coded(part: Rect, rotation: u16, (width, height): (usize, usize)) -> Rect {
    let Rect { x, y, width: w, height: h } = part;
    match rotation {
        90 => Rect { x: y, y: height - x - w, width: h, height: w },
        180 => Rect { x: width - x - w, y: height - y - h, width: w, height: h },
        270 => Rect { x: width - y - h, y: x, width: h, height: w },
        _ => part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transform(scale: [f32; 2], ratio: [f32; 2]) -> Transform {
        Transform { crop: Crop::RandomResized { width: 8, height: 8, scale, ratio }, ..Transform::default() }
    }

    #[test]
    fn a_part_lies_where_turning_the_frame_puts_it() {
        // A pixel of a 4 x 3 frame, by the corner that it is moved to.
        let pixel = |x, y| Rect { x, y, width: 1, height: 1 };
        for (rotation, shown, coded) in
            [(0, (0, 0), (0, 0)), (90, (2, 0), (0, 0)), (180, (3, 2), (0, 0)), (270, (0, 3), (0, 0))]
        {
            assert_eq!(as_coded(pixel(shown.0, shown.1), rotation, (4, 3)), pixel(coded.0, coded.1), "{rotation}");
        }
        let wide = Rect { x: 0, y: 1, width: 2, height: 1 };
        assert_eq!(as_coded(wide, 90, (4, 3)), Rect { x: 1, y: 1, width: 1, height: 2 });
    }

    #[test]
    fn powers_are_powers() {
        for (base, part) in [(2.0, 0.5), (1.7777, 0.123), (9.0, 0.0), (3.0, 0.999)] {
            assert!((power(base, part) - f64::powf(base, part)).abs() < 1e-6, "{base}^{part}");
        }
    }

    #[test]
    fn parts_have_the_areas_and_shapes_asked_for() {
        let t = transform([0.2, 0.6], [0.5, 2.0]);
        let (mut wide, mut sum) = (0, 0.0);
        for sample in 0..1000 {
            let r = before(&t, (640, 360), &SampleKey::new(1, 2, sample)).unwrap();
            assert!(r.x + r.width <= 640 && r.y + r.height <= 360);
            let area = (r.width * r.height) as f64 / (640.0 * 360.0);
            let shape = r.width as f64 / r.height as f64;
            assert!((0.19..0.61).contains(&area) && (0.49..2.02).contains(&shape), "{r:?}");
            wide += u32::from(shape > 1.0);
            sum += area;
        }
        assert!((450..700).contains(&wide) && (0.33..0.45).contains(&(sum / 1000.0)), "{wide} {sum}");
    }

    #[test]
    fn what_never_fits_is_the_middle() {
        let key = SampleKey::new(0, 0, 0);
        let middle = before(&transform([1.0, 1.0], [4.0, 4.0]), (100, 100), &key);
        assert_eq!(middle, Some(Rect { x: 0, y: 37, width: 100, height: 25 }));
        assert_eq!(before(&Transform::default(), (100, 100), &key), None);
    }
}
