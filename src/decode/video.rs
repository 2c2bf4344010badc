//! Video: the wanted frames of a clip, and only those, decoded, resized and written.
//!
//! Two ways lead to a frame. **By the index**, when the manifest says that this is exact: for each group seek to its
//! key frame, feed packets up to the last wanted one, leave out frames that nothing refers to (H.264, HEVC), and let
//! the decoder give out what it holds. **From the start**, for everything else, and again when the index led astray
//! (a frame did not come, or refers to one that is missing).
//!
//! Strict about damage: a wanted frame that is missing, that the decoder marks, or that is built on one that is
//! damaged, is an error that names it. Damage elsewhere in the clip does not matter.

use std::ops::Range;

use super::damage::Damage;
use super::ffi::{Codec, Demuxer, Frame, Packet};
use super::orient::is_mirrored;
use super::plan::{self, Group};
use super::target::{Scalers, Target};
use super::{Decoder, Input, Outcome, Request, SampleError, Stage};
use crate::ffmpeg::log;
use crate::manifest::descriptor::Descriptor;

/// Errors of a decoder in a row, without a frame between them, after which it is given up when its end is asked for.
const PATIENCE: u32 = 64;

/// How often a demuxer may ask to be called again before it is taken for a loop.
const AGAIN: u32 = 100_000;

/// How often a seek that led too far is tried again from earlier key frames, each twice as far back.
const SEEKS: u32 = 4;

/// Codecs of pictures that may say how they are to be shown.
const PICTURES: [&str; 6] = ["mjpeg", "png", "apng", "webp", "tiff", "av1"];

/// Decodes video with FFmpeg. Keeps its buffers and conversions from sample to sample.
pub struct VideoDecoder {
    packet: Packet,
    frame: Frame,
    scalers: Scalers,
}

impl Default for VideoDecoder {
    fn default() -> Self {
        VideoDecoder::new()
    }
}

impl VideoDecoder {
    /// A decoder. FFmpeg's log lines go to `tracing` from now on.
    pub fn new() -> VideoDecoder {
        log::install();
        VideoDecoder { packet: Packet::new(), frame: Frame::new(), scalers: Scalers::default() }
    }
}

impl Decoder for VideoDecoder {
    fn decode(&mut self, input: &Input, request: &Request<'_>, out: &mut [u8]) -> Result<Outcome, SampleError> {
        log::begin(Stage::Open.name());
        let mirrored = PICTURES.contains(&request.descriptor.codec) && is_mirrored(input);
        let target = Target::new(request, mirrored, out)?;
        Pass::run(self, input, &request.descriptor, target)
    }
}

/// How a frame that came out is told from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Match {
    /// By its time, which the manifest lists.
    Time,
    /// By how many came before it.
    Order,
}

/// One sample on its way.
struct Pass<'t, 'i, 'd, 'o> {
    tools: &'t mut VideoDecoder,
    input: &'i Input,
    descriptor: &'d Descriptor<'d>,
    demuxer: Demuxer<'i>,
    codec: Codec,
    damage: Damage,
    target: Target<'o>,
    /// The packet that each wanted frame was made of, and its time; `None` until it came.
    found: Vec<Option<(u64, Option<i64>)>>,
    /// Frames that came out since the start of the clip; means something when none was left out.
    shown: u32,
    decoded: u32,
    /// Why the container ended early.
    broken: Option<SampleError>,
}

impl<'t, 'i, 'd, 'o> Pass<'t, 'i, 'd, 'o> {
    /// Writes all of the target.
    fn run(
        tools: &'t mut VideoDecoder,
        input: &'i Input,
        descriptor: &'d Descriptor<'d>,
        target: Target<'o>,
    ) -> Result<Outcome, SampleError> {
        let groups = plan::groups(descriptor, &target.frames);
        let (demuxer, codec) = open(input, descriptor)?;
        let (damage, found) = (Damage::default(), vec![None; target.frames.len()]);
        let (shown, decoded, broken) = (0, 0, None);
        let mut pass =
            Pass { tools, input, descriptor, demuxer, codec, damage, target, found, shown, decoded, broken };
        if let Some(groups) = &groups {
            if pass.by_index(groups)? {
                return Ok(pass.target.outcome(pass.decoded));
            }
            tracing::debug!(row = descriptor.row, "the index did not lead to all frames; decoding from the start");
            pass.restart()?;
        }
        let all = 0..pass.target.frames.len();
        pass.feed(&all, false, if groups.is_some() { Match::Time } else { Match::Order }, false)?;
        pass.verdict()?;
        Ok(pass.target.outcome(pass.decoded))
    }

