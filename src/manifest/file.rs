//! The manifest as every process reads it: mapped, never copied.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::Mmap;

use super::check::{Shape, lists_fault};
use super::column::Texts;
use super::descriptor::Descriptor;
use super::error::ManifestError;
use super::fingerprint::Fingerprint;
use super::layout::{Batch, Layout};
use crate::proto::transform::{Codec, Facts};

/// An open manifest: rows of descriptors, good and bad, in a memory-mapped Arrow IPC file.
///
/// Opening checks the structure and each row's numbers, and reads no list and no text, so that a million samples
/// open in the time that a few columns take. What is held in private memory grows with the record batches and the
/// *bad* rows, not with the rows.
///
/// ```no_run
/// # use helix_shm::manifest::Manifest;
/// let data = Manifest::open("data.arrow".as_ref())?;
/// for i in 0..data.good() {
///     let d = data.descriptor(data.good_row(i));
///     println!("{} has {} frames", d.path, d.frames);
/// }
/// # Ok::<(), helix_shm::manifest::ManifestError>(())
/// ```
pub struct Manifest {
    path: PathBuf,
    fd: OwnedFd,
    map: Mmap,
    batches: Vec<Batch>,
    rows: u64,
    /// Bad rows, ascending.
    bad: Vec<u64>,
    fingerprint: String,
    options: String,
    /// Whether a text that is not UTF-8 was met and said.
    warned: AtomicBool,
}

impl Manifest {
    /// Opens a manifest by its path.
    pub fn open(path: &Path) -> Result<Manifest, ManifestError> {
        let file = File::open(path).map_err(|e| ManifestError::io(path, "open", e))?;
        Manifest::from_fd(file.into(), path)
    }

    /// Opens a manifest that another process handed over; `shown_path` is for messages.
    pub fn from_fd(fd: OwnedFd, shown_path: &Path) -> Result<Manifest, ManifestError> {
        let path = shown_path.to_owned();
        let kind = fd.try_clone().and_then(|fd| File::from(fd).metadata());
        let kind = kind.map_err(|e| ManifestError::io(&path, "look at", e))?;
        if !kind.is_file() {
            return Err(ManifestError::format(&path, "it is not a regular file"));
        }
        // SAFETY: a mapping of a regular file. Others may write to the file or cut it, so nothing is taken for
        // granted: all reads are copies of numbers or checked slices, and UTF-8 is checked whenever a text is read.
        // Our own writer replaces files by renaming, so a mapped one keeps its content.
        let map = unsafe { Mmap::map(&fd) }.map_err(|e| ManifestError::io(&path, "map", e))?;
        let Layout { batches, fingerprint, options } = Layout::read(&path, &map)?;
        let rows = batches.last().map_or(0, |b| b.start + b.rows as u64);
        let warned = AtomicBool::new(false);
        let mut manifest =
            Manifest { path, fd, map, batches, rows, bad: Vec::new(), fingerprint: String::new(), options, warned };
        manifest.check_rows()?;
        manifest.fingerprint = match fingerprint {
            Some(fingerprint) => fingerprint,
            None => {
                tracing::info!("manifest {} has no fingerprint: computing it", manifest.path.display());
                manifest.content_fingerprint()?
            }
        };
        Ok(manifest)
    }

