//! Whatever comes in, what comes out is frames or an error, and depends on the sample alone.

use super::*;
use crate::decode::key::Purpose;
use crate::decode::testing::{self, Clip, EMPTY};
use crate::decode::{Mode, Reader, SampleKey, Source};
use crate::proto::transform::{Resize, Sampling, Transform};

#[test]
fn a_container_cannot_open_other_files() {
    let path = testing::hard("base.mp4");
    for (container, text) in [
        ("concat", format!("ffconcat version 1.0\nfile '{}'\n", path.display())),
        ("hls", format!("#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\nfile://{}\n#EXT-X-ENDLIST\n", path.display())),
    ] {
        let d = Descriptor { container, frames: 1, coded_width: 96, coded_height: 64, ..EMPTY };
        let input = Input::from_bytes(text.into_bytes());
        let error = testing::decode(&input, &d, &Transform::default(), SampleKey::new(0, 0, 0)).err();
        let error = error.unwrap_or_else(|| panic!("{container} opened a file"));
        println!("{container}: {error}");
    }
}

#[test]
fn a_place_that_is_too_small_is_refused() {
    let clip = Clip::open("base.mp4");
    let t = Transform::default();
    let d = clip.descriptor();
    let request = Request::whole(d, &t, SampleKey::new(0, 0, 0));
    let mut out = vec![0; t.max_bytes(&d.facts()) as usize - 1];
    let error = VideoDecoder::new().decode(&clip.input(), &request, &mut out).unwrap_err();
    assert_eq!(error.stage, Stage::Transform);
}

#[test]
fn one_decoder_serves_clips_of_all_kinds_in_turn() {
    let names =
        ["base.mp4", "odd_101x67.webm", "corrupt_middle.mp4", "hdr10_pq_hevc.mp4", "res_change.ts", "base.mp4"];
    let clips = names.map(Clip::open);
    let mut decoder = VideoDecoder::new();
    let t = Transform::default();
    for clip in clips.iter().chain(&clips) {
        let d = clip.descriptor();
        let key = SampleKey::new(0, 0, 0);
        let mut out = vec![0; t.max_bytes(&d.facts()) as usize];
        let got = decoder.decode(&clip.input(), &Request::whole(d, &t, key), &mut out);
        match testing::decode(&clip.input(), &d, &t, key) {
            Ok(fresh) => assert!(got.is_ok() && out == fresh.bytes, "{}", clip.record.path),
            Err(e) => assert_eq!(got.unwrap_err().stage, e.stage),
        }
    }
}

#[test]
fn whatever_was_read_ahead_the_frames_are_the_same() {
    for name in ["base.mp4", "moov_at_end.mp4", "negative_dts.mkv", "fragmented.mp4", "long_gop_3000.mp4"] {
        let clip = Clip::open(name);
        let d = clip.descriptor();
        let t = Transform { frames: 3, sampling: Sampling::RandomWindow { stride: 7 }, ..Transform::default() };
        for sample in 0..6 {
            let key = SampleKey::new(4, 0, sample);
            let wanted = testing::decode(&clip.input(), &d, &t, key).unwrap();
            let mut draws = key.draws(Purpose::Crop);
            let mut cuts: Vec<u64> = (0..4).map(|_| draws.below(d.len + 1)).collect();
            cuts.sort_unstable();
            let mut reader = Reader::new(Mode::Auto);
            let id = reader.submit(&Source::from(&d), &[cuts[0]..cuts[1], cuts[2]..cuts[3]]).unwrap();
            let input = reader.finish(id).unwrap();
            let got = testing::decode(&input, &d, &t, key).unwrap();
            assert!(got.bytes == wanted.bytes, "{name}, sample {sample}");
            assert_eq!(got.outcome, wanted.outcome);
            assert!(input.bytes_read() <= 2 * d.len, "{name}: {} bytes read of {}", input.bytes_read(), d.len);
        }
    }
}
#[test]
fn the_index_leads_to_every_frame_at_the_first_try() {
    for name in [
        "bframe_no_editlist.mp4",
        "negative_dts.mkv",
        "no_duration_no_cues.mkv",
        "webm_renamed.mp4",
        "fragmented.mp4",
        "flush_tail_bf8.mp4",
        "editlist_preroll.mp4",
        "first_not_key.mp4",
        "av1_film_grain.mp4",
    ] {
        let clip = Clip::open(name);
        assert!(clip.record.seekable, "{name}");
        for index in 0..clip.record.frames {
            let keys = &clip.record.key_frames;
            let from = index - keys[keys.partition_point(|&k| k <= index) - 1];
            // A frame may refer to frames that are shown after it; a second try from the start would cost them all.
            let cost = clip.one(index).unwrap().outcome.frames_decoded;
            assert!(cost <= from + 4 && (from > 0 || cost == 1), "{name}: frame {index} cost {cost}");
        }
    }
}

#[test]
fn mutated_files_give_frames_or_errors() {
    let t = Transform { frames: 4, resize: Resize::Exact { width: 32, height: 32 }, ..Transform::default() };
    let names =
        ["base.mp4", "negative_dts.mkv", "res_change.ts", "odd_101x67.webm", "gray16_ffv1.mkv", "hdr10_pq_hevc.mp4"];
    let mut good = 0;
    for (n, name) in names.into_iter().enumerate() {
        let clip = Clip::open(name);
        for round in 0..60 {
            let mut draws = SampleKey::new(99, n as u32, round).draws(Purpose::Sampling);
            let mut bytes = clip.bytes.clone();
            for _ in 0..1 + draws.below(20) {
                let at = draws.below(bytes.len() as u64) as usize;
                bytes[at] = draws.below(256) as u8;
            }
            if draws.chance(0.2) {
                bytes.truncate(draws.below(bytes.len() as u64) as usize);
            }
            good += u32::from(
                testing::decode(&Input::from_bytes(bytes), &clip.descriptor(), &t, SampleKey::new(0, 0, 0)).is_ok(),
            );
        }
    }
    assert!((1..360).contains(&good), "{good} of 360 are good");
}

#[test]
fn a_descriptor_that_makes_no_sense_is_an_error_at_worst() {
    let clip = Clip::open("base.mp4");
    let good = clip.descriptor();
    let t = Transform::default();
    for bad in [
        Descriptor { rotation: 45, ..good },
        Descriptor { key_frames: &[0, 900], key_offsets: &[0, 1], ..good },
        Descriptor { key_frames: &[7, 3], key_offsets: &[0, 1], ..good },
        Descriptor { pts: &[1, 2, 3], ..good },
        Descriptor { frames: 0, pts: &[], ..good },
        Descriptor { frames: u32::MAX, ..good },
        Descriptor { coded_width: 0, coded_height: 0, ..good },
        Descriptor { container: "no\0thing", ..good },
        Descriptor { time_base: (0, 0), offset: u64::MAX, len: u64::MAX, ..good },
    ] {
        plan::ranges(&bad, &t, &SampleKey::new(0, 0, 0));
        let _ = testing::decode(&clip.input(), &bad, &t, SampleKey::new(0, 0, 0));
    }
}
