//! Writing a manifest, a record batch at a time: memory is bound by the batch and not by the rows.

use std::io::Write;

use arrow_array::RecordBatch;
use arrow_array::builder::{
    ArrayBuilder, BooleanBuilder, ListBuilder, PrimitiveBuilder, StringBuilder, UInt16Builder, UInt32Builder,
    UInt64Builder,
};
use arrow_array::types::{Int64Type, UInt32Type};
use arrow_ipc::writer::FileWriter;
use arrow_schema::ArrowError;

use super::check::{Shape, lists_fault};
use super::descriptor::{Descriptor, Sound};
use super::error::WriteError;
use super::fingerprint::Fingerprint;
use super::record::Record;
use super::schema;

/// Rows of a batch. A batch costs a reader about 1 KiB, so a million rows cost it 60 KiB.
const BATCH_ROWS: usize = 16_384;
/// Bytes of lists and texts after which a batch ends early: offsets are 31 bits, and the writer holds one batch.
const BATCH_BYTES: usize = 64 << 20;

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Rows, good and bad.
    pub rows: u64,
    /// Rows that can be delivered.
    pub good: u64,
    /// See [`super::Manifest::fingerprint`].
    pub fingerprint: String,
}

/// Writes a manifest row by row.
///
/// ```
/// # use helix_shm::manifest::{Record, Writer};
/// let mut bytes = Vec::new();
/// let mut writer = Writer::new(&mut bytes, "{}")?;
/// let clip = Record { path: "/data/a.mp4".into(), frames: 30, coded_width: 64, coded_height: 48, ..Record::default() };
/// writer.push(&clip.descriptor(0))?;
/// writer.push_bad("/data/b.mp4", 0, 0, "the file is empty")?;
/// let written = writer.finish()?;
/// assert_eq!((written.rows, written.good), (2, 1));
/// # Ok::<(), helix_shm::manifest::WriteError>(())
/// ```
pub struct Writer<W: Write> {
    file: FileWriter<W>,
    columns: Columns,
    hash: Fingerprint,
    rows: u64,
    good: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a manifest. `options` says how it was made, for people; JSON by habit.
    pub fn new(out: W, options: &str) -> Result<Self, WriteError> {
        let file = FileWriter::try_new(out, &schema::schema(options))?;
        Ok(Writer { file, columns: Columns::default(), hash: Fingerprint::new(), rows: 0, good: 0 })
    }

    /// Adds a good row. Its [`Descriptor::row`] is not looked at: rows are numbered as they come.
    pub fn push(&mut self, d: &Descriptor<'_>) -> Result<(), WriteError> {
        let fault = Shape::of(d, true).fault().or_else(|| lists_fault(d));
        if let Some(found) = fault {
            return Err(WriteError::Row { row: self.rows, path: d.path.to_owned(), found });
        }
        self.hash.good(d);
        self.good += 1;
        self.append(d, None)
    }

    /// Adds a file that cannot be delivered, with the reason.
    pub fn push_bad(&mut self, path: &str, len: u64, mtime_ns: i64, reason: &str) -> Result<(), WriteError> {
        let record = Record { path: path.to_owned(), file_len: len, len, mtime_ns, ..Record::default() };
        let d = record.descriptor(self.rows);
        if let Some(found) = Shape::of(&d, false).fault() {
            return Err(WriteError::Row { row: self.rows, path: path.to_owned(), found });
        }
        self.hash.bad(path);
        self.append(&d, Some(reason))
    }

    /// Writes what is left and the footer. `out` is flushed, not synced.
    pub fn finish(self) -> Result<Written, WriteError> {
        Ok(self.finish_into()?.0)
    }

    /// As [`Writer::finish`], and gives `out` back.
    pub fn finish_into(mut self) -> Result<(Written, W), WriteError> {
        self.flush()?;
        let fingerprint = self.hash.finish();
        self.file.write_metadata(schema::KEY_FINGERPRINT, &fingerprint);
        self.file.write_metadata(schema::KEY_GOOD, self.good.to_string());
        self.file.write_metadata(schema::KEY_BAD, (self.rows - self.good).to_string());
        self.file.finish()?;
        Ok((Written { rows: self.rows, good: self.good, fingerprint }, self.file.into_inner()?))
    }

    fn append(&mut self, d: &Descriptor<'_>, error: Option<&str>) -> Result<(), WriteError> {
        self.columns.append(d, error);
        self.rows += 1;
        if self.columns.path.len() >= BATCH_ROWS || self.columns.bytes >= BATCH_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        if self.columns.path.is_empty() {
            return Ok(());
        }
        let batch = self.columns.take(self.file.schema().clone())?;
        self.file.write(&batch)?;
        Ok(())
    }
}

