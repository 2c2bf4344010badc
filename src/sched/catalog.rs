//! A manifest as the scheduler sees it: its good rows, by number.

use super::cost::Work;
use super::event::{Catalog, Chunk};
use crate::manifest::Manifest;
use crate::manifest::groups::{Group, groups};
use crate::proto::key::SampleKey;
use crate::proto::options::StreamOptions;
use crate::proto::transform::{Facts, Span};

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
