//! FFmpeg's objects, each with one owner that frees it.
//!
//! The crate's safe wrapper lacks custom I/O, colour details and scaling into own memory, so this speaks to the
//! library itself. Nothing here decides anything: `video` and `scale` do. Conversions are in `sws`.

use std::ffi::{CStr, CString, c_int};
use std::fmt;
use std::io;
use std::ptr::{self, NonNull};

use ffmpeg_next::ffi;

use super::avio::Avio;
use super::input::Input;

pub(super) mod sound;

/// Largest frame that is decoded, pixels: 16384 × 8192. Beyond it a header asks for more than 200 MB a frame.
pub(super) const MAX_PIXELS: i64 = 1 << 27;

/// An error code of FFmpeg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AvError(c_int);

impl AvError {
    pub(super) fn is_end(self) -> bool {
        self.0 == ffi::AVERROR_EOF
    }

    pub(super) fn is_memory(self) -> bool {
        self.0 == ffi::AVERROR(libc::ENOMEM)
    }

    pub(super) fn is_again(self) -> bool {
        self.0 == ffi::AVERROR(libc::EAGAIN)
    }
}

impl fmt::Display for AvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 128];
        // SAFETY: the buffer has the length given, and the text in it ends with a zero.
        let text = unsafe {
            ffi::av_strerror(self.0, text.as_mut_ptr(), text.len());
            CStr::from_ptr(text.as_ptr())
        };
        f.write_str(&text.to_string_lossy())
    }
}

fn check(code: c_int) -> Result<c_int, AvError> {
    if code < 0 { Err(AvError(code)) } else { Ok(code) }
}

/// A container being taken apart.
pub(super) struct Demuxer<'a> {
    context: NonNull<ffi::AVFormatContext>,
    /// Freed after the context, which refers to it: `drop` runs before the fields'.
    io: Avio<'a>,
}

/// # Safety
/// FFmpeg calls it in place of opening a file that a container names.
unsafe extern "C" fn refuse(
    _: *mut ffi::AVFormatContext,
    _: *mut *mut ffi::AVIOContext,
    _: *const libc::c_char,
    _: c_int,
    _: *mut *mut ffi::AVDictionary,
) -> c_int {
    ffi::AVERROR(libc::EPERM)
}

