//! From an Arrow IPC file's footer to the places of its columns.
//!
//! Only what a manifest has is understood: these columns, uncompressed, little-endian, no dictionaries. The
//! flatbuffers are verified by the Arrow library; every place they name is checked against the file here. Arrow's own
//! decoder is not used because it reads every text and offset of a million rows to check them, and makes arrays of
//! its own where they are not aligned.

use std::path::Path;

use arrow_ipc::reader::read_footer_length;
use arrow_ipc::{Block, Buffer, FieldNode, Footer, MetadataVersion, RecordBatch};
use bytemuck::Pod;

use super::column::{Bits, Lists, Numbers, Span, Texts};
use super::descriptor::Sound;
use super::error::ManifestError;
use super::schema;

/// Magic at both ends of the file; the first is padded to 8 bytes.
const MAGIC: &[u8] = b"ARROW1";

/// What the file says of itself, and where its rows are.
pub(super) struct Layout {
    pub(super) batches: Vec<Batch>,
    pub(super) fingerprint: Option<String>,
    pub(super) options: String,
}

/// One record batch: where each column is.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    /// First row.
    pub(super) start: u64,
    pub(super) rows: usize,
    pub(super) path: Texts,
    pub(super) file_len: Numbers<u64>,
    pub(super) offset: Numbers<u64>,
    pub(super) len: Numbers<u64>,
    pub(super) mtime_ns: Numbers<i64>,
    pub(super) container: Texts,
    pub(super) codec: Texts,
    pub(super) pix_fmt: Texts,
    pub(super) stream: Numbers<u32>,
    pub(super) coded_width: Numbers<u16>,
    pub(super) coded_height: Numbers<u16>,
    pub(super) rotation: Numbers<u16>,
    pub(super) sar: [Numbers<u32>; 2],
    pub(super) fps: [Numbers<u32>; 2],
    pub(super) time_base: [Numbers<u32>; 2],
    pub(super) duration: Numbers<i64>,
    pub(super) frames: Numbers<u32>,
    pub(super) seekable: Bits,
    pub(super) pts: Lists<i64>,
    pub(super) key_frames: Lists<u32>,
    pub(super) key_offsets: Lists<i64>,
    pub(super) text: Texts,
    /// Set where a row is bad; `None` when every row of the batch is good.
    pub(super) has_error: Option<Bits>,
    /// Whether every row of the batch is bad: then there may be no bits.
    pub(super) all_bad: bool,
    pub(super) error: Texts,
    /// Rate, channels and milliseconds of the sound, where the file's version has them.
    pub(super) sound: Option<(Numbers<u32>, Numbers<u16>, Numbers<u32>)>,
}

impl Batch {
    pub(super) fn sound(&self, map: &[u8], i: usize) -> Option<Sound> {
        let (rate, channels, ms) = self.sound?;
        let sound = Sound { rate: rate.get(map, i), channels: channels.get(map, i), duration_ms: ms.get(map, i) };
        (sound != Sound::UNKNOWN).then_some(sound)
    }

    pub(super) fn is_bad(&self, map: &[u8], i: usize) -> bool {
        self.all_bad || self.has_error.is_some_and(|bits| bits.get(map, i))
    }
}

impl Layout {
    pub(super) fn read(path: &Path, map: &[u8]) -> Result<Layout, ManifestError> {
        let fail = |found: String| ManifestError::format(path, found);
        let footer = footer(map).map_err(fail)?;
        let (options, fingerprint, has_sound) = metadata(&footer).map_err(fail)?;
        let blocks = footer.recordBatches().unwrap_or_default();
        let mut batches = Vec::with_capacity(blocks.len());
        let mut start = 0;
        for (i, block) in blocks.iter().enumerate() {
            let batch =
                batch(map, &footer, block, (start, has_sound)).map_err(|e| fail(format!("record batch {i}: {e}")))?;
            start += batch.rows as u64;
            batches.push(batch);
        }
        // A reader finds a row's batch by the batches' starts: an empty one would share its start with another.
        batches.retain(|b| b.rows > 0);
        Ok(Layout { batches, fingerprint, options })
    }
}

