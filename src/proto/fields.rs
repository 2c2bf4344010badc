//! How the fields of a sample lie in its region.
//!
//! The video comes first, as it does where it is alone. Behind it, from the next line of 64 bytes on, comes the sound:
//! a line that says how much of it there is ([`SoundHead`]), then its numbers, one channel after the other, each with
//! room for the most that the options allow and silence where there is less. So all places follow from the transform and
//! the facts, the regions of a stream whose frames have one size are of one size too, and a batch is one tensor of video
//! and one of sound, each with the region as the stride from sample to sample. Texts are not in the region: every rank has
//! the manifest mapped, which holds them.

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

use super::options::BadOption;

/// Fields begin on a line.
pub const LINE: u64 = 64;

/// Longest sound of a sample, milliseconds: an hour.
const MOST_MS: u32 = 3_600_000;

/// The sound of a sample: that of the time which its frames cover, or all of it where there are no frames.
///
/// Under `uniform` sampling this is the whole clip, otherwise it goes from the first kept frame to the end of the step
/// that the last one stands for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Audio {
    /// Numbers a second and channel, to which it is resampled.
    pub rate: u32,
    /// 1: mixed down to one channel; 2: left and right.
    #[serde(default = "mono")]
    pub channels: u8,
    /// Type of a number.
    #[serde(default)]
    pub number: SoundNumber,
    /// Most milliseconds of a sample: there is room for as much, and what is longer is cut and counted.
    pub max_ms: u32,
    /// What becomes of a sample without sound.
    #[serde(default)]
    pub missing: MissingSound,
}

const fn mono() -> u8 {
    1
}

/// Type of a number of the sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SoundNumber {
    /// −1 to 1.
    #[default]
    F32,
    /// −32768 to 32767.
    I16,
}

impl SoundNumber {
    /// Bytes of one number.
    pub const fn size(self) -> usize {
        match self {
            SoundNumber::F32 => 4,
            SoundNumber::I16 => 2,
        }
    }
}

/// What becomes of a sample without sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingSound {
    /// It is a bad sample.
    #[default]
    Error,
    /// It is silent for as long as its frames last, and says that this was no sound.
    Silence,
}

impl Audio {
    /// Refuses what cannot be done, naming the option.
    pub fn check(&self) -> Result<(), BadOption> {
        let bad = |option, found: u32, wanted| Err(BadOption { option, found: found.to_string(), wanted });
        if !(1000..=384_000).contains(&self.rate) {
            return bad("transform.audio.rate", self.rate, "from 1000 to 384000 a second");
        }
        if !(1..=2).contains(&self.channels) {
            return bad("transform.audio.channels", self.channels.into(), "1 or 2");
        }
        if !(1..=MOST_MS).contains(&self.max_ms) {
            return bad("transform.audio.max_ms", self.max_ms, "from 1 ms to an hour");
        }
        Ok(())
    }

    /// Numbers of a channel that there is room for.
    pub const fn capacity(&self) -> u32 {
        (self.rate as u64 * self.max_ms as u64).div_ceil(1000) as u32
    }

    /// Bytes of all channels.
    pub const fn numbers_bytes(&self) -> u64 {
        self.channels as u64 * self.capacity() as u64 * self.number.size() as u64
    }

    /// Bytes that it takes in a region, from its head on.
    pub const fn bytes(&self) -> u64 {
        size_of::<SoundHead>() as u64 + self.numbers_bytes().next_multiple_of(LINE)
    }
}

/// Where the sound begins in a region, by the bytes of the video before it.
pub const fn sound_at(video: u64) -> u64 {
    video.next_multiple_of(LINE)
}

/// Bytes of a region by those of its video.
pub const fn region_bytes(video: u64, audio: Option<&Audio>) -> u64 {
    match audio {
        Some(audio) => sound_at(video) + audio.bytes(),
        None => video,
    }
}

/// What is said of a sample's sound, in front of its numbers. Whoever reads it holds it against the options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct SoundHead {
    /// When it begins, microseconds on the file's clock.
    pub start_us: i64,
    /// Numbers of a channel that belong to the sample; what is behind them is silence.
    pub samples: u32,
    /// How many of them came out of the file; the others are silence where it had nothing for that time.
    pub sounded: u32,
    /// Numbers of a channel that belong to the sample and had no room.
    pub cut: u32,
    /// Bit 0: the file has no sound at all.
    pub flags: u32,
    /// Zero; room for later.
    pub reserved: [u32; 10],
}

/// Flag of [`SoundHead`]: the file has no sound at all.
pub const SOUND_MISSING: u32 = 1;

impl SoundHead {
    /// Reads the head of a sound; a number that cannot be true is brought into its range.
    pub fn read(bytes: &[u8], audio: &Audio) -> SoundHead {
        let head = bytes.get(..size_of::<SoundHead>()).map(bytemuck::pod_read_unaligned::<SoundHead>);
        let head = head.unwrap_or_default();
        let samples = head.samples.min(audio.capacity());
        SoundHead { samples, sounded: head.sounded.min(samples), ..head }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::transform::{Facts, Layout, Resize, Span, Transform};

    const AUDIO: Audio =
        Audio { rate: 16_000, channels: 2, number: SoundNumber::I16, max_ms: 1500, missing: MissingSound::Error };

    #[test]
    fn the_sound_is_behind_the_video_on_a_line() {
        let resize = Resize::Exact { width: 5, height: 3 };
        let t = Transform { frames: 3, resize, audio: Some(AUDIO), ..Transform::default() };
        let (video, facts) = (3 * 3 * 5 * 3, Facts::default());
        assert_eq!(t.video_bytes(&facts), video);
        assert_eq!(t.max_bytes(&facts), 192 + 64 + 2 * 24_000 * 2);
        assert_eq!(t.max_bytes(&facts) % LINE, 0);
        assert!(t.is_uniform());
        // The part that has the last frame has the sound.
        let place = |first, frames| t.place(&facts, Span { first, frames });
        assert_eq!(place(0, 2), Some((0, 90)));
        assert_eq!(place(2, 1), Some((90, t.max_bytes(&facts) - 90)));
        assert_eq!(place(0, 3), Some((0, t.max_bytes(&facts))));
    }

    #[test]
    fn sound_can_be_alone() {
        let t = Transform { frames: 1, layout: Layout::Sound, audio: Some(AUDIO), ..Transform::default() };
        t.check().expect("it can be done");
        assert_eq!((t.shape(&Facts::default()), t.max_bytes(&Facts::default())), ([1, 0, 0, 0], AUDIO.bytes()));
        let none = Transform { audio: None, ..t.clone() };
        assert_eq!(none.check().expect_err("nothing is left").option, "transform.layout");
        let long = Audio { max_ms: MOST_MS + 1, ..AUDIO };
        let long = Transform { audio: Some(long), ..t };
        assert_eq!(long.check().expect_err("too long").option, "transform.audio.max_ms");
    }

    #[test]
    fn a_head_that_lies_is_brought_into_range() {
        let head = SoundHead { samples: u32::MAX, sounded: u32::MAX, ..SoundHead::default() };
        let read = SoundHead::read(bytemuck::bytes_of(&head), &AUDIO);
        assert_eq!((read.samples, read.sounded), (24_000, 24_000));
        assert_eq!(SoundHead::read(&[], &AUDIO), SoundHead::default());
    }
}
