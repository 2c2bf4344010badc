//! Each difficult file gives the frames that it should, or a clear error.

use super::*;
use crate::decode::SampleKey;
use crate::decode::key::Purpose;
use crate::decode::testing::{self, Clip, EMPTY, Frames};
use crate::proto::transform::{Crop, Dtype, Layout, Resize, Sampling, Transform};

/// Mean of frame `n` of the grey ramps: luma 16 + 7n of limited range.
fn grey(n: usize) -> f64 {
    (n as f64 * 7.0 * 255.0 / 219.0).min(255.0)
}

fn assert_grey(frames: &Frames, index: usize, n: usize) {
    let mean = frames.mean(index);
    assert!(mean.iter().all(|v| (v - grey(n)).abs() <= 2.5), "frame {index}: {mean:?}, wanted {}", grey(n));
}

/// The ramp of `base.mp4`, whole, in order.
fn assert_ramp(name: &str) {
    let clip = Clip::open(name);
    assert_eq!(clip.record.frames, 30, "{name}");
    let frames = clip.all().unwrap_or_else(|e| panic!("{name}: {e}"));
    (0..30).for_each(|n| assert_grey(&frames, n, n));
    assert_index_is_exact(&clip);
}

/// Each frame alone by the index is, bit for bit, the frame of a sequential decode.
fn assert_index_is_exact(clip: &Clip) {
    let all = clip.all().unwrap();
    for index in 0..clip.record.frames {
        let one = clip.one(index).unwrap_or_else(|e| panic!("{}: frame {index}: {e}", clip.record.path));
        assert!(one.bytes == all.frame(index as usize), "{}: frame {index} differs", clip.record.path);
    }
}

#[test]
fn grey_ramps_of_every_container_and_reordering() {
    for name in [
        "base.mp4",
        "bframe_no_editlist.mp4",
        "negative_dts.mkv",
        "sar_4_3.mp4",
        "no_duration_no_cues.mkv",
        "moov_at_end.mp4",
        "webm_renamed.mp4",
        "fragmented.mp4",
        "dup_pts.mkv",
        "flush_tail_bf8.mp4",
        "ts_start_1_4.ts",
        "audio_longer_than_video.mp4",
        "open_gop_hevc.mp4",
    ] {
        assert_ramp(name);
    }
}

#[test]
fn any_name_is_a_name() {
    assert_ramp("ünï cödé 你好 # % & 'q' name.mp4");
}

#[test]
fn irregular_times() {
    let clip = Clip::open("vfr_timestamps.mp4");
    assert_eq!(clip.record.frames, 12);
    let frames = clip.all().unwrap();
    (0..12).for_each(|n| assert_grey(&frames, n, n));
    assert_index_is_exact(&clip);
}

#[test]
fn an_edit_list_hides_the_preroll() {
    let clip = Clip::open("editlist_preroll.mp4");
    assert_eq!(clip.record.frames, 24);
    let frames = clip.all().unwrap();
    (0..24).for_each(|n| assert_grey(&frames, n, n + 6));
    assert_index_is_exact(&clip);
}

#[test]
fn a_lost_first_key_frame() {
    for name in ["first_not_key.mp4", "first_not_key.ts"] {
        let clip = Clip::open(name);
        assert_eq!(clip.record.frames, 20, "{name}");
        let frames = clip.all().unwrap_or_else(|e| panic!("{name}: {e}"));
        (0..20).for_each(|n| assert_grey(&frames, n, n + 10));
        assert_index_is_exact(&clip);
    }
}

#[test]
fn rotated_frames_come_upright() {
    let clip = Clip::open("rot90.mp4");
    assert_eq!((clip.record.coded_width, clip.record.coded_height), (96, 64));
    assert_eq!(clip.record.rotation, 270, "the matrix turns by 90 degrees counter-clockwise");
    let frames = clip.all().unwrap();
    assert_eq!(frames.outcome.shape, [10, 96, 64, 3]);
    let blue = |p: [u8; 3]| p[2] > 180 && p[0] < 80 && p[1] < 80;
    assert!(blue(frames.pixel(0, 4, 91)), "{:?}", frames.pixel(0, 4, 91));
    for (x, y) in [(4, 4), (59, 4), (59, 91)] {
        assert!(!blue(frames.pixel(0, x, y)), "({x}, {y})");
    }
}

#[test]
fn colours_follow_their_tags() {
    for name in ["bt601_tagged.mp4", "bt709_tagged.mp4", "bt709_fullrange.mp4"] {
        let frames = Clip::open(name).all().unwrap();
        for (x, wanted) in [(16, [255, 0, 0]), (48, [0, 255, 0]), (80, [0, 0, 255])] {
            let got = frames.pixel(0, x, 16);
            assert!(got.iter().zip(wanted).all(|(&g, w): (_, i32)| (i32::from(g) - w).abs() <= 2), "{name}: {got:?}");
        }
    }
}

