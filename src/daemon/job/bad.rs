//! Samples that cannot be made, beyond leaving them out: another one in their place, and the end of a stream of which
//! too much is bad.

use super::Job;
use super::endings::Culprit;
use crate::daemon::sessions::Phase;
use crate::manifest::Manifest;
use crate::proto::message::{Body, Entry, Head, kind};
use crate::proto::options::{FEW_BAD, StreamOptions};
use crate::sched::cost::Work;
use crate::sched::event::{Catalog, Event, Place, StreamId};
use crate::sched::order;

/// Samples tried in the place of one that is bad; if all are bad the data is at fault, and the stream ends.
const MAX_TRIED: u32 = 16;
/// Rows looked at from where a try begins, until one has the shape that is wanted.
const MAX_LOOKED_AT: u64 = 4096;

/// A sample for the place of one that is bad.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Other {
    sample: u64,
    work: Work,
    /// How many were tried to find it.
    tried: u32,
}

impl Job {
    /// Gives the place of a bad sample to another one, once nobody can write to it for the old one any more: the rank
    /// hears of it before any worker does.
    pub(super) fn replace_sample(&mut self, id: u16, grant: u32, slot: u16) {
        let Some(session) = self.sessions.get(&id) else { return };
        if session.phase != Phase::Live || !session.regions.can_be_replaced(grant, slot) {
            return;
        }
        let (stream, rank) = (session.stream, session.rank);
        let Some((block, region)) = session.regions.block(grant).zip(session.regions.region(grant, slot).ok()) else {
            return;
        };
        let (iter, epoch, step) = (block.iter, block.epoch, block.step);
        let (planned, tried) = region.planned;
        let Some(s) = self.streams.get(&stream.0) else { return };
        let Some(other) = other_sample(&s.manifest, &s.options, epoch, planned, tried) else {
            let path = s.manifest.descriptor(planned).path;
            let reason = format!(
                "sample {planned} ({path}) could not be made, and of the samples of its shape none that was tried in its \
                 place could: look at the reasons that were given for them, or set on_error = skip"
            );
            return self.fail_stream(stream, &reason, Culprit::default());
        };
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Other { sample, work, tried } = other;
        let Ok(region) = session.regions.replace(grant, slot, sample, tried) else { return };
        let head = Head { kind: kind::OTHER, session: id, attempt: 0, slot };
        let Place { bytes: len, home_rank, home_share, tokens, .. } = region.place;
        let other = Entry { head, sample, offset: region.offset, len, grant, home_rank, home_share, tokens };
        session.tell(other.words());
        self.stats.substituted += 1;
        self.events.push_back(Event::Replaced { stream, rank, iter, step, slot, sample, work });
    }

    /// Notes a bad sample of a stream, and ends it if too many are: then it is not for single samples to be left out.
    pub(super) fn judge_data(&mut self, id: StreamId, path: &str) {
        let Some(stream) = self.streams.get_mut(&id.0) else { return };
        stream.bad += 1;
        let (bad, tried, most) = (stream.bad, stream.bad + stream.done, stream.run.max_bad_ratio);
        if bad <= FEW_BAD || bad as f64 <= f64::from(most) * tried as f64 {
            return;
        }
        let reason = format!(
            "{bad} of {tried} samples could not be made, the last one {path}, and max_bad_ratio is {most}: look at the \
             reasons that were given for them, then repair the data, or raise max_bad_ratio (1 = no end)"
        );
        self.fail_stream(id, &reason, Culprit::default());
    }
}

/// The sample that takes a place: from where seed, epoch, the sample planned there and the number of the try say, the
/// next one of its shape. So every run of the stream takes the same.
fn other_sample(manifest: &Manifest, options: &StreamOptions, epoch: u32, planned: u64, tried: u32) -> Option<Other> {
    let transform = &options.transform;
    let shape = transform.shape(&manifest.facts(planned));
    let (first, samples) = part_of(manifest, options, planned);
    let fits = |&i: &u64| {
        let row = manifest.good_row(i);
        row != planned && transform.shape(&manifest.facts(row)) == shape
    };
    let find = |nth| {
        let start = u64::from(order::substitute(samples, options.seed, epoch, planned, nth));
        (0..u64::from(samples).min(MAX_LOOKED_AT)).map(|k| first + (start + k) % u64::from(samples)).find(fits)
    };
    let tries: Vec<u64> = (0..MAX_TRIED).map_while(find).collect();
    // None twice: what is still on its way of an earlier try cannot be taken for the later one.
    let fresh = |&nth: &usize| !tries[..nth].contains(&tries[nth]);
    let nth = (tried as usize..tries.len()).find(fresh)?;
    let i = tries[nth];
    let (work, _) = manifest.appraise(i, options);
    Some(Other { sample: manifest.good_row(i), work, tried: nth as u32 + 1 })
}

/// The good rows among which another sample is looked for, by number: those of the same part of a mix. The first, and
/// how many.
fn part_of(manifest: &Manifest, options: &StreamOptions, row: u64) -> (u64, u32) {
    let good = manifest.good();
    let below = |row: u64| {
        let (mut low, mut high) = (0, good);
        while low < high {
            let middle = low + (high - low) / 2;
            if manifest.good_row(middle) < row { low = middle + 1 } else { high = middle }
        }
        low
    };
    let mut start = 0;
    for part in &options.mix {
        let end = start + part.rows;
        if (start..end).contains(&row) {
            let (from, to) = (below(start), below(end));
            return (from, (to - from).min(order::MAX_SAMPLES) as u32);
        }
        start = end;
    }
    (0, good.min(order::MAX_SAMPLES) as u32)
}
