//! What must hold within a row. The writer refuses what the reader would.

use super::descriptor::Descriptor;

/// The part that is looked at for every row when a manifest is opened: it touches no list and no text.
pub(super) struct Shape {
    pub(super) good: bool,
    pub(super) path_bytes: usize,
    pub(super) frames: u32,
    pub(super) pts: usize,
    pub(super) key_frames: usize,
    pub(super) key_offsets: usize,
    pub(super) rotation: u16,
    pub(super) size: (u16, u16),
    pub(super) denominators: [u32; 3],
    /// Whether it has sound: then it need not have frames.
    pub(super) has_sound: bool,
}

impl Shape {
    pub(super) fn of(d: &Descriptor<'_>, good: bool) -> Shape {
        Shape {
            good,
            path_bytes: d.path.len(),
            frames: d.frames,
            pts: d.pts.len(),
            key_frames: d.key_frames.len(),
            key_offsets: d.key_offsets.len(),
            rotation: d.rotation,
            size: (d.coded_width, d.coded_height),
            denominators: [d.sar.1, d.fps.1, d.time_base.1],
            has_sound: d.sound.is_some_and(|sound| sound.is_some()),
        }
    }

    /// What is wrong, if anything.
    pub(super) fn fault(&self) -> Option<String> {
        if self.path_bytes == 0 {
            return Some("its path is empty".into());
        }
        if !self.good {
            return None;
        }
        let is_sound = self.frames == 0 && self.has_sound;
        if self.frames == 0 && !is_sound {
            return Some("it has no frames and no error".into());
        }
        if self.pts != 0 && self.pts != self.frames as usize {
            return Some(format!("{} times for {} frames; wanted one each, or none", self.pts, self.frames));
        }
        if self.key_frames != self.key_offsets {
            return Some(format!("{} key frames but {} offsets", self.key_frames, self.key_offsets));
        }
        if !matches!(self.rotation, 0 | 90 | 180 | 270) {
            return Some(format!("rotation is {}; wanted 0, 90, 180 or 270", self.rotation));
        }
        if !is_sound && (self.size.0 == 0 || self.size.1 == 0) {
            return Some(format!("size is {}x{}", self.size.0, self.size.1));
        }
        if self.denominators.contains(&0) {
            return Some("an aspect ratio, frame rate or time base has denominator 0".into());
        }
        None
    }
}

/// The part that reads the lists: what [`super::Manifest::verify`] adds to [`Shape::fault`].
pub(super) fn lists_fault(d: &Descriptor<'_>) -> Option<String> {
    if d.pts.windows(2).any(|w| w[0] > w[1]) {
        return Some("its times are not ascending".into());
    }
    if d.key_frames.windows(2).any(|w| w[0] >= w[1]) {
        return Some("its key frames are not ascending".into());
    }
    if let Some(&last) = d.key_frames.last()
        && last >= d.frames
    {
        return Some(format!("key frame {last} of {} frames", d.frames));
    }
    None
}
