//! Decoding a whole stream to see what it shows: for the files whose container does not tell.

use std::ptr::NonNull;

use ffmpeg_next::ffi;

use super::demuxer::{Code, Demuxer, Packet};

/// A decoder of one stream, one thread.
pub(super) struct Decoder {
    context: NonNull<ffi::AVCodecContext>,
    frame: NonNull<ffi::AVFrame>,
}

/// More than any codec's reordering depth, so that a damaged tail cannot loop.
const MAX_ERRORS_AT_END: u32 = 64;

/// A frame that was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) pts: Option<i64>,
    pub(super) duration: i64,
    pub(super) key: bool,
    pub(super) pos: i64,
}

impl Decoder {
    /// `None` if this FFmpeg has no decoder for the stream, or it does not take its parameters.
    pub(super) fn open(demuxer: &Demuxer, stream: usize) -> Option<Decoder> {
        let (parameters, time_base) = demuxer.parameters(stream)?;
        // SAFETY: a context and a frame of ours, freed by `drop`; the parameters are those of an open demuxer.
        unsafe {
            let codec = ffi::avcodec_find_decoder((*parameters).codec_id);
            if codec.is_null() {
                return None;
            }
            let frame = NonNull::new(ffi::av_frame_alloc())?;
            let Some(context) = NonNull::new(ffi::avcodec_alloc_context3(codec)) else {
                ffi::av_frame_free(&mut frame.as_ptr());
                return None;
            };
            let this = Decoder { context, frame };
            let context = context.as_ptr();
            (*context).thread_count = 1;
            (*context).pkt_timebase = time_base;
            // The loop filter changes pixels, not which frames there are.
            (*context).skip_loop_filter = ffi::AVDiscard::AVDISCARD_ALL;
            if ffi::avcodec_parameters_to_context(context, parameters) < 0 {
                return None;
            }
            (ffi::avcodec_open2(context, codec, std::ptr::null_mut()) >= 0).then_some(this)
        }
    }

    /// Takes a packet, or the end, and gives the frames that come out. A packet that cannot be decoded gives none.
    pub(super) fn decode(&mut self, packet: Option<&Packet<'_>>, mut shown: impl FnMut(Shown)) -> Result<(), Code> {
        let packet = packet.map_or(std::ptr::null(), |p| p.raw());
        // SAFETY: an open decoder; the packet outlives the call, which takes a reference of its own.
        let sent = unsafe { ffi::avcodec_send_packet(self.context.as_ptr(), packet) };
        let mut errors = 0;
        loop {
            // SAFETY: an open decoder and a frame of ours, whose former content it lets go.
            match unsafe { ffi::avcodec_receive_frame(self.context.as_ptr(), self.frame.as_ptr()) } {
                0.. => {}
                code if code == ffi::AVERROR(libc::EAGAIN) || code == ffi::AVERROR_EOF => break,
                // An error of one packet; at the end, frames of others may still be in the decoder.
                _ if packet.is_null() && errors < MAX_ERRORS_AT_END => {
                    errors += 1;
                    continue;
                }
                _ => break,
            }
            // SAFETY: filled by the call above.
            let frame = unsafe { self.frame.as_ref() };
            shown(Shown {
                pts: (frame.pts != ffi::AV_NOPTS_VALUE).then_some(frame.pts),
                duration: frame.pkt_duration,
                key: frame.key_frame != 0,
                pos: frame.pkt_pos.max(-1),
            });
        }
        match sent {
            code if code == ffi::AVERROR(libc::ENOMEM) => Err(Code(code)),
            _ => Ok(()),
        }
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: made by `open`, freed once.
        unsafe {
            ffi::av_frame_free(&mut self.frame.as_ptr());
            ffi::avcodec_free_context(&mut self.context.as_ptr());
        }
    }
}
