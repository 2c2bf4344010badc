//! What sound needs of FFmpeg: its stream, its decoder, its frames, and swresample's conversions.

use std::ffi::{CStr, c_int};
use std::ptr::{self, NonNull};

use ffmpeg_next::ffi;

use super::{AvError, Codec, Demuxer, Frame, check};

/// What a container says of a stream of sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::decode) struct Track {
    pub(in crate::decode) index: u32,
    /// Unit of its times, seconds as (numerator, denominator); both above 0.
    pub(in crate::decode) time_base: (u32, u32),
    /// When it begins and how long it is, if the container says.
    pub(in crate::decode) start: Option<i64>,
    pub(in crate::decode) duration: Option<i64>,
}

/// What decides how a frame's bytes become sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::decode) struct SoundFormat {
    /// `AVSampleFormat`.
    pub(in crate::decode) number: c_int,
    pub(in crate::decode) rate: u32,
    pub(in crate::decode) channels: u32,
    /// Which channels they are, bit by bit; 0 if the stream does not say.
    pub(in crate::decode) mask: u64,
}

impl Demuxer<'_> {
    /// The first stream of sound, which is the same in every version of FFmpeg, unlike its own choice.
    pub(in crate::decode) fn sound(&self) -> Option<Track> {
        (0..self.streams()).find_map(|index| {
            let stream = self.stream(index)?;
            // SAFETY: the stream and its parameters belong to the open context.
            let (s, kind) = unsafe { (stream.as_ref(), (*stream.as_ref().codecpar).codec_type) };
            let positive = |n: c_int| u32::try_from(n).ok().filter(|&n| n > 0);
            let time_base = (positive(s.time_base.num)?, positive(s.time_base.den)?);
            let known = |t: i64| (t != ffi::AV_NOPTS_VALUE).then_some(t);
            let (start, duration) = (known(s.start_time), known(s.duration).filter(|&d| d > 0));
            (kind == ffi::AVMediaType::AVMEDIA_TYPE_AUDIO).then_some(Track { index, time_base, start, duration })
        })
    }

    /// When the container's first stream begins, microseconds; 0 if it does not say.
    pub(in crate::decode) fn start_us(&self) -> i64 {
        // SAFETY: the context is open.
        Some(unsafe { self.context.as_ref() }.start_time).filter(|&t| t != ffi::AV_NOPTS_VALUE).unwrap_or(0)
    }

    /// A decoder for a stream of sound, with one thread.
    pub(in crate::decode) fn sound_decoder(&self, track: &Track) -> Result<Codec, String> {
        let stream = self.stream(track.index).ok_or("its stream of sound is gone")?;
        // SAFETY: the stream and its parameters belong to the open context; the new context is owned from the moment
        // that it exists.
        unsafe {
            let parameters = stream.as_ref().codecpar;
            let found = ffi::avcodec_find_decoder((*parameters).codec_id);
            if found.is_null() {
                let name = CStr::from_ptr(ffi::avcodec_get_name((*parameters).codec_id)).to_string_lossy();
                return Err(format!("this FFmpeg has no decoder for {name}"));
            }
            let mut codec = Codec(NonNull::new(ffi::avcodec_alloc_context3(found)).expect("memory for a decoder"));
            check(ffi::avcodec_parameters_to_context(codec.0.as_ptr(), parameters)).map_err(|e| e.to_string())?;
            let context = codec.0.as_mut();
            context.thread_count = 1;
            context.pkt_timebase = stream.as_ref().time_base;
            check(ffi::avcodec_open2(context, found, ptr::null_mut())).map_err(|e| e.to_string())?;
            Ok(codec)
        }
    }
}

impl Frame {
    /// Numbers of a channel in it.
    pub(in crate::decode) fn samples(&self) -> u32 {
        u32::try_from(self.get().nb_samples).unwrap_or(0)
    }

    /// What its sound is; `None` if it is no frame of sound.
    pub(in crate::decode) fn sound_format(&self) -> Option<SoundFormat> {
        let frame = self.get();
        let positive = |n: c_int| u32::try_from(n).ok().filter(|&n| n > 0);
        let (rate, channels) = (positive(frame.sample_rate)?, positive(frame.ch_layout.nb_channels)?);
        let native = frame.ch_layout.order == ffi::AVChannelOrder::AV_CHANNEL_ORDER_NATIVE;
        // SAFETY: in the native order the union holds the mask.
        let mask = if native { unsafe { frame.ch_layout.u.mask } } else { 0 };
        Some(SoundFormat { number: frame.format, rate, channels, mask })
    }
}

/// A conversion of sound by swresample.
pub(in crate::decode) struct Swr(NonNull<ffi::SwrContext>);

/// Planes of `f32`, or of `i16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::decode) enum Planes {
    F32,
    I16,
}

impl Planes {
    fn format(self) -> ffi::AVSampleFormat {
        match self {
            Planes::F32 => ffi::AVSampleFormat::AV_SAMPLE_FMT_FLTP,
            Planes::I16 => ffi::AVSampleFormat::AV_SAMPLE_FMT_S16P,
        }
    }

    const fn size(self) -> usize {
        match self {
            Planes::F32 => 4,
            Planes::I16 => 2,
        }
    }
}