fn footer(map: &[u8]) -> Result<Footer<'_>, String> {
    let end = map.len().checked_sub(10).filter(|&end| end >= 8).ok_or_else(|| match map.len() {
        0 => "it is empty".to_owned(),
        n => format!("it has {n} bytes; an Arrow file has at least 18"),
    })?;
    if !map.starts_with(MAGIC) {
        return Err("it does not begin with ARROW1, so it is no Arrow IPC file".into());
    }
    let tail: [u8; 10] = map[end..].try_into().map_err(|_| "it has no tail".to_owned())?;
    let len = read_footer_length(tail).map_err(|_| "it does not end with ARROW1: it is cut short".to_owned())?;
    let at = end.checked_sub(len).filter(|&at| at >= 8);
    let at = at.ok_or_else(|| format!("its footer of {len} bytes does not fit in {} bytes", map.len()))?;
    arrow_ipc::root_as_footer(&map[at..end]).map_err(|e| format!("its footer is damaged: {e}"))
}

/// The options, unless another tool wrote the file the fingerprint, and whether there are columns of sound.
fn metadata(footer: &Footer<'_>) -> Result<(String, Option<String>, bool), String> {
    let fb = footer.schema().ok_or("its footer has no schema")?;
    if !fb.endianness().equals_to_target_endianness() {
        return Err("it was written on a machine of the other byte order".into());
    }
    let found = arrow_ipc::convert::try_fb_to_schema(fb).map_err(|e| format!("its schema is damaged: {e}"))?;
    let has_sound = match found.metadata().get(schema::KEY_FORMAT) {
        Some(v) if v == schema::FORMAT => true,
        Some(v) if v == schema::WITHOUT_SOUND => false,
        Some(v) => return Err(format!("its {} is {v}; wanted {}", schema::KEY_FORMAT, schema::FORMAT)),
        None => return Err(format!("it has no {} in its schema's metadata", schema::KEY_FORMAT)),
    };
    if let Some(difference) = schema::difference(&found, has_sound) {
        return Err(difference);
    }
    let options = found.metadata().get(schema::KEY_OPTIONS).cloned().unwrap_or_default();
    let pairs = footer.custom_metadata();
    let pair = pairs.iter().flatten().find(|kv| kv.key() == Some(schema::KEY_FINGERPRINT));
    let fingerprint = pair.and_then(|kv| kv.value()).map(str::to_owned);
    if let Some(text) = fingerprint.as_deref()
        && (text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()))
    {
        return Err(format!("its fingerprint is `{}`; wanted 32 hexadecimal digits", text.escape_debug()));
    }
    Ok((options, fingerprint, has_sound))
}

fn batch(map: &[u8], footer: &Footer<'_>, block: &Block, (start, has_sound): (u64, bool)) -> Result<Batch, String> {
    let place = |n: i64| usize::try_from(n).map_err(|_| format!("a place of {n} bytes"));
    let at = place(block.offset())?;
    let (meta, body) = (place(i64::from(block.metaDataLength()))?, place(block.bodyLength())?);
    let body_at = at.checked_add(meta).ok_or("its place overflows")?;
    let header = map.get(at..body_at).ok_or("its header lies outside of the file")?;
    let end = body_at.checked_add(body).filter(|&end| end <= map.len());
    end.ok_or("its body lies outside of the file")?;

    // A message is its length, before which newer writers put a marker of four 0xff.
    let skip = if header.starts_with(&[0xff; 4]) { 8 } else { 4 };
    let message = header.get(skip..).ok_or("its header is too short")?;
    let message = arrow_ipc::root_as_message(message).map_err(|e| format!("its header is damaged: {e}"))?;
    if message.version() != footer.version() || message.version() < MetadataVersion::V4 {
        return Err(format!("metadata version {:?}; wanted {:?}", message.version(), MetadataVersion::V5));
    }
    let batch = message.header_as_record_batch().ok_or("it is not a record batch")?;
    if batch.compression().is_some() {
        return Err("it is compressed; a manifest is mapped and must not be".into());
    }
    let rows = place(batch.length())?;
    Cursor::new(map, batch, Span { at: body_at, len: body }, rows)?.columns(start, has_sound)
}

