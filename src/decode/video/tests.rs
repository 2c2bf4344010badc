//! Each difficult file gives the frames that it should, or a clear error.

use super::*;
use crate::decode::testing::{self, Clip, EMPTY, Frames};
use crate::proto::transform::{Dtype, Layout, Resize, Sampling};

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
    assert_eq!(clip.frames, 30, "{name}");
    let frames = clip.all().unwrap_or_else(|e| panic!("{name}: {e}"));
    (0..30).for_each(|n| assert_grey(&frames, n, n));
    assert_index_is_exact(&clip);
}

/// Each frame alone by the index is, bit for bit, the frame of a sequential decode.
fn assert_index_is_exact(clip: &Clip) {
    let all = clip.all().unwrap();
    for index in 0..clip.frames {
        let one = clip.one(index).unwrap_or_else(|e| panic!("{}: frame {index}: {e}", clip.path));
        assert!(one.bytes == all.frame(index as usize), "{}: frame {index} differs", clip.path);
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
