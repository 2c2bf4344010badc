//! Long clips: one that alone would miss its deadline is decoded by several workers at once.
//!
//! It is decided when a worker is about to take the clip, by the time that is left then. The parts are cut at key
//! frames, so that together they decode no frame more than one worker would; each opens the clip once more.

use super::Engine;
use super::dispatch::Head;
use super::rank::{Piece, Site};
use crate::proto::options::Policy;
use crate::proto::transform::Span;
use crate::sched::cost::Work;
use crate::sched::event::{Chunk, Time};

impl Engine {
    /// Cuts the sample at the head of a queue into parts, which take its place there, if it has to be. True if so.
    pub(super) fn split(&mut self, now: Time, head: &Head) -> bool {
        let Some(s) = self.streams.get_mut(&head.stream) else { return false };
        let least = u64::from(s.run.split_ms) * 1_000_000;
        // Where nothing is known of the deadline there is no time to lose either.
        let left = head.due.map_or(0, |due| due.saturating_sub(now));
        if least == 0 || s.run.policy != Policy::Helix || head.item.safe <= least.max(left) {
            return false;
        }
        let Site::Server(server) = head.site else { return false };
        let (rank, step, at) = (head.key.rank, head.item.step, head.key.piece);
        let Some(r) = s.ranks.get_mut(rank as usize) else { return false };
        let Some(batch) = r.batches.get_mut(&step) else { return false };
        // A worker that died with all of it may have been about to say that it was done.
        let Some(piece) = batch.pieces.get(at as usize).filter(|p| p.part.is_none() && p.attempts == 0) else {
            return false;
        };
        let (slot, sample, lead) = (piece.slot, piece.sample, piece.lead);
        let chunks = s.catalog.chunks(sample, r.epoch, &s.options);
        // Half of what is left, since not all parts begin at once.
        let parts = cut(&chunks, |work| self.decode.expected(work), least.max(left / 2), self.workers.usable());
        if parts.len() < 2 {
            return false;
        }
        s.dequeue(rank, step, at);
        let part = |chunk: &Chunk| {
            let Chunk { span, work } = *chunk;
            let (expected, safe) = (self.decode.expected(&work), self.decode.safe(&work, server));
            Piece::new((slot, sample, Some(span)), work, (expected, safe, lead))
        };
        let mut pieces = parts.iter().map(part);
        let Some(batch) = s.ranks.get_mut(rank as usize).and_then(|r| r.batches.get_mut(&step)) else { return false };
        let behind = batch.pieces.len() as u32;
        batch.left += parts.len() - 1;
        if let (Some(place), Some(first)) = (batch.pieces.get_mut(at as usize), pieces.next()) {
            *place = first;
        }
        batch.pieces.extend(pieces);
        let end = batch.pieces.len() as u32;
        for piece in std::iter::once(at).chain(behind..end) {
            s.enqueue(rank, step, piece, head.site);
        }
        true
    }
}

/// Joins chunks to parts of about equal time, of a slice each, `most` at most. Nothing, if one part would do.
fn cut(chunks: &[Chunk], time: impl Fn(&Work) -> u64, slice: u64, most: usize) -> Vec<Chunk> {
    let Some(whole) = chunks.iter().copied().reduce(|all, next| join(&all, &next)) else { return Vec::new() };
    let whole = time(&whole.work);
    let wanted = usize::try_from(whole.div_ceil(slice.max(1))).unwrap_or(usize::MAX).min(most).min(chunks.len());
    if wanted < 2 {
        return Vec::new();
    }
    let fill = |limit: u64| {
        let mut parts: Vec<Chunk> = Vec::with_capacity(wanted);
        for chunk in chunks {
            match parts.last_mut() {
                Some(last) if time(&join(last, chunk).work) <= limit => *last = join(last, chunk),
                _ => parts.push(*chunk),
            }
        }
        parts
    };
    // The least limit that needs no more parts than wanted, to within a hundredth; no part is shorter than a chunk.
    let longest = chunks.iter().map(|chunk| time(&chunk.work)).max().unwrap_or(0);
    let (mut low, mut high) = (longest.min(whole).saturating_sub(1), whole);
    while high - low > whole / 100 {
        let middle = low + (high - low) / 2;
        if fill(middle).len() <= wanted { high = middle } else { low = middle }
    }
    let parts = fill(high);
    if parts.len() > 1 { parts } else { Vec::new() }
}