/// Walks the nodes and buffers of a batch in the order of the schema.
struct Cursor<'m> {
    map: &'m [u8],
    nodes: Box<dyn Iterator<Item = &'m FieldNode> + 'm>,
    buffers: Box<dyn Iterator<Item = &'m Buffer> + 'm>,
    body: Span,
    rows: usize,
}

impl<'m> Cursor<'m> {
    fn new(map: &'m [u8], batch: RecordBatch<'m>, body: Span, rows: usize) -> Result<Self, String> {
        let nodes = batch.nodes().ok_or("it has no nodes")?;
        let buffers = batch.buffers().ok_or("it has no buffers")?;
        Ok(Cursor { map, nodes: Box::new(nodes.iter()), buffers: Box::new(buffers.iter()), body, rows })
    }

    fn columns(mut self, start: u64, has_sound: bool) -> Result<Batch, String> {
        let path = self.lists("path")?;
        let file_len = self.numbers("file_len")?;
        let offset = self.numbers("offset")?;
        let len = self.numbers("len")?;
        let mtime_ns = self.numbers("mtime_ns")?;
        let container = self.lists("container")?;
        let codec = self.lists("codec")?;
        let pix_fmt = self.lists("pix_fmt")?;
        let stream = self.numbers("stream")?;
        let coded_width = self.numbers("coded_width")?;
        let coded_height = self.numbers("coded_height")?;
        let rotation = self.numbers("rotation")?;
        let sar = [self.numbers("sar_num")?, self.numbers("sar_den")?];
        let fps = [self.numbers("fps_num")?, self.numbers("fps_den")?];
        let time_base = [self.numbers("time_base_num")?, self.numbers("time_base_den")?];
        let duration = self.numbers("duration")?;
        let frames = self.numbers("frames")?;
        let seekable = self.bits("seekable")?;
        let pts = self.nested("pts")?;
        let key_frames = self.nested("key_frames")?;
        let key_offsets = self.nested("key_offsets")?;
        let text = self.lists("text")?;
        let (nulls, has_error) = self.node("error", self.rows)?;
        let error = self.text_buffers("error")?;
        let sound = match has_sound {
            true => Some((self.numbers("sound_rate")?, self.numbers("sound_channels")?, self.numbers("sound_ms")?)),
            false => None,
        };
        Ok(Batch {
            start,
            rows: self.rows,
            path,
            file_len,
            offset,
            len,
            mtime_ns,
            container,
            codec,
            pix_fmt,
            stream,
            coded_width,
            coded_height,
            rotation,
            sar,
            fps,
            time_base,
            duration,
            frames,
            seekable,
            pts,
            key_frames,
            key_offsets,
            text,
            has_error: (0 < nulls && nulls < self.rows).then_some(has_error),
            all_bad: nulls == 0,
            error,
            sound,
        })
    }

    /// The next column's number of nulls and its validity bits.
    fn node(&mut self, name: &str, rows: usize) -> Result<(usize, Bits), String> {
        let node = self.nodes.next().ok_or_else(|| format!("column `{name}` has no node"))?;
        if usize::try_from(node.length()) != Ok(rows) {
            return Err(format!("column `{name}` has {} rows; wanted {rows}", node.length()));
        }
        let nulls = usize::try_from(node.null_count()).ok().filter(|&n| n <= rows);
        let nulls = nulls.ok_or_else(|| format!("column `{name}` has {} nulls", node.null_count()))?;
        let span = self.buffer(name)?;
        if nulls > 0 && span.len < rows.div_ceil(8) {
            return Err(format!("column `{name}` has too few validity bits"));
        }
        Ok((nulls, Bits(span)))
    }

