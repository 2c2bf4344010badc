//! Where the frames of a sample go, and what becomes of each on the way: the same for every decoder of pixels.

use std::ops::Range;

use super::colour::Colour;
use super::crop;
use super::ffi::Frame;
use super::key::Purpose;
use super::pixels::{Rect, Writer};
use super::scale::{Geometry, Scaler};
use super::{Outcome, Request, SampleError, Stage};
use crate::proto::transform::Layout;

/// The conversions of a decoder: of frames, and of the thumbnails that follow their tiles.
#[derive(Default)]
pub(super) struct Scalers {
    frames: Scaler,
    thumbnails: Scaler,
}

/// The wanted frames of a sample and their places.
pub(super) struct Target<'o> {
    /// Each wanted frame once, ascending.
    pub(super) frames: Vec<u32>,
    /// The places of each in the output; more than one where a frame is repeated.
    places: Vec<Range<usize>>,
    writer: Writer,
    geometry: Geometry,
    colour: Option<Colour>,
    /// Which part of the resized frame, as coded, has its colours changed.
    coloured: Rect,
    /// Upper left corners of what is kept of the upright, resized frame: one, or one a tile.
    corners: Vec<(usize, usize)>,
    thumbnail: Option<Geometry>,
    /// The place of the frames.
    out: &'o mut [u8],
    /// Bytes of the output with what comes behind the frames.
    bytes: u64,
    shape: [u16; 4],
}

impl<'o> Target<'o> {
    /// Checks a request and finds a place for each frame. `mirrored` says that the clip is to be mirrored before it is
    /// shown, after its rotation.
    pub(super) fn new(request: &Request<'_>, mirrored: bool, out: &'o mut [u8]) -> Result<Target<'o>, SampleError> {
        let Request { descriptor, transform, key, span } = request;
        let refuse = |reason: String| SampleError::new(Stage::Transform, reason);
        transform.check().map_err(|e| refuse(e.to_string()))?;
        if transform.layout == Layout::Pages {
            return Err(refuse("pages are made by a program of the user's own, not decoded".into()));
        }
        let facts = descriptor.facts();
        let shape = transform.shape(&facts);
        let (_, bytes) = transform
            .place(&facts, *span)
            .ok_or_else(|| refuse(format!("frames {} to {} are no part of {shape:?}", span.first, span.end())))?;
        let room = out.len();
        // Sound may come behind the frames; that is not written here.
        let video = transform.video_bytes(&facts) / u64::from(transform.frames) * u64::from(span.frames);
        let out = usize::try_from(bytes).ok().and_then(|n| out.get_mut(..n)?.get_mut(..video as usize));
        let out = out.ok_or_else(|| refuse(format!("the output takes {bytes} bytes and its place has {room}")))?;
        let wanted = transform.wanted(&descriptor.timeline(), key);
        let wanted = wanted.map_err(|e| SampleError::new(Stage::Demux, e.to_string()))?;
        let (frames, places) = once(&wanted[usize::from(span.first)..span.end() as usize]);
        let rotation = descriptor.rotation;
        if !matches!(rotation, 0 | 90 | 180 | 270) {
            return Err(refuse(format!("a rotation by {rotation} degrees; wanted 0, 90, 180 or 270")));
        }

