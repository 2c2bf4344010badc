//! Pictures of every kind are, within a tolerance, what Pillow reads of them.

use super::SampleKey;
use super::key::Purpose;
use super::reference::{Picture, apart, resize};
use super::testing::{self, Clip, Frames, hard, picture};
use crate::proto::transform::{Crop, Dtype, Filter, Layout, Resize, Transform};

/// File, frames, and how far from Pillow: mean and largest difference of a channel.
#[rustfmt::skip]
const PICTURES: [(&str, u32, f64, u8); 28] = [
    ("rgb.png", 1, 0.0, 0),
    ("alpha.png", 1, 0.0, 0),
    ("palette.png", 1, 0.5, 2),
    ("still.bmp", 1, 0.0, 0),
    ("still.tif", 1, 0.0, 0),
    ("444.jpg", 1, 0.5, 3),
    ("420.jpg", 1, 0.5, 3),
    ("progressive.jpg", 1, 0.5, 3),
    ("grey.jpg", 1, 0.5, 3),
    ("cmyk.jpg", 1, 1.2, 3),
    ("lossless.webp", 1, 0.0, 0),
    ("lossy.webp", 1, 0.5, 3),
    ("420.avif", 1, 0.5, 3),
    ("444.avif", 1, 0.5, 3),
    ("moving.gif", 4, 0.0, 0),
    // What is blended may be a level lower.
    ("moving.webp", 4, 1.0, 1),
    ("moving_lossless.webp", 4, 1.0, 1),
    ("turned1.jpg", 1, 0.5, 3),
    ("turned2.jpg", 1, 0.5, 3),
    ("turned3.jpg", 1, 0.5, 3),
    ("turned4.jpg", 1, 0.5, 3),
    ("turned5.jpg", 1, 0.5, 3),
    ("turned6.jpg", 1, 0.5, 3),
    ("turned7.jpg", 1, 0.5, 3),
    ("turned8.jpg", 1, 0.5, 3),
    ("turned5.png", 1, 0.0, 0),
    ("turned5.webp", 1, 0.0, 0),
    ("anim.webp", 6, 1.0, 3),
];

fn open(name: &str) -> Clip {
    let path = if name == "anim.webp" { hard(name) } else { picture(name) };
    Clip::at(&path)
}

#[test]
fn pictures_are_those_of_pillow() {
    for (name, frames, mean, most) in PICTURES {
        let clip = open(name);
        assert_eq!(clip.record.frames, frames, "{name}");
        let all = clip.all().unwrap_or_else(|e| panic!("{name}: {e}"));
        let theirs = std::fs::read(picture(&format!("{name}.rgb"))).unwrap();
        let found = apart(&all.bytes, &theirs);
        assert!(found.0 <= mean && found.1 <= most, "{name}: mean {:.2}, most {}", found.0, found.1);
    }
}

#[test]
fn every_picture_of_the_folder_is_tested() {
    let names = std::fs::read_dir(picture("")).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
    for name in names.filter(|name| ![".rgb", ".bin", ".py"].iter().any(|end| name.ends_with(end))) {
        assert!(PICTURES.iter().any(|p| p.0 == name), "{name}");
    }
}

#[test]
fn an_orientation_turns_and_a_cmyk_picture_is_red() {
    let turned = Clip::open("exif_orientation6.jpg").all().unwrap();
    assert_eq!(turned.outcome.shape, [1, 60, 40, 3]);
    let blue = |[r, g, b]: [u8; 3]| b > 180 && r < 90 && g < 90;
    assert!(blue(turned.pixel(0, 36, 3)), "{:?}", turned.pixel(0, 36, 3));
    assert!([(3, 3), (3, 56), (36, 56)].into_iter().all(|(x, y)| !blue(turned.pixel(0, x, y))));
    let red = Clip::open("cmyk.jpg").all().unwrap();
    assert!(red.mean(0)[0] > 250.0 && red.mean(0)[1] < 5.0 && red.mean(0)[2] < 5.0, "{:?}", red.mean(0));
}

#[test]
fn sixteen_bits_of_grey_are_their_upper_eight() {
    let grey = Clip::open("gray16.png").all().unwrap();
    for (i, pixel) in grey.bytes.as_chunks::<3>().0.iter().enumerate() {
        let wanted = (i * 27 % 65_536) as f64 / 257.0;
        assert!(pixel.iter().all(|&v| (f64::from(v) - wanted).abs() <= 1.5), "pixel {i}: {pixel:?}, wanted {wanted}");
    }
}

