//! What a media file holds, found out without decoding it where the container tells.
//!
//! One pass over the packets of the first real video stream gives exact times and key frames. Where packets do not
//! tell what a decoder shows (MPEG-TS, missing or equal times, a cut head, leading frames, codecs that hide frames)
//! the stream is decoded once, so that [`Record::frames`] is always what a sequential decode shows. Bytes, time and
//! frames are bounded. A file that is cut short, or that nothing can be decoded of, is an error with its reason.
//!
//! A sample may be a part of a file, such as a member of a tar: FFmpeg then sees the part as a file of its own, and the
//! record's byte positions are those of the file.
//!
//! Unsafe code is in `source`, `demuxer` and `decoder`; the rules are in `index`, `hidden`, `ebml` and here.

mod decoder;
mod demuxer;
mod ebml;
mod hidden;
mod index;
mod picture;
mod source;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use decoder::{Decoder, Shown};
use demuxer::{Demuxer, Stream};
use index::{Index, Seen};
use source::{Limits, Part, Source};

use super::descriptor::Sound;
use super::record::Record;
use crate::ffmpeg::log;

/// Most frames of a sample: 37 hours at 30 frames a second, or 32 MB of times.
const MAX_FRAMES: usize = 4_000_000;

/// Containers whose packets are frames with times of their own, and which FFmpeg seeks exactly.
const EXACT_CONTAINERS: [&str; 2] = ["mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"];

/// Codecs that show a frame for each packet, but for what `hidden` and `index` know.
const EXACT_CODECS: [&str; 13] = [
    "h264", "hevc", "vp8", "vp9", "av1", "mjpeg", "png", "ffv1", "prores", "dnxhd", "rawvideo", "huffyuv", "ffvhuff",
];

/// Why a file cannot be a sample.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Its name cannot be written down.
    #[error("the path is not UTF-8; rename it")]
    Name,
    /// It is a folder, a socket or the like.
    #[error("is not a regular file")]
    NotAFile,
    /// The part that was asked for is not all within the file.
    #[error("lies beyond its file: bytes {0:?} of {1}")]
    Beyond(Range<u64>, u64),
    /// It has no bytes.
    #[error("is empty (0 bytes)")]
    Empty,
    /// FFmpeg does not take it for media.
    #[error("is not media that FFmpeg can open: {0}")]
    NotMedia(String),
    /// It has other streams only.
    #[error("has no video: {0}")]
    NoVideo(String),
    /// Nothing can be decoded of it.
    #[error("cannot be decoded: {0}")]
    Undecodable(String),
    /// It ends before the container says that it does.
    #[error("is cut short: {0}; copy or download it again")]
    CutShort(String),
    /// It is beyond a limit.
    #[error("is beyond a limit: {0}")]
    Limit(String),
}

/// What decides how a file is understood: our rules by number, and FFmpeg's version. Rows made by another version are
/// not reused.
pub fn version() -> String {
    format!("3/{}", demuxer::version())
}

/// Finds out what a file holds.
pub fn probe(path: &Path) -> Result<Record, ProbeError> {
    probe_part(path, 0, None)
}

/// Finds out what a part of a file holds: from byte `offset` on, `len` bytes or all that follow.
pub fn probe_part(path: &Path, offset: u64, len: Option<u64>) -> Result<Record, ProbeError> {
    look(path, offset, len, probe_bytes)
}

/// As [`probe_part`], of what is sound alone: a record without frames.
pub fn probe_sound(path: &Path, offset: u64, len: Option<u64>) -> Result<Record, ProbeError> {
    look(path, offset, len, |part, _| sound_alone(part))
}

