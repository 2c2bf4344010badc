//! The private table of one slab: who may write where. It alone moves a region through its life.
//!
//! `free → granted(attempt) → ready → leased → free`, see `docs/protocol.md`. A [`Block`] holds the regions of one
//! batch side by side. The table does no I/O and trusts no one: each method checks that the arrow it is asked for
//! exists, and refuses with the reason otherwise. A region that several workers fill has [`Part`]s, each of which goes
//! that way by itself.

use std::collections::{BTreeMap, HashMap};

use crate::proto::transform::Span;
use crate::sched::event::Place;

/// Blocks start on a page, so that a device can pin them and a tensor is aligned.
const BLOCK_ALIGN: u64 = 4096;
/// Regions of differing sizes start on a cache line, so that two writers never share one.
const REGION_ALIGN: u64 = 64;

/// Why an arrow was refused: the message that asked for it is wrong, or late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No such grant.
    #[error("no grant {0}")]
    Grant(u32),
    /// The grant has no such slot.
    #[error("grant {0} has no slot {1}")]
    Slot(u32, u16),
    /// The slot has no such part, or one that overlaps it.
    #[error("grant {grant} slot {slot}: no part {first}+{frames}")]
    Part {
        /// The grant.
        grant: u32,
        /// The slot.
        slot: u16,
        /// First frame.
        first: u16,
        /// Frames.
        frames: u16,
    },
    /// The slot is not in the state that this needs.
    #[error("grant {grant} slot {slot}: {wanted} was wanted")]
    State {
        /// The grant.
        grant: u32,
        /// The slot.
        slot: u16,
        /// What was wanted.
        wanted: &'static str,
    },
    /// More bytes than the region has.
    #[error("{written} bytes reported for a region of {len}")]
    Written {
        /// Bytes reported.
        written: u64,
        /// Bytes of the region.
        len: u64,
    },
}

/// The state of a part of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nobody writes; `attempts` were made and their writers are dead.
    Granted {
        /// Attempts made so far.
        attempts: u16,
    },
    /// A live worker may be writing.
    Writing {
        /// Number of the attempt.
        attempt: u16,
    },
    /// The output is in its place.
    Ready {
        /// Attempt that made it.
        attempt: u16,
        /// The worker that made it.
        worker: u16,
        /// Bytes written.
        written: u64,
        /// Shape written.
        shape: [u16; 4],
    },
    /// It never will be.
    Failed,
}

/// A part of a region: what one ticket is about. Mostly all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Frames of the output.
    pub span: Span,
    /// Where they lie: bytes from the region's start.
    pub at: u64,
    /// How many bytes they take.
    pub len: u64,
    /// How far it has come.
    pub state: State,
}

/// The address of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    /// The grant.
    pub grant: u32,
    /// The slot.
    pub slot: u16,
    /// Frames of the output.
    pub span: Span,
}

/// What a worker says it has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Of what.
    pub what: Address,
    /// The attempt.
    pub attempt: u16,
    /// The worker.
    pub worker: u16,
    /// Bytes written.
    pub written: u64,
    /// Shape written.
    pub shape: [u16; 4],
}

/// One sample's place in a block.
#[derive(Debug, Clone, PartialEq)]
pub struct Region {
    /// What it is for.
    pub place: Place,
    /// Start in the slab, bytes.
    pub offset: u64,
    /// Its parts, as far as they were given out; they lie apart.
    pub parts: Vec<Part>,
    /// Whether the sample will never be there.
    pub skipped: bool,
    /// Whether the rank may know: then nobody writes here, and it may put other samples here.
    pub told: bool,
    /// Workers that died of this sample by a fault of their own.
    pub faults: u8,
    /// Workers that were killed from outside while they had it, weighted by whether they were at it.
    pub kills: u8,
}

/// The memory of one batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// Start in the slab, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
    /// Iteration of the session.
    pub iter: u32,
    /// Epoch.
    pub epoch: u32,
    /// Step.
    pub step: u32,
    /// The regions in the order of the batch; none for a block that a rank held before this daemon lived.
    pub regions: Vec<Region>,
    /// Whether the rank has let it go.
    pub released: bool,
    writers: u32,
}

/// The table of one slab.
#[derive(Debug)]
pub struct Regions {
    bytes: u64,
    /// Free spans: start to length; neighbours are merged.
    free: BTreeMap<u64, u64>,
    blocks: HashMap<u32, Block>,
    next_grant: u32,
}