    /// Rows, good and bad.
    pub fn len(&self) -> u64 {
        self.rows
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Rows that can be delivered.
    pub fn good(&self) -> u64 {
        self.rows - self.bad.len() as u64
    }

    /// The row of the `i`-th good sample.
    ///
    /// # Panics
    /// If `i` is not below [`Manifest::good`].
    pub fn good_row(&self, i: u64) -> u64 {
        assert!(i < self.good(), "good sample {i} of {}", self.good());
        // `bad[j] - j` good rows lie before the j-th bad one; count the bad rows that lie before the wanted good one.
        let (mut low, mut high) = (0, self.bad.len());
        while low < high {
            let mid = low + (high - low) / 2;
            if self.bad[mid] - mid as u64 <= i { low = mid + 1 } else { high = mid }
        }
        i + low as u64
    }

    /// Bad rows, ascending.
    pub fn bad_rows(&self) -> &[u64] {
        &self.bad
    }

    /// All that is known of a row. A bad row has a path and a length, and no frames.
    ///
    /// The lists are as the file has them; [`Manifest::verify`] checks that they are in order.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn descriptor(&self, row: u64) -> Descriptor<'_> {
        let (b, i) = self.find(row);
        let map = &self.map[..];
        Descriptor {
            row,
            path: self.text(&b.path, i, row, "path"),
            offset: b.offset.get(map, i),
            len: b.len.get(map, i),
            mtime_ns: b.mtime_ns.get(map, i),
            container: self.text(&b.container, i, row, "container"),
            codec: self.text(&b.codec, i, row, "codec"),
            pix_fmt: self.text(&b.pix_fmt, i, row, "pix_fmt"),
            stream: b.stream.get(map, i),
            coded_width: b.coded_width.get(map, i),
            coded_height: b.coded_height.get(map, i),
            rotation: b.rotation.get(map, i),
            sar: pair(&b.sar, map, i),
            fps: pair(&b.fps, map, i),
            time_base: pair(&b.time_base, map, i),
            duration: b.duration.get(map, i),
            pts: b.pts.get(map, i),
            frames: b.frames.get(map, i),
            key_frames: b.key_frames.get(map, i),
            key_offsets: b.key_offsets.get(map, i),
            seekable: b.seekable.get(map, i),
            text: self.text(&b.text, i, row, "text"),
        }
    }

    /// Why a row is bad; `None` if it is good.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn error(&self, row: u64) -> Option<&str> {
        let (b, i) = self.find(row);
        b.is_bad(&self.map, i).then(|| self.text(&b.error, i, row, "error"))
    }

    /// The part of a row that the scheduler sees, without touching its lists or texts.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn facts(&self, row: u64) -> Facts {
        let (b, i) = self.find(row);
        let map = &self.map[..];
        // The descriptor computes the facts; it gets the codec's name and the number of key frames only.
        let d = Descriptor {
            row,
            path: "",
            offset: 0,
            len: b.len.get(map, i),
            mtime_ns: 0,
            container: "",
            codec: "",
            pix_fmt: "",
            stream: 0,
            coded_width: b.coded_width.get(map, i),
            coded_height: b.coded_height.get(map, i),
            rotation: b.rotation.get(map, i),
            sar: (1, 1),
            fps: (0, 1),
            time_base: pair(&b.time_base, map, i),
            duration: b.duration.get(map, i),
            pts: &[],
            frames: b.frames.get(map, i),
            key_frames: b.key_frames.get(map, i),
            key_offsets: &[],
            seekable: false,
            text: "",
        };
        let codec = std::str::from_utf8(b.codec.get(map, i)).map_or(Codec::Other, Codec::from_name);
        Facts { codec, ..d.facts() }
    }

    /// Hash of all that fixes the stream, 32 hexadecimal digits: manifests with the same one give the same samples.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The options it was made with, JSON.
    pub fn options(&self) -> &str {
        &self.options
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file, to be handed to another process: read-only if it was opened by [`Manifest::open`].
    pub fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.fd.as_fd().try_clone_to_owned()
    }

    /// Reads everything: texts are UTF-8, lists in order, and the content is that of the fingerprint.
    pub fn verify(&self) -> Result<(), ManifestError> {
        let found = self.content_fingerprint()?;
        if found == self.fingerprint {
            return Ok(());
        }
        let found = format!("its content has fingerprint {found}; wanted {}", self.fingerprint);
        Err(ManifestError::format(&self.path, found))
    }

    fn find(&self, row: u64) -> (&Batch, usize) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let after = self.batches.partition_point(|b| b.start <= row);
        let batch = &self.batches[after - 1];
        (batch, (row - batch.start) as usize)
    }

    fn text<'a>(&'a self, texts: &Texts, i: usize, row: u64, column: &str) -> &'a str {
        std::str::from_utf8(texts.get(&self.map, i)).unwrap_or_else(|_| {
            if !self.warned.swap(true, Ordering::Relaxed) {
                let path = self.path.display();
                tracing::warn!(
                    "row {row} of manifest {path}: `{column}` is not UTF-8, read as U+FFFD; make it again"
                );
            }
            "\u{fffd}"
        })
    }

    /// Checks each row's numbers and notes the bad rows.
    fn check_rows(&mut self) -> Result<(), ManifestError> {
        let map = &self.map[..];
        for b in &self.batches {
            for i in 0..b.rows {
                let good = !b.is_bad(map, i);
                let shape = Shape {
                    good,
                    path_bytes: b.path.len_of(map, i),
                    frames: b.frames.get(map, i),
                    pts: b.pts.len_of(map, i),
                    key_frames: b.key_frames.len_of(map, i),
                    key_offsets: b.key_offsets.len_of(map, i),
                    rotation: b.rotation.get(map, i),
                    size: (b.coded_width.get(map, i), b.coded_height.get(map, i)),
                    denominators: [b.sar[1].get(map, i), b.fps[1].get(map, i), b.time_base[1].get(map, i)],
                };
                let row = b.start + i as u64;
                if let Some(found) = shape.fault() {
                    return Err(ManifestError::Row { path: self.path.clone(), row, found });
                }
                if !good {
                    self.bad.push(row);
                }
            }
        }
        Ok(())
    }

    fn content_fingerprint(&self) -> Result<String, ManifestError> {
        let mut hash = Fingerprint::new();
        let mut bad = self.bad.iter().copied().peekable();
        for row in 0..self.rows {
            let fault = |found| ManifestError::Row { path: self.path.clone(), row, found };
            let (b, i) = self.find(row);
            for (column, name) in [(&b.path, "path"), (&b.codec, "codec"), (&b.text, "text"), (&b.error, "error")] {
                if std::str::from_utf8(column.get(&self.map, i)).is_err() {
                    return Err(fault(format!("`{name}` is not UTF-8")));
                }
            }
            let d = self.descriptor(row);
            if bad.next_if_eq(&row).is_some() {
                hash.bad(d.path);
                continue;
            }
            if let Some(found) = lists_fault(&d) {
                return Err(fault(found));
            }
            hash.good(&d);
        }
        Ok(hash.finish())
    }
}

