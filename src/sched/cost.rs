//! What a sample costs before anything was measured: the frozen priors.
//!
//! They alone decide who receives a sample, so they are a pure function of descriptor and options. The unit of a
//! decode prior is the millisecond of one core.

use super::tokens;
use crate::proto::options::{Profile, StreamOptions};
use crate::proto::transform::{Codec, Facts, Layout, Sampling, Start, Transform};

/// What it takes to make a sample of a clip: the quantities that decoding time depends on.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// Class of the codec.
    pub codec: Codec,
    /// Frames that go through the decoder, given the sampling and the key frames.
    pub frames: f64,
    /// Frames that are kept.
    pub kept: f64,
    /// Megapixels of a frame of the clip.
    pub megapixels: f64,
    /// Megabytes of the clip.
    pub megabytes: f64,
    /// Megapixels of the output, all frames together.
    pub output: f64,
}

impl Work {
    /// The work that `transform` makes of a clip.
    pub fn of(facts: &Facts, transform: &Transform) -> Work {
        let output: f64 = transform.extent(facts).map(f64::from).iter().product();
        // Pages are no frames: a row of a dataset of the user's own has as many as are decoded.
        let kept = match transform.layout {
            Layout::Pages => facts.frames.max(1),
            _ => u32::from(transform.frames).min(facts.frames.max(1)),
        };
        Work {
            codec: facts.codec,
            frames: if transform.layout == Layout::Pages { kept.into() } else { decoded(facts, transform) },
            kept: kept.into(),
            megapixels: f64::from(facts.width) * f64::from(facts.height) / 1e6,
            megabytes: facts.bytes as f64 / 1e6,
            output: output / 1e6,
        }
    }

    /// A part of it; opening the clip is not shared.
    pub fn share(&self, part: f64) -> Work {
        let Work { codec, frames, kept, megapixels, megabytes, output } = *self;
        let [frames, kept, megabytes, output] = [frames, kept, megabytes, output].map(|n| n * part);
        Work { codec, frames, kept, megapixels, megabytes, output }
    }

    /// It and more of the same clip, opened once.
    #[must_use]
    pub fn and(&self, more: &Work) -> Work {
        Work {
            frames: self.frames + more.frames,
            kept: self.kept + more.kept,
            megabytes: self.megabytes + more.megabytes,
            output: self.output + more.output,
            ..*self
        }
    }

    /// Milliseconds on one core, by measurements of one EPYC thread with H.264: 20 ms to open, .1 ms and 2.6 ms a
    /// megapixel for each frame decoded, 1 ms a megapixel to scale each frame kept.
    pub fn prior_ms(&self) -> f64 {
        20.0 + self.frames * (0.1 + 2.6 * self.megapixels) + self.kept * self.megapixels
    }
}

/// Frames that must be decoded. A reader that knows the key frames seeks where that saves frames; their places are
/// not known here, only how many there are, so they are taken to be evenly spread.
fn decoded(facts: &Facts, transform: &Transform) -> f64 {
    let frames = u64::from(facts.frames.max(1));
    let interval = match u64::from(facts.keyframes) {
        0 => frames,
        keys => frames.div_ceil(keys),
    };
    let wanted = u64::from(transform.frames);
    // Frames of the clip a second, for what goes by time.
    let rate = || f64::from(facts.frames) * 1000.0 / f64::from(facts.duration_ms.max(1));
    let sum = |at: &mut dyn Iterator<Item = u64>| at_places(at, frames, interval) as f64;
    match &transform.sampling {
        // A short clip is taken as it is; the same number of frames on average where they are jittered.
        Sampling::Uniform | Sampling::Jittered { .. } => {
            sum(&mut (0..wanted).map(|i| (2 * i + 1) * frames / (2 * wanted)))
        }
        Sampling::Window { start, stride } => {
            sum(&mut (0..wanted).map(|i| u64::from(*start) + i * u64::from(*stride)))
        }
        Sampling::RandomWindow { stride } => window(f64::from(*stride), wanted, frames, interval),
        Sampling::Fps { fps, start: Start::Random, .. } => window(rate() / f64::from(*fps), wanted, frames, interval),
        Sampling::Fps { fps, start: Start::At { ms }, .. } => {
            let (first, step) = (f64::from(*ms) / 1000.0 * rate(), rate() / f64::from(*fps));
            sum(&mut (0..wanted).map(|i| (first + i as f64 * step) as u64))
        }
        Sampling::Indices { at } => sum(&mut at.iter().map(|&at| at.into())),
        Sampling::Times { us } => sum(&mut us.iter().map(|&us| (us as f64 / 1e6 * rate()) as u64)),
    }
}

/// Frames that are decoded to reach ascending places, with a key frame every `interval` frames.
fn at_places(places: &mut dyn Iterator<Item = u64>, frames: u64, interval: u64) -> u64 {
    let mut total = 0;
    let mut next = 0; // the frame after the last one decoded
    for at in places {
        let at = at.min(frames - 1);
        if at + 1 > next {
            total += (at + 1 - next).min(at % interval + 1);
            next = at + 1;
        }
    }
    total
}

/// Frames that are decoded for a window whose start is random: on average half an interval before the first one.
fn window(stride: f64, wanted: u64, frames: u64, interval: u64) -> f64 {
    let span = (1.0 + wanted.saturating_sub(1) as f64 * stride).min(frames as f64);
    let lead = ((interval - 1) as f64 / 2.0).min((frames as f64 - span) / 2.0);
    let through = lead + span;
    let each = (interval + 1) as f64 / 2.0;
    through.min(wanted.min(frames) as f64 * each)
}

