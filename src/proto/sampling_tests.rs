use super::*;
use proptest::prelude::*;

const KEY: SampleKey = SampleKey::new(1, 0, 9);

fn even(frames: u32) -> Timeline<'static> {
    Timeline { frames, pts: &[], duration: 0, time_base: (1, 1000), fps: (10, 1) }
}

fn of(sampling: Sampling, frames: u32, wanted: u16, key: &SampleKey) -> Vec<u32> {
    indices(&sampling, &even(frames), wanted, key).expect("frames")
}

#[test]
fn uniform_takes_the_middles() {
    assert_eq!(of(Sampling::Uniform, 100, 4, &KEY), [12, 37, 62, 87]);
    assert_eq!(of(Sampling::Uniform, 30, 3, &KEY), [5, 15, 25]);
    assert_eq!(of(Sampling::Uniform, 1000, 1, &KEY), [500]);
}

#[test]
fn short_clips_repeat_the_last_frame() {
    assert_eq!(of(Sampling::Uniform, 3, 5, &KEY), [0, 1, 2, 2, 2]);
    assert_eq!(of(Sampling::Uniform, 4, 4, &KEY), [0, 1, 2, 3]);
    assert_eq!(of(Sampling::Uniform, 1, 3, &KEY), [0, 0, 0]);
    assert_eq!(of(Sampling::Jittered { part: 1.0 }, 2, 3, &KEY), [0, 1, 1]);
    assert_eq!(of(Sampling::RandomWindow { stride: 4 }, 6, 4, &KEY), [0, 4, 5, 5]);
    assert_eq!(of(Sampling::Window { start: 4, stride: 3 }, 12, 4, &KEY), [4, 7, 10, 11]);
    assert_eq!(indices(&Sampling::Uniform, &even(0), 4, &KEY), Err(NotThere::Empty));
}

#[test]
fn every_start_of_a_window_occurs() {
    let mut seen = [0u32; 4];
    for sample in 0..400 {
        let key = SampleKey::new(5, 1, sample);
        seen[of(Sampling::RandomWindow { stride: 2 }, 10, 4, &key)[0] as usize] += 1;
    }
    assert!(seen.iter().all(|&n| n > 60), "{seen:?}");
}

#[test]
fn jitter_stays_in_its_part_and_reaches_all_of_it() {
    let mut seen = [0u32; 10];
    for sample in 0..300 {
        let got = of(Sampling::Jittered { part: 1.0 }, 10, 3, &SampleKey::new(5, 1, sample));
        assert!(got[0] < 3 && (3..6).contains(&got[1]) && (6..10).contains(&got[2]), "{got:?}");
        got.iter().for_each(|&i| seen[i as usize] += 1);
        let got = of(Sampling::Jittered { part: 0.5 }, 40, 2, &SampleKey::new(5, 1, sample));
        assert!((5..15).contains(&got[0]) && (25..35).contains(&got[1]), "{got:?}");
    }
    assert!(seen.iter().all(|&n| n > 40), "{seen:?}");
}

/// Frames at .0 .1 .15 .5 .52 and 1 s, in units of 1/1000 s, the first at 7 s.
const UNEVEN: Timeline<'static> = Timeline {
    frames: 6,
    pts: &[7000, 7100, 7150, 7500, 7520, 8000],
    duration: 1100,
    time_base: (1, 1000),
    fps: (0, 1),
};

fn at_rate(fps: f32, frames: u16, start: Start, jitter: f32, key: &SampleKey) -> Vec<u32> {
    indices(&Sampling::Fps { fps, start, jitter }, &UNEVEN, frames, key).expect("frames")
}

#[test]
fn by_rate_comes_what_is_shown_then() {
    assert_eq!(at_rate(10.0, 11, Start::default(), 0.0, &KEY), [0, 1, 2, 2, 2, 3, 4, 4, 4, 4, 5]);
    assert_eq!(at_rate(4.0, 3, Start::At { ms: 300 }, 0.0, &KEY), [2, 4, 4]);
    assert_eq!(at_rate(2.0, 4, Start::default(), 0.0, &KEY), [0, 3, 5, 5], "a short clip repeats its last frame");
    // 30000/1001 frames a second in the two time bases that containers use for it, an hour long.
    for (unit, den) in [(1001, 30_000), (3003, 90_000)] {
        let pts: Vec<i64> = (0..108_000).map(|i| i * unit).collect();
        let clip = Timeline { frames: 108_000, pts: &pts, duration: 0, time_base: (1, den), fps: (0, 1) };
        let fps = 30_000.0 / 1001.0;
        for ms in [0, 1_000_000, 3_000_000] {
            let own = Sampling::Fps { fps, start: Start::At { ms }, jitter: 0.0 };
            let got = indices(&own, &clip, 300, &KEY).unwrap();
            assert!(got.windows(2).all(|w| w[1] == w[0] + 1), "a clip's own rate gives each of its frames: {got:?}");
        }
    }
    assert_eq!(
        of(Sampling::Fps { fps: 5.0, start: Start::At { ms: 400 }, jitter: 0.0 }, 12, 5, &KEY),
        [4, 6, 8, 10, 11]
    );
}

