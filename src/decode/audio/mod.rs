//! Sound: that of a sample's time, mixed, resampled, and written behind its frames.
//!
//! A sample of [`mod@window`] begins at a moment of the file's clock and has an exact number of numbers. The decoder's frames
//! are laid on that clock by their times ([`mod@line`]): what FFmpeg takes off at the start and end (priming, LAME's and
//! Opus' padding) is off already, what an MP4's track leaves out behind its end is cut here, gaps are silence, and what
//! comes twice is taken once. The resampler gets some of the sound before and behind the window, so that the edges sound
//! as they do in the middle of a longer one.
//!
//! Strict about damage, as video is: what cannot be decoded inside the window is an error.

mod line;
#[cfg(test)]
mod tests;
mod window;

use super::ffi::sound::{Swr, Track};
use super::ffi::{Codec, Demuxer, Frame, Packet};
use super::{Input, Request, SampleError, Stage};
use crate::ffmpeg::log;
use crate::proto::fields::{Audio, MissingSound, SOUND_MISSING, SoundHead};
use line::Line;
use window::{Moment, window};

/// How much before the window decoding begins where the container can be sought, milliseconds: codecs need some packets
/// before they are right, MP3 the most.
const LEAD_MS: i64 = 500;

/// Decodes sound with FFmpeg. Keeps its buffers from sample to sample.
pub(super) struct AudioDecoder {
    packet: Packet,
    frame: Frame,
    /// Numbers of a frame, mixed.
    mixed: [Vec<f32>; 2],
}

impl AudioDecoder {
    pub(super) fn new() -> AudioDecoder {
        log::install();
        AudioDecoder { packet: Packet::new(), frame: Frame::new(), mixed: Default::default() }
    }

    /// Writes the sample's sound with its head to `out`, which has room for it.
    pub(super) fn decode(
        &mut self,
        input: &Input,
        request: &Request<'_>,
        audio: &Audio,
        out: &mut [u8],
    ) -> Result<(), SampleError> {
        let room = out.len();
        let out = usize::try_from(audio.bytes()).ok().and_then(|n| out.get_mut(..n)).ok_or_else(|| {
            SampleError::new(Stage::Transform, format!("the sound takes {} bytes and has {room}", audio.bytes()))
        })?;
        let (head, numbers) = out.split_at_mut(size_of::<SoundHead>());
        let said = self.make(input, request, audio, numbers)?;
        head.copy_from_slice(bytemuck::bytes_of(&said));
        Ok(())
    }

    fn make(
        &mut self,
        input: &Input,
        request: &Request<'_>,
        audio: &Audio,
        numbers: &mut [u8],
    ) -> Result<SoundHead, SampleError> {
        log::begin(Stage::Demux.name());
        let container = request.descriptor.container;
        let fail = |reason: String| SampleError::new(Stage::Demux, reason);
        let mut demuxer = Demuxer::open(input, container).map_err(|e| fail(explain(e)))?;
        let family = container.split(',').next().unwrap_or_default();
        let exact = ["mov", "matroska"].contains(&family);
        if !exact {
            demuxer.find_stream_info().map_err(|e| fail(explain(e)))?;
        }
        let window = window(request, demuxer.start_us());
        let Some(track) = demuxer.sound() else {
            return match audio.missing {
                MissingSound::Silence => Ok(silence(window, audio, numbers)),
                MissingSound::Error => Err(fail(
                    "the file has no sound, and the loader asks for it; `missing = silence` takes silence in its place"
                        .into(),
                )),
            };
        };
        demuxer.keep_only(track.index);
        if let Some((from, _)) = window.filter(|_| exact) {
            seek(&mut demuxer, &track, from);
        }
        log::enter(Stage::Decode.name());
        let codec = demuxer.sound_decoder(&track).map_err(|e| SampleError::new(Stage::Decode, explain(e)))?;
        // Of an MP4 the track's length is what its edit list shows; elsewhere it may be an estimate.
        let clip = (family == "mov").then(|| Some((track.start?, track.duration?))).flatten();
        let end = clip.map(|(start, length)| Moment { ticks: start + length, unit: track.time_base });
        let mut pass = Pass { tools: self, demuxer, codec, track, mix: None, early: 0 };
        pass.run(Line::new(audio, window, end, numbers))
    }
}

/// The numbers of a sample without sound.
fn silence(window: Option<(Moment, Moment)>, audio: &Audio, numbers: &mut [u8]) -> SoundHead {
    numbers.fill(0);
    let wanted = window.map_or(0, |w| line::wanted(w, audio.rate));
    let samples = wanted.min(audio.capacity().into()) as u32;
    let cut = u32::try_from(wanted - u64::from(samples)).unwrap_or(u32::MAX);
    let start_us = window.map_or(0, |(from, _)| from.samples(1_000_000));
    SoundHead { start_us, samples, cut, flags: SOUND_MISSING, ..SoundHead::default() }
}