    fn full_node(&mut self, name: &str, rows: usize) -> Result<(), String> {
        match self.node(name, rows)?.0 {
            0 => Ok(()),
            n => Err(format!("column `{name}` has {n} nulls; wanted none")),
        }
    }

    fn buffer(&mut self, name: &str) -> Result<Span, String> {
        let buffer = self.buffers.next().ok_or_else(|| format!("column `{name}` has too few buffers"))?;
        let outside = || format!("a buffer of column `{name}` lies outside of its batch");
        let at = usize::try_from(buffer.offset()).map_err(|_| outside())?;
        let len = usize::try_from(buffer.length()).map_err(|_| outside())?;
        let end = at.checked_add(len).filter(|&end| end <= self.body.len);
        end.ok_or_else(outside)?;
        Ok(Span { at: self.body.at + at, len })
    }

    /// The first `len` bytes of the next buffer; it may be padded in the file.
    fn exactly(&mut self, name: &str, len: Option<usize>) -> Result<Span, String> {
        let span = self.buffer(name)?;
        let len = len.filter(|&n| n <= span.len);
        let len = len.ok_or_else(|| format!("column `{name}` has too few bytes ({})", span.len))?;
        Ok(Span { at: span.at, len })
    }

    fn values<T: Pod>(&mut self, name: &str, count: usize) -> Result<Numbers<T>, String> {
        let span = self.exactly(name, count.checked_mul(size_of::<T>()))?;
        Numbers::new(self.map, span).ok_or_else(|| format!("column `{name}` is not aligned in the file"))
    }

    fn numbers<T: Pod>(&mut self, name: &str) -> Result<Numbers<T>, String> {
        self.full_node(name, self.rows)?;
        self.values(name, self.rows)
    }

    fn bits(&mut self, name: &str) -> Result<Bits, String> {
        self.full_node(name, self.rows)?;
        self.exactly(name, Some(self.rows.div_ceil(8))).map(Bits)
    }

    fn lists(&mut self, name: &str) -> Result<Texts, String> {
        self.full_node(name, self.rows)?;
        self.text_buffers(name)
    }

    fn text_buffers(&mut self, name: &str) -> Result<Texts, String> {
        let offsets = self.offsets(name)?;
        let count = self.last(name, &offsets)?;
        let values = self.values(name, count)?;
        self.in_order(name, Lists { offsets, values })
    }

    fn nested<T: Pod>(&mut self, name: &str) -> Result<Lists<T>, String> {
        self.full_node(name, self.rows)?;
        let offsets = self.offsets(name)?;
        let count = self.last(name, &offsets)?;
        // The values may be more than the offsets use, so their own node counts.
        let node = self.nodes.next().ok_or_else(|| format!("column `{name}` has no values"))?;
        if node.null_count() != 0 || usize::try_from(node.length()).is_ok_and(|n| n < count) {
            return Err(format!("column `{name}` has nulls, or too few values"));
        }
        self.buffer(name)?;
        let values = self.values(name, count)?;
        self.in_order(name, Lists { offsets, values })
    }

    fn offsets(&mut self, name: &str) -> Result<Numbers<i32>, String> {
        // A writer may leave the offsets of no rows out.
        let count = if self.rows == 0 { 0 } else { self.rows + 1 };
        self.values(name, count)
    }

    /// How many values the offsets use.
    fn last(&self, name: &str, offsets: &Numbers<i32>) -> Result<usize, String> {
        let last = offsets.all(self.map).last().map_or(Ok(0), |&n| usize::try_from(n));
        last.map_err(|_| format!("column `{name}` has negative offsets"))
    }

    fn in_order<T: Pod>(&self, name: &str, lists: Lists<T>) -> Result<Lists<T>, String> {
        match lists.fault(self.map) {
            None => Ok(lists),
            Some(row) => Err(format!("row {row} of column `{name}` lies outside of its values")),
        }
    }
}
