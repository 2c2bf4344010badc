//! The line of time on which frames of sound are laid, and the resampler at its end.

use super::super::ffi::sound::{Planes, Swr};
use super::window::{Moment, nearest};
use crate::proto::fields::{Audio, SoundHead, SoundNumber};

/// Sound before and behind the window that the resampler gets to see, in numbers of the source; its filter is shorter.
const CONTEXT: i64 = 512;
/// Silence is fed in pieces.
const QUIET: usize = 4096;
/// Times that differ by less are those of one stream whose container rounds them, milliseconds.
const JITTER_MS: u32 = 2;

/// Numbers at a rate between two moments.
pub(super) fn wanted((from, to): (Moment, Moment), rate: u32) -> u64 {
    let ticks = to.ticks.saturating_sub(from.ticks);
    Moment { ticks, ..from }.samples(rate).max(0).unsigned_abs()
}

/// See the head of the file.
pub(super) struct Line<'o> {
    audio: &'o Audio,
    window: Option<(Moment, Moment)>,
    /// Where the track ends.
    end: Option<Moment>,
    out: &'o mut [u8],
    begun: Option<Begun>,
    quiet: Vec<f32>,
}

/// What is known once a first frame has told the rate.
struct Begun {
    rate: u32,
    swr: Swr,
    /// Positions on the line, numbers of the source since time 0: where feeding starts, the window, where it ends.
    from: i64,
    start: i64,
    until: i64,
    last: i64,
    /// What is fed next.
    next: i64,
    /// Numbers of the source in the window that came out of the file.
    sounded: i64,
    /// Numbers of a channel to be written, and those that are.
    samples: usize,
    written: usize,
    /// All that the window has, room or not; unknown while it goes to the end of the stream.
    total: Option<u64>,
}