impl<'a> Demuxer<'a> {
    /// Opens a container of the format that FFmpeg calls `format` (of a list, any of its names). It reads the given
    /// bytes and nothing else: no protocol is allowed, and a container that names other files cannot open them.
    pub(super) fn open(input: &'a Input, format: &str) -> Result<Demuxer<'a>, String> {
        let name = format.split(',').next().unwrap_or_default();
        let wanted = CString::new(name).unwrap_or_default();
        // SAFETY: plain calls; on failure `avformat_open_input` frees the context that it was given.
        unsafe {
            let found = ffi::av_find_input_format(wanted.as_ptr());
            if found.is_null() {
                return Err(format!("this FFmpeg cannot read the container `{name}`; index again with it"));
            }
            let io = Avio::new(input);
            let mut context = ffi::avformat_alloc_context();
            assert!(!context.is_null(), "memory for a container");
            (*context).pb = io.as_ptr();
            (*context).flags |= ffi::AVFMT_FLAG_CUSTOM_IO;
            (*context).io_open = Some(refuse);
            let mut options = ptr::null_mut();
            ffi::av_dict_set(&mut options, c"protocol_whitelist".as_ptr(), c"".as_ptr(), 0);
            let code = ffi::avformat_open_input(&mut context, c"".as_ptr(), found, &mut options);
            ffi::av_dict_free(&mut options);
            let mut io = io;
            check(code).map_err(|e| io.take_error().map_or_else(|| e.to_string(), |e| e.to_string()))?;
            Ok(Demuxer { context: NonNull::new(context).expect("opened"), io })
        }
    }

    /// Decodes a little to learn what the container's header does not say.
    pub(super) fn find_stream_info(&mut self) -> Result<(), AvError> {
        // SAFETY: the context is open.
        check(unsafe { ffi::avformat_find_stream_info(self.context.as_ptr(), ptr::null_mut()) }).map(drop)
    }

    fn stream(&self, index: u32) -> Option<NonNull<ffi::AVStream>> {
        // SAFETY: FFmpeg keeps `nb_streams` valid pointers.
        unsafe {
            let context = self.context.as_ref();
            (index < context.nb_streams).then(|| NonNull::new(*context.streams.add(index as usize)))?
        }
    }

    /// Number of streams known.
    pub(super) fn streams(&self) -> u32 {
        // SAFETY: the context is open.
        unsafe { self.context.as_ref() }.nb_streams
    }

    /// Skips every stream but one. Streams may appear while reading, so it may have to be called again.
    pub(super) fn keep_only(&mut self, index: u32) {
        for i in 0..self.streams() {
            let Some(mut stream) = self.stream(i) else { continue };
            let discard = if i == index { ffi::AVDiscard::AVDISCARD_DEFAULT } else { ffi::AVDiscard::AVDISCARD_ALL };
            // SAFETY: the stream belongs to the open context.
            unsafe { stream.as_mut() }.discard = discard;
        }
    }

    /// Goes to a key frame of a stream at or before a time, as far as the container can tell.
    pub(super) fn seek(&mut self, stream: u32, at: i64) -> Result<(), AvError> {
        // SAFETY: the context is open.
        let code =
            unsafe { ffi::av_seek_frame(self.context.as_ptr(), stream as c_int, at, ffi::AVSEEK_FLAG_BACKWARD) };
        check(code).map(drop)
    }

    /// The next packet of any kept stream.
    pub(super) fn read(&mut self, packet: &mut Packet) -> Result<(), AvError> {
        // SAFETY: both are valid; the packet is emptied first.
        check(unsafe {
            ffi::av_packet_unref(packet.0.as_ptr());
            ffi::av_read_frame(self.context.as_ptr(), packet.0.as_ptr())
        })
        .map(drop)
    }

    /// The first error of storage since the last call.
    pub(super) fn storage_error(&mut self) -> Option<io::Error> {
        self.io.take_error()
    }

    /// A decoder for a stream, with one thread.
    pub(super) fn decoder(&self, index: u32) -> Result<Codec, String> {
        let stream = self.stream(index).ok_or_else(|| {
            format!("the container has {} streams and no stream {index}; index it again", self.streams())
        })?;
        // SAFETY: the stream and its parameters belong to the open context; the new context is owned from the
        // moment that it exists.
        unsafe {
            let parameters = stream.as_ref().codecpar;
            if (*parameters).codec_type != ffi::AVMediaType::AVMEDIA_TYPE_VIDEO {
                return Err(format!("stream {index} is not video; index the file again"));
            }
            let id = (*parameters).codec_id;
            let found = ffi::avcodec_find_decoder(id);
            if found.is_null() {
                let name = CStr::from_ptr(ffi::avcodec_get_name(id)).to_string_lossy();
                return Err(format!("this FFmpeg has no decoder for {name}"));
            }
            let mut codec = Codec(NonNull::new(ffi::avcodec_alloc_context3(found)).expect("memory for a decoder"));
            check(ffi::avcodec_parameters_to_context(codec.0.as_ptr(), parameters)).map_err(|e| e.to_string())?;
            let context = codec.0.as_mut();
            context.thread_count = 1;
            context.max_pixels = MAX_PIXELS;
            context.pkt_timebase = stream.as_ref().time_base;
            if id == ffi::AVCodecID::AV_CODEC_ID_H264 {
                // A stream that does not state its reordering delay then gets the largest that its level allows, so
                // that no frame comes too late and is dropped. Others learn the delay by decoding a little first.
                context.strict_std_compliance = ffi::FF_COMPLIANCE_STRICT;
            }
            check(ffi::avcodec_open2(context, found, ptr::null_mut())).map_err(|e| e.to_string())?;
            Ok(codec)
        }
    }
}

impl Drop for Demuxer<'_> {
    fn drop(&mut self) {
        let mut context = self.context.as_ptr();
        // SAFETY: opened by `open`, closed once; the flag for custom I/O leaves `io` alone.
        unsafe { ffi::avformat_close_input(&mut context) };
    }
}

