//! What pictures tell and FFmpeg does not ask: how they are to be turned, and the frames of animated WebP.

use std::os::unix::fs::FileExt;

use super::demuxer::Stream;
use super::source::Part;
use super::{MAX_FRAMES, ProbeError};
use crate::manifest::orientation::orientation;
use crate::manifest::record::Record;
use crate::manifest::webp::{Animation, CONTAINER};

/// Fills a buffer from a position of the part on; how much there was. A fault of storage is nothing there: FFmpeg, which
/// reads the same bytes, reports it.
fn read(part: Part<'_>, at: u64, out: &mut [u8]) -> usize {
    let room = part.len.saturating_sub(at).min(out.len() as u64) as usize;
    let mut done = 0;
    while done < room {
        match part.file.read_at(&mut out[done..room], part.offset + at + done as u64) {
            Ok(0) => break,
            Ok(got) => done += got,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    done
}

/// The rotation that shows a stream upright: what FFmpeg says of it, or what the picture itself does.
pub(super) fn rotation(part: Part<'_>, stream: &Stream) -> u16 {
    match stream.rotation {
        0 => orientation(&mut |at, out| read(part, at, out)).rotation,
        turned => turned,
    }
}

/// The record of an animated WebP; `None` for everything else.
pub(super) fn animation(part: Part<'_>) -> Result<Option<Record>, ProbeError> {
    let mut read = |at: u64, out: &mut [u8]| read(part, at, out);
    let Some(found) = Animation::read(part.len, MAX_FRAMES, &mut read) else { return Ok(None) };
    let Animation { width, height, delays, whole } = found;
    if !whole {
        return Err(ProbeError::CutShort(format!("an animated WebP that ends after {} frames", delays.len())));
    }
    let (Ok(coded_width), Ok(coded_height)) = (u16::try_from(width), u16::try_from(height)) else {
        return Err(ProbeError::Limit(format!("pictures of {width}x{height}; the longest side is 65535")));
    };
    if delays.is_empty() {
        return Err(ProbeError::Undecodable("an animated WebP without a frame".into()));
    }
    if delays.len() > MAX_FRAMES {
        return Err(ProbeError::Limit(format!("more than {MAX_FRAMES} frames")));
    }
    let frames = delays.len() as u32;
    let starts = delays.iter().scan(0i64, |at, &delay| Some(std::mem::replace(at, *at + i64::from(delay))));
    let pts: Vec<i64> = starts.collect();
    let duration: i64 = delays.iter().map(|&delay| i64::from(delay)).sum();
    Ok(Some(Record {
        container: CONTAINER.into(),
        codec: "webp".into(),
        pix_fmt: "rgb24".into(),
        coded_width,
        coded_height,
        rotation: orientation(&mut read).rotation,
        fps: u32::try_from(duration.max(1)).map_or((0, 1), |ms| (frames.saturating_mul(1000), ms)),
        time_base: (1, 1000),
        duration: duration.max(1),
        pts,
        frames,
        // Each frame is drawn over the ones before.
        key_frames: vec![0],
        key_offsets: vec![-1],
        ..Record::default()
    }))
}
