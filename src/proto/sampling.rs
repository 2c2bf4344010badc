//! Which frames of a clip are kept. Pure arithmetic on the number of frames and a key.

use super::key::{Purpose, SampleKey};
use crate::proto::transform::Sampling;

/// Indices of the frames kept, in the order of the output, never descending; empty when the clip has no frames.
///
/// - [`Sampling::Uniform`]: the middles of `wanted` equal parts, `⌊(2i + 1)·frames / 2·wanted⌋`.
/// - [`Sampling::RandomWindow`]: `start + i·stride`, the start uniform over all places where the window fits.
///
/// A clip that is too short gives what it has from its start, and then its last frame again.
pub fn indices(sampling: Sampling, frames: u32, wanted: u16, key: &SampleKey) -> Vec<u32> {
    let Some(last) = frames.checked_sub(1) else { return Vec::new() };
    let (total, parts) = (u64::from(frames), u64::from(wanted));
    let place: Box<dyn Fn(u64) -> u64> = match sampling {
        Sampling::Uniform if total <= parts => Box::new(|i| i),
        Sampling::Uniform => Box::new(|i| (2 * i + 1) * total / (2 * parts)),
        Sampling::RandomWindow { stride } => {
            let stride = u64::from(stride);
            let span = parts.saturating_sub(1) * stride + 1;
            let places = total.saturating_sub(span) + 1;
            let start = key.draws(Purpose::Sampling).below(places);
            Box::new(move |i| start + i * stride)
        }
    };
    (0..parts).map(|i| place(i).min(u64::from(last)) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: SampleKey = SampleKey::new(1, 0, 9);

    #[test]
    fn uniform_takes_the_middles() {
        assert_eq!(indices(Sampling::Uniform, 100, 4, &KEY), [12, 37, 62, 87]);
        assert_eq!(indices(Sampling::Uniform, 30, 3, &KEY), [5, 15, 25]);
        assert_eq!(indices(Sampling::Uniform, 1000, 1, &KEY), [500]);
    }

    #[test]
    fn short_clips_repeat_the_last_frame() {
        assert_eq!(indices(Sampling::Uniform, 3, 5, &KEY), [0, 1, 2, 2, 2]);
        assert_eq!(indices(Sampling::Uniform, 4, 4, &KEY), [0, 1, 2, 3]);
        assert_eq!(indices(Sampling::Uniform, 1, 3, &KEY), [0, 0, 0]);
        assert_eq!(indices(Sampling::RandomWindow { stride: 4 }, 6, 4, &KEY), [0, 4, 5, 5]);
        assert!(indices(Sampling::Uniform, 0, 4, &KEY).is_empty());
    }

    #[test]
    fn every_start_of_a_window_occurs() {
        let mut seen = [0u32; 4];
        for sample in 0..400 {
            let key = SampleKey::new(5, 1, sample);
            seen[indices(Sampling::RandomWindow { stride: 2 }, 10, 4, &key)[0] as usize] += 1;
        }
        assert!(seen.iter().all(|&n| n > 60), "{seen:?}");
    }

    proptest! {
        #[test]
        fn indices_are_in_range_and_ascend(
            frames in 1u32..100_000, wanted in 1u16..200, stride in 1u32..5000, sample: u64, uniform: bool,
        ) {
            let sampling = if uniform { Sampling::Uniform } else { Sampling::RandomWindow { stride } };
            let key = SampleKey::new(3, 4, sample);
            let got = indices(sampling, frames, wanted, &key);
            prop_assert_eq!(got.len(), usize::from(wanted));
            prop_assert!(got.windows(2).all(|w| w[0] <= w[1]));
            prop_assert!(got.iter().all(|&i| i < frames));
            prop_assert_eq!(&got, &indices(sampling, frames, wanted, &key));
            if u64::from(frames) > u64::from(wanted - 1) * u64::from(stride) && !uniform {
                prop_assert!(got.windows(2).all(|w| w[1] - w[0] == stride));
            }
        }
    }
}