/// The profile's tokens of a sample: 1 where all are alike, milliseconds of decoding where that is what counts.
pub fn tokens_of(profile: Profile, facts: &Facts, transform: &Transform, work: &Work) -> f64 {
    match profile {
        Profile::Equal => 1.0,
        Profile::Decode => work.prior_ms(),
        Profile::Tokens { model, .. } => tokens::tokens(model, facts, transform) as f64,
        Profile::Own { formula, .. } => tokens::own(&formula, facts) as f64,
    }
}

/// What a sample costs the rank that receives it, in the profile's unit.
pub fn profile_cost(profile: Profile, facts: &Facts, transform: &Transform, work: &Work) -> f64 {
    profile.cost(tokens_of(profile, facts, transform, work))
}

/// [`Work`] and [`profile_cost`] of a clip under a stream's options.
pub fn appraise(facts: &Facts, options: &StreamOptions) -> (Work, f64) {
    let work = Work::of(facts, &options.transform);
    (work, profile_cost(options.profile, facts, &options.transform, &work))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::options::Model;

    fn clip(frames: u32, keyframes: u32) -> Facts {
        Facts { frames, keyframes, width: 1280, height: 720, duration_ms: frames * 40, ..Facts::default() }
    }

    fn transform(frames: u16, sampling: Sampling) -> Transform {
        Transform { frames, sampling, ..Transform::default() }
    }

    #[test]
    fn key_frames_save_decoding() {
        let four = transform(4, Sampling::Uniform);
        // Frames 31, 93, 156, 218 of 250. One key frame: all up to the last.
        assert_eq!(decoded(&clip(250, 1), &four), 219.0);
        assert_eq!(decoded(&clip(250, 0), &four), 219.0);
        // Ten key frames, 25 apart: 31−25+1, 93−75+1, 156−150+1, 218−200+1.
        assert_eq!(decoded(&clip(250, 10), &four), 7.0 + 19.0 + 7.0 + 19.0);
        // Every frame a key frame.
        assert_eq!(decoded(&clip(250, 250), &four), 4.0);
    }

    #[test]
    fn no_more_is_decoded_than_there_is() {
        for frames in [1, 2, 7, 300] {
            for keys in [0, 1, 5, 400] {
                for wanted in [1, 16, 512] {
                    for sampling in [
                        Sampling::Uniform,
                        Sampling::RandomWindow { stride: 4 },
                        Sampling::Window { start: 5, stride: 4 },
                        Sampling::Fps { fps: 7.0, start: Start::Random, jitter: 0.0 },
                        Sampling::Fps { fps: 0.3, start: Start::At { ms: 900 }, jitter: 0.0 },
                        Sampling::Times { us: (0..wanted).map(|i| u64::from(i) * 70_000).collect() },
                    ] {
                        let n = decoded(&clip(frames, keys), &transform(wanted, sampling));
                        assert!((1.0..=f64::from(frames)).contains(&n), "{n} of {frames}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_window_costs_its_span_and_the_lead() {
        let window = transform(16, Sampling::RandomWindow { stride: 4 });
        assert_eq!(decoded(&clip(300, 10), &window), 61.0 + 14.5);
    }

    #[test]
    fn places_cost_their_way_from_the_key_frame_before() {
        let places = |at: &[u32]| transform(at.len() as u16, Sampling::Indices { at: at.to_vec() });
        // A key frame every 30: 6 and then 2 more, 1, and 30 for the last of a group.
        assert_eq!(decoded(&clip(300, 10), &places(&[5, 7, 7, 30, 59])), 6.0 + 2.0 + 1.0 + 29.0);
    }

    #[test]
    fn the_prior_follows_the_measured_figures() {
        // A 1080p frame takes 4.66 ms of decoding and about 2 ms of scaling; 340×256 takes .3 ms.
        let all = transform(300, Sampling::Uniform);
        let big = Work::of(&Facts { width: 1920, height: 1080, ..clip(300, 3) }, &all);
        assert!((big.prior_ms() / 300.0 - 7.5).abs() < 0.8, "{}", big.prior_ms() / 300.0);
        let small = Work::of(&Facts { width: 340, height: 256, ..clip(300, 3) }, &all);
        assert!((small.prior_ms() / 300.0 - 0.5).abs() < 0.15);
    }

    #[test]
    fn tokens_weigh_quadratically_where_asked() {
        let t = Transform::default();
        let facts = clip(250, 5);
        let work = Work::of(&facts, &t);
        let cost =
            |quadratic| profile_cost(Profile::Tokens { model: Model::LlavaVideo, quadratic }, &facts, &t, &work);
        assert_eq!(cost(0.0), 2100.0);
        assert_eq!(cost(0.5), 2100.0 + 0.5 * 2100.0 * 2100.0);
        assert_eq!(profile_cost(Profile::Equal, &facts, &t, &work), 1.0);
        // Divided attention: 196·T² and T·197² pairs for the 16 frames kept.
        let divided = Profile::Tokens { model: Model::TimeSformer, quadratic: 1.0 };
        let pairs = 196.0 * 16.0 * 16.0 + 16.0 * 197.0 * 197.0;
        assert_eq!(profile_cost(divided, &facts, &t, &work), 16.0 * 196.0 + 1.0 + pairs);
    }
}