    fn restart(&mut self) -> Result<(), SampleError> {
        (self.demuxer, self.codec) = open(self.input, self.descriptor)?;
        self.damage = Damage::default();
        self.found.fill(None);
        self.shown = 0;
        self.broken = None;
        Ok(())
    }

    /// Decodes group after group; `false` when a frame did not come or cannot be trusted.
    fn by_index(&mut self, groups: &[Group]) -> Result<bool, SampleError> {
        // What a decoder may leave out is exact for these two alone.
        let skip = matches!(self.descriptor.codec, "h264" | "hevc");
        for (i, group) in groups.iter().enumerate() {
            if i > 0 {
                self.codec.flush();
            }
            if !self.find_key(group.key, i == 0)? {
                return Ok(false);
            }
            self.feed(&group.wanted, true, Match::Time, skip)?;
        }
        Ok(self.verdict().is_ok())
    }

    /// Brings the key frame's packet into `tools.packet`.
    fn find_key(&mut self, key: usize, at_start: bool) -> Result<bool, SampleError> {
        let time = |key: usize| self.descriptor.pts[self.descriptor.key_frames[key] as usize];
        let wanted = time(key);
        let mut back = 0;
        for _ in 0..SEEKS {
            let from = key.saturating_sub(back);
            let start = time(from);
            if !(at_start && from == 0 && back == 0) && self.demuxer.seek(self.descriptor.stream, start).is_err() {
                return Ok(false);
            }
            while self.next_packet()? {
                let packet = &self.tools.packet;
                match packet.pts() {
                    Some(t) if t == wanted && packet.is_key() => return Ok(true),
                    Some(t) if t > wanted && packet.is_key() => break,
                    _ => {}
                }
            }
            if from == 0 {
                break;
            }
            // A container that seeks by decoding time can land on a later key frame.
            back = (back * 2).max(1);
        }
        Ok(false)
    }

    /// The next packet of the stream; `false` at the end, also at an early one, which is remembered.
    fn next_packet(&mut self) -> Result<bool, SampleError> {
        log::enter(Stage::Demux.name());
        let mut again = 0;
        let more = loop {
            match self.demuxer.read(&mut self.tools.packet) {
                Ok(()) if self.tools.packet.stream() == self.descriptor.stream => break true,
                Ok(()) => {}
                // MPEG-TS says so when it has looked at some bytes and found no packet yet.
                Err(e) if e.is_again() && again < AGAIN => again += 1,
                Err(e) if e.is_memory() => return Err(no_memory()),
                Err(e) => {
                    if let Some(e) = self.demuxer.storage_error() {
                        return Err(SampleError::new(Stage::Read, e.to_string()));
                    }
                    if !e.is_end() {
                        self.broken = Some(SampleError::new(Stage::Demux, explain(e)));
                    }
                    break false;
                }
            }
        };
        log::enter(Stage::Decode.name());
        Ok(more)
    }

    /// Feeds the decoder until the wanted frames are out; `have` says that a packet is there already.
    fn feed(&mut self, wanted: &Range<usize>, have: bool, by: Match, skip: bool) -> Result<(), SampleError> {
        let mut unsent = wanted.len();
        let mut have = have;
        while have || self.next_packet()? {
            have = false;
            let packet = &self.tools.packet;
            let (pts, key, damaged) = (packet.pts(), packet.is_key(), packet.is_damaged());
            let is_wanted = by == Match::Time && self.at_time(wanted, pts).is_some();
            self.codec.skip_unreferenced(skip && !is_wanted);
            self.damage.sent(pts, key);
            // MPEG-TS only suspects that something is lost, as where streams were joined; there the decoder judges.
            if damaged && self.descriptor.container != "mpegts" {
                self.damage.packet("bytes of it are missing");
            }
            if let Err(e) = self.codec.send(&self.tools.packet) {
                if e.is_memory() {
                    return Err(no_memory());
                }
                self.damage.packet(explain(e));
            }
            self.collect(wanted, by)?;
            // Once their packets are in, the end of the stream is pretended, and no frame is decoded for nothing.
            unsent -= usize::from(is_wanted).min(unsent);
            if unsent == 0 || self.found[wanted.clone()].iter().all(Option::is_some) {
                break;
            }
        }
        self.codec.send_end();
        self.collect(wanted, by)
    }

