//! Which bytes the wanted frames need, and from which key frames they are reached.

use std::ops::Range;

use super::input::MAX_PREFETCH;
use super::key::SampleKey;
use crate::manifest::descriptor::Descriptor;
pub use crate::manifest::groups::{Group, groups};
use crate::proto::transform::{Layout, Sampling, Span, Transform};

/// Ranges that are closer than this are read as one: a request costs about as much as these bytes.
const MERGE: u64 = 64 << 10;

/// Samples up to this size are read whole: there is nothing to win.
const SMALL: u64 = 256 << 10;

/// Ranges start on a page, which takes in the header of the cluster or fragment that a key frame's packet is in.
const PAGE: u64 = 4096;

/// The byte ranges of the file that a request will need, to be handed to [`super::Reader::submit`]. It is a forecast:
/// what it misses is read on demand, and counted.
pub fn ranges(descriptor: &Descriptor<'_>, transform: &Transform, key: &SampleKey) -> Vec<Range<u64>> {
    ranges_of(descriptor, transform, key, transform.whole())
}

/// As [`ranges`], for a part of the sample.
pub fn ranges_of(descriptor: &Descriptor<'_>, transform: &Transform, key: &SampleKey, span: Span) -> Vec<Range<u64>> {
    // Where there is nothing to give the decoder says why, and reads nothing.
    let mut wanted = transform.wanted(&descriptor.timeline(), key).unwrap_or_default();
    wanted.truncate(span.end() as usize);
    wanted.drain(..wanted.len().min(span.first.into()));
    let sample = descriptor.offset..descriptor.offset.saturating_add(descriptor.len);
    // The sound of all of a clip is all over it.
    if transform.audio.is_some() && (transform.sampling == Sampling::Uniform || transform.layout == Layout::Sound) {
        return whole(&sample);
    }
    sparse(descriptor, &wanted, &sample).unwrap_or_else(|| whole(&sample))
}

/// All of a sample, or its start when it is larger than what may be read ahead.
fn whole(sample: &Range<u64>) -> Vec<Range<u64>> {
    let end = sample.end.min(sample.start.saturating_add(MAX_PREFETCH));
    Vec::from_iter((!sample.is_empty()).then_some(sample.start..end))
}

/// The header and the groups that hold wanted frames; `None` when that saves little.
fn sparse(d: &Descriptor<'_>, wanted: &[u32], sample: &Range<u64>) -> Option<Vec<Range<u64>>> {
    if d.len <= SMALL || d.key_offsets.len() != d.key_frames.len() {
        return None;
    }
    let groups = groups(d, wanted)?;
    let offset = |key: usize| u64::try_from(d.key_offsets[key]).ok().filter(|at| sample.contains(at));
    let mut starts = (0..d.key_offsets.len()).map(offset).collect::<Option<Vec<u64>>>()?;
    starts.sort_unstable();
    let mut found = Vec::with_capacity(groups.len() + 1);
    found.push(sample.start..*starts.first()?);
    for group in &groups {
        let start = offset(group.key)?;
        let next = starts.partition_point(|&s| s <= start);
        found.push(start..starts.get(next).copied().unwrap_or(sample.end));
    }
    let ranges = merge(found, sample);
    let total: u64 = ranges.iter().map(|r| r.end - r.start).sum();
    (total < d.len / 4 * 3 || d.len > MAX_PREFETCH).then(|| cut(ranges))
}

/// Sorted, on pages, those nearly touching joined.
fn merge(mut ranges: Vec<Range<u64>>, sample: &Range<u64>) -> Vec<Range<u64>> {
    ranges.retain(|r| !r.is_empty());
    ranges.sort_unstable_by_key(|r| r.start);
    let mut out: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        let start = (range.start / PAGE * PAGE).max(sample.start);
        match out.last_mut() {
            Some(last) if start <= last.end.saturating_add(MERGE) => last.end = last.end.max(range.end),
            _ => out.push(start..range.end),
        }
    }
    out
}