impl Regions {
    /// A table for a slab of so many bytes, all free.
    pub fn new(bytes: u64) -> Regions {
        let mut free = BTreeMap::new();
        if bytes > 0 {
            free.insert(0, bytes);
        }
        Regions { bytes, free, blocks: HashMap::new(), next_grant: 1 }
    }

    /// Bytes of the slab.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that belong to blocks.
    pub fn used(&self) -> u64 {
        self.bytes - self.free.values().sum::<u64>()
    }

    /// Blocks that are not free.
    pub fn blocks(&self) -> impl Iterator<Item = (u32, &Block)> {
        self.blocks.iter().map(|(&grant, block)| (grant, block))
    }

    /// A block by its grant.
    pub fn block(&self, grant: u32) -> Option<&Block> {
        self.blocks.get(&grant)
    }

    /// Whether a grant of this number was ever made, or held from before.
    pub fn has_seen(&self, grant: u32) -> bool {
        (1..self.next_grant).contains(&grant)
    }

    /// Takes a block out of the free memory that a rank still holds from an earlier daemon.
    pub fn hold(&mut self, grant: u32, offset: u64, len: u64) -> Result<(), Refused> {
        let wrong = Refused::State { grant, slot: 0, wanted: "a free span of the slab" };
        let end = offset.checked_add(len).ok_or(wrong)?;
        let (&start, &span) = self.free.range(..=offset).next_back().ok_or(wrong)?;
        if len == 0 || end > start + span || grant == u32::MAX || self.blocks.contains_key(&grant) {
            return Err(wrong);
        }
        self.free.remove(&start);
        self.insert_free(start, offset - start);
        self.insert_free(end, start + span - end);
        let block =
            Block { offset, len, iter: 0, epoch: 0, step: 0, regions: Vec::new(), released: false, writers: 0 };
        self.blocks.insert(grant, block);
        self.next_grant = self.next_grant.max(grant.saturating_add(1));
        Ok(())
    }

    /// Bytes that a batch takes. Regions of one size lie without gaps, so that the batch is one tensor.
    pub fn needed(places: &[Place]) -> u64 {
        let end = layout(places).last().map_or(0, |(offset, bytes)| offset + bytes);
        end.next_multiple_of(BLOCK_ALIGN)
    }

    /// free → granted: takes the lowest span that fits. `None` when there is no room now.
    pub fn grant(&mut self, iter: u32, epoch: u32, step: u32, places: &[Place]) -> Option<u32> {
        let len = Regions::needed(places).max(BLOCK_ALIGN);
        let (&offset, &span) = self.free.iter().find(|&(_, &span)| span >= len)?;
        self.free.remove(&offset);
        self.insert_free(offset + len, span - len);
        let regions = layout(places)
            .zip(places)
            .map(|((at, _), &place)| Region {
                place,
                offset: offset + at,
                parts: Vec::new(),
                skipped: false,
                told: false,
                faults: 0,
                kills: 0,
            })
            .collect();
        let grant = self.next_grant;
        self.next_grant += 1;
        self.blocks.insert(grant, Block { offset, len, iter, epoch, step, regions, released: false, writers: 0 });
        Some(grant)
    }

    /// A region, for reading.
    pub fn region(&self, grant: u32, slot: u16) -> Result<&Region, Refused> {
        let block = self.blocks.get(&grant).ok_or(Refused::Grant(grant))?;
        block.regions.get(usize::from(slot)).ok_or(Refused::Slot(grant, slot))
    }

    fn part(&mut self, what: Address) -> Result<(&mut u32, &mut Part), Refused> {
        let Address { grant, slot, span } = what;
        let block = self.blocks.get_mut(&grant).ok_or(Refused::Grant(grant))?;
        let region = block.regions.get_mut(usize::from(slot)).ok_or(Refused::Slot(grant, slot))?;
        let part = region.parts.iter_mut().find(|part| part.span == span);
        let none = Refused::Part { grant, slot, first: span.first, frames: span.frames };
        Ok((&mut block.writers, part.ok_or(none)?))
    }

