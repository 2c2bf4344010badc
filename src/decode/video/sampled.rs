//! Frames by number, rate, stride, time and chance are, bit for bit, those of a decode from start to end.

use crate::corpus::{ClipSpec, Encoder, clip};
use crate::decode::SampleKey;
use crate::decode::testing::{self, Clip};
use crate::manifest::probe::probe;
use crate::proto::transform::{Layout, Resize, Sampling, Start, Transform};

/// Each way to choose six frames.
fn ways(clip: &Clip) -> Vec<Sampling> {
    let d = clip.descriptor();
    let last = d.frames - 1;
    let ms = (d.duration as f64 * f64::from(d.time_base.0) / f64::from(d.time_base.1) * 1000.0) as u32;
    let at = |part: u32| last * part / 5;
    vec![
        Sampling::Uniform,
        Sampling::Jittered { part: 1.0 },
        Sampling::Window { start: last / 3, stride: 1 },
        Sampling::Window { start: 1, stride: 4 },
        Sampling::RandomWindow { stride: 2 },
        Sampling::Fps { fps: 3.7, start: Start::default(), jitter: 0.0 },
        Sampling::Fps { fps: 12.0, start: Start::At { ms: ms / 3 }, jitter: 0.0 },
        Sampling::Fps { fps: 5.0, start: Start::Random, jitter: 0.9 },
        Sampling::Indices { at: vec![0, at(2), at(2), at(3), last, last] },
        Sampling::Times { us: (0..6).map(|i| u64::from(ms) * 1000 * i / 6).collect() },
    ]
}

fn compare(clip: &Clip) -> usize {
    let d = clip.descriptor();
    let Ok(all) = clip.all() else { return 0 };
    let (width, height) = d.shown();
    let mut sampled = 0;
    for (n, sampling) in ways(clip).into_iter().enumerate() {
        let resize = Resize::Exact { width, height };
        let t = Transform { frames: 6, sampling, resize, layout: Layout::Thwc, ..Transform::default() };
        for epoch in 0..3 {
            let key = SampleKey::new(n as u64, epoch, 7);
            let wanted = t.wanted(&d.timeline(), &key).unwrap();
            let got = testing::decode(&clip.input(), &d, &t, key).unwrap_or_else(|e| panic!("{}: {e}", d.path));
            for (place, &frame) in wanted.iter().enumerate() {
                assert!(
                    got.frame(place) == all.frame(frame as usize),
                    "{}: frame {frame} of {:?}",
                    d.path,
                    t.sampling
                );
            }
            sampled += wanted.len();
        }
    }
    sampled
}

#[test]
fn frames_of_difficult_files_are_those_of_a_sequential_decode() {
    let mut names: Vec<_> = std::fs::read_dir(testing::hard("")).unwrap().map(|f| f.unwrap().path()).collect();
    names.sort();
    let mut seen = 0;
    for path in names {
        let Ok(record) = probe(&path) else { continue };
        if record.frames <= 100 {
            seen += usize::from(compare(&Clip { bytes: std::fs::read(&path).unwrap(), record }) > 0);
        }
    }
    assert!(seen > 32, "{seen}");
}

#[test]
fn frames_of_each_encoder_are_those_of_a_sequential_decode() {
    let dir = tempfile::tempdir().unwrap();
    for (n, encoder) in (0..).zip(Encoder::ALL) {
        for (m, extension) in ["mkv", "mp4"].into_iter().enumerate() {
            let path = dir.path().join(format!("clip{n}.{extension}"));
            let spec = ClipSpec {
                encoder,
                frames: 90,
                gop: 11 + 8 * m as u32,
                bframes: 2,
                seed: 5 + n,
                ..ClipSpec::default()
            };
            clip(&path, &spec).unwrap();
            let record = probe(&path).unwrap();
            assert!(record.seekable && record.key_frames.len() > 3);
            assert_eq!(compare(&Clip { bytes: std::fs::read(&path).unwrap(), record }), 6 * 3 * 10);
        }
    }
}

#[test]
fn a_frame_beyond_the_end_is_an_error_that_says_what_there_is() {
    let clip = Clip::open("first_not_key.mp4");
    let error = clip.one(20).expect_err("it has 20 frames");
    assert_eq!(error.reason, "frame 20 was asked for and the clip has 20, from 0");
    let t = Transform { frames: 1, sampling: Sampling::Times { us: vec![2_100_000] }, ..Transform::default() };
    let error = testing::decode(&clip.input(), &clip.descriptor(), &t, SampleKey::new(0, 0, 0)).unwrap_err();
    assert!(error.reason.starts_with("the frame at 2.100 s was asked for"), "{error}");
}