impl<'o> Line<'o> {
    pub(super) fn new(
        audio: &'o Audio,
        window: Option<(Moment, Moment)>,
        end: Option<Moment>,
        out: &'o mut [u8],
    ) -> Line<'o> {
        Line { audio, window, end, out, begun: None, quiet: vec![0.0; QUIET] }
    }

    pub(super) fn channels(&self) -> u8 {
        self.audio.channels
    }

    /// Channels to which a frame of so many is mixed.
    pub(super) fn mixed_channels(&self, have: u32) -> u8 {
        if have == 1 { 1 } else { self.audio.channels }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Whether nothing more is needed.
    pub(super) fn is_full(&self) -> bool {
        self.begun.as_ref().is_some_and(|b| b.next >= b.last)
    }

    /// Whether a moment is in the window, as far as that is known.
    pub(super) fn covers(&self, at: Moment) -> bool {
        self.begun.as_ref().is_none_or(|b| (b.from..b.until).contains(&at.samples(b.rate)))
    }

    /// Lays planes of a frame at their time, or behind the frame before.
    pub(super) fn lay(&mut self, at: Option<Moment>, rate: u32, planes: &[&[f32]]) -> Result<(), String> {
        if self.begun.is_none() {
            let first = at.map_or(0, |at| at.samples(rate));
            self.begun = Some(self.begin(first, rate)?);
        }
        let Some(b) = &mut self.begun else { return Ok(()) };
        if rate != b.rate {
            return Err(format!("its rate changes from {} to {rate} Hz, which is not done", b.rate));
        }
        let count = planes.first().map_or(0, |plane| plane.len()) as i64;
        let mut start = at.map_or(b.next, |at| at.samples(rate));
        // A time before feeding starts tells how much of the frame is before it, so it is taken as it is.
        if (start - b.next).unsigned_abs() <= u64::from(rate * JITTER_MS / 1000) && b.next > b.from {
            start = b.next;
        }
        let (from, to) = (start.max(b.next), (start + count).min(b.last));
        if from >= to {
            return Ok(());
        }
        let gap = from - b.next;
        self.feed_quiet(gap)?;
        let cut: Vec<&[f32]> = planes.iter().map(|p| &p[(from - start) as usize..(to - start) as usize]).collect();
        self.feed(&cut)?;
        if let Some(b) = &mut self.begun {
            b.sounded += (to.min(b.until) - from.max(b.start)).max(0);
        }
        Ok(())
    }

    fn begin(&self, first: i64, rate: u32) -> Result<Begun, String> {
        let Audio { rate: to, channels, number, .. } = *self.audio;
        let room = self.audio.capacity() as usize;
        let planes = planes(number);
        let open = |e| format!("{rate} to {to} Hz: {e}");
        let mut swr = Swr::rate(channels.into(), rate, to, planes).map_err(open)?;
        let end = self.end.map_or(i64::MAX / 4, |end| end.samples(rate));
        let source = |samples: usize| nearest(samples as i128 * i128::from(rate), to.into());
        let (start, samples, total, until) = match self.window {
            Some((from, until)) => {
                let total = wanted((from, until), to);
                let samples = usize::try_from(total).unwrap_or(usize::MAX).min(room);
                let start = from.samples(rate);
                (start, samples, Some(total), start + source(samples))
            }
            None => {
                let total = self.end.map(|_| resampled(end - first, rate, to));
                let samples = total.map_or(room, |n| usize::try_from(n).unwrap_or(usize::MAX).min(room));
                (first, samples, total, end.min(first + source(samples)))
            }
        };
        // So many whole periods of both rates that what is left out again is a whole number of either.
        let lead = if self.window.is_none() || rate == to { 0 } else { lead(rate, to) };
        let (before, dropped) = (lead * period(rate, to).0, lead * period(rate, to).1);
        swr.drop_output(dropped as u32).map_err(open)?;
        let from = start - before;
        let behind = if rate == to { 0 } else { CONTEXT };
        // Without an end that is known everything is counted, and only what there is room for is kept.
        let last = if total.is_none() { i64::MAX / 4 } else { until.saturating_add(behind).min(end.max(from)) };
        Ok(Begun { rate, swr, from, start, until, last, next: from, sounded: 0, samples, written: 0, total })
    }

    fn feed_quiet(&mut self, mut count: i64) -> Result<(), String> {
        while count > 0 {
            let piece = count.min(QUIET as i64) as usize;
            let quiet = std::mem::take(&mut self.quiet);
            let planes = vec![&quiet[..piece]; usize::from(self.audio.channels)];
            let fed = self.feed(&planes);
            self.quiet = quiet;
            fed?;
            count -= piece as i64;
        }
        Ok(())
    }

    /// Hands planes that come next to the resampler, unless all that there is room for is written.
    fn feed(&mut self, planes: &[&[f32]]) -> Result<(), String> {
        let Some(b) = &mut self.begun else { return Ok(()) };
        b.next += planes.first().map_or(0, |plane| plane.len()) as i64;
        self.drain(Some(planes))
    }

    fn drain(&mut self, input: Option<&[&[f32]]>) -> Result<(), String> {
        let Some(b) = &mut self.begun else { return Ok(()) };
        let (size, room) = (self.audio.number.size(), self.audio.capacity() as usize);
        if b.written >= b.samples {
            return Ok(());
        }
        let rest = b.written * size..b.samples * size;
        let mut out: Vec<&mut [u8]> = self
            .out
            .chunks_exact_mut(room * size)
            .take(self.audio.channels.into())
            .map(|plane| &mut plane[rest.clone()])
            .collect();
        b.written += b.swr.planes(input, &mut out, planes(self.audio.number)).map_err(|e| e.to_string())?;
        Ok(())
    }

    /// Nothing follows: the resampler gives out what it holds, and silence fills the rest.
    pub(super) fn finish(mut self) -> Result<SoundHead, String> {
        let start_us = |b: &Begun| nearest(i128::from(b.start) * 1_000_000, b.rate.into());
        if let Some(b) = &mut self.begun {
            // A stream that ends before the window does is followed by silence, as it would be at a loudspeaker.
            let (missing, bounded) = (b.last - b.next, b.total.is_some());
            if bounded && self.window.is_some() {
                self.feed_quiet(missing.min(i64::from(u32::MAX)))?;
            }
            self.drain(None)?;
        }
        let (size, room) = (self.audio.number.size(), self.audio.capacity() as usize);
        let head = match &self.begun {
            Some(b) => {
                let total = b.total.unwrap_or_else(|| resampled(b.next - b.from, b.rate, self.audio.rate));
                let samples = total.min(room as u64) as u32;
                let sounded = resampled(b.sounded, b.rate, self.audio.rate).min(samples.into()) as u32;
                let cut = u32::try_from(total - u64::from(samples)).unwrap_or(u32::MAX);
                SoundHead { start_us: start_us(b), samples, sounded, cut, ..SoundHead::default() }
            }
            // The stream has nothing at all.
            None => {
                let total = self.window.map_or(0, |w| wanted(w, self.audio.rate));
                let samples = total.min(room as u64) as u32;
                let cut = u32::try_from(total - u64::from(samples)).unwrap_or(u32::MAX);
                let start_us = self.window.map_or(0, |(from, _)| from.samples(1_000_000));
                SoundHead { start_us, samples, cut, ..SoundHead::default() }
            }
        };
        let written = self.begun.as_ref().map_or(0, |b| b.written.min(head.samples as usize));
        let (planes, behind) = self.out.split_at_mut(room * size * usize::from(self.audio.channels));
        planes.chunks_exact_mut(room * size).for_each(|plane| plane[written * size..].fill(0));
        behind.fill(0);
        Ok(head)
    }
}

fn planes(number: SoundNumber) -> Planes {
    match number {
        SoundNumber::F32 => Planes::F32,
        SoundNumber::I16 => Planes::I16,
    }
}

/// Numbers at another rate that so many become.
fn resampled(count: i64, from: u32, to: u32) -> u64 {
    nearest(i128::from(count.max(0)) * i128::from(to), from.into()).unsigned_abs()
}

/// The shortest time that is a whole number of numbers of either rate.
fn period(from: u32, to: u32) -> (i64, i64) {
    let (mut a, mut b) = (from, to);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    (i64::from(from / a), i64::from(to / a))
}

/// Periods that make up the context.
fn lead(from: u32, to: u32) -> i64 {
    (CONTEXT as u64).div_ceil(period(from, to).0.unsigned_abs()) as i64
}
