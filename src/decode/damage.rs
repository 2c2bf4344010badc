//! Which frames are made of damaged data.
//!
//! A decoder goes on after an error and conceals it; the frames after it, up to the next key frame, are built on the
//! concealed one without any mark of their own. So damage is remembered by the packet it came with, and a frame
//! counts as damaged when any packet between its key frame and itself was.

use std::collections::VecDeque;

/// Packets remembered, more than any decoder holds back (H.264 and HEVC reorder at most 16 frames).
const MEMORY: usize = 64;

/// What happened to the packets sent so far, in the order they were sent.
#[derive(Debug, Default)]
pub(super) struct Damage {
    sent: u64,
    times: VecDeque<(Option<i64>, u64)>,
    keys: Vec<(u64, Option<i64>)>,
    events: Vec<(u64, String)>,
}

impl Damage {
    /// A packet is about to be sent.
    pub(super) fn sent(&mut self, pts: Option<i64>, key: bool) {
        self.sent += 1;
        self.times.push_back((pts, self.sent));
        if self.times.len() > MEMORY {
            self.times.pop_front();
        }
        if key {
            self.keys.push((self.sent, pts));
        }
    }

    /// The packet sent last is damaged, or could not be decoded.
    pub(super) fn packet(&mut self, reason: impl Into<String>) {
        self.events.push((self.sent, reason.into()));
    }

    /// A frame that came out is damaged.
    pub(super) fn frame(&mut self, pts: Option<i64>, reason: &str) {
        self.events.push((self.packet_of(pts), reason.to_owned()));
    }

    /// The number of the packet that a frame was made of; the last one when the frame cannot be told from others.
    pub(super) fn packet_of(&self, pts: Option<i64>) -> u64 {
        let known = pts.and_then(|_| self.times.iter().rev().find(|&&(t, _)| t == pts));
        known.map_or(self.sent, |&(_, n)| n)
    }

    /// Why the frame made of a packet cannot be trusted, if so. Asked when the decoder has given out all it holds.
    pub(super) fn verdict(&self, packet: u64, pts: Option<i64>) -> Option<&str> {
        // Pictures that lead their key frame may refer to what was before it.
        let protects = |&&(n, time): &&(u64, Option<i64>)| n <= packet && !(pts.is_some() && time > pts);
        let since = self.keys.iter().rev().find(protects).map_or(0, |&(n, _)| n);
        self.events.iter().find(|&&(n, _)| since <= n && n <= packet).map(|(_, reason)| reason.as_str())
    }

    /// The last thing that went wrong.
    pub(super) fn last(&self) -> Option<&str> {
        self.events.last().map(|(_, reason)| reason.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups I0 P3 B1 B2 | I6 B4 B5 P9 in decode order, numbered 1 to 8 as sent.
    fn sent(damaged: u64) -> Damage {
        let mut damage = Damage::default();
        for (i, (pts, key)) in
            [(0, true), (3, false), (1, false), (2, false), (6, true), (4, false), (5, false), (9, false)]
                .into_iter()
                .enumerate()
        {
            damage.sent(Some(pts), key);
            if i as u64 + 1 == damaged {
                damage.packet("bad");
            }
        }
        damage
    }

    fn spoiled(damage: &Damage) -> Vec<i64> {
        [0, 1, 2, 3, 4, 5, 6, 9]
            .into_iter()
            .filter(|&t| damage.verdict(damage.packet_of(Some(t)), Some(t)).is_some())
            .collect()
    }

    #[test]
    fn damage_lasts_until_the_next_key_frame() {
        assert_eq!(spoiled(&sent(0)), Vec::<i64>::new());
        // Frames 4 and 5 lead the second key frame and are built on the first group.
        assert_eq!(spoiled(&sent(2)), [1, 2, 3, 4, 5]);
        assert_eq!(spoiled(&sent(5)), [4, 5, 6, 9]);
        assert_eq!(spoiled(&sent(8)), [9]);
    }

    #[test]
    fn a_frame_that_comes_out_late_spoils_those_before_it() {
        let mut damage = sent(0);
        damage.frame(Some(3), "concealed");
        assert_eq!(spoiled(&damage), [1, 2, 3, 4, 5]);
    }
}