/// A packet, filled again and again.
pub(super) struct Packet(NonNull<ffi::AVPacket>);

impl Packet {
    pub(super) fn new() -> Packet {
        // SAFETY: a plain allocation.
        Packet(NonNull::new(unsafe { ffi::av_packet_alloc() }).expect("memory for a packet"))
    }

    fn get(&self) -> &ffi::AVPacket {
        // SAFETY: valid since `new`.
        unsafe { self.0.as_ref() }
    }

    pub(super) fn stream(&self) -> u32 {
        self.get().stream_index as u32
    }

    /// Presentation time, if the container gives one.
    pub(super) fn pts(&self) -> Option<i64> {
        (self.get().pts != ffi::AV_NOPTS_VALUE).then_some(self.get().pts)
    }

    pub(super) fn is_key(&self) -> bool {
        self.get().flags & ffi::AV_PKT_FLAG_KEY != 0
    }

    /// Whether the demuxer knows that bytes of it are missing or wrong.
    pub(super) fn is_damaged(&self) -> bool {
        self.get().flags & ffi::AV_PKT_FLAG_CORRUPT != 0
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        let mut packet = self.0.as_ptr();
        // SAFETY: made by `new`, freed once.
        unsafe { ffi::av_packet_free(&mut packet) };
    }
}

/// An open decoder.
pub(super) struct Codec(NonNull<ffi::AVCodecContext>);

impl Codec {
    /// Lets the decoder leave out frames that no other frame needs.
    pub(super) fn skip_unreferenced(&mut self, skip: bool) {
        let which = if skip { ffi::AVDiscard::AVDISCARD_NONREF } else { ffi::AVDiscard::AVDISCARD_DEFAULT };
        // SAFETY: the context is open.
        unsafe { self.0.as_mut() }.skip_frame = which;
    }

    pub(super) fn send(&mut self, packet: &Packet) -> Result<(), AvError> {
        // SAFETY: both are valid.
        check(unsafe { ffi::avcodec_send_packet(self.0.as_ptr(), packet.0.as_ptr()) }).map(drop)
    }

    /// No packet follows: the decoder gives out what it holds back.
    pub(super) fn send_end(&mut self) {
        // SAFETY: the context is open. The only error is that it was said before.
        unsafe { ffi::avcodec_send_packet(self.0.as_ptr(), ptr::null()) };
    }

