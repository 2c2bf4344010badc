//! The private table of one slab: who may write where. It alone moves a region through its life.
//!
//! `free → granted(attempt) → ready → leased → free`, see `docs/protocol.md`. A [`Block`] holds the regions of one
//! batch side by side. The table does no I/O and trusts no one: each method checks that the arrow it is asked for
//! exists, and refuses with the reason otherwise.

use std::collections::{BTreeMap, HashMap};

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

/// The state of one region.
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
    Skipped,
}

/// What a worker says it has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// The grant.
    pub grant: u32,
    /// The slot.
    pub slot: u16,
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Region {
    /// What it is for.
    pub place: Place,
    /// Start in the slab, bytes.
    pub offset: u64,
    /// How far it has come.
    pub state: State,
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
                state: State::Granted { attempts: 0 },
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

    fn pair(&mut self, grant: u32, slot: u16) -> Result<(&mut u32, &mut Region), Refused> {
        let block = self.blocks.get_mut(&grant).ok_or(Refused::Grant(grant))?;
        let region = block.regions.get_mut(usize::from(slot)).ok_or(Refused::Slot(grant, slot))?;
        Ok((&mut block.writers, region))
    }

    /// granted(n) → writing(n + 1): a live worker is about to be told. Refused for a block that was released.
    pub fn assign(&mut self, grant: u32, slot: u16) -> Result<u16, Refused> {
        if self.blocks.get(&grant).ok_or(Refused::Grant(grant))?.released {
            return Err(Refused::State { grant, slot, wanted: "a block that is not released" });
        }
        let (writers, region) = self.pair(grant, slot)?;
        let State::Granted { attempts } = region.state else {
            return Err(Refused::State { grant, slot, wanted: "a region without writer" });
        };
        let attempt = attempts + 1;
        region.state = State::Writing { attempt };
        *writers += 1;
        Ok(attempt)
    }

    /// writing(n) → ready, by the word of the worker that made attempt n. The caller knows that it was this one.
    pub fn done(&mut self, made: Made) -> Result<(), Refused> {
        let Made { grant, slot, attempt, worker, written, shape } = made;
        let (writers, region) = self.pair(grant, slot)?;
        if region.state != (State::Writing { attempt }) {
            return Err(Refused::State { grant, slot, wanted: "a region that this attempt is writing" });
        }
        if written > region.place.bytes {
            return Err(Refused::Written { written, len: region.place.bytes });
        }
        region.state = State::Ready { attempt, worker, written, shape };
        *writers -= 1;
        Ok(())
    }

    /// writing(n) → granted(n): the writer is proven dead without having said that it was done.
    pub fn lost(&mut self, grant: u32, slot: u16) -> Result<&mut Region, Refused> {
        let (writers, region) = self.pair(grant, slot)?;
        let State::Writing { attempt } = region.state else {
            return Err(Refused::State { grant, slot, wanted: "a region that is being written" });
        };
        region.state = State::Granted { attempts: attempt };
        *writers -= 1;
        Ok(region)
    }

    /// granted or writing → skipped: by the worker's word, or at the limit of attempts with no writer left.
    pub fn skip(&mut self, grant: u32, slot: u16) -> Result<(), Refused> {
        let (writers, region) = self.pair(grant, slot)?;
        match region.state {
            State::Writing { .. } => *writers -= 1,
            State::Granted { .. } => {}
            _ => return Err(Refused::State { grant, slot, wanted: "a region that is not ready" }),
        }
        region.state = State::Skipped;
        Ok(())
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
        sizes.iter().map(|&bytes| Place { bytes, cost: 1.0, ..Place::default() }).collect()
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
        assert_eq!(table.assign(grant, 0), Ok(1));
        table.release(grant).unwrap();
        assert_eq!(table.reap(grant), None);
        assert_eq!(table.grant(1, 0, 1, &places(&[1])), None);
        table.lost(grant, 0).unwrap();
        assert!(table.reap(grant).is_some());
        assert!(table.grant(1, 0, 1, &places(&[1])).is_some());
    }

    #[test]
    fn a_region_has_one_writer_and_attempts_count_up() {
        let mut table = Regions::new(8192);
        let grant = table.grant(1, 0, 0, &places(&[100])).unwrap();
        assert_eq!(table.assign(grant, 0), Ok(1));
        assert!(table.assign(grant, 0).is_err());
        table.lost(grant, 0).unwrap();
        assert_eq!(table.assign(grant, 0), Ok(2));
        let made = Made { grant, slot: 0, attempt: 2, worker: 3, written: 100, shape: [1, 1, 1, 100] };
        assert!(table.done(Made { attempt: 1, ..made }).is_err(), "an attempt whose writer is dead");
        assert_eq!(table.done(Made { written: 101, ..made }), Err(Refused::Written { written: 101, len: 100 }));
        table.done(made).unwrap();
        assert!(table.assign(grant, 0).is_err());
        assert!(table.done(made).is_err());
        table.release(grant).unwrap();
        assert!(table.release(grant).is_err());
        assert!(table.reap(grant).is_some());
        assert_eq!(table.used(), 0);
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
