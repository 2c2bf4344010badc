//! Synthetic manifests for the tests of this crate.

use std::fs::File;

use super::{Manifest, Record, Writer, Written};

/// A plausible clip, different for each number.
pub(crate) fn clip(i: u32) -> Record {
    let frames = 20 + i % 50;
    Record {
        path: format!("/data/клип {i:07}.mp4"),
        file_len: 1000 + u64::from(i),
        len: 1000 + u64::from(i),
        mtime_ns: 1_700_000_000_000_000_000 + i64::from(i),
        container: "mov,mp4,m4a,3gp,3g2,mj2".into(),
        codec: "h264".into(),
        pix_fmt: "yuv420p".into(),
        coded_width: 320,
        coded_height: 240,
        fps: (30, 1),
        time_base: (1, 30),
        duration: i64::from(frames),
        pts: (0..i64::from(frames)).collect(),
        frames,
        key_frames: vec![0, 12],
        key_offsets: vec![48, 900],
        seekable: true,
        ..Record::default()
    }
}

/// Writes the records, bad where told, and opens the result.
pub(crate) fn write(records: &[Record], bad: impl Fn(usize) -> bool) -> (Manifest, Written) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.arrow");
    let mut writer = Writer::new(File::create(&path).unwrap(), "{}").unwrap();
    for (i, r) in records.iter().enumerate() {
        if bad(i) {
            writer.push_bad(&r.path, r.len, r.mtime_ns, "broken").unwrap();
        } else {
            writer.push(&r.descriptor(i as u64)).unwrap();
        }
    }
    let written = writer.finish().unwrap();
    (Manifest::open(&path).unwrap(), written)
}
