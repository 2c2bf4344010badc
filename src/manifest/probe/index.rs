//! From packets to the index: which frames are shown, when, and where decoding can start. Pure arithmetic.

/// A packet of the video stream, in the order of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) pts: Option<i64>,
    pub(super) duration: i64,
    pub(super) pos: i64,
    pub(super) key: bool,
    /// Decoded, not shown.
    pub(super) hidden: bool,
}

/// The shown frames in the order of showing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Index {
    pub(super) frames: u32,
    /// One a frame, ascending; empty if the file does not tell.
    pub(super) pts: Vec<i64>,
    /// From the first frame's start to the last one's end.
    pub(super) duration: i64,
    pub(super) key_frames: Vec<u32>,
    pub(super) key_offsets: Vec<i64>,
}

/// Why packets alone do not tell what a decoder shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    /// A time is missing.
    NoTime,
    /// Two frames have the same time.
    SameTime,
    /// Packets before the first key frame: a decoder may show some of them.
    HeadCut,
    /// Packets shown before the first key frame but stored after it may lack their references.
    LeadingFrames,
}

impl Index {
    /// The index that the packets give, and whether it can be relied on.
    ///
    /// A key frame that is hidden (before an edit list's start) counts as the start for the first frame shown after
    /// it, since that is where decoding has to begin.
    pub(super) fn from_packets(packets: &[Seen]) -> (Index, Option<Doubt>) {
        let first_key = packets.iter().position(|p| p.key).unwrap_or(packets.len());
        let usable = &packets[first_key..];
        let mut doubt = (first_key > 0).then_some(Doubt::HeadCut);
        let mut shown: Vec<(i64, i64)> = Vec::with_capacity(usable.len());
        for p in usable.iter().filter(|p| !p.hidden) {
            match p.pts {
                Some(pts) => shown.push((pts, p.duration)),
                None => doubt = Some(Doubt::NoTime),
            }
        }
        let frames = usable.iter().filter(|p| !p.hidden).count() as u32;
        if doubt == Some(Doubt::NoTime) {
            return (Index { frames, ..Index::default() }, doubt);
        }
        shown.sort_unstable();
        if let (Some(key), Some(first)) = (usable.first().and_then(|p| p.pts), shown.first())
            && first.0 < key
        {
            doubt = doubt.or(Some(Doubt::LeadingFrames));
        }
        if shown.windows(2).any(|w| w[0].0 == w[1].0) {
            doubt = doubt.or(Some(Doubt::SameTime));
        }
        let pts: Vec<i64> = shown.iter().map(|s| s.0).collect();
        let last_duration = shown.last().map_or(0, |s| s.1);
        let mut index = Index { frames, duration: span(&pts, last_duration), pts, ..Index::default() };
        index.place_keys(usable);
        (index, doubt)
    }

    /// The index of frames as a decoder showed them. Where decoding can start is taken from the packets, since only
    /// they have the key frames that are hidden.
    pub(super) fn from_shown(shown: &[Seen], packets: &[Seen]) -> Index {
        let pts: Option<Vec<i64>> = shown.iter().map(|s| s.pts).collect();
        let pts = pts.filter(|pts| pts.is_sorted()).unwrap_or_default();
        let frames = shown.len() as u32;
        let last_duration = shown.last().map_or(0, |s| s.duration);
        if pts.is_empty() {
            let keys = || shown.iter().enumerate().filter(|(_, s)| s.key);
            let length = |s: &Seen| s.duration.max(0);
            return Index {
                frames,
                pts,
                duration: shown.iter().fold(0, |sum: i64, s| sum.saturating_add(length(s))),
                key_frames: keys().map(|(i, _)| i as u32).collect(),
                key_offsets: keys().map(|(_, s)| s.pos).collect(),
            };
        }
        let mut index = Index { frames, duration: span(&pts, last_duration), pts, ..Index::default() };
        index.place_keys(packets);
        index
    }

    /// Whether decoding from a key frame, found by its time, gives the frames after it.
    pub(super) fn is_seekable(&self) -> bool {
        !self.pts.is_empty() && self.key_frames.first() == Some(&0) && self.pts.windows(2).all(|w| w[0] < w[1])
    }