#[test]
fn odd_sizes() {
    let clip = Clip::open("odd_101x67.webm");
    assert_eq!(clip.record.frames, 10);
    assert_eq!(clip.all().unwrap().outcome.shape, [10, 67, 101, 3]);
    assert_index_is_exact(&clip);
}

#[test]
fn a_size_that_changes_midway() {
    let clip = Clip::open("res_change.ts");
    let frames = clip.all_of(20, false).unwrap();
    for n in 0..20 {
        let [r, _, b] = frames.mean(n);
        assert!(if n < 10 { r > 200.0 && b < 50.0 } else { r < 50.0 && b > 200.0 }, "frame {n}: {r} {b}");
    }
}

#[test]
fn more_than_eight_bits() {
    let clip = Clip::open("hdr10_pq_hevc.mp4");
    let frames = clip.all().unwrap();
    assert_eq!(clip.record.frames, 10);
    for (got, wanted) in frames.mean(0).into_iter().zip([129.0, 128.0, 129.0]) {
        assert!((got - wanted).abs() <= 3.0, "{:?}", frames.mean(0));
    }
    let depth = Clip::open("gray16_ffv1.mkv").all().unwrap();
    for n in 0..10 {
        let wanted = n as f64 * 6000.0 / 256.0;
        assert!((depth.mean(n)[0] - wanted).abs() <= 1.5, "frame {n}: {:?}, wanted {wanted}", depth.mean(n));
    }
}

#[test]
fn interlaced_frames_are_frames() {
    let clip = Clip::open("interlaced_tff.mp4");
    assert_eq!(clip.record.frames, 25);
    let frames = clip.all().unwrap();
    for (n, wanted) in [(0, [94.0, 73.0, 73.0]), (12, [94.0, 68.0, 78.0])] {
        let got = frames.mean(n);
        assert!(got.iter().zip(wanted).all(|(g, w): (&f64, f64)| (g - w).abs() <= 2.0), "frame {n}: {got:?}");
    }
    assert_index_is_exact(&clip);
}

#[test]
fn the_stream_is_the_descriptor_s() {
    let mut clip = Clip::open("two_video_streams.mp4");
    let frames = clip.all().unwrap();
    assert_eq!(frames.outcome.shape, [10, 48, 64, 3]);
    assert!(frames.mean(9)[0] > 200.0);
    clip.record.stream = 1;
    let second = clip.all_of(20, false).unwrap();
    assert!(second.mean(0)[2] > 200.0 && second.mean(19)[2] > 200.0);
    clip.record.stream = 7;
    assert!(clip.all_of(1, false).unwrap_err().reason.contains("no stream 7"));
}

#[test]
fn other_codecs_and_containers() {
    for (name, frames) in [("av1_film_grain.mp4", 10), ("alpha_vp9.webm", 10), ("one_frame.mp4", 1)] {
        let clip = Clip::open(name);
        assert_eq!(clip.record.frames, frames, "{name}");
        clip.all().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_index_is_exact(&clip);
    }
    let [r, g, b] = Clip::open("alpha_vp9.webm").all().unwrap().pixel(0, 5, 5);
    assert!(r >= 251 && g <= 2 && b <= 2, "alpha is dropped: {r} {g} {b}");
    let gif = Clip::open("variable_delay.gif");
    let frames = gif.all().unwrap();
    for (n, wanted) in [[255, 0, 0], [0, 255, 0], [0, 0, 255]].into_iter().enumerate() {
        assert_eq!(frames.pixel(n, 10, 10), wanted);
    }
}

#[test]
fn long_groups_and_many_frames() {
    let clip = Clip::open("long_gop_3000.mp4");
    assert_eq!((clip.record.frames, clip.record.key_frames.len()), (3000, 1));
    let last = clip.one(2999).unwrap();
    assert!((last.mean(0)[0] - 231.0).abs() <= 2.0, "{:?}", last.mean(0));
    let many = Clip::open("many_frames_20000.mp4");
    assert_eq!(many.record.frames, 20_000);
    let t = Transform { frames: 100, resize: Resize::Exact { width: 16, height: 16 }, ..Transform::default() };
    let out = testing::decode(&many.input(), &many.descriptor(), &t, SampleKey::new(0, 0, 0)).unwrap();
    assert!(out.bytes.iter().all(|v| (124..=130).contains(v)));
}