    /// granted(n) → writing(n + 1): a live worker is about to be told. `at` is where the part lies: bytes from the
    /// region's start, and how many. Answers the number of the attempt. Refused for a block that was released, and for
    /// a sample that was skipped.
    pub fn assign(&mut self, what: Address, at: (u64, u64)) -> Result<u16, Refused> {
        let Address { grant, slot, span } = what;
        let state = |wanted| Refused::State { grant, slot, wanted };
        let block = self.blocks.get_mut(&grant).ok_or(Refused::Grant(grant))?;
        if block.released {
            return Err(state("a block that is not released"));
        }
        let region = block.regions.get_mut(usize::from(slot)).ok_or(Refused::Slot(grant, slot))?;
        if region.skipped {
            return Err(state("a sample that is not skipped"));
        }
        let (at, len) = at;
        let end = at.saturating_add(len);
        let known = region.parts.iter_mut().find(|part| part.span == span && (part.at, part.len) == (at, len));
        let attempt = match known {
            Some(part) => {
                let State::Granted { attempts } = part.state else { return Err(state("a part without writer")) };
                part.state = State::Writing { attempt: attempts + 1 };
                attempts + 1
            }
            None => {
                let apart = region.parts.iter().all(|part| part.at + part.len <= at || end <= part.at);
                if len == 0 || end > region.place.bytes || !apart {
                    return Err(Refused::Part { grant, slot, first: span.first, frames: span.frames });
                }
                region.parts.push(Part { span, at, len, state: State::Writing { attempt: 1 } });
                1
            }
        };
        block.writers += 1;
        Ok(attempt)
    }

    /// writing(n) → ready, by the word of the worker that made attempt n. The caller knows that it was this one.
    /// Answers whether the sample is as a whole in its place now.
    pub fn done(&mut self, made: Made) -> Result<bool, Refused> {
        let Made { what, attempt, worker, written, shape } = made;
        let Address { grant, slot, .. } = what;
        let (writers, part) = self.part(what)?;
        if part.state != (State::Writing { attempt }) {
            return Err(Refused::State { grant, slot, wanted: "a part that this attempt is writing" });
        }
        if written > part.len {
            return Err(Refused::Written { written, len: part.len });
        }
        part.state = State::Ready { attempt, worker, written, shape };
        *writers -= 1;
        let region = self.region(grant, slot)?;
        let ready = |part: &Part| if let State::Ready { .. } = part.state { part.len } else { 0 };
        Ok(region.parts.iter().map(ready).sum::<u64>() == region.place.bytes)
    }

    /// writing(n) → granted(n): the writer is proven dead without having said that it was done.
    pub fn lost(&mut self, what: Address) -> Result<&mut Region, Refused> {
        let Address { grant, slot, .. } = what;
        let (writers, part) = self.part(what)?;
        let State::Writing { attempt } = part.state else {
            return Err(Refused::State { grant, slot, wanted: "a part that is being written" });
        };
        part.state = State::Granted { attempts: attempt };
        *writers -= 1;
        let block = self.blocks.get_mut(&grant).ok_or(Refused::Grant(grant))?;
        block.regions.get_mut(usize::from(slot)).ok_or(Refused::Slot(grant, slot))
    }

    /// granted or writing → failed: by the worker's word, or at the limit of attempts with no writer left. The sample
    /// is skipped by it; answers whether it was not before.
    pub fn fail(&mut self, what: Address) -> Result<bool, Refused> {
        let Address { grant, slot, .. } = what;
        let (writers, part) = self.part(what)?;
        match part.state {
            State::Writing { .. } => *writers -= 1,
            State::Granted { .. } => {}
            _ => return Err(Refused::State { grant, slot, wanted: "a part that is not ready" }),
        }
        part.state = State::Failed;
        let block = self.blocks.get_mut(&grant).ok_or(Refused::Grant(grant))?;
        let region = block.regions.get_mut(usize::from(slot)).ok_or(Refused::Slot(grant, slot))?;
        Ok(!std::mem::replace(&mut region.skipped, true))
    }

    /// Whether the rank is to be told now that a sample is skipped: once, when nobody writes to its region any more.
    pub fn skip(&mut self, grant: u32, slot: u16) -> bool {
        let region = self.blocks.get_mut(&grant).and_then(|block| block.regions.get_mut(usize::from(slot)));
        let Some(region) = region.filter(|region| region.skipped && !region.told) else { return false };
        region.told = !region.parts.iter().any(|part| matches!(part.state, State::Writing { .. }));
        region.told
    }

