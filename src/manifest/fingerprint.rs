//! One number for all that a manifest says: equal numbers, equal stream.

use xxhash_rust::xxh3::Xxh3;

use super::descriptor::Descriptor;

/// Hashes rows in their order (XXH3, 128 bits).
///
/// A bad row counts by its path and its place, since it shifts the rows behind it; the words of its reason do not,
/// since they change with FFmpeg's version.
pub(super) struct Fingerprint(Box<Xxh3>);

impl Fingerprint {
    pub(super) fn new() -> Self {
        Fingerprint(Box::new(Xxh3::new()))
    }

    pub(super) fn bad(&mut self, path: &str) {
        self.0.update(&[0]);
        self.text(path);
    }

    pub(super) fn good(&mut self, d: &Descriptor<'_>) {
        self.0.update(&[1]);
        for text in [d.path, d.container, d.codec, d.pix_fmt, d.text] {
            self.text(text);
        }
        let flags = u64::from(d.seekable);
        let numbers = [d.file_len, d.offset, d.len, d.mtime_ns as u64, d.duration as u64, flags, u64::from(d.frames)];
        self.0.update(bytemuck::cast_slice(&numbers));
        let (w, h) = (u32::from(d.coded_width), u32::from(d.coded_height));
        let small = [d.stream, w, h, u32::from(d.rotation)];
        self.0.update(bytemuck::cast_slice(&small));
        for (num, den) in [d.sar, d.fps, d.time_base] {
            self.0.update(bytemuck::cast_slice(&[num, den]));
        }
        self.list(d.pts);
        self.list(d.key_frames);
        self.list(d.key_offsets);
    }

    /// 32 hexadecimal digits.
    pub(super) fn finish(&self) -> String {
        format!("{:032x}", self.0.digest128())
    }

    // Lengths go first, so that no two different rows give the same bytes.
    fn text(&mut self, text: &str) {
        self.0.update(&(text.len() as u64).to_ne_bytes());
        self.0.update(text.as_bytes());
    }

    fn list<T: bytemuck::Pod>(&mut self, list: &[T]) {
        self.0.update(&(list.len() as u64).to_ne_bytes());
        self.0.update(bytemuck::cast_slice(list));
    }
}