/// Builders of the columns, in the order of [`schema::fields`].
#[derive(Default)]
struct Columns {
    path: StringBuilder,
    file_len: UInt64Builder,
    offset: UInt64Builder,
    len: UInt64Builder,
    mtime_ns: PrimitiveBuilder<Int64Type>,
    container: StringBuilder,
    codec: StringBuilder,
    pix_fmt: StringBuilder,
    stream: UInt32Builder,
    coded_width: UInt16Builder,
    coded_height: UInt16Builder,
    rotation: UInt16Builder,
    sar: [UInt32Builder; 2],
    fps: [UInt32Builder; 2],
    time_base: [UInt32Builder; 2],
    duration: PrimitiveBuilder<Int64Type>,
    frames: UInt32Builder,
    seekable: BooleanBuilder,
    pts: ListBuilder<PrimitiveBuilder<Int64Type>>,
    key_frames: ListBuilder<PrimitiveBuilder<UInt32Type>>,
    key_offsets: ListBuilder<PrimitiveBuilder<Int64Type>>,
    text: StringBuilder,
    error: StringBuilder,
    sound_rate: UInt32Builder,
    sound_channels: UInt16Builder,
    sound_ms: UInt32Builder,
    /// Bytes of lists and texts so far.
    bytes: usize,
}

impl Columns {
    fn append(&mut self, d: &Descriptor<'_>, error: Option<&str>) {
        self.path.append_value(d.path);
        self.file_len.append_value(d.file_len);
        self.offset.append_value(d.offset);
        self.len.append_value(d.len);
        self.mtime_ns.append_value(d.mtime_ns);
        self.container.append_value(d.container);
        self.codec.append_value(d.codec);
        self.pix_fmt.append_value(d.pix_fmt);
        self.stream.append_value(d.stream);
        self.coded_width.append_value(d.coded_width);
        self.coded_height.append_value(d.coded_height);
        self.rotation.append_value(d.rotation);
        for (pair, (num, den)) in [(&mut self.sar, d.sar), (&mut self.fps, d.fps), (&mut self.time_base, d.time_base)]
        {
            pair[0].append_value(num);
            pair[1].append_value(den);
        }
        self.duration.append_value(d.duration);
        self.frames.append_value(d.frames);
        self.seekable.append_value(d.seekable);
        self.pts.values().append_slice(d.pts);
        self.pts.append(true);
        self.key_frames.values().append_slice(d.key_frames);
        self.key_frames.append(true);
        self.key_offsets.values().append_slice(d.key_offsets);
        self.key_offsets.append(true);
        self.text.append_value(d.text);
        self.error.append_option(error);
        let sound = d.sound.unwrap_or(Sound::UNKNOWN);
        self.sound_rate.append_value(sound.rate);
        self.sound_channels.append_value(sound.channels);
        self.sound_ms.append_value(sound.duration_ms);
        let texts = d.path.len() + d.text.len() + error.map_or(0, str::len);
        self.bytes += texts + 8 * d.pts.len() + 12 * d.key_frames.len();
    }

    fn take(&mut self, schema: arrow_schema::SchemaRef) -> Result<RecordBatch, ArrowError> {
        let c = std::mem::take(self);
        let ([mut sar_num, mut sar_den], [mut fps_num, mut fps_den]) = (c.sar, c.fps);
        let [mut base_num, mut base_den] = c.time_base;
        let (mut path, mut container, mut codec, mut pix_fmt) = (c.path, c.container, c.codec, c.pix_fmt);
        let (mut file_len, mut offset, mut len) = (c.file_len, c.offset, c.len);
        let (mut mtime_ns, mut stream) = (c.mtime_ns, c.stream);
        let (mut width, mut height, mut rotation) = (c.coded_width, c.coded_height, c.rotation);
        let (mut duration, mut frames, mut seekable) = (c.duration, c.frames, c.seekable);
        let (mut pts, mut key_frames, mut key_offsets) = (c.pts, c.key_frames, c.key_offsets);
        let (mut text, mut error) = (c.text, c.error);
        let (mut sound_rate, mut sound_channels, mut sound_ms) = (c.sound_rate, c.sound_channels, c.sound_ms);
        let builders: [&mut dyn ArrayBuilder; 29] = [
            &mut path,
            &mut file_len,
            &mut offset,
            &mut len,
            &mut mtime_ns,
            &mut container,
            &mut codec,
            &mut pix_fmt,
            &mut stream,
            &mut width,
            &mut height,
            &mut rotation,
            &mut sar_num,
            &mut sar_den,
            &mut fps_num,
            &mut fps_den,
            &mut base_num,
            &mut base_den,
            &mut duration,
            &mut frames,
            &mut seekable,
            &mut pts,
            &mut key_frames,
            &mut key_offsets,
            &mut text,
            &mut error,
            &mut sound_rate,
            &mut sound_channels,
            &mut sound_ms,
        ];
        RecordBatch::try_new(schema, builders.into_iter().map(|b| b.finish()).collect())
    }
}
