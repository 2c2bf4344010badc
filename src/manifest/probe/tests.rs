//! Probing the files of `tests/data/hard` against a sequential decode of each.

use std::path::PathBuf;

use super::*;

fn hard() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hard");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

fn whole_of<'a>(file: &'a File, record: &Record) -> Part<'a> {
    Part { file, offset: record.offset, len: record.len }
}

#[test]
fn frames_and_times_are_those_of_a_sequential_decode() {
    let mut compared = 0;
    for path in hard() {
        let Ok(record) = probe(&path) else { continue };
        // FFmpeg 5.1 does not read it: `decode` holds it against Pillow.
        if record.container == crate::manifest::webp::CONTAINER {
            continue;
        }
        let file = File::open(&path).unwrap();
        let streams = open(whole_of(&file, &record)).unwrap().streams();
        let number = record.stream as usize;
        let shown = decode_all(whole_of(&file, &record), number, &streams[number]).unwrap();
        assert_eq!(record.frames as usize, shown.len(), "{}", path.display());
        if !record.pts.is_empty() {
            let times: Vec<i64> = shown.iter().map(|s| s.pts.unwrap()).collect();
            assert_eq!(record.pts, times, "{}", path.display());
        }
        compared += 1;
    }
    assert!(compared >= 36, "only {compared} files could be probed");
}

/// A cut anywhere gives an error, or exactly what the rest decodes to.
#[test]
fn a_cut_file_never_claims_frames_that_it_has_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut");
    for whole in hard() {
        let bytes = std::fs::read(&whole).unwrap();
        if bytes.len() > 60_000 {
            continue;
        }
        for tenths in 1..10 {
            std::fs::write(&path, &bytes[..bytes.len() * tenths / 10]).unwrap();
            let Ok(record) = probe(&path) else { continue };
            let file = File::open(&path).unwrap();
            let streams = open(whole_of(&file, &record)).unwrap().streams();
            let number = record.stream as usize;
            let shown = decode_all(whole_of(&file, &record), number, &streams[number]).unwrap();
            assert_eq!(record.frames as usize, shown.len(), "{tenths}/10 of {}", whole.display());
        }
    }
}

#[test]
fn a_cut_file_is_said_to_be_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut");
    for name in ["base.mp4", "negative_dts.mkv", "webm_renamed.mp4", "gray16_ffv1.mkv", "fragmented.mp4"] {
        let bytes = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hard").join(name)).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - bytes.len() / 10]).unwrap();
        let error = probe(&path).unwrap_err();
        assert!(matches!(error, ProbeError::CutShort(_)), "{name}: {error}");
    }
}

/// Every key frame's offset and time are where seeking by its time leads.
#[test]
fn an_index_leads_to_key_frames() {
    let mut keys = 0;
    for path in hard() {
        let Ok(record) = probe(&path) else { continue };
        assert_eq!(record.key_frames.len(), record.key_offsets.len());
        if !record.seekable {
            continue;
        }
        let file = File::open(&path).unwrap();
        let mut demuxer = open(whole_of(&file, &record)).unwrap();
        let packets = {
            demuxer.select(record.stream as usize);
            read_packets(&mut demuxer, record.stream as usize, &record.codec).unwrap()
        };
        for (&frame, &offset) in record.key_frames.iter().zip(&record.key_offsets) {
            let packet = packets.iter().find(|p| p.pos == offset).unwrap();
            assert!(packet.key, "{}", path.display());
            assert!(packet.pts.unwrap() <= record.pts[frame as usize], "{}", path.display());
            keys += 1;
        }
    }
    assert!(keys > 60, "only {keys} key frames");
}

/// Damaged media end in a value: seeded flips over every file.
#[test]
fn damaged_media_end_in_a_value() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    for whole in hard() {
        let bytes = std::fs::read(&whole).unwrap();
        if bytes.is_empty() || bytes.len() > 20_000 {
            continue;
        }
        for _ in 0..8 {
            let mut damaged = bytes.clone();
            for _ in 0..1 + random() % 8 {
                let at = random() as usize % damaged.len();
                damaged[at] = random() as u8;
            }
            std::fs::write(&path, &damaged).unwrap();
            if let Ok(record) = probe(&path) {
                assert!(record.frames > 0 && record.time_base.1 > 0);
                assert!(record.pts.is_empty() || record.pts.len() == record.frames as usize);
            }
        }
    }
}