    /// Takes the frames that the decoder can give now.
    fn collect(&mut self, wanted: &Range<usize>, by: Match) -> Result<(), SampleError> {
        let mut errors = 0;
        while errors < PATIENCE {
            match self.codec.receive(&mut self.tools.frame) {
                Ok(None) => break,
                Ok(Some(())) => {
                    errors = 0;
                    self.decoded += 1;
                    self.take_frame(wanted, by)?;
                }
                Err(e) if e.is_memory() => return Err(no_memory()),
                Err(e) => {
                    errors += 1;
                    self.damage.packet(explain(e));
                }
            }
        }
        self.tools.frame.clear();
        Ok(())
    }

    fn take_frame(&mut self, wanted: &Range<usize>, by: Match) -> Result<(), SampleError> {
        let frame = &self.tools.frame;
        let pts = frame.pts();
        if let Some(reason) = frame.complaint() {
            self.damage.frame(pts, reason);
        }
        let which = match by {
            Match::Time => self.at_time(wanted, pts),
            Match::Order => self.target.frames.binary_search(&self.shown).ok(),
        };
        self.shown += 1;
        if let Some(which) = which.filter(|&which| self.found[which].is_none()) {
            log::enter(Stage::Transform.name());
            let written = self.target.write(which, frame, &mut self.tools.scalers);
            written.map_err(|reason| SampleError::new(Stage::Transform, reason))?;
            log::enter(Stage::Decode.name());
            self.found[which] = Some((self.damage.packet_of(pts), pts));
        }
        Ok(())
    }

    /// Which wanted frame is shown at a time.
    fn at_time(&self, wanted: &Range<usize>, pts: Option<i64>) -> Option<usize> {
        let frames = &self.target.frames[wanted.clone()];
        let found = frames.binary_search_by_key(&pts?, |&frame| self.descriptor.pts[frame as usize]).ok()?;
        Some(wanted.start + found)
    }

    /// Whether every wanted frame came and can be trusted.
    fn verdict(&self) -> Result<(), SampleError> {
        for (frame, found) in self.target.frames.iter().zip(&self.found) {
            let Some((packet, pts)) = *found else { return Err(self.missing(*frame)) };
            if let Some(reason) = self.damage.verdict(packet, pts) {
                return Err(SampleError::new(
                    Stage::Decode,
                    format!("frame {frame} is damaged, or made of damaged frames: {reason}"),
                ));
            }
        }
        Ok(())
    }

    fn missing(&self, frame: u32) -> SampleError {
        let expected = self.descriptor.frames;
        let text = if self.shown > frame {
            format!("frame {frame} of {expected} did not come")
        } else {
            format!("expected {expected} frames, the stream ended after {}", self.shown)
        };
        let (stage, cause) = match (&self.broken, self.damage.last()) {
            (Some(e), _) => (e.stage, Some(e.reason.as_str())),
            (None, last) => (Stage::Decode, last),
        };
        SampleError::new(stage, cause.map_or_else(|| text.clone(), |cause| format!("{text}: {cause}")))
    }
}

fn no_memory() -> SampleError {
    SampleError::new(Stage::Memory, "it asks for more memory than a worker may have (worker_memory)")
}

/// An error of FFmpeg with what it last complained of, which is mostly the cause.
fn explain(error: impl std::fmt::Display) -> String {
    match log::complaint() {
        Some(line) => format!("{error} ({line})"),
        None => error.to_string(),
    }
}

/// The container at its start, and a decoder for the descriptor's stream.
fn open<'i>(input: &'i Input, descriptor: &Descriptor<'_>) -> Result<(Demuxer<'i>, Codec), SampleError> {
    log::enter(Stage::Demux.name());
    let fail = |reason: String| SampleError::new(Stage::Demux, reason);
    let mut demuxer = Demuxer::open(input, descriptor.container).map_err(|e| fail(explain(e)))?;
    // These two say all that a decoder needs in their headers, and the time of each packet. Others have to be looked
    // into first, with FFmpeg's usual care.
    let tells_all = ["mov", "matroska"].contains(&descriptor.container.split(',').next().unwrap_or_default());
    if !tells_all {
        demuxer.find_stream_info().map_err(|e| fail(explain(e)))?;
    }
    demuxer.keep_only(descriptor.stream);
    log::enter(Stage::Decode.name());
    let codec = demuxer.decoder(descriptor.stream).map_err(|e| SampleError::new(Stage::Decode, explain(e)))?;
    Ok((demuxer, codec))
}

#[cfg(test)]
mod parts;
#[cfg(test)]
mod robust;
#[cfg(test)]
mod sampled;
#[cfg(test)]
mod tests;
