//! A million samples open without private memory for each. Alone in its file: the memory of a process is measured.

use std::fs::File;
use std::io::BufWriter;

use helix_shm::manifest::{Manifest, Record, Writer};

const ROWS: u64 = 1_000_000;

fn private_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_million_rows_cost_no_memory_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("million.arrow");
    let mut clip = Record {
        codec: "h264".into(),
        container: "mov,mp4,m4a,3gp,3g2,mj2".into(),
        pix_fmt: "yuv420p".into(),
        coded_width: 340,
        coded_height: 256,
        time_base: (1, 30),
        pts: vec![0, 1, 2],
        frames: 3,
        duration: 3,
        key_frames: vec![0],
        key_offsets: vec![48],
        seekable: true,
        ..Record::default()
    };
    let mut writer = Writer::new(BufWriter::new(File::create(&path).unwrap()), "{}").unwrap();
    for row in 0..ROWS {
        clip.path = format!("/data/train/label/{row:012}.mp4");
        clip.len = row;
        match row % 1000 {
            500 => writer.push_bad(&clip.path, 0, 0, "is empty").unwrap(),
            _ => writer.push(&clip.descriptor(row)).unwrap(),
        }
    }
    writer.finish().unwrap();
    // Without this the manifest could live in what the writer has freed, and nothing would be seen to grow.
    // SAFETY: it only gives free memory back to the system.
    unsafe { libc::malloc_trim(0) };

    // Batches take about 1 KiB each, bad rows 8 bytes: some 100 KiB here. One byte a row would be 1 MB.
    let before = private_bytes();
    let start = std::time::Instant::now();
    let manifest = Manifest::open(&path).unwrap();
    let took = start.elapsed();
    let grown = private_bytes().saturating_sub(before);
    eprintln!("opened in {took:?}, {grown} bytes of private memory");
    assert!(grown < ROWS, "opening took {grown} bytes of private memory");

    assert_eq!((manifest.len(), manifest.good()), (ROWS, ROWS - ROWS / 1000));
    let before = private_bytes();
    for i in (0..manifest.good()).step_by(997) {
        let row = manifest.good_row(i);
        assert_eq!(manifest.facts(row).bytes, row);
        assert_eq!(manifest.descriptor(row).len, row);
    }
    assert_eq!(manifest.good_row(499), 499);
    assert_eq!(manifest.good_row(500), 501);
    assert_eq!(manifest.good_row(manifest.good() - 1), ROWS - 1);
    assert!(private_bytes().saturating_sub(before) < ROWS, "reading takes private memory");
}