    /// The next frame, or `None` when the decoder needs a packet or is at its end.
    pub(super) fn receive(&mut self, frame: &mut Frame) -> Result<Option<()>, AvError> {
        // SAFETY: both are valid.
        match check(unsafe { ffi::avcodec_receive_frame(self.0.as_ptr(), frame.0.as_ptr()) }) {
            Ok(_) => Ok(Some(())),
            Err(e) if e.is_again() || e.is_end() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Forgets all frames, so that decoding can go on at another key frame.
    pub(super) fn flush(&mut self) {
        // SAFETY: the context is open.
        unsafe { ffi::avcodec_flush_buffers(self.0.as_ptr()) };
    }
}

impl Drop for Codec {
    fn drop(&mut self) {
        let mut context = self.0.as_ptr();
        // SAFETY: made by `Demuxer::decoder`, freed once.
        unsafe { ffi::avcodec_free_context(&mut context) };
    }
}

/// A decoded frame, filled again and again.
pub(super) struct Frame(NonNull<ffi::AVFrame>);

impl Frame {
    pub(super) fn new() -> Frame {
        // SAFETY: a plain allocation.
        Frame(NonNull::new(unsafe { ffi::av_frame_alloc() }).expect("memory for a frame"))
    }

    pub(super) fn get(&self) -> &ffi::AVFrame {
        // SAFETY: valid since `new`.
        unsafe { self.0.as_ref() }
    }

    /// Gives the pixels back to the decoder's pool.
    pub(super) fn clear(&mut self) {
        // SAFETY: valid since `new`.
        unsafe { ffi::av_frame_unref(self.0.as_ptr()) };
    }

    /// Takes over a picture of red, green and blue bytes, row by row without gaps. Its memory is kept for the next one of
    /// the same size.
    pub(super) fn fill(&mut self, rgb: &[u8], width: u16, height: u16) -> Result<(), String> {
        let (row, rows) = (usize::from(width) * 3, usize::from(height));
        if rgb.len() != row * rows || rgb.is_empty() || i64::from(width) * i64::from(height) > MAX_PIXELS {
            return Err(format!("{width}x{height} pixels in {} bytes; wanted three a pixel", rgb.len()));
        }
        let format = ffi::AVPixelFormat::AV_PIX_FMT_RGB24 as c_int;
        let (w, h) = (c_int::from(width), c_int::from(height));
        let found = self.get();
        // SAFETY: the frame is valid; a new buffer is asked for an empty one only, of the size and format that it says.
        unsafe {
            let is_ours = (found.width, found.height, found.format) == (w, h, format) && !found.buf[0].is_null();
            if !is_ours {
                self.clear();
                let frame = self.0.as_mut();
                (frame.width, frame.height, frame.format) = (w, h, format);
                check(ffi::av_frame_get_buffer(frame, 0)).map_err(|e| format!("no memory for it: {e}"))?;
            }
        }
        let (start, stride) = (self.get().data[0], self.get().linesize[0] as isize);
        for (y, line) in rgb.chunks_exact(row).enumerate() {
            // SAFETY: FFmpeg gave `height` rows of at least `row` bytes, `stride` apart, to this frame alone.
            unsafe { ptr::copy_nonoverlapping(line.as_ptr(), start.offset(y as isize * stride), row) };
        }
        Ok(())
    }

    /// Presentation time: the packet's, or FFmpeg's best guess.
    pub(super) fn pts(&self) -> Option<i64> {
        let frame = self.get();
        [frame.pts, frame.best_effort_timestamp].into_iter().find(|&t| t != ffi::AV_NOPTS_VALUE)
    }

    /// What the decoder holds against the frame, if anything.
    pub(super) fn complaint(&self) -> Option<&'static str> {
        let frame = self.get();
        if frame.flags & ffi::AV_FRAME_FLAG_CORRUPT != 0 {
            Some("the decoder marks it as corrupt")
        } else if frame.decode_error_flags & ffi::FF_DECODE_ERROR_MISSING_REFERENCE != 0 {
            Some("a frame that it refers to is missing")
        } else if frame.decode_error_flags != 0 {
            Some("parts of it were wrong and have been concealed")
        } else {
            None
        }
    }

    /// What the pixels are.
    pub(super) fn format(&self) -> FrameFormat {
        let frame = self.0.as_ptr();
        // SAFETY: the frame is valid. The colours are read as numbers, since a stream can hold any.
        let (matrix, range) = unsafe {
            (
                (&raw const (*frame).colorspace).cast::<u32>().read(),
                (&raw const (*frame).color_range).cast::<u32>().read(),
            )
        };
        let frame = self.get();
        FrameFormat { width: frame.width, height: frame.height, pixels: frame.format, matrix, range }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let mut frame = self.0.as_ptr();
        // SAFETY: made by `new`, freed once.
        unsafe { ffi::av_frame_free(&mut frame) };
    }
}

/// What decides how a frame's bytes become colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameFormat {
    pub(super) width: c_int,
    pub(super) height: c_int,
    /// `AVPixelFormat`.
    pub(super) pixels: c_int,
    /// `AVColorSpace`.
    pub(super) matrix: u32,
    /// `AVColorRange`.
    pub(super) range: u32,
}

