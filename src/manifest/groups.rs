//! Groups of frames: which key frame each is reached from.

use std::ops::Range;

use super::descriptor::Descriptor;

/// Frames that are reached from one key frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Which of the descriptor's key frames.
    pub key: usize,
    /// Which of the wanted frames, as positions in the list.
    pub wanted: Range<usize>,
}

/// The wanted frames by the key frame that each is reached from, or `None` when the sample must be decoded from its
/// start: its index is not one to seek by, or a wanted frame is shown before the first key frame.
///
/// The key frame is the last one *shown* no later than the frame: pictures that lead a key frame of an open group
/// refer to the group before, and are shown before it.
pub fn groups(d: &Descriptor<'_>, wanted: &[u32]) -> Option<Vec<Group>> {
    let ascending = |times: &[i64]| times.windows(2).all(|w| w[0] < w[1]);
    let indexed = d.seekable
        && d.pts.len() == d.frames as usize
        && d.key_frames.windows(2).all(|w| w[0] < w[1])
        && d.key_frames.last().is_some_and(|&k| k < d.frames)
        && ascending(d.pts);
    if !indexed {
        return None;
    }
    let mut out: Vec<Group> = Vec::new();
    for (i, &frame) in wanted.iter().enumerate() {
        let key = d.key_frames.partition_point(|&k| k <= frame).checked_sub(1)?;
        match out.last_mut() {
            Some(group) if group.key == key => group.wanted.end = i + 1,
            _ => out.push(Group { key, wanted: i..i + 1 }),
        }
    }
    Some(out)
}
