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
use super::guard::Guard;
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
    /// Goes before the mapping does.
    guard: Guard,
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
        let guard = Guard::new(&map);
        let Layout { batches, fingerprint, options } = Layout::read(&path, &map)?;
        let rows = batches.last().map_or(0, |b| b.start + b.rows as u64);
        let warned = AtomicBool::new(false);
        let mut manifest = Manifest {
            path,
            fd,
            guard,
            map,
            batches,
            rows,
            bad: Vec::new(),
            fingerprint: String::new(),
            options,
            warned,
        };
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
            file_len: b.file_len.get(map, i),
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
            sound: b.sound(map, i),
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
            file_len: 0,
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
            sound: None,
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

    /// Whether the file was cut while this process had it open, and zeros were read in its place. Never where
    /// [`super::guard::install`] was not called: there a read behind the end kills.
    pub fn was_cut(&self) -> bool {
        self.guard.was_cut()
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
            // Slices are taken once a batch: a million rows are to open at once.
            let sizes = (b.coded_width.all(map), b.coded_height.all(map));
            let (frames, rotation) = (b.frames.all(map), b.rotation.all(map));
            let (path, pts) = (b.path.offsets.all(map), b.pts.offsets.all(map));
            let (keys, key_offsets) = (b.key_frames.offsets.all(map), b.key_offsets.offsets.all(map));
            let denominators = [b.sar[1].all(map), b.fps[1].all(map), b.time_base[1].all(map)];
            let length = |offsets: &[i32], i: usize| offsets[i + 1].saturating_sub(offsets[i]) as usize;
            for i in 0..b.rows {
                let good = !b.is_bad(map, i);
                let shape = Shape {
                    good,
                    path_bytes: length(path, i),
                    frames: frames[i],
                    pts: length(pts, i),
                    key_frames: length(keys, i),
                    key_offsets: length(key_offsets, i),
                    rotation: rotation[i],
                    size: (sizes.0[i], sizes.1[i]),
                    denominators: denominators.map(|d| d[i]),
                    has_sound: b.sound(map, i).is_some_and(|sound| sound.is_some()),
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