/// The layout of so many channels, as named by the mask if there is one.
fn layout(channels: u32, mask: u64) -> ffi::AVChannelLayout {
    // SAFETY: an empty layout is all zero, and both functions fill it; neither allocates for these orders.
    unsafe {
        let mut layout = std::mem::zeroed();
        if mask == 0 || ffi::av_channel_layout_from_mask(&mut layout, mask) < 0 {
            ffi::av_channel_layout_default(&mut layout, channels as c_int);
        }
        layout
    }
}

impl Swr {
    /// From frames of a format to planes of `f32` at the same rate, mixed to so many channels so that no sum of them
    /// is louder than the loudest.
    pub(in crate::decode) fn mix(from: SoundFormat, channels: u32) -> Result<Swr, AvError> {
        let number = usize::try_from(from.number).ok().and_then(sample_format).ok_or(AvError(ffi::AVERROR(22)))?;
        Swr::new((number, from.rate, layout(from.channels, from.mask)), (Planes::F32, from.rate, channels))
    }

    /// From planes of `f32` at one rate to planes at another.
    pub(in crate::decode) fn rate(channels: u32, from: u32, to: u32, planes: Planes) -> Result<Swr, AvError> {
        Swr::new((Planes::F32.format(), from, layout(channels, 0)), (planes, to, channels))
    }

    fn new(
        (number, from, have): (ffi::AVSampleFormat, u32, ffi::AVChannelLayout),
        (planes, to, channels): (Planes, u32, u32),
    ) -> Result<Swr, AvError> {
        let (rate, mut have) = (|n: u32| c_int::try_from(n).unwrap_or(c_int::MAX), have);
        let mut wanted = layout(channels, 0);
        let mut context = ptr::null_mut();
        // SAFETY: plain calls; what was made is owned from the moment that it exists, and freed on failure.
        unsafe {
            let (from, to, none) = (rate(from), rate(to), ptr::null_mut());
            let format = planes.format();
            check(ffi::swr_alloc_set_opts2(&mut context, &mut wanted, format, to, &mut have, number, from, 0, none))?;
            let swr = Swr(NonNull::new(context).ok_or(AvError(ffi::AVERROR(libc::ENOMEM)))?);
            check(ffi::av_opt_set_double(context.cast(), c"rematrix_maxval".as_ptr(), 1.0, 0))?;
            check(ffi::swr_init(context))?;
            Ok(swr)
        }
    }

    /// Leaves out the next numbers that would come out.
    pub(in crate::decode) fn drop_output(&mut self, count: u32) -> Result<(), AvError> {
        // SAFETY: the context is open.
        check(unsafe { ffi::swr_drop_output(self.0.as_ptr(), c_int::try_from(count).unwrap_or(c_int::MAX)) })
            .map(drop)
    }

    /// Converts a frame, which is of the format that this was made for, into planes with room for all of it.
    pub(in crate::decode) fn frame(&mut self, frame: &Frame, out: &mut [Vec<f32>]) -> Result<usize, AvError> {
        let room = out.iter().map(Vec::len).min().unwrap_or(0);
        let mut planes: Vec<*mut u8> = out.iter_mut().map(|plane| plane.as_mut_ptr().cast()).collect();
        let raw = frame.get();
        // SAFETY: the frame has its planes, each plane of the output has room for that many numbers, and there are as
        // many as the context gives out, which the caller made with them.
        let done = unsafe {
            let input = raw.extended_data.cast::<*const u8>();
            ffi::swr_convert(self.0.as_ptr(), planes.as_mut_ptr(), room as c_int, input, raw.nb_samples)
        };
        check(done).map(|n| n as usize)
    }

    /// Takes planes of `f32` in, none at the end, and gives out what there is room for: the `out` bytes of each plane.
    /// The rest is kept.
    pub(in crate::decode) fn planes(
        &mut self,
        input: Option<&[&[f32]]>,
        out: &mut [&mut [u8]],
        planes: Planes,
    ) -> Result<usize, AvError> {
        let room = out.iter().map(|plane| plane.len() / planes.size()).min().unwrap_or(0);
        let room = c_int::try_from(room).unwrap_or(c_int::MAX);
        let mut to: Vec<*mut u8> = out.iter_mut().map(|plane| plane.as_mut_ptr()).collect();
        let count = input.map_or(0, |planes| planes.iter().map(|p| p.len()).min().unwrap_or(0));
        let from: Vec<*const u8> = input.unwrap_or_default().iter().map(|plane| plane.as_ptr().cast()).collect();
        let source = if input.is_some() { from.as_ptr() } else { ptr::null() };
        let count = c_int::try_from(count).unwrap_or(c_int::MAX);
        // SAFETY: the planes are as long as said, and as many as the caller made the context for.
        let done =
            unsafe { ffi::swr_convert(self.0.as_ptr(), to.as_mut_ptr(), room, source.cast_mut().cast(), count) };
        check(done).map(|n| n as usize)
    }
}

/// FFmpeg's format of a number, which has no gaps below `AV_SAMPLE_FMT_NB`.
fn sample_format(number: usize) -> Option<ffi::AVSampleFormat> {
    let range = 0..ffi::AVSampleFormat::AV_SAMPLE_FMT_NB as usize;
    // SAFETY: the formats are numbered without a gap, and the number comes from the library whose headers the bindings
    // were made from.
    range.contains(&number).then(|| unsafe { std::mem::transmute::<c_int, ffi::AVSampleFormat>(number as c_int) })
}

impl Drop for Swr {
    fn drop(&mut self) {
        let mut context = self.0.as_ptr();
        // SAFETY: made by `new`, freed once.
        unsafe { ffi::swr_free(&mut context) };
    }
}