        let pair = |(w, h): (u16, u16)| (usize::from(w), usize::from(h));
        let lying = |(w, h)| if rotation.is_multiple_of(180) { (w, h) } else { (h, w) };
        let reflect = |part: Rect, width: usize| match mirrored {
            true => Rect { x: width - part.x - part.width, ..part },
            false => part,
        };
        let (resized, frame) = (pair(transform.resized(&facts)), pair(transform.frame(&facts)));
        let coded = lying(resized);
        let shown = pair((facts.width, facts.height));
        let part = crop::before(transform, shown, key).map(|part| {
            let full = pair((descriptor.coded_width, descriptor.coded_height));
            (crop::as_coded(reflect(part, shown.0), rotation, full), full)
        });
        let flip = key.draws(Purpose::Flip).chance(transform.flip);
        let (kept, corners) = match transform.resize.grid(&facts) {
            _ if part.is_some() => (Rect { x: 0, y: 0, width: frame.0, height: frame.1 }, vec![(0, 0)]),
            (1, 1) => {
                let kept = reflect(crop::after(transform, resized, key), resized.0);
                (kept, vec![(kept.x, kept.y)])
            }
            grid => {
                let whole = Rect { x: 0, y: 0, width: resized.0, height: resized.1 };
                (whole, tiles(pair(grid), frame.0, flip != mirrored))
            }
        };
        let geometry = |(width, height), part| Geometry { width, height, filter: transform.filter, part };
        let has_thumbnail = part.is_none() && transform.resize.has_thumbnail(&facts);
        let slots = usize::from(span.frames) * usize::from(transform.pieces(&facts));
        Ok(Target {
            frames,
            places,
            writer: Writer::new(transform, slots, frame, rotation, flip != mirrored),
            geometry: geometry(coded, part),
            colour: Colour::draw(&transform.colour, key),
            coloured: crop::as_coded(kept, rotation, coded),
            corners,
            thumbnail: has_thumbnail.then(|| geometry(lying(frame), None)),
            out,
            bytes,
            shape,
        })
    }

    /// Writes a wanted frame to its place, and again where it is repeated.
    pub(super) fn write(&mut self, which: usize, frame: &Frame, scalers: &mut Scalers) -> Result<(), String> {
        let pieces = self.corners.len() + usize::from(self.thumbnail.is_some());
        let places = self.places[which].clone();
        let first = places.start * pieces;
        let colour = self.colour.as_ref();
        let planes = scalers.frames.convert(frame, &self.geometry, colour.map(|c| (c, self.coloured)))?;
        for (slot, &corner) in (first..).zip(&self.corners) {
            self.writer.write(&planes, corner, slot, self.out);
        }
        if let Some(geometry) = &self.thumbnail {
            let whole = Rect { x: 0, y: 0, width: geometry.width, height: geometry.height };
            let planes = scalers.thumbnails.convert(frame, geometry, colour.map(|c| (c, whole)))?;
            self.writer.write(&planes, (0, 0), first + pieces - 1, self.out);
        }
        for (slot, piece) in places.skip(1).flat_map(|place| (0..pieces).map(move |p| (place * pieces + p, p))) {
            self.writer.repeat(first + piece, slot, self.out);
        }
        Ok(())
    }

    /// What is said of the sample once all frames are written.
    pub(super) fn outcome(&self, frames_decoded: u32) -> Outcome {
        // Strict: a clip that is not what the index says is an error, not another clip.
        Outcome { written: self.bytes, shape: self.shape, frames_decoded, actual: None }
    }
}

/// Each frame once, and the places where it is wanted.
fn once(wanted: &[u32]) -> (Vec<u32>, Vec<Range<usize>>) {
    let mut frames: Vec<u32> = Vec::with_capacity(wanted.len());
    let mut places: Vec<Range<usize>> = Vec::with_capacity(wanted.len());
    for (i, &frame) in wanted.iter().enumerate() {
        match places.last_mut() {
            Some(range) if frames.last() == Some(&frame) => range.end = i + 1,
            _ => {
                frames.push(frame);
                places.push(i..i + 1);
            }
        }
    }
    (frames, places)
}

/// Corners of tiles, row by row; of a mirrored frame from the right, as if it had been mirrored before it was cut.
fn tiles((columns, rows): (usize, usize), side: usize, mirrored: bool) -> Vec<(usize, usize)> {
    let column = |c: usize| if mirrored { columns - 1 - c } else { c };
    (0..rows).flat_map(|row| (0..columns).map(move |c| (column(c) * side, row * side))).collect()
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