/// Goes to a little before a moment, if that is not near the start. What cannot be sought is decoded from its start.
fn seek(demuxer: &mut Demuxer<'_>, track: &Track, from: Moment) {
    let ms = from.samples(1000) - LEAD_MS;
    if ms <= LEAD_MS {
        return;
    }
    let (num, den) = track.time_base;
    let at = window::nearest(i128::from(ms) * i128::from(den), i128::from(num) * 1000);
    if let Err(e) = demuxer.seek(track.index, at) {
        tracing::debug!("sound is decoded from the start: {e}");
    }
}

/// An error of FFmpeg with what it last complained of, which is mostly the cause.
fn explain(error: impl std::fmt::Display) -> String {
    match log::complaint() {
        Some(line) => format!("{error} ({line})"),
        None => error.to_string(),
    }
}

/// One sample on its way.
struct Pass<'t, 'i> {
    tools: &'t mut AudioDecoder,
    demuxer: Demuxer<'i>,
    codec: Codec,
    track: Track,
    /// The conversion to planes, and what it was made for.
    mix: Option<(super::ffi::sound::SoundFormat, Swr)>,
    /// Packets before the first frame that could not be decoded.
    early: u32,
}

impl Pass<'_, '_> {
    fn run(&mut self, mut line: Line<'_>) -> Result<SoundHead, SampleError> {
        while !line.is_full() {
            match self.demuxer.read(&mut self.tools.packet) {
                Ok(()) if self.tools.packet.stream() != self.track.index => continue,
                Ok(()) => self.packet(&mut line)?,
                Err(e) if e.is_end() => {
                    self.codec.send_end();
                    self.frames(&mut line)?;
                    break;
                }
                Err(e) => {
                    let storage = self.demuxer.storage_error().map(|e| e.to_string());
                    let stage = if storage.is_some() { Stage::Read } else { Stage::Demux };
                    return Err(SampleError::new(stage, storage.unwrap_or_else(|| explain(e))));
                }
            }
        }
        if let Some(e) = self.demuxer.storage_error() {
            return Err(SampleError::new(Stage::Read, e.to_string()));
        }
        if !line.has_begun() && self.early > 0 {
            let text = format!("no sound comes out of {} packets", self.early);
            return Err(SampleError::new(Stage::Decode, explain(text)));
        }
        line.finish().map_err(|e| SampleError::new(Stage::Transform, e))
    }

    fn packet(&mut self, line: &mut Line<'_>) -> Result<(), SampleError> {
        let damaged = self.tools.packet.is_damaged().then(|| "its bytes are not whole".to_owned());
        let fault = damaged.or_else(|| self.codec.send(&self.tools.packet).err().map(|e| e.to_string()));
        if let Some(fault) = fault {
            let unit = self.track.time_base;
            let at = self.tools.packet.pts().map(|ticks| Moment { ticks, unit });
            // Where a stream was cut into, the first packets may refer to what is not there.
            if !line.has_begun() {
                self.early += 1;
                return Ok(());
            }
            if at.is_none_or(|at| line.covers(at)) {
                let when = at.map_or_else(String::new, |at| format!(" at {} ms", at.samples(1000)));
                return Err(SampleError::new(Stage::Decode, explain(format!("sound{when} is damaged: {fault}"))));
            }
        }
        self.frames(line)
    }

    /// Lays what the decoder gives out on the line.
    fn frames(&mut self, line: &mut Line<'_>) -> Result<(), SampleError> {
        let decode = |e: String| SampleError::new(Stage::Decode, e);
        let transform = |e: String| SampleError::new(Stage::Transform, e);
        while let Some(()) = self.codec.receive(&mut self.tools.frame).map_err(|e| decode(explain(e)))? {
            let frame = &self.tools.frame;
            let format = frame.sound_format().ok_or_else(|| decode("a frame is no sound".into()))?;
            let count = frame.samples() as usize;
            let at = frame.pts().map(|ticks| Moment { ticks, unit: self.track.time_base });
            let channels = line.mixed_channels(format.channels);
            if self.mix.as_ref().is_none_or(|(made, _)| *made != format) {
                log::enter(Stage::Transform.name());
                let swr = Swr::mix(format, channels.into());
                let reason = |e| format!("sound of {} channels, {} Hz: {e}", format.channels, format.rate);
                self.mix = Some((format, swr.map_err(|e| transform(reason(e)))?));
                log::enter(Stage::Decode.name());
            }
            let Some((_, mix)) = &mut self.mix else { continue };
            let mixed = &mut self.tools.mixed[..usize::from(channels)];
            mixed.iter_mut().filter(|plane| plane.len() < count).for_each(|plane| plane.resize(count, 0.0));
            let got = mix.frame(frame, mixed).map_err(|e| transform(explain(e)))?;
            // One channel goes to both.
            let planes: Vec<&[f32]> =
                (0..line.channels()).map(|c| &mixed[c.min(channels - 1) as usize][..got]).collect();
            line.lay(at, format.rate, &planes).map_err(transform)?;
            if line.is_full() {
                break;
            }
        }
        Ok(())
    }
}