/// No more than may be read ahead; the rest comes on demand.
fn cut(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut room = MAX_PREFETCH;
    for range in &mut ranges {
        range.end = range.end.min(range.start.saturating_add(room));
        room -= range.end - range.start;
    }
    ranges.retain(|r| !r.is_empty());
    ranges
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one range is meant")]
mod tests {
    use super::*;
    use crate::proto::transform::Sampling;

    const KEY: SampleKey = SampleKey::new(0, 0, 0);

    struct Index {
        pts: Vec<i64>,
        keys: Vec<u32>,
        offsets: Vec<i64>,
    }

    fn index(frames: u32, gop: u32, bytes_a_frame: i64, base: i64) -> Index {
        let keys: Vec<u32> = (0..frames).step_by(gop as usize).collect();
        let offsets = keys.iter().map(|&k| base + 5000 + i64::from(k) * bytes_a_frame).collect();
        Index { pts: (0..i64::from(frames)).collect(), keys, offsets }
    }

    fn descriptor(index: &Index, offset: u64, len: u64) -> Descriptor<'_> {
        Descriptor {
            frames: index.pts.len() as u32,
            pts: &index.pts,
            key_frames: &index.keys,
            key_offsets: &index.offsets,
            seekable: true,
            offset,
            len,
            ..crate::decode::testing::EMPTY
        }
    }

    fn two(frames: u16) -> Transform {
        Transform { frames, sampling: Sampling::Uniform, ..Transform::default() }
    }

    #[test]
    fn few_frames_of_a_long_clip_need_their_groups_alone() {
        let index = index(3000, 10, 5000, 700);
        let d = descriptor(&index, 700, 5000 + 3000 * 5000);
        let got = ranges(&d, &two(2), &KEY);
        // Frames 750 and 2250, both key frames here, of ten frames each; pages widen the starts.
        let group = |frame: u64| (5700 + frame * 5000) / 4096 * 4096..5700 + (frame + 10) * 5000;
        assert_eq!(got, [700..5700, group(750), group(2250)]);
    }

    #[test]
    fn little_to_win_means_all() {
        let index = index(300, 10, 5000, 0);
        let d = descriptor(&index, 0, 1_505_000);
        assert_eq!(ranges(&d, &two(64), &KEY), vec![0..1_505_000]);
        let small = descriptor(&index, 0, 200_000);
        assert_eq!(ranges(&small, &two(1), &KEY), vec![0..200_000]);
        let blind = Descriptor { seekable: false, ..d };
        assert_eq!(ranges(&blind, &two(1), &KEY), vec![0..1_505_000]);
        let nowhere = Descriptor { key_offsets: &vec![-1; 30], ..d };
        assert_eq!(ranges(&nowhere, &two(1), &KEY), vec![0..1_505_000]);
    }

    #[test]
    fn read_ahead_is_bounded() {
        let index = index(4000, 50, 100_000, 0);
        for seekable in [true, false] {
            let d = Descriptor { seekable, ..descriptor(&index, 0, 400_005_000) };
            for frames in [1, 16, 500] {
                let got = ranges(&d, &two(frames), &KEY);
                assert!(got.iter().map(|r| r.end - r.start).sum::<u64>() <= MAX_PREFETCH);
                assert!(got.windows(2).all(|w| w[0].end < w[1].start));
            }
        }
    }

    #[test]
    fn leading_pictures_belong_to_the_group_before() {
        let index = index(30, 10, 100, 0);
        let d = descriptor(&index, 0, 10_000);
        let got = groups(&d, &[8, 9, 10, 25]).unwrap();
        assert_eq!(
            got,
            [Group { key: 0, wanted: 0..2 }, Group { key: 1, wanted: 2..3 }, Group { key: 2, wanted: 3..4 }]
        );
        let late = Descriptor { key_frames: &[5, 10], key_offsets: &[0, 0], ..d };
        assert_eq!(groups(&late, &[3]), None);
        let unsorted = Descriptor { pts: &[1; 30], ..d };
        assert_eq!(groups(&unsorted, &[3]), None);
    }
}