fn look(
    path: &Path,
    offset: u64,
    len: Option<u64>,
    into: impl FnOnce(Part<'_>, &str) -> Result<Record, ProbeError>,
) -> Result<Record, ProbeError> {
    log::install();
    log::begin("probe");
    let absolute = std::path::absolute(path)?;
    // Opening a pipe without this waits for its other end.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    look_at(&file, &absolute, (offset, len), into)
}

/// As [`probe_part`] or, for `sound`, [`probe_sound`], of a file that was opened, such as a copy of an object in a store;
/// `path` is where it is from.
pub fn probe_open(
    file: &File,
    path: &Path,
    (offset, len): (u64, Option<u64>),
    sound: bool,
) -> Result<Record, ProbeError> {
    log::install();
    log::begin("probe");
    match sound {
        false => look_at(file, path, (offset, len), probe_bytes),
        true => look_at(file, path, (offset, len), |part, _| sound_alone(part)),
    }
}

fn look_at(
    file: &File,
    path: &Path,
    (offset, len): (u64, Option<u64>),
    into: impl FnOnce(Part<'_>, &str) -> Result<Record, ProbeError>,
) -> Result<Record, ProbeError> {
    let name = path.to_str().ok_or(ProbeError::Name)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(ProbeError::NotAFile);
    }
    let len = len.unwrap_or(about.len().saturating_sub(offset));
    if offset.checked_add(len).is_none_or(|end| end > about.len()) {
        return Err(ProbeError::Beyond(offset..offset.saturating_add(len), about.len()));
    }
    if len == 0 {
        return Err(ProbeError::Empty);
    }
    let mut record = into(Part { file, offset, len }, name)?;
    record.path = name.to_owned();
    (record.file_len, record.offset, record.len) = (about.len(), offset, len);
    // FFmpeg counts from the start of the part. The sum is within the file, or as far behind it as FFmpeg claims.
    for at in record.key_offsets.iter_mut().filter(|at| **at >= 0) {
        *at = at.saturating_add_unsigned(offset);
    }
    record.mtime_ns = about.mtime().saturating_mul(1_000_000_000).saturating_add(about.mtime_nsec());
    Ok(record)
}

fn probe_bytes(part: Part<'_>, name: &str) -> Result<Record, ProbeError> {
    if let Some(record) = picture::animation(part)? {
        return Ok(record);
    }
    let mut demuxer = open(part)?;
    let streams = demuxer.streams();
    let (number, stream) = choose(&streams)?;
    let (width, height) = size(stream)?;
    let pix_fmt = stream.pix_fmt.clone().ok_or_else(|| undecodable("no picture in the first packets", stream))?;
    if stream.mirrored {
        tracing::warn!("{name}: its display matrix mirrors, which is not done: pictures are only rotated");
    }
    demuxer.select(number);
    let packets = read_packets(&mut demuxer, number, &stream.codec)?;
    let container = demuxer.container();
    drop(demuxer);
    whole_matroska(part)?;

    let exact = EXACT_CONTAINERS.contains(&container.as_str()) && EXACT_CODECS.contains(&stream.codec.as_str());
    let (mut index, doubt) = Index::from_packets(&packets);
    if !exact || doubt.is_some() {
        tracing::debug!("decoding to count: container {container}, codec {}, doubt {doubt:?}", stream.codec);
        let shown = decode_all(part, number, stream)?;
        index = Index::from_shown(&shown, &packets);
    }
    if index.frames == 0 {
        return Err(undecodable(&format!("no frame comes out of {} packets", packets.len()), stream));
    }
    let seekable = exact && index.is_seekable();
    let fps = mean_rate(&index, stream);
    if index.duration == 0 && fps.0 > 0 {
        index.duration = one_frame(fps, stream.time_base);
    }
    Ok(Record {
        container,
        codec: stream.codec.clone(),
        pix_fmt,
        stream: number as u32,
        coded_width: width,
        coded_height: height,
        rotation: picture::rotation(part, stream),
        sar: stream.sar,
        fps,
        time_base: stream.time_base,
        duration: index.duration,
        pts: index.pts,
        frames: index.frames,
        key_frames: index.key_frames,
        key_offsets: index.key_offsets,
        seekable,
        sound: Some(sound_of(&streams)),
        ..Record::default()
    })
}

/// The first stream of sound, as it will be decoded.
fn sound_of(streams: &[Stream]) -> Sound {
    let found = streams.iter().find_map(|s| s.sound.map(|sound| (s, sound)));
    let Some((stream, (rate, channels))) = found else { return Sound::default() };
    Sound { rate, channels, duration_ms: milliseconds(stream.duration, stream.time_base) }
}

fn milliseconds(ticks: i64, (num, den): (u32, u32)) -> u32 {
    let ms = i128::from(ticks) * i128::from(num) * 1000 / i128::from(den.max(1));
    u32::try_from(ms).unwrap_or(if ms < 0 { 0 } else { u32::MAX })
}

/// What is known of sound without video, or beside a cover picture.
fn sound_alone(part: Part<'_>) -> Result<Record, ProbeError> {
    let demuxer = open(part)?;
    let streams = demuxer.streams();
    let found = streams.iter().enumerate().find(|(_, s)| s.sound.is_some());
    let Some((number, stream)) = found else {
        return Err(ProbeError::NoVideo("and no sound that can be read".into()));
    };
    let container = demuxer.container();
    drop(demuxer);
    whole_matroska(part)?;
    Ok(Record {
        container,
        codec: stream.codec.clone(),
        stream: number as u32,
        time_base: stream.time_base,
        duration: stream.duration,
        sound: Some(sound_of(&streams)),
        ..Record::default()
    })
}

fn open(part: Part<'_>) -> Result<Demuxer, ProbeError> {
    let source = Source::new(part, Limits::for_len(part.len))?;
    let not_media = |source: &Source, code| match source.fault() {
        Some(fault) => ProbeError::Limit(fault),
        None => ProbeError::NotMedia(with_complaint(code)),
    };
    let mut demuxer = Demuxer::open(source).map_err(|(source, code)| not_media(&source, code))?;
    demuxer.find_streams().map_err(|code| not_media(&demuxer.source, code))?;
    Ok(demuxer)
}

/// The first video stream that is no cover picture: the same in every version of FFmpeg, unlike its own choice.
fn choose(streams: &[Stream]) -> Result<(usize, &Stream), ProbeError> {
    if let Some(found) = streams.iter().enumerate().find(|(_, s)| s.is_video && !s.is_cover) {
        return Ok(found);
    }
    let name = |s: &Stream| match s.is_cover {
        true => format!("a cover picture ({})", s.codec),
        false => format!("{} ({})", s.kind, s.codec),
    };
    let have: Vec<String> = streams.iter().map(name).collect();
    Err(ProbeError::NoVideo(if have.is_empty() {
        "no stream at all".into()
    } else {
        format!("only {}", have.join(", "))
    }))
}

fn size(stream: &Stream) -> Result<(u16, u16), ProbeError> {
    let (w, h) = (stream.width, stream.height);
    if w <= 0 || h <= 0 {
        return Err(undecodable("the size of its pictures is unknown", stream));
    }
    match (u16::try_from(w), u16::try_from(h)) {
        (Ok(w), Ok(h)) => Ok((w, h)),
        _ => Err(ProbeError::Limit(format!("pictures of {w}x{h}; the longest side is 65535"))),
    }
}

fn read_packets(demuxer: &mut Demuxer, number: usize, codec: &str) -> Result<Vec<Seen>, ProbeError> {
    let mut packets = Vec::new();
    let mut damaged = None;
    loop {
        let count = packets.len();
        let packet = match demuxer.next(number) {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            Err(code) => {
                return Err(match demuxer.source.fault() {
                    Some(fault) => ProbeError::Limit(fault),
                    None => ProbeError::CutShort(format!("packet {count}: {}", with_complaint(code))),
                });
            }
        };
        if packet.is_damaged() {
            damaged.get_or_insert(count);
        }
        if count == MAX_FRAMES {
            return Err(ProbeError::Limit(format!("more than {MAX_FRAMES} frames")));
        }
        packets.push(Seen {
            pts: packet.pts(),
            duration: packet.duration(),
            pos: packet.pos(),
            key: packet.is_key(),
            hidden: packet.is_hidden() || hidden::shows_nothing(codec, packet.data()),
        });
    }
    // In MPEG-TS a damaged packet is a fault of the channel and the rest goes on; elsewhere it is where bytes end.
    match damaged {
        Some(at) if EXACT_CONTAINERS.contains(&demuxer.container().as_str()) => {
            Err(ProbeError::CutShort(format!("packet {at} of the video is not whole")))
        }
        _ => Ok(packets),
    }
}

fn whole_matroska(part: Part<'_>) -> Result<(), ProbeError> {
    let mut head = [0; ebml::HEAD];
    let have = part.file.read_at(&mut head, part.offset)?;
    let have = have.min(usize::try_from(part.len).unwrap_or(usize::MAX));
    match ebml::declared_end(&head[..have]) {
        Some(end) if end > part.len => Err(ProbeError::CutShort(format!("it has {} bytes of {end}", part.len))),
        _ => Ok(()),
    }
}

fn decode_all(part: Part<'_>, number: usize, stream: &Stream) -> Result<Vec<Seen>, ProbeError> {
    let mut demuxer = open(part)?;
    demuxer.select(number);
    let no_decoder = || undecodable(&format!("this FFmpeg has no decoder for {}", stream.codec), stream);
    let mut decoder = Decoder::open(&demuxer, number).ok_or_else(no_decoder)?;
    let mut shown = Vec::new();
    loop {
        let mut keep =
            |s: Shown| shown.push(Seen { pts: s.pts, duration: s.duration, pos: s.pos, key: s.key, hidden: false });
        let packet = demuxer.next(number);
        let ended = matches!(packet, Ok(None) | Err(_));
        let decoded = decoder.decode(packet.ok().flatten().as_ref(), &mut keep);
        decoded.map_err(|code| undecodable(&code.to_string(), stream))?;
        if shown.len() > MAX_FRAMES {
            return Err(ProbeError::Limit(format!("more than {MAX_FRAMES} frames")));
        }
        if let (true, Some(fault)) = (ended, demuxer.source.fault()) {
            return Err(ProbeError::Limit(fault));
        }
        if ended {
            return Ok(shown);
        }
    }
}

fn undecodable(what: &str, stream: &Stream) -> ProbeError {
    let complaint = complaint().map_or_else(String::new, |c| format!(": {c}"));
    ProbeError::Undecodable(format!("{what} (codec {}){complaint}", stream.codec))
}

/// FFmpeg's error, and before it what FFmpeg complained of, which says more.
fn with_complaint(code: demuxer::Code) -> String {
    complaint().map_or_else(|| code.to_string(), |c| format!("{c} ({code})"))
}

/// FFmpeg's last complaint of this file. Which part of FFmpeg made it is of no use to who has to mend the file.
fn complaint() -> Option<String> {
    let line = log::complaint()?;
    Some(match line.split_once("] ") {
        Some((name, rest)) if name.starts_with('[') => rest.to_owned(),
        _ => line,
    })
}

/// The container's average rate where the frames bear it out (within 1 %), since it is free of a coarse time base's
/// rounding; else frames over duration.
fn mean_rate(index: &Index, stream: &Stream) -> (u32, u32) {
    let num = u128::from(index.frames) * u128::from(stream.time_base.1);
    let den = u128::from(index.duration.max(0) as u64) * u128::from(stream.time_base.0);
    let (said_num, said_den) = (u128::from(stream.fps.0), u128::from(stream.fps.1));
    if den == 0 || (num * said_den).abs_diff(said_num * den) * 100 <= num * said_den {
        return stream.fps;
    }
    let divisor = gcd(num, den);
    match (u32::try_from(num / divisor), u32::try_from(den / divisor)) {
        (Ok(num), Ok(den)) => (num, den),
        // Too fine for 32 bits: thousandths of a frame a second do.
        _ => (u32::try_from(num.saturating_mul(1000) / den).unwrap_or(u32::MAX), 1000),
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The length of a frame at a rate, in units of the time base; at least one.
fn one_frame(fps: (u32, u32), time_base: (u32, u32)) -> i64 {
    let (num, den) = (u64::from(fps.1) * u64::from(time_base.1), u64::from(fps.0) * u64::from(time_base.0));
    i64::try_from(num / den.max(1)).unwrap_or(i64::MAX).max(1)
}

#[cfg(test)]
mod tests;