#[test]
fn a_cut_file_is_an_error_that_says_where() {
    // Cut after it was indexed: what the index said of the whole file.
    let clip = Clip::with("truncated_half.mp4", Clip::open("corrupt_middle.mp4").record);
    let error = clip.all_of(30, false).expect_err("half of it is missing");
    assert!(error.reason.contains("30 frames"), "{error}");
    clip.one(0).expect("the first frame is there");
}

#[test]
fn damage_is_an_error_and_stays_in_its_group() {
    let clip = Clip::open("corrupt_middle.mp4");
    assert_eq!(clip.record.frames, 30);
    let error = clip.all().expect_err("three packets are damaged");
    assert_eq!(error.stage, Stage::Decode);
    assert!(error.reason.starts_with("frame "), "{error}");
    for index in 20..30 {
        clip.one(index).unwrap_or_else(|e| panic!("frame {index} is intact: {e}"));
    }
}

#[test]
fn what_is_no_video_is_an_error() {
    for name in ["zero_byte.mp4", "text_renamed.mp4", "moov_missing.mp4", "audio_only.mp4"] {
        let bytes = std::fs::read(testing::hard(name)).unwrap();
        let d = Descriptor {
            container: "mov,mp4,m4a,3gp,3g2,mj2",
            codec: "h264",
            coded_width: 96,
            coded_height: 64,
            frames: 30,
            len: bytes.len() as u64,
            ..EMPTY
        };
        let error = testing::decode(&Input::from_bytes(bytes), &d, &Transform::default(), SampleKey::new(0, 0, 0));
        let error = error.err().unwrap_or_else(|| panic!("{name} is no video"));
        println!("{name}: {error}");
        assert!(matches!(error.stage, Stage::Demux | Stage::Decode), "{name}: {error}");
    }
}

#[test]
fn few_frames_cost_few_frames() {
    let clip = Clip::open("open_gop_hevc.mp4");
    // Frame 20 is a key frame: it alone is decoded.
    assert_eq!(clip.one(20).unwrap().outcome.frames_decoded, 1);
    let base = Clip::open("base.mp4");
    let all = base.all().unwrap().outcome.frames_decoded;
    assert_eq!(all, 30);
    for index in 0..30 {
        // At most the frames of its group up to it, the one that it refers to after it, and none of the B-frames.
        let cost = base.one(index).unwrap().outcome.frames_decoded;
        assert!(cost <= index % 10 + 2, "frame {index} cost {cost}");
    }
}

#[test]
fn short_clips_repeat_their_last_frame() {
    let clip = Clip::open("one_frame.mp4");
    let t = Transform { frames: 16, ..Transform::default() };
    let out = testing::decode(&clip.input(), &clip.descriptor(), &t, SampleKey::new(0, 0, 0)).unwrap();
    assert_eq!(out.outcome.shape, [16, 3, 224, 224]);
    (1..16).for_each(|n| assert!(out.frame(n) == out.frame(0)));
}

#[test]
fn crop_flip_layout_and_numbers_agree_with_the_plain_frame() {
    let clip = Clip::open("odd_101x67.webm");
    let plain = Transform {
        frames: 4,
        resize: Resize::ShortSide { pixels: 48 },
        layout: Layout::Thwc,
        sampling: Sampling::RandomWindow { stride: 2 },
        ..Transform::default()
    };
    for sample in 0..8 {
        let key = SampleKey::new(11, 2, sample);
        let whole = testing::decode(&clip.input(), &clip.descriptor(), &plain, key).unwrap();
        let [_, h, w, _] = whole.outcome.shape.map(usize::from);
        let t = Transform {
            crop: Crop::Random { width: 32, height: 40 },
            flip: 0.5,
            layout: Layout::Tchw,
            dtype: Dtype::F32,
            mean: [0.5, 0.4, 0.3],
            std: [0.25, 0.5, 1.0],
            ..plain.clone()
        };
        let got = testing::decode(&clip.input(), &clip.descriptor(), &t, key).unwrap();
        let mut draws = key.draws(Purpose::Crop);
        let (x0, y0) = (draws.below(w as u64 - 31) as usize, draws.below(h as u64 - 39) as usize);
        let flip = key.draws(Purpose::Flip).chance(0.5);
        let numbers: Vec<f32> = got.bytes.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)).collect();
        for n in 0..4 {
            for (y, x) in (0..40).flat_map(|y| (0..32).map(move |x| (y, x))) {
                let from = x0 + if flip { 31 - x } else { x };
                let pixel = whole.pixel(n, from, y0 + y);
                for c in 0..3 {
                    let wanted = (f32::from(pixel[c]) / 255.0 - t.mean[c]) / t.std[c];
                    assert_eq!(numbers[((n * 3 + c) * 40 + y) * 32 + x], wanted);
                }
            }
        }
    }
}
