//! A manifest as the scheduler sees it: its good rows, by number.

use super::cost::Work;
use super::event::{Catalog, Chunk};
use crate::manifest::Manifest;
use crate::manifest::groups::{Group, groups};
use crate::proto::key::SampleKey;
use crate::proto::options::StreamOptions;
use crate::proto::transform::{Facts, Layout, Span, Transform};

impl Catalog for Manifest {
    fn len(&self) -> u64 {
        self.good()
    }

    fn row(&self, i: u64) -> u64 {
        self.good_row(i)
    }

    fn facts(&self, i: u64) -> Facts {
        Manifest::facts(self, self.good_row(i))
    }

    fn chunks(&self, row: u64, epoch: u32, options: &StreamOptions) -> Vec<Chunk> {
        let transform = &options.transform;
        if row >= Manifest::len(self) || !transform.has_parts() {
            return Vec::new();
        }
        if transform.layout == Layout::Pages {
            return pieces(&Manifest::facts(self, row), transform);
        }
        let descriptor = self.descriptor(row);
        let key = SampleKey::new(options.seed, epoch, row);
        let Ok(wanted) = transform.wanted(&descriptor.timeline(), &key) else { return Vec::new() };
        let Some(groups) = groups(&descriptor, &wanted) else { return Vec::new() };
        let whole = Work::of(&descriptor.facts(), transform);
        let chunk = |group: &Group| {
            let kept = &wanted[group.wanted.clone()];
            let (first, last) = (descriptor.key_frames[group.key], kept.last().copied().unwrap_or(0));
            let share = kept.len() as f64 / wanted.len() as f64;
            let work = Work { frames: f64::from(last + 1 - first), ..whole.share(share) };
            Chunk { span: Span { first: group.wanted.start as u16, frames: kept.len() as u16 }, work }
        };
        groups.iter().map(chunk).collect()
    }
}

/// The pieces of a sample that a program of the user's own makes: as many as its row has key frames, of like length,
/// each with pages of its own.
fn pieces(facts: &Facts, transform: &Transform) -> Vec<Chunk> {
    let pages = u32::from(transform.frames);
    let count = facts.keyframes.min(pages);
    if count < 2 {
        return Vec::new();
    }
    let work = Work::of(facts, transform).share(1.0 / f64::from(count));
    let page = |k: u32| (k * pages / count) as u16;
    let chunk = |k| Chunk { span: Span { first: page(k), frames: page(k + 1) - page(k) }, work };
    (0..count).map(chunk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_dataset_have_all_pages_among_them() {
        let transform = Transform { frames: 16, layout: Layout::Pages, ..Transform::default() };
        let spans = |keyframes| {
            let facts = Facts { frames: 100, keyframes, ..Facts::default() };
            let chunks = pieces(&facts, &transform);
            chunks.iter().map(|c| (c.span.first, c.span.frames)).collect::<Vec<_>>()
        };
        assert_eq!(spans(0), []);
        assert_eq!(spans(1), []);
        assert_eq!(spans(3), [(0, 5), (5, 5), (10, 6)]);
        assert_eq!(spans(99).len(), 16);
    }
}
