//! The time of a sample: what its frames cover, or all that there is.

use crate::decode::Request;
use crate::proto::transform::{Layout, Sampling};

/// A time as so many units, each of (numerator, denominator) seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) ticks: i64,
    pub(super) unit: (u32, u32),
}

impl Moment {
    /// The same as a number of samples at a rate, to the nearest one.
    pub(super) fn samples(self, rate: u32) -> i64 {
        let (num, den) = (i128::from(self.unit.0), i128::from(self.unit.1.max(1)));
        nearest(i128::from(self.ticks) * num * i128::from(rate), den)
    }
}

/// A fraction to the nearest whole number, half up.
pub(super) fn nearest(num: i128, den: i128) -> i64 {
    (2 * num + den).div_euclid(2 * den).clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// From when to when; `None` for all of the sound.
pub(super) fn window(request: &Request<'_>, start_us: i64) -> Option<(Moment, Moment)> {
    let Request { descriptor: d, transform, key, .. } = request;
    if transform.layout == Layout::Sound {
        return None;
    }
    let moment = |ticks| Moment { ticks, unit: d.time_base };
    // Where the container does not tell the frames' times they are taken to be even.
    let first = || {
        let (num, den) = (i128::from(d.time_base.1), i128::from(d.time_base.0.max(1)) * 1_000_000);
        nearest(i128::from(start_us) * num, den)
    };
    let begin = d.pts.first().copied().unwrap_or_else(first);
    let end = begin.saturating_add(d.duration.max(0));
    let at = |frame: u32| match d.pts.get(frame as usize) {
        Some(&pts) => pts,
        None if frame >= d.frames => end,
        None => begin + nearest(i128::from(d.duration.max(0)) * i128::from(frame), i128::from(d.frames.max(1))),
    };
    if matches!(transform.sampling, Sampling::Uniform | Sampling::Jittered { .. }) {
        return Some((moment(begin), moment(end)));
    }
    // Frames that the clip does not have are an error of the frames' decoder.
    let wanted = transform.wanted(&d.timeline(), key).unwrap_or_default();
    let (Some(&from), Some(&to)) = (wanted.first(), wanted.last()) else {
        return Some((moment(begin), moment(begin)));
    };
    // The last frame stands for a step as the others do; one that is repeated because the clip is short for one frame.
    let step = match transform.sampling {
        Sampling::RandomWindow { stride } | Sampling::Window { stride, .. } => stride,
        _ => wanted.get(1).map_or(1, |second| second - from),
    };
    let until = if to == d.frames.saturating_sub(1) { end } else { at(to.saturating_add(step.max(1))).min(end) };
    Some((moment(at(from)), moment(until.max(at(from)))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::SampleKey;
    use crate::decode::testing::EMPTY;
    use crate::manifest::descriptor::Descriptor;
    use crate::proto::transform::Transform;

    #[test]
    fn a_window_goes_from_the_first_frame_to_the_end_of_the_last_step() {
        let pts: Vec<i64> = (0..30).map(|i| 200 + 100 * i).collect();
        let d = Descriptor { pts: &pts, frames: 30, duration: 3000, time_base: (1, 1000), ..EMPTY };
        let window = |frames, sampling, sample| {
            let t = Transform { frames, sampling, ..Transform::default() };
            let request = Request::whole(d, &t, SampleKey::new(0, 0, sample));
            let first = t.wanted(&d.timeline(), &request.key).unwrap()[0];
            let (a, b) = window(&request, 0).expect("a window");
            (i64::from(first), a.ticks, b.ticks)
        };
        assert_eq!(window(4, Sampling::Uniform, 0), (3, 200, 3200));
        for sample in 0..50 {
            let (first, from, to) = window(4, Sampling::RandomWindow { stride: 2 }, sample);
            assert_eq!((from, to), (200 + 100 * first, (200 + 100 * (first + 8)).min(3200)), "{first}");
        }
        assert_eq!(window(40, Sampling::RandomWindow { stride: 2 }, 0), (0, 200, 3200));
    }

    #[test]
    fn without_times_frames_are_even() {
        let d = Descriptor { frames: 10, duration: 90_000, time_base: (1, 90_000), ..EMPTY };
        let t = Transform { frames: 5, sampling: Sampling::RandomWindow { stride: 2 }, ..Transform::default() };
        let request = Request::whole(d, &t, SampleKey::new(0, 0, 0));
        let first = i64::from(t.wanted(&d.timeline(), &request.key).unwrap()[0]);
        let (from, to) = window(&request, 1_600_000).expect("a window");
        assert_eq!((from.ticks, to.ticks), (144_000 + 9000 * first, 144_000 + 90_000.min(9000 * (first + 10))));
        assert_eq!((from.samples(16_000), to.ticks > from.ticks), (25_600 + 1600 * first, true));
    }
}
