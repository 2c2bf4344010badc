//! A descriptor that owns what it says: what probing gives and what a writer of manifests fills in.

use super::descriptor::{Descriptor, Sound};

/// An owned [`Descriptor`] without a row; see there for the fields.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "each field is documented at the descriptor's field of the same name")]
pub struct Record {
    pub path: String,
    pub file_len: u64,
    pub offset: u64,
    pub len: u64,
    pub mtime_ns: i64,
    pub container: String,
    pub codec: String,
    pub pix_fmt: String,
    pub stream: u32,
    pub coded_width: u16,
    pub coded_height: u16,
    pub rotation: u16,
    pub sar: (u32, u32),
    pub fps: (u32, u32),
    pub time_base: (u32, u32),
    pub duration: i64,
    pub pts: Vec<i64>,
    pub frames: u32,
    pub key_frames: Vec<u32>,
    pub key_offsets: Vec<i64>,
    pub seekable: bool,
    pub text: String,
    pub sound: Option<Sound>,
}

impl Default for Record {
    /// Nothing known: no frames, square pixels, no rate.
    fn default() -> Self {
        Record {
            path: String::new(),
            file_len: 0,
            offset: 0,
            len: 0,
            mtime_ns: 0,
            container: String::new(),
            codec: String::new(),
            pix_fmt: String::new(),
            stream: 0,
            coded_width: 0,
            coded_height: 0,
            rotation: 0,
            sar: (1, 1),
            fps: (0, 1),
            time_base: (1, 1),
            duration: 0,
            pts: Vec::new(),
            frames: 0,
            key_frames: Vec::new(),
            key_offsets: Vec::new(),
            seekable: false,
            text: String::new(),
            sound: None,
        }
    }
}

impl Record {
    /// The same, borrowed, as the given row.
    pub fn descriptor(&self, row: u64) -> Descriptor<'_> {
        Descriptor {
            row,
            path: &self.path,
            file_len: self.file_len,
            offset: self.offset,
            len: self.len,
            mtime_ns: self.mtime_ns,
            container: &self.container,
            codec: &self.codec,
            pix_fmt: &self.pix_fmt,
            stream: self.stream,
            coded_width: self.coded_width,
            coded_height: self.coded_height,
            rotation: self.rotation,
            sar: self.sar,
            fps: self.fps,
            time_base: self.time_base,
            duration: self.duration,
            pts: &self.pts,
            frames: self.frames,
            key_frames: &self.key_frames,
            key_offsets: &self.key_offsets,
            seekable: self.seekable,
            text: &self.text,
            sound: self.sound,
        }
    }
}

impl From<&Descriptor<'_>> for Record {
    fn from(d: &Descriptor<'_>) -> Self {
        Record {
            path: d.path.to_owned(),
            file_len: d.file_len,
            offset: d.offset,
            len: d.len,
            mtime_ns: d.mtime_ns,
            container: d.container.to_owned(),
            codec: d.codec.to_owned(),
            pix_fmt: d.pix_fmt.to_owned(),
            stream: d.stream,
            coded_width: d.coded_width,
            coded_height: d.coded_height,
            rotation: d.rotation,
            sar: d.sar,
            fps: d.fps,
            time_base: d.time_base,
            duration: d.duration,
            pts: d.pts.to_vec(),
            frames: d.frames,
            key_frames: d.key_frames.to_vec(),
            key_offsets: d.key_offsets.to_vec(),
            seekable: d.seekable,
            text: d.text.to_owned(),
            sound: d.sound,
        }
    }
}
