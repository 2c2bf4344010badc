//! Every file of `tests/data/hard` is probed as its `INDEX.tsv` says, or refused with a clear reason.
#![cfg(feature = "decode")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use helix_shm::manifest::Record;
use helix_shm::manifest::probe::{ProbeError, probe};

fn hard(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hard").join(name)
}

fn good(name: &str) -> Record {
    probe(&hard(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Times in milliseconds.
fn times(record: &Record) -> Vec<i64> {
    let (num, den) = (i64::from(record.time_base.0), i64::from(record.time_base.1));
    record.pts.iter().map(|t| t * 1000 * num / den).collect()
}

/// File, frames, size as stored, times of the first and the last frame in ms (`None`: the file does not tell).
type Expected = (&'static str, u32, (u16, u16), Option<(i64, i64)>);

#[rustfmt::skip]
const GOOD: [Expected; 40] = [
    ("base.mp4", 30, (96, 64), Some((0, 2900))),
    ("vfr_timestamps.mp4", 12, (96, 64), Some((0, 1222))),
    ("bframe_no_editlist.mp4", 30, (96, 64), Some((200, 3100))),
    ("negative_dts.mkv", 30, (96, 64), Some((0, 2900))),
    ("editlist_preroll.mp4", 24, (96, 64), Some((0, 2300))),
    ("rot90.mp4", 10, (96, 64), Some((0, 900))),
    ("sar_4_3.mp4", 30, (96, 64), Some((0, 2900))),
    ("no_duration_no_cues.mkv", 30, (96, 64), Some((0, 2900))),
    ("first_not_key.ts", 20, (96, 64), Some((2500, 4400))),
    ("first_not_key.mp4", 20, (96, 64), Some((1000, 2900))),
    ("open_gop_hevc.mp4", 30, (96, 64), Some((0, 2900))),
    ("corrupt_middle.mp4", 30, (160, 120), Some((0, 2900))),
    ("moov_at_end.mp4", 30, (96, 64), Some((0, 2900))),
    ("webm_renamed.mp4", 30, (96, 64), Some((0, 2900))),
    ("two_video_streams.mp4", 10, (64, 48), Some((0, 900))),
    ("odd_101x67.webm", 10, (101, 67), Some((0, 900))),
    ("res_change.ts", 20, (96, 64), None),
    ("hdr10_pq_hevc.mp4", 10, (96, 64), Some((0, 900))),
    ("gray16_ffv1.mkv", 10, (96, 64), Some((0, 900))),
    ("bt709_tagged.mp4", 10, (96, 64), Some((0, 900))),
    ("bt601_tagged.mp4", 10, (96, 64), Some((0, 900))),
    ("bt709_fullrange.mp4", 10, (96, 64), Some((0, 900))),
    ("alpha_vp9.webm", 10, (96, 64), Some((0, 900))),
    ("interlaced_tff.mp4", 25, (96, 64), Some((0, 960))),
    ("fragmented.mp4", 30, (96, 64), Some((200, 3100))),
    ("variable_delay.gif", 3, (48, 32), Some((0, 530))),
    ("variable_delay.png", 3, (48, 32), Some((0, 530))),
    ("av1_film_grain.mp4", 10, (160, 120), Some((0, 900))),
    ("long_gop_3000.mp4", 3000, (32, 32), Some((0, 99966))),
    ("one_frame.mp4", 1, (96, 64), Some((0, 0))),
    ("many_frames_20000.mp4", 20000, (16, 16), Some((0, 199_990))),
    ("dup_pts.mkv", 30, (96, 64), Some((0, 2800))),
    ("flush_tail_bf8.mp4", 30, (96, 64), Some((0, 2900))),
    ("ts_start_1_4.ts", 30, (96, 64), Some((1600, 4500))),
    ("audio_longer_than_video.mp4", 30, (96, 64), Some((0, 2900))),
    ("ünï cödé 你好 # % & 'q' name.mp4", 30, (96, 64), Some((0, 2900))),
    ("exif_orientation6.jpg", 1, (60, 40), Some((0, 0))),
    ("cmyk.jpg", 1, (60, 40), Some((0, 0))),
    ("gray16.png", 1, (60, 40), Some((0, 0))),
    ("anim.webp", 6, (48, 32), Some((0, 900))),
];

/// File, and words of its reason.
const BAD: [(&str, &str); 9] = [
    ("truncated_half.mp4", "cut short"),
    ("moov_missing.mp4", "moov atom not found"),
    ("zero_byte.mp4", "empty"),
    ("text_renamed.mp4", "not media"),
    ("audio_only.mp4", "no video: only audio (aac)"),
    ("coverart.mp3", "a cover picture (png)"),
    ("mp3_gapless.mp3", "no video: only audio (mp3)"),
    ("aac_priming.m4a", "no video: only audio (aac)"),
    ("wav_extensible_5_1_24bit.wav", "no video: only audio (pcm_s24le)"),
];

#[test]
fn every_file_of_the_index_is_expected_here() {
    let index = std::fs::read_to_string(hard("INDEX.tsv")).unwrap();
    let listed: BTreeSet<&str> = index.lines().skip(1).filter_map(|l| l.split('\t').next()).collect();
    let here: BTreeSet<&str> = GOOD.iter().map(|g| g.0).chain(BAD.iter().map(|b| b.0)).collect();
    assert_eq!(listed, here);
}

#[test]
fn frame_counts_sizes_and_times_are_those_of_the_index() {
    for (name, frames, size, span) in GOOD {
        let r = good(name);
        assert_eq!((r.frames, (r.coded_width, r.coded_height)), (frames, size), "{name}");
        let times = times(&r);
        assert_eq!(times.first().copied().zip(times.last().copied()), span, "{name}");
        assert!(times.is_empty() || times.len() == frames as usize, "{name}");
        assert_eq!(r.path, hard(name).to_str().unwrap());
        assert_eq!(r.len, std::fs::metadata(hard(name)).unwrap().len());
        assert!(r.duration > 0, "{name}");
        assert!(!r.key_frames.is_empty(), "{name}");
    }
}

#[test]
fn bad_files_say_why() {
    for (name, words) in BAD {
        let reason = probe(&hard(name)).unwrap_err().to_string();
        assert!(reason.contains(words), "{name}: {reason}");
    }
    assert!(matches!(probe(&hard("none.mp4")), Err(ProbeError::Io(_))));
    assert!(matches!(probe(&hard("")), Err(ProbeError::NotAFile)));
}

#[test]
fn irregular_times_are_exact() {
    let vfr = good("vfr_timestamps.mp4");
    assert_eq!(times(&vfr), [0, 100, 150, 500, 520, 1000, 1037, 1074, 1111, 1148, 1185, 1222]);
    assert_eq!(times(&good("variable_delay.gif")), [0, 30, 530]);
    assert_eq!(times(&good("variable_delay.png")), [0, 30, 530]);
    let doubled: Vec<i64> = (0..30).map(|i| i / 2 * 200).collect();
    assert_eq!(times(&good("dup_pts.mkv")), doubled);
}

#[test]
fn a_rate_is_that_of_the_frames() {
    assert_eq!(good("base.mp4").fps, (10, 1));
    assert_eq!(good("interlaced_tff.mp4").fps, (25, 1));
    // Three frames in 0.6 s, whatever the header's average is.
    assert_eq!(good("variable_delay.gif").fps, (5, 1));
}

#[test]
fn the_duration_is_that_of_the_video() {
    let ms = |name| {
        let r = good(name);
        r.duration * 1000 * i64::from(r.time_base.0) / i64::from(r.time_base.1)
    };
    assert_eq!(ms("audio_longer_than_video.mp4"), 3000);
    assert_eq!(ms("no_duration_no_cues.mkv"), 3000);
    assert_eq!(ms("editlist_preroll.mp4"), 2400);
    assert_eq!(ms("variable_delay.gif"), 600);
}

#[test]
fn shape_is_told_apart_from_storage() {
    let turned = good("rot90.mp4");
    assert_eq!(turned.rotation, 270, "90 degrees counter-clockwise");
    assert_eq!(turned.descriptor(0).shown(), (64, 96));
    assert_eq!(good("exif_orientation6.jpg").rotation, 90);
    assert_eq!(good("exif_orientation6.jpg").descriptor(0).shown(), (40, 60));
    assert_eq!(good("sar_4_3.mp4").sar, (4, 3));
    assert_eq!(good("base.mp4").sar, (1, 1));
    assert_eq!(good("hdr10_pq_hevc.mp4").pix_fmt, "yuv420p10le");
    assert_eq!(good("gray16.png").pix_fmt, "gray16be");
}

#[test]
fn content_and_not_the_name_decides() {
    let webm = good("webm_renamed.mp4");
    assert_eq!((webm.container.as_str(), webm.codec.as_str()), ("matroska,webm", "vp9"));
    assert_eq!(good("two_video_streams.mp4").stream, 0);
}

#[test]
fn only_what_seeks_exactly_is_seekable() {
    for name in ["first_not_key.ts", "res_change.ts", "ts_start_1_4.ts", "dup_pts.mkv", "variable_delay.gif"] {
        assert!(!good(name).seekable, "{name}");
    }
    for name in ["base.mp4", "open_gop_hevc.mp4", "editlist_preroll.mp4", "negative_dts.mkv", "first_not_key.mp4"] {
        assert!(good(name).seekable, "{name}");
    }
    assert_eq!(good("base.mp4").key_frames, [0, 10, 20]);
    // The first frame shown, of an edit list's middle, is decoded from a key frame that is not shown.
    let preroll = good("editlist_preroll.mp4");
    assert_eq!((preroll.key_frames, preroll.key_offsets), (vec![0, 4, 14], vec![48, 910, 1087]));
}
