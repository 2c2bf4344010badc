//! Decoding that only takes its time: for load tests of everything around it, with any number of workers on few cores.
//!
//! A row whose container is [`CONTAINER`] says in its text how many microseconds it takes, and behind a space how many
//! milliseconds the clip really lasts, if that is not what the row says; the worker sleeps for the former, reports the
//! latter, and writes the numbers that a decoder would have written. Everything else (reading, placing, telling) is as always.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Actual, Decoder, Input, Outcome, Request, SampleError, Stage};
use crate::proto::fields::{Audio, sound_at};

/// Container of the rows that are emulated.
pub const CONTAINER: &str = "emulated";
/// Whoever asks for more has made a mistake.
const MOST: Duration = Duration::from_secs(600);

/// See the head of the file.
#[derive(Debug, Default)]
pub struct Emulated;

impl Decoder for Emulated {
    fn decode(&mut self, _input: &Input, request: &Request<'_>, out: &mut [u8]) -> Result<Outcome, SampleError> {
        let begun = Instant::now();
        let d = &request.descriptor;
        let (time, lasts) = text(d.text).ok_or_else(|| {
            let what = format!(
                "its text is `{}`; wanted microseconds up to {}, and perhaps the clip's milliseconds",
                d.text,
                MOST.as_micros()
            );
            SampleError::new(Stage::Demux, what)
        })?;
        let facts = d.facts();
        let actual = lasts.filter(|ms| *ms != facts.duration_ms).map(|duration_ms| Actual {
            frames: facts.frames,
            duration_ms,
            shown: (facts.width, facts.height),
        });
        let shape = request.transform.shape(&facts);
        let (_, bytes) = request.transform.place(&facts, request.span).ok_or_else(|| {
            SampleError::new(
                Stage::Transform,
                "it is to be made in parts, and its frames are not apart from each other",
            )
        })?;
        // A part takes its share.
        let share = f64::from(request.span.frames) / f64::from(request.transform.frames.max(1));
        let time = time.mul_f64(share.min(1.0));
        let found = out.len();
        let room = usize::try_from(bytes).ok().and_then(|bytes| out.get_mut(..bytes));
        let room = room.ok_or_else(|| {
            SampleError::new(Stage::Transform, format!("its place has {found} bytes; wanted {bytes}"))
        })?;
        room.fill(d.row as u8);
        if let Some((from, audio)) = sound_of(request) {
            room[from..].fill(0);
            debug_assert_eq!((room.len() - from) as u64, audio.bytes());
        }
        sleep(time.saturating_sub(begun.elapsed()));
        Ok(Outcome { written: bytes, shape, frames_decoded: d.frames, actual })
    }
}

/// Where the sound begins in the place of a request, if it is the request's to make: the part with the last frame has it.
pub(super) fn sound_of<'a>(request: &Request<'a>) -> Option<(usize, &'a Audio)> {
    let Request { descriptor, transform, span, .. } = request;
    let audio = transform.audio.as_ref().filter(|_| span.end() == u32::from(transform.frames))?;
    let facts = descriptor.facts();
    let (part, _) = transform.place(&facts, *span)?;
    let from = sound_at(transform.video_bytes(&facts)) - part;
    Some((usize::try_from(from).ok()?, audio))
}

/// Time to take, and milliseconds of the clip.
fn text(text: &str) -> Option<(Duration, Option<u32>)> {
    let (time, lasts) = text.split_once(' ').map_or((text, None), |(time, lasts)| (time, Some(lasts)));
    let time = time.parse().map(Duration::from_micros).ok().filter(|t| *t <= MOST)?;
    let Some(lasts) = lasts else { return Some((time, None)) };
    Some((time, Some(lasts.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Decoders, SampleKey};
    use crate::manifest::Record;
    use crate::proto::transform::{Resize, Transform};

    fn made(text: &str, room: usize) -> Result<(Outcome, Duration, Vec<u8>), SampleError> {
        let clip = Record {
            container: CONTAINER.into(),
            text: text.into(),
            frames: 10,
            coded_width: 64,
            coded_height: 48,
            ..Record::default()
        };
        let resize = Resize::Exact { width: 4, height: 4 };
        let transform = Transform { frames: 2, resize, ..Transform::default() };
        let request = Request::whole(clip.descriptor(7), &transform, SampleKey::new(0, 0, 7));
        let mut out = vec![0; room];
        let begun = Instant::now();
        let outcome = Decoders::new().decode(&Input::from_bytes(Vec::new()), &request, &mut out)?;
        Ok((outcome, begun.elapsed(), out))
    }

    #[test]
    fn it_takes_the_time_and_writes_the_bytes_that_the_transform_makes() {
        let (outcome, took, out) = made("20000", 100).expect("a sample");
        assert_eq!((outcome.written, outcome.frames_decoded), (2 * 3 * 4 * 4, 10));
        assert!(took >= Duration::from_millis(20));
        assert_eq!(outcome.actual, None);
        let (longer, ..) = made("1 700", 100).expect("a sample");
        assert_eq!(longer.actual, Some(Actual { frames: 10, duration_ms: 700, shown: (64, 48) }));
        assert!(out[..96].iter().all(|b| *b == 7) && out[96..] == [0; 4]);
    }

    #[test]
    fn what_it_cannot_do_is_an_error() {
        for (text, room, stage) in [
            ("", 100, Stage::Demux),
            ("9999999999", 100, Stage::Demux),
            ("1", 95, Stage::Transform),
            ("1 x", 100, Stage::Demux),
        ] {
            assert_eq!(made(text, room).expect_err("it cannot be done").stage, stage);
        }
    }
}
