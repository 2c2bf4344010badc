//! Which frames of a clip are kept. Pure arithmetic on what is known of the clip and a key.

use serde::{Deserialize, Serialize};

use super::key::{Draws, Purpose, SampleKey};
use super::options::BadOption;

/// Which frames of a clip are kept.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampling {
    /// The middles of `frames` equal parts of the clip.
    #[default]
    Uniform,
    /// One frame of each of `frames` equal parts, keyed by (seed, epoch, sample).
    Jittered {
        /// How much of its part, around the middle, a frame may come from: 0 to 1.
        part: f32,
    },
    /// `frames` frames from one on, `stride` apart: the same in every epoch.
    Window {
        /// First kept frame, from 0.
        start: u32,
        /// Distance of two kept frames, frames.
        stride: u32,
    },
    /// `frames` frames, `stride` apart, from a start keyed by (seed, epoch, sample).
    RandomWindow {
        /// Distance of two kept frames, frames.
        stride: u32,
    },
    /// What is shown at `frames` times, a fixed time apart, whatever the clip's own rate.
    Fps {
        /// Kept frames a second.
        fps: f32,
        /// Where the first time lies.
        #[serde(default)]
        start: Start,
        /// Each time is moved to either side by up to this part of half a distance, keyed by (seed, epoch, sample).
        #[serde(default)]
        jitter: f32,
    },
    /// Frames by their numbers, as many as `frames`; a clip that has not all of them is a bad sample.
    Indices {
        /// The numbers, from 0, never descending.
        at: Vec<u32>,
    },
    /// What is shown at given times, as many as `frames`; a clip that ends before the last is a bad sample.
    Times {
        /// Microseconds after the first frame's time, never descending.
        us: Vec<u64>,
    },
}

/// Where sampling by time begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// At a time after the first frame.
    At {
        /// The time, milliseconds.
        ms: u32,
    },
    /// Anywhere that the whole window fits, keyed by (seed, epoch, sample).
    Random,
}

impl Default for Start {
    fn default() -> Self {
        Start::At { ms: 0 }
    }
}

/// What sampling has to know of a clip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timeline<'a> {
    /// Frames that a full decode shows.
    pub frames: u32,
    /// When each is shown, ascending; empty when the container does not tell, and frames are taken to be equally long.
    pub pts: &'a [i64],
    /// How long all of them are shown.
    pub duration: i64,
    /// Unit of the times, seconds as (numerator, denominator).
    pub time_base: (u32, u32),
    /// Average frame rate, (numerator, denominator); (0, 1) when unknown.
    pub fps: (u32, u32),
}

/// A frame that was asked for and that a clip does not have.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum NotThere {
    /// It has none.
    #[error("the clip has no frames")]
    Empty,
    /// A number beyond its end.
    #[error("frame {index} was asked for and the clip has {frames}, from 0")]
    Index {
        /// The number.
        index: u32,
        /// What there is.
        frames: u32,
    },
    /// A time beyond its end.
    #[error("the frame at {wanted:.3} s was asked for and the clip ends at {end:.3} s")]
    Time {
        /// The time, seconds.
        wanted: f64,
        /// When the clip ends, seconds.
        end: f64,
    },
}

impl Sampling {
    /// Refuses what cannot be served for so many `frames`, naming the option.
    pub(super) fn check(&self, frames: u16) -> Result<(), BadOption> {
        let bad = |option, found: String, wanted| Err(BadOption { option, found, wanted });
        let part = |v: &f32| (0.0..=1.0).contains(v);
        match self {
            Sampling::RandomWindow { stride: 0 } | Sampling::Window { stride: 0, .. } => {
                bad("transform.sampling.stride", "0".into(), "at least 1")
            }
            Sampling::Jittered { part: p } if !part(p) => {
                bad("transform.sampling.part", p.to_string(), "a part from 0 to 1")
            }
            Sampling::Fps { fps, .. } if !(0.001..=10_000.0).contains(fps) => {
                bad("transform.sampling.fps", fps.to_string(), "from 0.001 to 10000 frames a second")
            }
            Sampling::Fps { jitter, .. } if !part(jitter) => {
                bad("transform.sampling.jitter", jitter.to_string(), "a part from 0 to 1")
            }
            Sampling::Indices { at } => check_list("transform.sampling.indices", at, frames),
            Sampling::Times { us } => check_list("transform.sampling.times", us, frames),
            _ => Ok(()),
        }
    }
}

fn check_list<T: PartialOrd>(option: &'static str, list: &[T], frames: u16) -> Result<(), BadOption> {
    if list.len() != usize::from(frames) {
        let found = format!("a list of {} for {frames} frames", list.len());
        return Err(BadOption { option, found, wanted: "one for each of transform.frames" });
    }
    match list.is_sorted() {
        true => Ok(()),
        false => {
            let found = "a list that descends".into();
            Err(BadOption { option, found, wanted: "an ascending list; bring the frames into another order later" })
        }
    }
}