/// What kind of colours a pixel format has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// Red, green and blue, or a palette of them.
    Rgb,
    Grey,
    Yuv,
    /// The `yuvj` formats, which mean the full range.
    YuvFull,
}

pub(super) fn pixel_format(number: c_int) -> Option<ffi::AVPixelFormat> {
    let range = 0..ffi::AVPixelFormat::AV_PIX_FMT_NB as c_int;
    // SAFETY: FFmpeg's pixel formats are numbered without a gap below AV_PIX_FMT_NB, and the numbers come from the
    // library whose headers the bindings were made from.
    range.contains(&number).then(|| unsafe { std::mem::transmute::<c_int, ffi::AVPixelFormat>(number) })
}

/// Where a pixel's bytes are in each plane of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grid {
    /// Pixels from one colour sample to the next, as powers of two.
    pub(super) shift_x: u32,
    pub(super) shift_y: u32,
    /// For each plane: bytes from one sample to the next, and the shifts that hold there. No bytes for a palette.
    planes: [(usize, u32, u32); 4],
    /// Whether a frame of it may be entered elsewhere than at its corner: not where a pixel has fewer than 8 bits.
    pub(super) can_be_cut: bool,
}

impl Grid {
    /// Bytes from a plane's start to pixel (x, y), which lies on the grid.
    pub(super) fn offset(&self, plane: usize, x: usize, y: usize, linesize: c_int) -> isize {
        let (step, shift_x, shift_y) = self.planes[plane];
        if step == 0 {
            return 0;
        }
        (y >> shift_y) as isize * linesize as isize + ((x >> shift_x) * step) as isize
    }
}

impl FrameFormat {
    /// How its pixels lie in memory.
    pub(super) fn grid(&self) -> Option<Grid> {
        // SAFETY: descriptors are static.
        let descriptor = unsafe { ffi::av_pix_fmt_desc_get(pixel_format(self.pixels)?).as_ref()? };
        let is = |flag: c_int| descriptor.flags & flag as u64 != 0;
        let (shift_x, shift_y) = (u32::from(descriptor.log2_chroma_w), u32::from(descriptor.log2_chroma_h));
        let mut planes = [(0, 0, 0); 4];
        let components = descriptor.comp.iter().take(usize::from(descriptor.nb_components));
        for (i, component) in components.enumerate() {
            let step = usize::try_from(component.step).ok()?;
            let plane = planes.get_mut(usize::try_from(component.plane).ok()?)?;
            // Where components share a plane the one that comes most rarely has the widest step.
            if step > plane.0 {
                let is_colour = i == 1 || i == 2;
                let rows = component.plane == 1 || component.plane == 2;
                *plane = (step, if is_colour { shift_x } else { 0 }, if rows { shift_y } else { 0 });
            }
        }
        let can_be_cut = !is(ffi::AV_PIX_FMT_FLAG_BITSTREAM) && !is(ffi::AV_PIX_FMT_FLAG_HWACCEL);
        Some(Grid { shift_x, shift_y, planes, can_be_cut })
    }

    /// The family of its pixel format, and FFmpeg's name for it.
    pub(super) fn family(&self) -> Option<(Family, String)> {
        let pixels = pixel_format(self.pixels)?;
        // SAFETY: descriptors and their names are static.
        let (descriptor, name) = unsafe {
            let descriptor = ffi::av_pix_fmt_desc_get(pixels).as_ref()?;
            (descriptor, CStr::from_ptr(descriptor.name).to_string_lossy().into_owned())
        };
        let is = |flag: c_int| descriptor.flags & flag as u64 != 0;
        let family = if is(ffi::AV_PIX_FMT_FLAG_RGB) || is(ffi::AV_PIX_FMT_FLAG_PAL) {
            Family::Rgb
        } else if descriptor.nb_components < 3 {
            Family::Grey
        } else if name.starts_with("yuvj") {
            Family::YuvFull
        } else {
            Family::Yuv
        };
        Some((family, name))
    }
}