impl std::fmt::Debug for Manifest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Manifest({}, {} rows, {} good, {})", self.path.display(), self.rows, self.good(), self.fingerprint)
    }
}

fn pair(columns: &[super::column::Numbers<u32>; 2], map: &[u8], i: usize) -> (u32, u32) {
    (columns[0].get(map, i), columns[1].get(map, i))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::testing::{clip, write};
    use crate::manifest::{Record, Writer};

    #[test]
    fn what_was_written_is_read() {
        let records: Vec<Record> = (0..100).map(clip).collect();
        let (manifest, written) = write(&records, |i| i % 10 == 3);
        assert_eq!((manifest.len(), manifest.good()), (100, 90));
        assert_eq!((written.rows, written.good), (100, 90));
        assert_eq!(manifest.fingerprint(), written.fingerprint);
        for (i, record) in records.iter().enumerate() {
            let row = i as u64;
            if i % 10 == 3 {
                assert_eq!(manifest.error(row), Some("broken"));
                assert_eq!(manifest.descriptor(row).path, record.path);
                continue;
            }
            assert_eq!(manifest.error(row), None);
            assert_eq!(manifest.descriptor(row), record.descriptor(row));
            assert_eq!(manifest.facts(row), record.descriptor(row).facts());
        }
        let good: Vec<u64> = (0..manifest.good()).map(|i| manifest.good_row(i)).collect();
        let wanted: Vec<u64> = (0..100).filter(|i| i % 10 != 3).collect();
        assert_eq!(good, wanted);
        manifest.verify().unwrap();
    }

    #[test]
    fn rows_are_found_over_many_batches() {
        let records: Vec<Record> = (0..40_000).map(clip).collect();
        let (manifest, _) = write(&records, |_| false);
        assert_eq!(manifest.batches.len(), 3);
        for row in [0, 1, 16_383, 16_384, 32_767, 32_768, 39_999] {
            assert_eq!(manifest.descriptor(row), records[row as usize].descriptor(row));
        }
        assert_eq!(manifest.good_row(39_999), 39_999);
    }

    #[test]
    fn all_rows_may_be_bad_or_none_be_there() {
        let records: Vec<Record> = (0..9).map(clip).collect();
        let (manifest, _) = write(&records, |_| true);
        assert_eq!((manifest.len(), manifest.good(), manifest.bad_rows().len()), (9, 0, 9));
        assert_eq!(manifest.error(8), Some("broken"));
        let (manifest, _) = write(&[], |_| true);
        assert!(manifest.is_empty());
        manifest.verify().unwrap();
    }

    #[test]
    fn the_fingerprint_sees_every_field() {
        let base = clip(7);
        let of = |record: &Record| write(std::slice::from_ref(record), |_| false).1.fingerprint;
        let mut variants = vec![base.clone(); 20];
        variants[0].path.push('x');
        variants[1].offset += 1;
        variants[2].len += 1;
        variants[3].mtime_ns += 1;
        variants[4].container.push('x');
        variants[5].codec.push('x');
        variants[6].pix_fmt.push('x');
        variants[7].stream += 1;
        variants[8].coded_width += 1;
        variants[9].coded_height += 1;
        variants[10].rotation = 90;
        variants[11].sar = (4, 3);
        variants[12].fps = (25, 1);
        variants[13].time_base = (1, 25);
        variants[14].duration += 1;
        variants[15].pts[1] += 1;
        (variants[16].frames, variants[16].pts) = (base.frames + 1, Vec::new());
        variants[17].key_frames[1] += 1;
        variants[18].key_offsets[1] += 1;
        variants[19].seekable = !base.seekable;
        let mut all: Vec<String> = variants.iter().map(of).collect();
        all.push(of(&base));
        all.push(of(&Record { text: "a dog".into(), ..base.clone() }));
        all.push(write(&[base.clone(), base.clone()], |_| false).1.fingerprint);
        all.push(write(&[base.clone(), base.clone()], |i| i == 0).1.fingerprint);
        let distinct: std::collections::HashSet<&String> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(of(&base), of(&base.clone()));
    }

    #[test]
    fn a_row_that_contradicts_itself_is_not_written() {
        let mut writer = Writer::new(Vec::new(), "").unwrap();
        for broken in [
            Record { frames: 0, pts: vec![], ..clip(1) },
            Record { frames: 3, ..clip(1) },
            Record { rotation: 45, ..clip(1) },
            Record { time_base: (1, 0), ..clip(1) },
            Record { key_frames: vec![0, 0], key_offsets: vec![0, 0], ..clip(1) },
            Record { key_frames: vec![0, 9_999], key_offsets: vec![0, 0], ..clip(1) },
            Record { key_offsets: vec![], ..clip(1) },
            Record { path: String::new(), ..clip(1) },
        ] {
            assert!(writer.push(&broken.descriptor(0)).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn what_is_not_a_manifest_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.arrow");
        let error = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Manifest::open(&path).unwrap_err().to_string()
        };
        assert!(error(b"").contains("it is empty"));
        assert!(error(b"ARROW1").contains("at least 18"));
        assert!(error(&[b'x'; 100]).contains("no Arrow IPC file"));
        assert!(error(&[b"ARROW1".as_slice(), &[0; 100]].concat()).contains("cut short"));
        let none = Manifest::open(&folder.path().join("none.arrow")).unwrap_err().to_string();
        assert!(none.contains("none.arrow") && none.contains("No such file"), "{none}");
        let dir = Manifest::open(folder.path()).unwrap_err().to_string();
        assert!(dir.contains("not a regular file"), "{dir}");
    }
}
