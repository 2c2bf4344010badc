//! A manifest file may hold anything: opening and reading it ends in a value.

use std::path::Path;

use helix_shm::manifest::{Manifest, Record, Writer};

fn clip(i: u32) -> Record {
    Record {
        path: format!("/data/{i:05}.mp4"),
        len: 10_000,
        container: "matroska,webm".into(),
        codec: "vp9".into(),
        pix_fmt: "yuv420p".into(),
        coded_width: 64,
        coded_height: 48,
        time_base: (1, 1000),
        duration: 40,
        pts: vec![0, 10, 20, 30],
        frames: 4,
        key_frames: vec![0, 2],
        key_offsets: vec![100, 5000],
        seekable: true,
        text: "a dog".into(),
        ..Record::default()
    }
}

fn bytes(rows: u32) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "{}").unwrap();
    for i in 0..rows {
        if i % 7 == 3 {
            writer.push_bad(&format!("/data/{i:05}.mp4"), 0, 0, "is empty").unwrap();
        } else {
            writer.push(&clip(i).descriptor(0)).unwrap();
        }
    }
    writer.finish_into().unwrap().1
}

/// Reads all there is to read.
fn read_all(path: &Path) -> Option<u64> {
    let manifest = Manifest::open(path).ok()?;
    let mut sum = 0;
    for row in 0..manifest.len() {
        let d = manifest.descriptor(row);
        sum += d.path.len() as u64 + d.pts.len() as u64 + d.key_frames.len() as u64 + d.key_offsets.len() as u64;
        sum += manifest.error(row).map_or(0, str::len) as u64 + u64::from(manifest.facts(row).frames);
    }
    for i in 0..manifest.good() {
        assert!(manifest.error(manifest.good_row(i)).is_none());
    }
    let _ = manifest.verify();
    Some(sum)
}

struct Random(u64);

impl Random {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

#[test]
fn damaged_manifests_end_in_a_value() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.arrow");
    let whole = bytes(40);
    let mut random = Random(7);
    let (mut opened, mut refused) = (0, 0);
    for round in 0..1600 {
        let mut damaged = whole.clone();
        match round % 4 {
            // Anywhere; in the tables at the end; in the head; cut.
            0 => {
                for _ in 0..1 + random.below(4) {
                    let at = random.below(damaged.len());
                    damaged[at] = random.next() as u8;
                }
            }
            1 => {
                let at = damaged.len() - 1 - random.below(6000.min(damaged.len()));
                damaged[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)];
            }
            2 => {
                let at = random.below(8000);
                damaged[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)];
            }
            _ => damaged.truncate(random.below(damaged.len())),
        }
        std::fs::write(&path, &damaged).unwrap();
        match read_all(&path) {
            Some(_) => opened += 1,
            None => refused += 1,
        }
    }
    assert!(opened > 50 && refused > 50, "{opened} opened, {refused} refused: the damage misses its aim");
}

/// A file that is overwritten while it is mapped gives other values, and no panic.
#[test]
fn a_manifest_overwritten_under_its_map_reads_as_something() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.arrow");
    let whole = bytes(40);
    std::fs::write(&path, &whole).unwrap();
    let manifest = Manifest::open(&path).unwrap();
    let mut random = Random(11);
    for _ in 0..50 {
        let noise: Vec<u8> = (0..whole.len()).map(|_| random.next() as u8).collect();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &noise, 0).unwrap();
        for row in 0..manifest.len() {
            let d = manifest.descriptor(row);
            assert!(d.pts.len() <= whole.len() && d.path.len() <= whole.len());
            let _ = (manifest.error(row), manifest.facts(row));
        }
        assert!(manifest.verify().is_err());
    }
}

#[test]
fn another_process_gets_it_as_a_descriptor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.arrow");
    std::fs::write(&path, bytes(10)).unwrap();
    let first = Manifest::open(&path).unwrap();
    let fd = first.try_clone_fd().unwrap();
    std::fs::remove_file(&path).unwrap();
    let second = Manifest::from_fd(fd, &path).unwrap();
    assert_eq!(second.fingerprint(), first.fingerprint());
    assert_eq!(second.descriptor(9), first.descriptor(9));
    assert_eq!(second.path(), path);
}

#[test]
fn the_scheduler_sees_good_rows_only() {
    use helix_shm::sched::event::Catalog;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.arrow");
    std::fs::write(&path, bytes(10)).unwrap();
    let catalog: std::sync::Arc<dyn Catalog> = std::sync::Arc::new(Manifest::open(&path).unwrap());
    assert_eq!(catalog.len(), 9);
    assert_eq!((catalog.row(2), catalog.row(3)), (2, 4));
    assert_eq!((catalog.facts(3).frames, catalog.facts(3).duration_ms), (4, 40));
}