/// Indices of the frames kept, in the order of the output, never descending, `wanted` of them.
///
/// - [`Sampling::Uniform`]: the middles of `wanted` equal parts, `⌊(2i + 1)·frames / 2·wanted⌋`.
/// - [`Sampling::Jittered`]: one frame of each of these parts, those that it may come from equally likely.
/// - [`Sampling::RandomWindow`]: `start + i·stride`, the start uniform over all places where the window fits.
/// - [`Sampling::Window`]: the same from a given start.
/// - [`Sampling::Fps`]: the frames shown at `start + i / fps` after the first frame's time, to the nearest unit of the
///   stream's time base, so that a clip's own rate gives each of its frames.
/// - [`Sampling::Indices`], [`Sampling::Times`]: those.
///
/// But for the last two a clip that is too short gives what it has from its start, and then its last frame again.
pub fn indices(sampling: &Sampling, clip: &Timeline<'_>, wanted: u16, key: &SampleKey) -> Result<Vec<u32>, NotThere> {
    let last = clip.frames.checked_sub(1).ok_or(NotThere::Empty)?;
    let (total, parts) = (u64::from(clip.frames), u64::from(wanted));
    let cut = |place: &mut dyn FnMut(u64) -> u64| (0..parts).map(|i| place(i).min(last.into()) as u32).collect();
    let mut draws = key.draws(Purpose::Sampling);
    Ok(match *sampling {
        Sampling::Uniform | Sampling::Jittered { .. } if total <= parts => cut(&mut |i| i),
        Sampling::Uniform => cut(&mut |i| (2 * i + 1) * total / (2 * parts)),
        Sampling::Jittered { part } => {
            cut(&mut |i| jittered(i * total / parts, (i + 1) * total / parts, part, &mut draws))
        }
        Sampling::Window { start, stride } => cut(&mut |i| u64::from(start) + i * u64::from(stride)),
        Sampling::RandomWindow { stride } => {
            let stride = u64::from(stride);
            let span = parts.saturating_sub(1) * stride + 1;
            let start = draws.below(total.saturating_sub(span) + 1);
            cut(&mut |i| start + i * stride)
        }
        Sampling::Fps { fps, start, jitter } => by_rate(clip, wanted, fps, start, jitter, &mut draws),
        Sampling::Indices { ref at } => match at.iter().find(|&&index| index > last) {
            Some(&index) => return Err(NotThere::Index { index, frames: clip.frames }),
            None => at.clone(),
        },
        Sampling::Times { ref us } => by_time(clip, us)?,
    })
}

/// A frame of `first..end`, from the middle `part` of it.
fn jittered(first: u64, end: u64, part: f32, draws: &mut Draws) -> u64 {
    let len = end - first;
    let may = ((len as f64 * f64::from(part)).round() as u64).clamp(1, len);
    first + (len - may) / 2 + draws.below(may)
}

fn by_rate(clip: &Timeline<'_>, wanted: u16, fps: f32, start: Start, jitter: f32, draws: &mut Draws) -> Vec<u32> {
    let clock = Clock::of(clip);
    let step = clock.units_a_second / f64::from(fps);
    let start = match start {
        Start::At { ms } => f64::from(ms) / 1000.0 * clock.units_a_second,
        Start::Random => draws.part() * (clock.last - step * f64::from(wanted.saturating_sub(1))).max(0.0),
    };
    let mut before = 0;
    let place = |i: u16| {
        let moved = if jitter > 0.0 { (draws.part() - 0.5) * f64::from(jitter) } else { 0.0 };
        // Two frames never change places, whatever the rounding.
        before = clock.shown_at((start + (f64::from(i) + moved) * step).round()).max(before);
        before
    };
    (0..wanted).map(place).collect()
}

fn by_time(clip: &Timeline<'_>, us: &[u64]) -> Result<Vec<u32>, NotThere> {
    let clock = Clock::of(clip);
    let end = clock.end / clock.units_a_second;
    let frame = |&us: &u64| {
        let wanted = us as f64 / 1e6;
        // The last time of a list that was made from the clip's duration may be behind its end by rounding.
        if wanted > end + 1e-6 {
            return Err(NotThere::Time { wanted, end });
        }
        Ok(clock.shown_at((wanted * clock.units_a_second).round()))
    };
    us.iter().map(frame).collect()
}

/// When each frame of a clip is shown, from the first one on.
struct Clock<'a> {
    /// Ascending; empty when unknown.
    pts: &'a [i64],
    units_a_second: f64,
    /// When the last frame begins.
    last: f64,
    /// When it ends.
    end: f64,
    frames: u32,
}

impl Clock<'_> {
    fn of<'a>(clip: &Timeline<'a>) -> Clock<'a> {
        let frames = clip.frames;
        let pts = if clip.pts.len() == frames as usize { clip.pts } else { &[] };
        if let (Some(&first), Some(&last)) = (pts.first(), pts.last()) {
            let units_a_second = f64::from(clip.time_base.1.max(1)) / f64::from(clip.time_base.0.max(1));
            let last = last.saturating_sub(first) as f64;
            return Clock { pts, units_a_second, last, end: f64::max(last, clip.duration as f64), frames };
        }
        // A frame is a unit.
        let rate = f64::from(clip.fps.0) / f64::from(clip.fps.1.max(1));
        let units_a_second = if rate > 0.0 { rate } else { 25.0 };
        Clock { pts, units_a_second, last: f64::from(frames.saturating_sub(1)), end: f64::from(frames), frames }
    }

    /// The last frame that begins no later than a time.
    fn shown_at(&self, time: f64) -> u32 {
        let found = match self.pts.first() {
            None => time as u32,
            Some(first) => {
                let time = first.saturating_add(time as i64);
                self.pts.partition_point(|&at| at <= time).saturating_sub(1) as u32
            }
        };
        found.min(self.frames.saturating_sub(1))
    }
}

#[cfg(test)]
#[path = "sampling_tests.rs"]
mod tests;
