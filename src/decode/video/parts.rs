//! A part of a sample has the bits that it has in the whole, whoever decodes it and however the sample is cut.

use super::*;
use crate::corpus::{ClipSpec, Encoder, clip};
use crate::decode::testing::{self, Clip};
use crate::decode::{Decoders, SampleKey};
use crate::manifest::probe::probe;
use crate::proto::transform::{Dtype, Layout, Resize, Sampling, Span, Transform};

fn transforms() -> [Transform; 3] {
    let resize = Resize::Exact { width: 24, height: 16 };
    let base = Transform { frames: 12, resize, flip: 0.5, ..Transform::default() };
    [
        base.clone(),
        Transform { sampling: Sampling::RandomWindow { stride: 2 }, layout: Layout::Thwc, ..base.clone() },
        Transform { frames: 31, dtype: Dtype::F32, ..base },
    ]
}

fn decode_part(clip: &Clip, t: &Transform, key: SampleKey, span: Span, out: &mut [u8]) -> Result<u32, SampleError> {
    let d = clip.descriptor();
    let request = Request { descriptor: d, transform: t, key, span };
    // Only what was read ahead for this part is there from the start; the rest comes on demand.
    let mut reader = crate::decode::Reader::new(crate::decode::Mode::Auto);
    let ranges = plan::ranges_of(&d, t, &key, span);
    let id = reader.submit(&crate::decode::Source::from(&d), &ranges)?;
    let outcome = Decoders::new().decode(&reader.finish(id)?, &request, out)?;
    let (_, len) = t.place(&d.facts(), span).unwrap();
    assert_eq!((outcome.written, outcome.shape), (len, t.shape(&d.facts())));
    Ok(outcome.frames_decoded)
}

/// Where the sample can be cut: the first frames of its groups, or any frame where it has none.
fn cuts(clip: &Clip, t: &Transform, key: SampleKey) -> Vec<u16> {
    let d = clip.descriptor();
    let wanted = t.wanted(&d.timeline(), &key).unwrap();
    match plan::groups(&d, &wanted) {
        Some(groups) => groups.iter().map(|g| g.wanted.start as u16).collect(),
        None => (0..t.frames).collect(),
    }
}

/// Decodes a clip as a whole, and in every number of parts.
fn compare(clip: &Clip) {
    let name = &clip.record.path;
    for (t, key) in transforms().iter().zip((0..).map(|sample| SampleKey::new(8, 1, sample))) {
        let whole = testing::decode(&clip.input(), &clip.descriptor(), t, key);
        let cuts = cuts(clip, t, key);
        for count in 1..=cuts.len() {
            let mut bytes = vec![0xa5; t.max_bytes(&clip.descriptor().facts()) as usize];
            let (mut rest, mut decoded) = (&mut bytes[..], Ok::<u32, SampleError>(0));
            for n in 0..count {
                let cut = |n: usize| cuts.get(n * cuts.len() / count).copied().unwrap_or(t.frames);
                let (first, end) = (cut(n), if n + 1 == count { t.frames } else { cut(n + 1) });
                let span = Span { first, frames: end - first };
                let (_, len) = t.place(&clip.descriptor().facts(), span).unwrap();
                let (place, behind) = rest.split_at_mut(len as usize);
                rest = behind;
                decoded = decoded.and_then(|sum| Ok(sum + decode_part(clip, t, key, span, place)?));
            }
            assert!(rest.is_empty());
            match (&whole, decoded) {
                (Ok(whole), Ok(decoded)) => {
                    assert!(bytes == whole.bytes, "{name}: other bits in {count} parts of {t:?}");
                    let most = whole.outcome.frames_decoded;
                    assert!(
                        cuts.len() == usize::from(t.frames) || decoded <= most,
                        "{name}: {decoded} for {most} frames"
                    );
                }
                (Err(whole), Err(part)) => assert_eq!(whole.stage, part.stage, "{name}"),
                (whole, parts) => panic!("{name} in {count} parts: {parts:?}, {:?} as a whole", whole.as_ref().err()),
            }
        }
    }
}

#[test]
fn difficult_files_have_the_same_bits_in_any_number_of_parts() {
    let folder = testing::hard("");
    let mut names: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    names.sort();
    let mut seen = 0;
    for path in names {
        // Some are there to be refused; two are long, and many parts of them would take minutes.
        let Ok(record) = probe(&path) else { continue };
        if record.frames <= 100 {
            compare(&Clip { bytes: std::fs::read(&path).unwrap(), record });
            seen += 1;
        }
    }
    assert!(seen > 35, "{seen}");
}

#[test]
fn clips_of_each_encoder_have_the_same_bits_in_any_number_of_parts() {
    let dir = tempfile::tempdir().unwrap();
    for (n, encoder) in (0..).zip(Encoder::ALL) {
        let path = dir.path().join(format!("clip{n}.{}", if encoder == Encoder::Vp9 { "webm" } else { "mp4" }));
        let spec = ClipSpec { encoder, frames: 90, gop: 11, bframes: 2, seed: 5 + n, ..ClipSpec::default() };
        clip(&path, &spec).unwrap();
        let record = probe(&path).unwrap();
        assert!(record.seekable && record.key_frames.len() > 7);
        compare(&Clip { bytes: std::fs::read(&path).unwrap(), record });
    }
}

#[test]
fn a_part_that_is_none_is_refused() {
    let clip = Clip::open("base.mp4");
    let t = &transforms()[0];
    for (first, frames) in [(0, 0), (12, 1), (5, 8), (u16::MAX, u16::MAX)] {
        let request =
            Request { span: Span { first, frames }, ..Request::whole(clip.descriptor(), t, SampleKey::new(0, 0, 0)) };
        let mut out = vec![0; t.max_bytes(&clip.descriptor().facts()) as usize];
        let error = VideoDecoder::new().decode(&clip.input(), &request, &mut out).unwrap_err();
        assert_eq!(error.stage, Stage::Transform);
    }
}