/// The pixels of a part of a frame, and whether it is mirrored.
fn part(of: &Frames, (x, y): (usize, usize), (width, height): (usize, usize), mirrored: bool) -> Vec<u8> {
    let pixel = |at: usize| {
        let (row, column) = (at / width, at % width);
        of.pixel(0, x + if mirrored { width - 1 - column } else { column }, y + row)
    };
    (0..width * height).flat_map(pixel).collect()
}

#[test]
fn crops_and_flips_are_of_the_picture_as_it_is_shown() {
    // Lossless, and both turned and mirrored.
    for name in ["turned5.png", "turned5.webp"] {
        let clip = open(name);
        let whole = clip.all().unwrap();
        assert_eq!(whole.outcome.shape, [1, 64, 48, 3]);
        let resize_to = Resize::Exact { width: 48, height: 64 };
        let plain = Transform { frames: 1, resize: resize_to, layout: Layout::Thwc, ..Transform::default() };
        let made = |t: &Transform, key| testing::decode(&clip.input(), &clip.descriptor(), t, key).unwrap();
        for sample in 0..8 {
            let key = SampleKey::new(2, 0, sample);
            let flip = key.draws(Purpose::Flip).chance(0.5);
            let (width, height) = (20, 30);
            let t = Transform { crop: Crop::Random { width, height }, flip: 0.5, ..plain.clone() };
            let mut draws = key.draws(Purpose::Crop);
            let at = (draws.below(29) as usize, draws.below(35) as usize);
            assert!(made(&t, key).bytes == part(&whole, at, (20, 30), flip), "{name} {at:?} {flip}");

            let crop = Crop::RandomResized { width: 16, height: 12, scale: [0.2, 0.6], ratio: [0.7, 1.4] };
            let t = Transform { crop, flip: 0.5, filter: Filter::Bicubic, ..plain.clone() };
            let rect = super::crop::before(&t, (48, 64), &key).unwrap();
            let kept = part(&whole, (rect.x, rect.y), (rect.width, rect.height), flip);
            let kept = Picture { bytes: kept, width: rect.width, height: rect.height };
            let (mean, _) = apart(&made(&t, key).bytes, &resize(&kept, Filter::Bicubic, 16, 12).bytes);
            assert!(mean < 0.6, "{name} {rect:?} {flip}: {mean}");
        }
    }
}

#[test]
fn a_cut_animation_is_refused_and_a_missing_frame_is_named() {
    let clip = open("moving.webp");
    let mut bytes = clip.bytes.clone();
    let t = Transform {
        frames: 4,
        resize: Resize::Exact { width: 8, height: 8 },
        dtype: Dtype::F32,
        ..Transform::default()
    };
    bytes.truncate(bytes.len() / 2);
    let input = super::Input::from_bytes(bytes);
    testing::decode(&input, &clip.descriptor(), &t, SampleKey::new(0, 0, 0)).unwrap_err();
    let more = crate::manifest::Record { frames: 5, pts: (0..5).collect(), ..clip.record.clone() };
    let t = Transform { frames: 5, ..t };
    let error = testing::decode(&clip.input(), &more.descriptor(0), &t, SampleKey::new(0, 0, 0)).unwrap_err();
    assert_eq!(error.to_string(), "decode: frame 4 of 4 does not come");
}

#[test]
fn mutated_animations_give_frames_or_errors() {
    let t = Transform { frames: 4, resize: Resize::Exact { width: 8, height: 8 }, ..Transform::default() };
    let mut frames = 0;
    for name in ["moving.webp", "moving_lossless.webp"] {
        let clip = open(name);
        for round in 0..150 {
            let mut draws = SampleKey::new(77, 0, round).draws(Purpose::Sampling);
            let mut bytes = clip.bytes.clone();
            for _ in 0..1 + draws.below(6) {
                let at = draws.below(bytes.len() as u64) as usize;
                bytes[at] = draws.below(256) as u8;
            }
            let made =
                testing::decode(&super::Input::from_bytes(bytes), &clip.descriptor(), &t, SampleKey::new(0, 0, 0));
            frames += usize::from(made.is_ok());
        }
    }
    assert!(frames > 30, "{frames}");
}
