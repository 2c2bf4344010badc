//! What a transform makes of a sample is what its parts make one after the other.

use super::super::reference::{Picture, apart, resize};
use super::super::testing::{self, Clip, Frames, picture};
use super::*;
use crate::decode::SampleKey;
use crate::proto::transform::{ColourJitter, Crop, Dtype, Filter, Layout, Resize, Sampling, Transform};

const KEY: SampleKey = SampleKey::new(3, 1, 4);

fn exact(width: u16, height: u16) -> Transform {
    let resize = Resize::Exact { width, height };
    Transform { frames: 1, resize, layout: Layout::Thwc, filter: Filter::Bicubic, ..Transform::default() }
}

fn made(clip: &Clip, t: &Transform, key: SampleKey) -> Frames {
    testing::decode(&clip.input(), &clip.descriptor(), t, key).unwrap_or_else(|e| panic!("{t:?}: {e}"))
}

/// The pixels of a part of a frame, and whether it is mirrored.
fn part(of: &Frames, x: usize, y: usize, width: usize, height: usize, mirrored: bool) -> Vec<u8> {
    let pixel = |at: usize| {
        let (row, column) = (at / width, at % width);
        of.pixel(0, x + if mirrored { width - 1 - column } else { column }, y + row)
    };
    (0..width * height).flat_map(pixel).collect()
}

#[test]
fn tiles_are_parts_of_the_resized_picture_and_then_all_of_it() {
    let clip = Clip::at(&picture("444.jpg"));
    let whole = made(&clip, &exact(48, 32), KEY);
    let small = made(&clip, &exact(16, 16), KEY);
    for (flip, thumbnail) in [(0.0, true), (1.0, true), (0.0, false)] {
        // 3 by 2 of six is nearest to 4:3.
        let t = Transform { flip, resize: Resize::Tiles { side: 16, most: 6, thumbnail }, ..exact(1, 1) };
        let out = made(&clip, &t, KEY);
        assert_eq!(out.outcome.shape, [6 + u16::from(thumbnail), 16, 16, 3]);
        for (n, (row, column)) in (0..2).flat_map(|row| (0..3).map(move |c| (row, c))).enumerate() {
            let from = if flip == 1.0 { 2 - column } else { column };
            assert!(out.frame(n) == part(&whole, from * 16, row * 16, 16, 16, flip == 1.0), "tile {n}, flip {flip}");
        }
        assert!(!thumbnail || out.frame(6) == part(&small, 0, 0, 16, 16, flip == 1.0));
    }
    let square = Transform { resize: Resize::Tiles { side: 16, most: 1, thumbnail: true }, ..exact(1, 1) };
    let out = made(&clip, &square, KEY);
    assert_eq!(out.outcome.shape, [1, 16, 16, 3], "one tile needs no thumbnail");
    assert_eq!(out.bytes, small.bytes);
}

#[test]
fn frames_of_a_clip_may_be_tiles_and_are_repeated_whole() {
    let clip = Clip::open("one_frame.mp4");
    let resize = Resize::Tiles { side: 16, most: 2, thumbnail: true };
    let out = made(&clip, &Transform { frames: 3, resize, ..exact(1, 1) }, KEY);
    // 96 x 64 is as near to 1:1 as to 2:1, and has pixels for more than half of two tiles.
    assert_eq!(out.outcome.shape, [9, 16, 16, 3]);
    (3..9).for_each(|n| assert!(out.frame(n) == out.frame(n % 3), "{n}"));
    let parts = Transform { layout: Layout::Tchw, frames: 3, resize, ..exact(1, 1) };
    let span = crate::proto::transform::Span { first: 1, frames: 2 };
    let (at, len) = parts.place(&clip.descriptor().facts(), span).unwrap();
    let mut bytes = vec![0; len as usize];
    let request = Request { span, ..Request::whole(clip.descriptor(), &parts, KEY) };
    let mut decoder = crate::decode::VideoDecoder::new();
    crate::decode::Decoder::decode(&mut decoder, &clip.input(), &request, &mut bytes).unwrap();
    assert!(made(&clip, &parts, KEY).bytes[at as usize..][..len as usize] == bytes);
}

#[test]
fn smart_sizes_fill_their_shape() {
    let clip = Clip::at(&picture("420.jpg"));
    let out = made(
        &clip,
        &Transform { resize: Resize::Smart { unit: 28, least: 3136, most: 1 << 20 }, ..exact(1, 1) },
        KEY,
    );
    assert_eq!(out.outcome.shape, [1, 56, 56, 3]);
    assert_eq!(out.bytes, made(&clip, &exact(56, 56), KEY).bytes);
}