#[test]
fn random_times_are_keyed_and_ascend() {
    let mut firsts = std::collections::HashSet::new();
    for sample in 0..200 {
        let key = SampleKey::new(1, 0, sample);
        let got = at_rate(8.0, 4, Start::Random, 1.0, &key);
        assert!(got.windows(2).all(|w| w[0] <= w[1]) && got.iter().all(|&i| i < 6), "{got:?}");
        assert_eq!(got, at_rate(8.0, 4, Start::Random, 1.0, &key));
        firsts.insert(got[0]);
    }
    assert!(firsts.len() >= 4, "{firsts:?}");
}

#[test]
fn lists_are_taken_as_they_are_or_refused() {
    let list = |at: &[u32]| Sampling::Indices { at: at.to_vec() };
    assert_eq!(of(list(&[0, 3, 3, 9]), 10, 4, &KEY), [0, 3, 3, 9]);
    let beyond = indices(&list(&[0, 10]), &even(10), 2, &KEY);
    assert_eq!(beyond, Err(NotThere::Index { index: 10, frames: 10 }));
    let times = |us: &[u64]| indices(&Sampling::Times { us: us.to_vec() }, &UNEVEN, us.len() as u16, &KEY);
    // What is shown from .15 s on is shown until .5 s.
    assert_eq!(times(&[0, 99_999, 100_000, 499_000, 500_000, 1_100_000]), Ok(vec![0, 1, 1, 2, 3, 5]));
    assert!(matches!(times(&[1_200_000]), Err(NotThere::Time { .. })));
    assert!(list(&[1, 2]).check(2).is_ok());
    for (bad, words) in [(list(&[1, 2, 3]), "a list of 3 for 2"), (list(&[2, 1]), "descends")] {
        assert!(bad.check(2).unwrap_err().to_string().contains(words), "{bad:?}");
    }
}

#[test]
fn options_that_cannot_be_served_are_named() {
    for (bad, option) in [
        (Sampling::Window { start: 0, stride: 0 }, "transform.sampling.stride"),
        (Sampling::Jittered { part: 1.5 }, "transform.sampling.part"),
        (Sampling::Fps { fps: 0.0, start: Start::Random, jitter: 0.0 }, "transform.sampling.fps"),
        (Sampling::Fps { fps: f32::NAN, start: Start::Random, jitter: 0.0 }, "transform.sampling.fps"),
        (Sampling::Fps { fps: 1.0, start: Start::Random, jitter: -1.0 }, "transform.sampling.jitter"),
    ] {
        assert_eq!(bad.check(4).unwrap_err().option, option);
    }
}

proptest! {
    #[test]
    fn indices_are_in_range_and_ascend(
        frames in 1u32..100_000, wanted in 1u16..200, stride in 1u32..5000, sample: u64, which in 0usize..5,
        part in 0.0f32..=1.0, fps in 0.01f32..200.0, start in 0u32..200_000,
    ) {
        let sampling = [
            Sampling::Uniform,
            Sampling::Jittered { part },
            Sampling::Window { start, stride },
            Sampling::RandomWindow { stride },
            Sampling::Fps { fps, start: if start % 2 == 0 { Start::Random } else { Start::At { ms: start } }, jitter: part },
        ][which].clone();
        let key = SampleKey::new(3, 4, sample);
        let got = of(sampling.clone(), frames, wanted, &key);
        prop_assert_eq!(got.len(), usize::from(wanted));
        prop_assert!(got.windows(2).all(|w| w[0] <= w[1]));
        prop_assert!(got.iter().all(|&i| i < frames));
        prop_assert_eq!(&got, &of(sampling, frames, wanted, &key));
        if u64::from(frames) > u64::from(wanted - 1) * u64::from(stride) && which == 3 {
            prop_assert!(got.windows(2).all(|w| w[1] - w[0] == stride));
        }
    }
}