    /// The rank has let the block go. It is free at once, or when its last writer has ended; see [`Regions::reap`].
    pub fn release(&mut self, grant: u32) -> Result<(), Refused> {
        let block = self.blocks.get_mut(&grant).ok_or(Refused::Grant(grant))?;
        if block.released {
            return Err(Refused::State { grant, slot: 0, wanted: "a block that is not released" });
        }
        block.released = true;
        Ok(())
    }

    /// leased → free, if it is released and nobody can write to it any more.
    pub fn reap(&mut self, grant: u32) -> Option<Block> {
        let block = self.blocks.get(&grant)?;
        if !block.released || block.writers > 0 {
            return None;
        }
        let block = self.blocks.remove(&grant)?;
        self.insert_free(block.offset, block.len);
        Some(block)
    }

    fn insert_free(&mut self, mut start: u64, mut len: u64) {
        if len == 0 {
            return;
        }
        if let Some((&before, &span)) = self.free.range(..start).next_back()
            && before + span == start
        {
            self.free.remove(&before);
            start = before;
            len += span;
        }
        if let Some(span) = self.free.remove(&(start + len)) {
            len += span;
        }
        self.free.insert(start, len);
    }
}

/// Offset (from the block's start) and length of each region.
fn layout(places: &[Place]) -> impl Iterator<Item = (u64, u64)> {
    let same = places.windows(2).all(|w| w[0].bytes == w[1].bytes);
    let align = if same { 1 } else { REGION_ALIGN };
    places.iter().scan(0u64, move |end, place| {
        let at = end.next_multiple_of(align);
        *end = at + place.bytes;
        Some((at, place.bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn places(sizes: &[u64]) -> Vec<Place> {
        sizes.iter().map(|&bytes| Place { sample: 0, bytes, home_rank: 0, cost: 1.0 }).collect()
    }

    const WHOLE: Span = Span { first: 0, frames: 4 };

    fn whole(grant: u32, slot: u16) -> Address {
        Address { grant, slot, span: WHOLE }
    }

    #[test]
    fn equal_regions_are_one_tensor_and_others_share_no_line() {
        let mut table = Regions::new(1 << 20);
        let even = table.grant(1, 0, 0, &places(&[150, 150, 150])).unwrap();
        let offsets: Vec<_> = table.block(even).unwrap().regions.iter().map(|r| r.offset).collect();
        assert_eq!(offsets, [0, 150, 300]);
        let odd = table.grant(1, 0, 1, &places(&[150, 151])).unwrap();
        let block = table.block(odd).unwrap();
        assert_eq!(block.regions[1].offset - block.offset, 192);
    }

    #[test]
    fn a_released_block_with_a_writer_is_not_reused() {
        let mut table = Regions::new(8192);
        let grant = table.grant(1, 0, 0, &places(&[4096, 4096])).unwrap();
        assert_eq!(table.assign(whole(grant, 0), (0, 4096)), Ok(1));
        table.release(grant).unwrap();
        assert_eq!(table.reap(grant), None);
        assert_eq!(table.grant(1, 0, 1, &places(&[1])), None);
        table.lost(whole(grant, 0)).unwrap();
        assert!(table.reap(grant).is_some());
        assert!(table.grant(1, 0, 1, &places(&[1])).is_some());
    }

    #[test]
    fn a_region_has_one_writer_and_attempts_count_up() {
        let mut table = Regions::new(8192);
        let grant = table.grant(1, 0, 0, &places(&[100])).unwrap();
        let (what, at) = (whole(grant, 0), (0, 100));
        assert_eq!(table.assign(what, at), Ok(1));
        assert!(table.assign(what, at).is_err());
        table.lost(what).unwrap();
        assert_eq!(table.assign(what, at), Ok(2));
        let made = Made { what, attempt: 2, worker: 3, written: 100, shape: [1, 1, 1, 100] };
        assert!(table.done(Made { attempt: 1, ..made }).is_err(), "an attempt whose writer is dead");
        assert_eq!(table.done(Made { written: 101, ..made }), Err(Refused::Written { written: 101, len: 100 }));
        assert_eq!(table.done(made), Ok(true));
        assert!(table.assign(what, at).is_err());
        assert!(table.done(made).is_err());
        table.release(grant).unwrap();
        assert!(table.release(grant).is_err());
        assert!(table.reap(grant).is_some());
        assert_eq!(table.used(), 0);
    }

    #[test]
    fn parts_lie_apart_and_the_first_that_fails_skips_the_sample() {
        let mut table = Regions::new(8192);
        let grant = table.grant(1, 0, 0, &places(&[100])).unwrap();
        let part = |first, frames| Address { grant, slot: 0, span: Span { first, frames } };
        let (left, right) = (part(0, 1), part(1, 3));
        assert_eq!(table.assign(left, (0, 25)), Ok(1));
        for (what, at) in [(whole(grant, 0), (0, 100)), (right, (24, 76)), (right, (25, 76)), (right, (25, 0))] {
            assert!(matches!(table.assign(what, at), Err(Refused::Part { .. })), "{what:?} at {at:?}");
        }
        assert_eq!(table.assign(right, (25, 75)), Ok(1));
        let made = Made { what: left, attempt: 1, worker: 3, written: 25, shape: [4, 1, 1, 25] };
        assert_eq!(table.done(made), Ok(false));
        table.lost(right).unwrap();
        assert_eq!(table.assign(right, (25, 75)), Ok(2));
        assert!(table.assign(left, (0, 25)).is_err(), "it is ready, whatever became of the other");
        assert_eq!(table.fail(right), Ok(true));
        assert!(table.fail(right).is_err() && table.fail(left).is_err());
        table.release(grant).unwrap();
        assert!(table.reap(grant).is_some(), "nobody writes");
    }

    #[test]
    fn a_sample_is_skipped_once_and_its_last_writer_is_waited_for() {
        let mut table = Regions::new(8192);
        let grant = table.grant(1, 0, 0, &places(&[100])).unwrap();
        let part = |first| Address { grant, slot: 0, span: Span { first, frames: 1 } };
        for first in 0..3 {
            assert_eq!(table.assign(part(first), (25 * u64::from(first), 25)), Ok(1));
        }
        assert!(!table.skip(grant, 0));
        assert_eq!(table.fail(part(1)), Ok(true));
        assert_eq!(table.fail(part(0)), Ok(false));
        assert!(!table.skip(grant, 0), "the rank could put another sample there, and one still writes");
        assert!(table.assign(part(3), (75, 25)).is_err(), "there is no use in the rest");
        let made = Made { what: part(2), attempt: 1, worker: 3, written: 25, shape: [4, 1, 1, 25] };
        assert_eq!(table.done(made), Ok(false));
        assert!(table.skip(grant, 0) && !table.skip(grant, 0));
    }

    #[test]
    fn what_a_rank_still_holds_is_taken_out_and_grants_go_on_behind_it() {
        let mut table = Regions::new(5 * 4096);
        table.hold(7, 4096, 8192).unwrap();
        assert!(table.hold(8, 8192, 4096).is_err(), "overlaps");
        assert!(table.hold(9, u64::MAX, 2).is_err(), "overflows");
        let grant = table.grant(1, 0, 0, &places(&[8192])).unwrap();
        assert_eq!((grant, table.block(grant).unwrap().offset), (8, 3 * 4096));
        table.release(7).unwrap();
        assert!(table.reap(7).is_some());
        assert_eq!(table.used(), 8192);
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_all_memory_comes_back(ops in prop::collection::vec((0u8..3, 0usize..8, 1u64..9000), 1..200)) {
            let mut table = Regions::new(64 * 1024);
            let mut held = Vec::new();
            for (op, n, size) in ops {
                if op < 2 {
                    held.extend(table.grant(1, 0, 0, &places(&vec![size; n + 1])));
                } else if !held.is_empty() {
                    let grant = held.swap_remove(n % held.len());
                    table.release(grant).unwrap();
                    prop_assert!(table.reap(grant).is_some());
                }
                let mut spans: Vec<_> = table.blocks().map(|(_, b)| (b.offset, b.offset + b.len)).collect();
                spans.sort_unstable();
                prop_assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0));
                prop_assert!(spans.iter().all(|s| s.1 <= table.bytes()));
                prop_assert_eq!(spans.iter().map(|s| s.1 - s.0).sum::<u64>(), table.used());
            }
            for grant in held {
                table.release(grant).unwrap();
                table.reap(grant);
            }
            prop_assert_eq!(table.used(), 0);
        }
    }
}