    fn place_keys(&mut self, packets: &[Seen]) {
        let mut keys: Vec<(u32, i64, i64)> = Vec::new();
        for p in packets.iter().filter(|p| p.key) {
            let Some(pts) = p.pts else { continue };
            let at = self.pts.partition_point(|&t| t < pts) as u32;
            if at < self.frames {
                keys.push((at, pts, p.pos));
            }
        }
        // Of the key frames that start the same frame the last in time is the nearest.
        keys.sort_unstable();
        for (at, _, pos) in keys {
            if self.key_frames.last() == Some(&at) {
                self.key_offsets.pop();
            } else {
                self.key_frames.push(at);
            }
            self.key_offsets.push(pos);
        }
    }
}

/// From the first time to the end of the last frame. A last frame that does not say its length gets the one before's.
fn span(pts: &[i64], last_duration: i64) -> i64 {
    let (Some(first), Some(last)) = (pts.first(), pts.last()) else { return 0 };
    let before = pts.len().checked_sub(2).map_or(0, |i| last.saturating_sub(pts[i]));
    let length = if last_duration > 0 { last_duration } else { before };
    last.saturating_sub(*first).saturating_add(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(pts: i64, key: bool) -> Seen {
        Seen { pts: Some(pts), duration: 10, pos: 1000_i64.wrapping_add(pts), key, hidden: false }
    }

    #[test]
    fn packets_are_put_into_the_order_of_showing() {
        let packets = [packet(0, true), packet(30, false), packet(10, false), packet(20, false), packet(40, true)];
        let (index, doubt) = Index::from_packets(&packets);
        assert_eq!(doubt, None);
        assert_eq!(index.pts, [0, 10, 20, 30, 40]);
        assert_eq!((index.frames, index.duration), (5, 50));
        assert_eq!(
            (index.key_frames.as_slice(), index.key_offsets.as_slice()),
            ([0, 4].as_slice(), [1000, 1040].as_slice())
        );
        assert!(index.is_seekable());
    }

    #[test]
    fn a_hidden_key_frame_starts_the_first_shown_frame() {
        let hide = |p: Seen| Seen { hidden: true, ..p };
        let packets = [
            hide(packet(-60, true)),
            hide(packet(-50, false)),
            hide(packet(-20, true)),
            packet(0, false),
            packet(10, false),
            packet(20, true),
        ];
        let (index, doubt) = Index::from_packets(&packets);
        assert_eq!(doubt, None);
        assert_eq!(index.pts, [0, 10, 20]);
        assert_eq!(
            (index.key_frames.as_slice(), index.key_offsets.as_slice()),
            ([0, 2].as_slice(), [980, 1020].as_slice())
        );
    }

    #[test]
    fn what_packets_cannot_tell_is_doubted() {
        let doubt = |packets: &[Seen]| Index::from_packets(packets).1;
        assert_eq!(doubt(&[packet(0, false), packet(10, true)]), Some(Doubt::HeadCut));
        assert_eq!(doubt(&[packet(0, true), packet(0, false)]), Some(Doubt::SameTime));
        assert_eq!(doubt(&[packet(20, true), packet(10, false)]), Some(Doubt::LeadingFrames));
        assert_eq!(doubt(&[packet(0, true), Seen { pts: None, ..packet(0, false) }]), Some(Doubt::NoTime));
        assert_eq!(doubt(&[packet(0, false)]), Some(Doubt::HeadCut));
        assert_eq!(doubt(&[]), None);
    }

    #[test]
    fn times_that_go_back_are_no_index() {
        let shown = [packet(0, true), packet(10, false), packet(5, true)];
        let index = Index::from_shown(&shown, &shown);
        assert_eq!((index.frames, index.pts.len(), index.duration), (3, 0, 30));
        assert_eq!(index.key_frames, [0, 2]);
        assert!(!index.is_seekable());
    }

    #[test]
    fn a_duration_survives_hostile_times() {
        let (index, _) = Index::from_packets(&[packet(i64::MIN + 1, true), packet(i64::MAX, false)]);
        assert_eq!(index.duration, i64::MAX);
    }
}
