//! FFmpeg's demuxer over a [`Source`], as a safe type.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::NonNull;

use ffmpeg_next::ffi;

use super::source::Source;

/// An FFmpeg error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Code(pub(super) c_int);

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = [0 as c_char; ffi::AV_ERROR_MAX_STRING_SIZE];
        // SAFETY: it writes at most that many bytes and ends them with a zero.
        let text = unsafe {
            ffi::av_strerror(self.0, text.as_mut_ptr(), text.len());
            CStr::from_ptr(text.as_ptr())
        };
        f.write_str(&text.to_string_lossy())
    }
}

/// Version of FFmpeg's demuxers.
pub(super) fn version() -> String {
    // SAFETY: it returns a constant.
    let v = unsafe { ffi::avformat_version() };
    format!("{}.{}.{}", v >> 16, v >> 8 & 0xff, v & 0xff)
}

/// An open container.
pub(super) struct Demuxer {
    context: NonNull<ffi::AVFormatContext>,
    packet: NonNull<ffi::AVPacket>,
    pub(super) source: Source,
}

/// What a container says of one stream.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    pub(super) is_video: bool,
    pub(super) is_cover: bool,
    pub(super) kind: &'static str,
    pub(super) codec: String,
    pub(super) pix_fmt: Option<String>,
    pub(super) width: c_int,
    pub(super) height: c_int,
    /// Clockwise degrees that show it upright, as the display matrix says, and whether it mirrors.
    pub(super) rotation: u16,
    pub(super) mirrored: bool,
    pub(super) sar: (u32, u32),
    pub(super) fps: (u32, u32),
    pub(super) time_base: (u32, u32),
    /// Length as the container states it, in units of the time base; 0 if it does not.
    pub(super) duration: i64,
    /// Rate and channels of a stream of sound.
    pub(super) sound: Option<(u32, u16)>,
}

/// One packet, as long as the demuxer is not asked for the next.
pub(super) struct Packet<'a> {
    raw: &'a ffi::AVPacket,
}

impl Packet<'_> {
    pub(super) fn pts(&self) -> Option<i64> {
        (self.raw.pts != ffi::AV_NOPTS_VALUE).then_some(self.raw.pts)
    }

    pub(super) fn duration(&self) -> i64 {
        self.raw.duration
    }

    /// Where it begins in the file, bytes; −1 if unknown.
    pub(super) fn pos(&self) -> i64 {
        self.raw.pos.max(-1)
    }

    pub(super) fn is_key(&self) -> bool {
        self.raw.flags & ffi::AV_PKT_FLAG_KEY != 0
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.raw.flags & ffi::AV_PKT_FLAG_CORRUPT != 0
    }

    /// Whether it is decoded but not shown, as before the start of an edit list.
    pub(super) fn is_hidden(&self) -> bool {
        self.raw.flags & ffi::AV_PKT_FLAG_DISCARD != 0
    }

    pub(super) fn data(&self) -> &[u8] {
        match (self.raw.data.is_null(), usize::try_from(self.raw.size)) {
            // SAFETY: FFmpeg's packet has `size` bytes at `data`, for as long as the packet is not replaced.
            (false, Ok(size)) => unsafe { std::slice::from_raw_parts(self.raw.data, size) },
            _ => &[],
        }
    }

    pub(super) fn raw(&self) -> *const ffi::AVPacket {
        self.raw
    }
}

impl Demuxer {
    /// Opens by content: the name is not looked at.
    pub(super) fn open(source: Source) -> Result<Demuxer, (Source, Code)> {
        const NO_MEMORY: Code = Code(ffi::AVERROR(libc::ENOMEM));
        // SAFETY: a fresh context and packet, which `Demuxer` frees; `avformat_open_input` frees the context itself
        // when it fails. The source outlives both, since `drop` closes before fields are dropped.
        unsafe {
            let Some(packet) = NonNull::new(ffi::av_packet_alloc()) else { return Err((source, NO_MEMORY)) };
            let mut context = ffi::avformat_alloc_context();
            if context.is_null() {
                ffi::av_packet_free(&mut packet.as_ptr());
                return Err((source, NO_MEMORY));
            }
            (*context).pb = source.context();
            (*context).interrupt_callback = source.interrupt();
            (*context).io_open = Some(refuse);
            let none = std::ptr::null_mut();
            let code = ffi::avformat_open_input(&mut context, c"".as_ptr(), std::ptr::null(), none);
            let Some(context) = NonNull::new(context).filter(|_| code >= 0) else {
                ffi::av_packet_free(&mut packet.as_ptr());
                return Err((source, Code(code)));
            };
            Ok(Demuxer { context, packet, source })
        }
    }