fn join(one: &Chunk, next: &Chunk) -> Chunk {
    let Span { first, frames } = one.span;
    Chunk { span: Span { first, frames: frames.saturating_add(next.span.frames) }, work: one.work.and(&next.work) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Chunks of so many frames to decode, two of the output each.
    fn chunks(frames: &[u32]) -> Vec<Chunk> {
        let chunk = |(i, n): (u16, &u32)| {
            let work = Work { frames: f64::from(*n), megapixels: 1.0, ..Work::default() };
            Chunk { span: Span { first: 2 * i, frames: 2 }, work }
        };
        (0..).zip(frames).map(chunk).collect()
    }

    /// A unit of time a frame, and ten to open the clip.
    fn time(work: &Work) -> u64 {
        10 + work.frames as u64
    }

    fn spans(parts: &[Chunk]) -> Vec<(u16, u16)> {
        parts.iter().map(|p| (p.span.first, p.span.frames)).collect()
    }

    #[test]
    fn parts_are_even_and_as_many_as_needed() {
        let even = chunks(&[100; 6]);
        assert_eq!(spans(&cut(&even, time, 305, 99)), [(0, 6), (6, 6)]);
        assert_eq!(spans(&cut(&even, time, 210, 99)), [(0, 4), (4, 4), (8, 4)]);
        assert_eq!(cut(&even, time, 1, 99).len(), 6, "no part without a key frame");
        assert_eq!(cut(&even, time, 1, 4).len(), 3, "a fourth part would make the longest no shorter");
        assert_eq!(cut(&even, time, 1000, 99), []);
        assert_eq!(cut(&even, time, 1, 1), []);
        assert_eq!(cut(&chunks(&[500]), time, 1, 99), []);
        assert_eq!(cut(&[], time, 1, 99), []);
        assert_eq!(spans(&cut(&chunks(&[900, 10, 10, 80]), time, 300, 99)), [(0, 2), (2, 6)]);
    }

    proptest! {
        #[test]
        fn parts_are_all_of_the_sample_in_order_and_no_other_cut_has_a_shorter_longest_one(
            frames in proptest::collection::vec(1u32..1000, 1..9), slice in 1u64..2000, most in 1usize..7,
        ) {
            let all = chunks(&frames);
            let parts = cut(&all, time, slice, most);
            prop_assume!(!parts.is_empty());
            let wanted = time(&Work { frames: frames.iter().sum::<u32>().into(), ..Work::default() }).div_ceil(slice);
            let wanted = (wanted as usize).min(most).min(frames.len());
            prop_assert!((2..=wanted).contains(&parts.len()));
            let mut next = 0;
            for part in &parts {
                prop_assert_eq!(u32::from(part.span.first), next);
                next = part.span.end();
            }
            prop_assert_eq!(next, 2 * frames.len() as u32);
            // Every way to cut into that many parts, by the bits that say where.
            let longest = |cuts: u32| {
                let (mut worst, mut run) = (0, 0);
                for (i, n) in frames.iter().enumerate() {
                    if i > 0 && cuts >> (i - 1) & 1 == 1 {
                        run = 0;
                    }
                    run += n;
                    worst = worst.max(run);
                }
                worst
            };
            let cuts = (0..1u32 << (frames.len() - 1)).filter(|c| c.count_ones() as usize == wanted - 1);
            let best = cuts.map(longest).min().unwrap_or(0);
            let found = parts.iter().map(|p| p.work.frames as u32).max().unwrap_or(0);
            let whole = frames.iter().sum::<u32>() + 10;
            prop_assert!(found <= best + whole / 50 + 1, "{found} against {best}");
        }
    }
}