#[test]
fn a_random_part_is_that_part_of_the_frame() {
    for (clip, is_picture) in [(Clip::at(&picture("444.jpg")), true), (Clip::open("rot90.mp4"), false)] {
        let (width, height) = clip.descriptor().shown();
        let full = made(&clip, &exact(width, height), KEY);
        let mut seen = std::collections::HashSet::new();
        for sample in 0..12 {
            let key = SampleKey::new(7, 0, sample);
            let crop = Crop::RandomResized { width: 20, height: 24, scale: [0.3, 0.9], ratio: [0.7, 1.4] };
            let t = Transform { crop, ..exact(9, 9) };
            let got = made(&clip, &t, key);
            assert_eq!(got.outcome.shape, [1, 24, 20, 3]);
            let rect = crop::before(&t, (width.into(), height.into()), &key).unwrap();
            seen.insert((rect.x, rect.y));
            let (x, y, w, h) = (rect.x, rect.y, rect.width, rect.height);
            let kept = Picture { bytes: part(&full, x, y, w, h, false), width: w, height: h };
            let (mean, _) = apart(&got.bytes, &resize(&kept, t.filter, 20, 24).bytes);
            // Most video has colour for every second pixel, where a part then begins and ends.
            assert!(mean < if is_picture { 0.6 } else { 3.0 }, "{}: {rect:?}: {mean}", clip.record.path);
        }
        assert!(seen.len() > 6);
        let own = f32::from(width) / f32::from(height);
        let all = Crop::RandomResized { width: 20, height: 24, scale: [1.0, 1.0], ratio: [own, own] };
        let all = Transform { crop: all, ..exact(9, 9) };
        assert_eq!(made(&clip, &all, KEY).bytes, made(&clip, &exact(20, 24), KEY).bytes);
    }
}

#[test]
fn colours_change_alike_in_all_frames_and_by_what_is_kept() {
    let clip = Clip::open("bt709_tagged.mp4");
    let crop = Crop::Center { width: 40, height: 30 };
    let plain = Transform { frames: 4, crop, ..exact(60, 50) };
    let colour = ColourJitter { brightness: 0.4, contrast: 0.5, saturation: 0.6, hue: 0.3 };
    let before = made(&clip, &plain, KEY);
    let after = made(&clip, &Transform { colour, ..plain.clone() }, KEY);
    assert!(before.bytes != after.bytes);
    let change = Colour::draw(&colour, &KEY).unwrap();
    for n in 0..4 {
        let channel = |c: usize| before.frame(n).iter().copied().skip(c).step_by(3).collect::<Vec<u8>>();
        let mut planes: [Vec<u8>; 3] = std::array::from_fn(channel);
        change.apply(&mut planes, 40, Rect { x: 0, y: 0, width: 40, height: 30 });
        let wanted: Vec<u8> = (0..40 * 30).flat_map(|i| [planes[0][i], planes[1][i], planes[2][i]]).collect();
        assert!(after.frame(n) == wanted, "frame {n}");
    }
    assert_ne!(made(&clip, &Transform { colour, ..plain }, SampleKey::new(3, 2, 4)).bytes, after.bytes);
}

#[test]
fn layouts_hold_the_same_numbers() {
    let clip = Clip::open("base.mp4");
    let of = |layout, dtype| {
        let sampling = Sampling::Window { start: 20, stride: 4 };
        made(&clip, &Transform { frames: 5, layout, dtype, sampling, ..exact(12, 8) }, KEY)
    };
    for (dtype, size) in [(Dtype::U8, 1), (Dtype::F16, 2), (Dtype::Bf16, 2), (Dtype::F32, 4)] {
        let [tchw, thwc, cthw] = [Layout::Tchw, Layout::Thwc, Layout::Cthw].map(|layout| of(layout, dtype));
        assert_eq!((tchw.outcome.shape, cthw.outcome.shape), ([5, 3, 8, 12], [3, 5, 8, 12]));
        let number = |of: &Frames, at: usize| of.bytes[at * size..][..size].to_vec();
        for (t, c) in (0..5).flat_map(|t| (0..3).map(move |c| (t, c))) {
            for (y, x) in (0..8).flat_map(|y| (0..12).map(move |x| (y, x))) {
                let one = number(&tchw, ((t * 3 + c) * 8 + y) * 12 + x);
                assert_eq!(one, number(&thwc, ((t * 8 + y) * 12 + x) * 3 + c));
                assert_eq!(one, number(&cthw, ((c * 5 + t) * 8 + y) * 12 + x));
            }
        }
    }
}