    /// Reads until the streams' parameters are known.
    pub(super) fn find_streams(&mut self) -> Result<(), Code> {
        // SAFETY: an open context.
        match unsafe { ffi::avformat_find_stream_info(self.context.as_ptr(), std::ptr::null_mut()) } {
            0.. => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// FFmpeg's name of the container.
    pub(super) fn container(&self) -> String {
        // SAFETY: an open context has a format, and a format has a name.
        unsafe { text((*self.context.as_ref().iformat).name) }
    }

    pub(super) fn streams(&self) -> Vec<Stream> {
        self.raw_streams().iter().map(|&s| self.describe(s)).collect()
    }

    /// Drops the packets of all other streams while demuxing.
    pub(super) fn select(&mut self, stream: usize) {
        for (i, &s) in self.raw_streams().iter().enumerate() {
            let keep = i == stream;
            // SAFETY: streams of an open context, which nobody else uses.
            unsafe {
                (*s).discard = if keep { ffi::AVDiscard::AVDISCARD_DEFAULT } else { ffi::AVDiscard::AVDISCARD_ALL }
            };
        }
    }

    /// The next packet of the stream; `None` at the end.
    pub(super) fn next(&mut self, stream: usize) -> Result<Option<Packet<'_>>, Code> {
        loop {
            if !self.source.within_limits() {
                return Err(Code(ffi::AVERROR_EXIT));
            }
            // SAFETY: an open context and a packet of ours; the packet's former content is let go first.
            let code = unsafe {
                ffi::av_packet_unref(self.packet.as_ptr());
                ffi::av_read_frame(self.context.as_ptr(), self.packet.as_ptr())
            };
            match code {
                0.. => {}
                ffi::AVERROR_EOF => return Ok(None),
                _ => return Err(Code(code)),
            }
            // SAFETY: filled by `av_read_frame`; the borrow of `self` keeps it from being replaced.
            let raw = unsafe { &*self.packet.as_ptr() };
            if usize::try_from(raw.stream_index) == Ok(stream) {
                return Ok(Some(Packet { raw }));
            }
        }
    }

    /// For a decoder of the stream.
    pub(super) fn parameters(&self, stream: usize) -> Option<(*const ffi::AVCodecParameters, ffi::AVRational)> {
        let &s = self.raw_streams().get(stream)?;
        // SAFETY: a stream of an open context.
        unsafe { Some(((*s).codecpar.cast_const(), (*s).time_base)) }
    }

    fn raw_streams(&self) -> &[*mut ffi::AVStream] {
        // SAFETY: an open context has `nb_streams` pointers at `streams`; they change only in calls that need
        // `&mut self`.
        unsafe {
            let context = self.context.as_ref();
            match context.streams.is_null() {
                true => &[],
                false => std::slice::from_raw_parts(context.streams, context.nb_streams as usize),
            }
        }
    }

    fn describe(&self, stream: *mut ffi::AVStream) -> Stream {
        // SAFETY: a stream of an open context, with its parameters; all names are static strings of FFmpeg.
        unsafe {
            let s = &*stream;
            let p = &*s.codecpar;
            let is_video = p.codec_type == ffi::AVMediaType::AVMEDIA_TYPE_VIDEO;
            let kind = match p.codec_type {
                ffi::AVMediaType::AVMEDIA_TYPE_VIDEO => "video",
                ffi::AVMediaType::AVMEDIA_TYPE_AUDIO => "audio",
                ffi::AVMediaType::AVMEDIA_TYPE_SUBTITLE => "subtitles",
                _ => "data",
            };
            let known = is_video && (0..ffi::AVPixelFormat::AV_PIX_FMT_NB as c_int).contains(&p.format);
            // The number is one of the enumeration's, which has no gaps.
            let pix_fmt = known.then(|| std::mem::transmute::<c_int, ffi::AVPixelFormat>(p.format));
            let pix_fmt = pix_fmt.map(|f| text(ffi::av_get_pix_fmt_name(f))).filter(|name| !name.is_empty());
            let sar = ffi::av_guess_sample_aspect_ratio(self.context.as_ptr(), stream, std::ptr::null_mut());
            let fps = if s.avg_frame_rate.num > 0 { s.avg_frame_rate } else { s.r_frame_rate };
            let (rotation, mirrored) = display_matrix(stream);
            let is_sound = p.codec_type == ffi::AVMediaType::AVMEDIA_TYPE_AUDIO;
            let channels = u16::try_from(p.ch_layout.nb_channels).unwrap_or(u16::MAX);
            let rate = u32::try_from(p.sample_rate).ok().filter(|&rate| is_sound && rate > 0);
            Stream {
                is_video,
                is_cover: s.disposition & ffi::AV_DISPOSITION_ATTACHED_PIC != 0,
                kind,
                codec: text(ffi::avcodec_get_name(p.codec_id)),
                pix_fmt,
                width: p.width,
                height: p.height,
                rotation,
                mirrored,
                sar: positive(sar).unwrap_or((1, 1)),
                fps: positive(fps).unwrap_or((0, 1)),
                time_base: positive(s.time_base).unwrap_or((1, 1)),
                duration: if s.duration == ffi::AV_NOPTS_VALUE { 0 } else { s.duration.max(0) },
                sound: rate.map(|rate| (rate, channels)),
            }
        }
    }
}

impl Drop for Demuxer {
    fn drop(&mut self) {
        // SAFETY: made by `open`, freed once; with a `pb` of ours, closing leaves the source alone.
        unsafe {
            ffi::av_packet_free(&mut self.packet.as_ptr());
            ffi::avformat_close_input(&mut self.context.as_ptr());
        }
    }
}

/// A playlist or a reference to other media in a file must not make us open them.
///
/// # Safety
/// FFmpeg calls it; nothing is read of its arguments.
unsafe extern "C" fn refuse(
    _: *mut ffi::AVFormatContext,
    _: *mut *mut ffi::AVIOContext,
    _: *const c_char,
    _: c_int,
    _: *mut *mut ffi::AVDictionary,
) -> c_int {
    ffi::AVERROR(libc::EPERM)
}

/// # Safety
/// A zero-terminated string, or null.
unsafe fn text(name: *const c_char) -> String {
    match name.is_null() {
        true => String::new(),
        // SAFETY: by the contract above.
        false => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
    }
}

fn positive(r: ffi::AVRational) -> Option<(u32, u32)> {
    match (u32::try_from(r.num), u32::try_from(r.den)) {
        (Ok(num @ 1..), Ok(den @ 1..)) => Some((num, den)),
        _ => None,
    }
}

/// The display matrix as clockwise degrees to the nearest quarter, and whether it mirrors.
///
/// # Safety
/// A stream of an open context.
unsafe fn display_matrix(stream: *const ffi::AVStream) -> (u16, bool) {
    let mut size = 0;
    let kind = ffi::AVPacketSideDataType::AV_PKT_DATA_DISPLAYMATRIX;
    // SAFETY: by the contract above; the data has `size` bytes, aligned as FFmpeg allocates.
    let matrix = unsafe {
        let data = ffi::av_stream_get_side_data(stream, kind, &mut size);
        match data.is_null() || size < 36 {
            true => return (0, false),
            false => std::ptr::read_unaligned(data.cast::<[i32; 9]>()),
        }
    };
    quarter_turns(matrix)
}

/// Rows of the matrix are (a, b, u), (c, d, v): a point (x, y) is shown at (ax + cy, bx + dy), y downwards.
fn quarter_turns(m: [i32; 9]) -> (u16, bool) {
    let [a, b, c, d] = [m[0], m[1], m[3], m[4]].map(f64::from);
    if a * d - b * c == 0.0 {
        return (0, false);
    }
    let quarters = (b.atan2(a).to_degrees() / 90.0).round() as i32;
    ((quarters.rem_euclid(4) * 90) as u16, a * d - b * c < 0.0)
}

#[cfg(test)]
mod tests {
    use super::quarter_turns;

    const ONE: i32 = 1 << 16;

    #[test]
    fn a_display_matrix_is_a_number_of_quarter_turns() {
        let of = |a, b, c, d| quarter_turns([a, b, 0, c, d, 0, 0, 0, 1 << 30]);
        assert_eq!(of(ONE, 0, 0, ONE), (0, false));
        assert_eq!(of(0, ONE, -ONE, 0), (90, false));
        assert_eq!(of(-ONE, 0, 0, -ONE), (180, false));
        assert_eq!(of(0, -ONE, ONE, 0), (270, false));
        assert_eq!(of(ONE, ONE / 50, -ONE / 50, ONE), (0, false));
        assert!(of(-ONE, 0, 0, ONE).1);
        assert_eq!(of(0, 0, 0, 0), (0, false));
    }
}
