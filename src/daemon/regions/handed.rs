//! Blocks of which other ranks read: they are free only when these have let go, too.

use super::{Refused, Regions, State};

/// A piece of a sample, and where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The block's grant.
    pub grant: u32,
    /// Start of the block in the slab, bytes.
    pub block: u64,
    /// Length of the block, bytes.
    pub block_len: u64,
    /// Start of the piece in the slab, bytes.
    pub offset: u64,
    /// First frame.
    pub first: u16,
    /// Frames.
    pub frames: u16,
}

impl Regions {
    /// Where a sample that is ready lies, in the order of its frames. `None` unless all of it is ready.
    pub fn pieces(&self, grant: u32, slot: u16) -> Option<Vec<Place>> {
        let region = self.region(grant, slot).ok()?;
        let mut parts = region.parts.clone();
        parts.sort_unstable_by_key(|part| part.span);
        let mut covered = 0;
        let mut pieces = Vec::with_capacity(parts.len());
        for part in &parts {
            let State::Ready { spare, .. } = part.state else { return None };
            covered += part.len;
            let its = spare.unwrap_or(grant);
            let block = self.block(its)?;
            let offset = if spare.is_some() { block.offset } else { region.offset + part.at };
            let (first, frames) = (part.span.first, part.span.frames);
            pieces.push(Place { grant: its, block: block.offset, block_len: block.len, offset, first, frames });
        }
        (covered == region.place.bytes && !region.skipped).then_some(pieces)
    }

    /// Another rank gets to read in a block.
    pub fn lend(&mut self, grant: u32) -> Result<(), Refused> {
        self.blocks.get_mut(&grant).ok_or(Refused::Grant(grant))?.readers += 1;
        Ok(())
    }

    /// Takes note of another rank that reads in a block since before this daemon lived. Its own rank may hold it too, or
    /// have let it go.
    pub fn lend_from_before(&mut self, grant: u32, offset: u64, len: u64) -> Result<(), Refused> {
        match self.blocks.get(&grant) {
            Some(block) if (block.offset, block.len) == (offset, len) && block.regions.is_empty() => {}
            Some(_) => return Err(Refused::State { grant, slot: 0, wanted: "the block as its own rank knows it" }),
            None => {
                self.hold(grant, offset, len)?;
                self.release(grant)?;
            }
        }
        self.lend(grant)
    }

    /// Another rank has let go of what it read in a block.
    pub fn take_back(&mut self, grant: u32) -> Result<(), Refused> {
        let block = self.blocks.get_mut(&grant).ok_or(Refused::Grant(grant))?;
        let left = block.readers.checked_sub(1);
        block.readers = left.ok_or(Refused::State { grant, slot: 0, wanted: "a block that was handed over" })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::regions::{Address, Made};
    use crate::proto::transform::Span;
    use crate::sched::event;

    fn made(regions: &mut Regions, grant: u32, slot: u16) {
        let what = Address { grant, slot, span: Span { first: 0, frames: 2 } };
        let attempt = regions.assign(what, (0, 64)).unwrap();
        regions.done(Made { what, attempt, worker: 0, written: 64, shape: [1; 4] }).unwrap();
    }

    #[test]
    fn a_block_is_free_when_its_rank_and_all_readers_have_let_go() {
        let mut regions = Regions::new(1 << 16);
        let places = [event::Place { bytes: 64, ..Default::default() }; 2];
        let grant = regions.grant(1, 0, 0, &places).unwrap();
        made(&mut regions, grant, 0);
        assert!(regions.pieces(grant, 0).is_some() && regions.pieces(grant, 1).is_none());
        made(&mut regions, grant, 1);
        assert_eq!(regions.pieces(grant, 1).unwrap()[0].offset, 64);
        regions.lend(grant).unwrap();
        regions.lend(grant).unwrap();
        regions.release(grant).unwrap();
        for _ in 0..2 {
            assert_eq!(regions.reap(grant), None);
            regions.take_back(grant).unwrap();
        }
        assert!(regions.take_back(grant).is_err());
        assert!(regions.reap(grant).is_some());
        assert_eq!(regions.used(), 0);
    }

    #[test]
    fn what_is_read_since_before_the_daemon_lived_is_not_granted_again() {
        let mut regions = Regions::new(1 << 14);
        regions.hold(3, 0, 4096).unwrap();
        for (grant, offset) in [(3, 0), (5, 4096), (5, 4096)] {
            regions.lend_from_before(grant, offset, 4096).unwrap();
        }
        assert!(regions.lend_from_before(3, 4096, 4096).is_err());
        assert!(regions.lend_from_before(9, 0, 8192).is_err());
        let places = [event::Place { bytes: 8192, ..Default::default() }];
        assert_eq!(regions.grant(1, 0, 0, &places), Some(6), "behind what is held, and numbered above it");
        regions.release(3).unwrap();
        assert_eq!((regions.reap(3), regions.reap(5)), (None, None));
        regions.take_back(3).unwrap();
        assert!(regions.reap(3).is_some());
        regions.take_back(5).unwrap();
        assert_eq!(regions.reap(5), None);
        regions.take_back(5).unwrap();
        assert!(regions.reap(5).is_some());
    }
}
