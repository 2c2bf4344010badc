//! The private table of one slab: who may write where. It alone moves a region through its life.
//!
//! `free → granted(attempt) → ready → leased → free`, see `docs/protocol.md`. A [`Block`] holds the regions of one
//! batch side by side. The table does no I/O and trusts no one: each method checks that the arrow it is asked for
//! exists, and refuses with the reason otherwise. A region that several workers fill has [`Part`]s, each of which goes
//! that way by itself. A part whose writer is stuck gets a [`Spare`] place and a second writer there.

use std::collections::{BTreeMap, HashMap};

use crate::proto::transform::Span;
use crate::sched::event::Place;

/// Blocks start on a page, so that a device can pin them and a tensor is aligned.
const BLOCK_ALIGN: u64 = 4096;
/// Regions of differing sizes start on a cache line, so that two writers never share one.
const REGION_ALIGN: u64 = 64;

/// No rank honestly holds a grant of a higher number: numbers go up by one a batch, and must not run out.
const MOST_HELD: u32 = u32::MAX / 2;

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

/// What has become of a part of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nobody has made it yet.
    Open,
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
        /// The block that it was made in, if it is not in the region.
        spare: Option<u32>,
    },
    /// It never will be.
    Failed,
}

/// A second place of a part, where it is made when the one who makes it in the first is stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spare {
    /// A block of its own.
    pub grant: u32,
    /// Where that starts in the slab, bytes.
    pub offset: u64,
    /// The attempt whose worker may be writing to it.
    writer: Option<u16>,
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
    /// Attempts made so far.
    attempts: u16,
    /// The attempt whose worker may be writing to its place.
    writer: Option<u16>,
    spare: Option<Spare>,
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
    /// The sample that was planned for this place, and how many others were tried in its stead.
    pub planned: (u64, u32),
}

impl Region {
    /// Whether a part of it is in its place.
    pub fn has(&self, span: Span) -> bool {
        self.parts.iter().any(|part| part.span == span && matches!(part.state, State::Ready { .. }))
    }
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
    /// The regions in the order of the batch; none for a spare place, and for a block that a rank held before this
    /// daemon lived.
    pub regions: Vec<Region>,
    /// Whether the rank has let it go.
    pub released: bool,
    writers: u32,
    /// How often other ranks read in it.
    readers: u32,
}

/// What follows from a worker's Done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// The spare block that nobody writes to now.
    pub spare: Option<u32>,
    /// Whether this attempt was the first to be done.
    pub first: bool,
    /// Whether the sample is as a whole in its place by it.
    pub complete: bool,
}

/// What follows from a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    /// The spare block that nobody writes to now.
    pub spare: Option<u32>,
    /// Whether the sample is skipped by it, and was not before.
    pub first: bool,
}

impl Block {
    fn new((offset, len): (u64, u64), (iter, epoch, step): (u32, u32, u32), regions: Vec<Region>) -> Block {
        Block { offset, len, iter, epoch, step, regions, released: false, writers: 0, readers: 0 }
    }
}

impl Part {
    fn begin(&mut self) -> u16 {
        self.attempts += 1;
        self.writer = Some(self.attempts);
        self.attempts
    }

    fn is_written_by(&self, attempt: u16) -> bool {
        self.writer == Some(attempt) || self.spare.is_some_and(|spare| spare.writer == Some(attempt))
    }

    fn is_being_written(&self) -> bool {
        self.writer.is_some() || self.spare.is_some_and(|spare| spare.writer.is_some())
    }
}

/// The table of one slab.
#[derive(Debug)]
pub struct Regions {
    bytes: u64,
    /// Free spans: start to length; neighbours are merged.
    free: BTreeMap<u64, u64>,
    blocks: HashMap<u32, Block>,
    /// Attempts that still write to a spare place although the batch is free: the spare block of each.
    strays: HashMap<(Address, u16), u32>,
    next_grant: u32,
}

impl Regions {
    /// A table for a slab of so many bytes, all free.
    pub fn new(bytes: u64) -> Regions {
        let mut free = BTreeMap::new();
        if bytes > 0 {
            free.insert(0, bytes);
        }
        Regions { bytes, free, blocks: HashMap::new(), strays: HashMap::new(), next_grant: 1 }
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
        if len == 0 || end > start + span || grant > MOST_HELD || self.blocks.contains_key(&grant) {
            return Err(wrong);
        }
        self.free.remove(&start);
        self.insert_free(start, offset - start);
        self.insert_free(end, start + span - end);
        self.blocks.insert(grant, Block::new((offset, len), (0, 0, 0), Vec::new()));
        self.next_grant = self.next_grant.max(grant + 1);
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
        let region = |((offset, _), &place): ((u64, u64), &Place)| Region {
            place,
            offset,
            parts: Vec::new(),
            skipped: false,
            told: false,
            faults: 0,
            kills: 0,
            planned: (place.sample, 0),
        };
        let regions = layout(places).zip(places).map(region).collect();
        self.take(len, regions, (iter, epoch, step)).map(|(grant, _)| grant)
    }

    /// Takes the lowest span that fits for a block, whose regions lie relative to its start.
    fn take(&mut self, len: u64, mut regions: Vec<Region>, of: (u32, u32, u32)) -> Option<(u32, u64)> {
        let len = len.next_multiple_of(BLOCK_ALIGN);
        let grant = self.next_grant;
        let next = grant.checked_add(1)?;
        let (&offset, &span) = self.free.iter().find(|&(_, &span)| span >= len)?;
        self.next_grant = next;
        self.free.remove(&offset);
        self.insert_free(offset + len, span - len);
        regions.iter_mut().for_each(|region| region.offset += offset);
        self.blocks.insert(grant, Block::new((offset, len), of, regions));
        Some((grant, offset))
    }

    /// A region, for reading.
    pub fn region(&self, grant: u32, slot: u16) -> Result<&Region, Refused> {
        let block = self.blocks.get(&grant).ok_or(Refused::Grant(grant))?;
        block.regions.get(usize::from(slot)).ok_or(Refused::Slot(grant, slot))
    }

    fn part(&mut self, what: Address) -> Result<&mut Part, Refused> {
        let Address { grant, slot, span } = what;
        let block = self.blocks.get_mut(&grant).ok_or(Refused::Grant(grant))?;
        let region = block.regions.get_mut(usize::from(slot)).ok_or(Refused::Slot(grant, slot))?;
        let part = region.parts.iter_mut().find(|part| part.span == span);
        part.ok_or(Refused::Part { grant, slot, first: span.first, frames: span.frames })
    }

    /// A live worker is about to be told. `at` is where the part lies: bytes from the region's start, and how many.
    /// Answers the number of the attempt. Refused for a block that was released, and for a sample that was skipped.
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
                if part.state != State::Open || part.is_being_written() {
                    return Err(state("a part without writer"));
                }
                part.begin()
            }
            None => {
                let apart = region.parts.iter().all(|p| p.span != span && (p.at + p.len <= at || end <= p.at));
                if len == 0 || end > region.place.bytes || !apart {
                    return Err(Refused::Part { grant, slot, first: span.first, frames: span.frames });
                }
                let part = Part { span, at, len, state: State::Open, attempts: 0, writer: None, spare: None };
                region.parts.push(part);
                region.parts.last_mut().map_or(0, Part::begin)
            }
        };
        block.writers += 1;
        Ok(attempt)
    }

    /// A second worker is about to be told to make a part, where the first does not write. Answers the number of the
    /// attempt and its place: a spare one, and whether that is new, or none for the part's own. `None` when there is no
    /// room for a spare place.
    pub fn hedge(&mut self, what: Address) -> Result<Option<(u16, Option<Spare>, bool)>, Refused> {
        let Address { grant, slot, .. } = what;
        let state = |wanted| Refused::State { grant, slot, wanted };
        let block = self.blocks.get(&grant).ok_or(Refused::Grant(grant))?;
        if block.released || self.region(grant, slot)?.skipped {
            return Err(state("a batch that is wanted"));
        }
        let part = *self.part(what)?;
        let beside = part.spare.is_some_and(|spare| spare.writer.is_some());
        if part.state != State::Open || part.writer.is_some() == beside {
            return Err(state("a part with one writer"));
        }
        if beside {
            let attempt = self.part(what)?.begin();
            self.add_writer(grant);
            return Ok(Some((attempt, None, false)));
        }
        let known = part.spare.filter(|spare| self.blocks.get(&spare.grant).is_some_and(|block| !block.released));
        let fresh = known.is_none();
        let mut spare = match known {
            Some(spare) => spare,
            None => {
                let Some((grant, offset)) = self.take(part.len, Vec::new(), (0, 0, 0)) else { return Ok(None) };
                Spare { grant, offset, writer: None }
            }
        };
        let part = self.part(what)?;
        part.attempts += 1;
        let attempt = part.attempts;
        spare.writer = Some(attempt);
        part.spare = Some(spare);
        self.add_writer(spare.grant);
        Ok(Some((attempt, Some(spare), fresh)))
    }

    fn add_writer(&mut self, grant: u32) {
        if let Some(block) = self.blocks.get_mut(&grant) {
            block.writers += 1;
        }
    }

    /// An attempt has ended: nobody writes to its place any more. Answers the place's block, if it is a spare one.
    fn end(&mut self, what: Address, attempt: u16) -> Result<Option<u32>, Refused> {
        let part = self.part(what)?;
        let spare = part.spare.as_mut().filter(|spare| spare.writer == Some(attempt));
        let place = if part.writer == Some(attempt) {
            part.writer = None;
            None
        } else if let Some(spare) = spare {
            spare.writer = None;
            Some(spare.grant)
        } else {
            let Address { grant, slot, .. } = what;
            return Err(Refused::State { grant, slot, wanted: "a part that this attempt is writing" });
        };
        if let Some(block) = self.blocks.get_mut(&place.unwrap_or(what.grant)) {
            block.writers -= 1;
        }
        Ok(place)
    }

    /// As [`Regions::end`], for an attempt that another one has beaten so long ago that the batch is free.
    fn end_stray(&mut self, what: Address, attempt: u16) -> Option<u32> {
        let spare = self.strays.remove(&(what, attempt))?;
        if let Some(block) = self.blocks.get_mut(&spare) {
            block.writers -= 1;
        }
        Some(spare)
    }

    /// The worker that made an attempt says that it is done; the caller knows that it was this one.
    pub fn done(&mut self, made: Made) -> Result<Done, Refused> {
        let Made { what, attempt, worker, written, shape } = made;
        if let Some(spare) = self.end_stray(what, attempt) {
            return Ok(Done { spare: Some(spare), first: false, complete: false });
        }
        let len = self.part(what)?.len;
        if written > len {
            return Err(Refused::Written { written, len });
        }
        let spare = self.end(what, attempt)?;
        let part = self.part(what)?;
        let first = part.state == State::Open;
        if first {
            part.state = State::Ready { attempt, worker, written, shape, spare };
        }
        let region = self.region(what.grant, what.slot)?;
        let ready = |part: &Part| if let State::Ready { .. } = part.state { part.len } else { 0 };
        let complete = first && region.parts.iter().map(ready).sum::<u64>() == region.place.bytes;
        Ok(Done { spare, first, complete })
    }

    /// The worker of an attempt is proven dead without having said that it was done. Answers the region, if it is not
    /// free already, and the spare block that the attempt was made in.
    pub fn lost(&mut self, what: Address, attempt: u16) -> Result<(Option<&mut Region>, Option<u32>), Refused> {
        let Address { grant, slot, .. } = what;
        if let Some(spare) = self.end_stray(what, attempt) {
            return Ok((None, Some(spare)));
        }
        let spare = self.end(what, attempt)?;
        let block = self.blocks.get_mut(&grant).ok_or(Refused::Grant(grant))?;
        let region = block.regions.get_mut(usize::from(slot)).ok_or(Refused::Slot(grant, slot))?;
        Ok((Some(region), spare))
    }

    /// A part cannot be made, as the worker of the attempt says, or as is decided when the attempt is lost. The sample
    /// is skipped by it. Nothing changes if another attempt was done before.
    pub fn fail(&mut self, what: Address, attempt: u16) -> Result<Failed, Refused> {
        let Address { grant, slot, .. } = what;
        if let Some(spare) = self.end_stray(what, attempt) {
            return Ok(Failed { spare: Some(spare), first: false });
        }
        let part = *self.part(what)?;
        let spare = if part.is_written_by(attempt) { self.end(what, attempt)? } else { None };
        let part = self.part(what)?;
        let news = part.state == State::Open;
        if news {
            part.state = State::Failed;
        }
        let block = self.blocks.get_mut(&grant).ok_or(Refused::Grant(grant))?;
        let region = block.regions.get_mut(usize::from(slot)).ok_or(Refused::Slot(grant, slot))?;
        let first = news && !region.skipped;
        region.skipped |= news;
        Ok(Failed { spare, first })
    }

    /// The attempt that may be writing to a part's own place.
    pub fn writer(&self, what: Address) -> Option<u16> {
        let region = self.region(what.grant, what.slot).ok()?;
        region.parts.iter().find(|part| part.span == what.span)?.writer
    }

    /// The parts of a block that are made, and that someone still writes to the place of.
    pub fn beaten(&self, grant: u32) -> Vec<Address> {
        let regions = self.blocks.get(&grant).map_or(&[][..], |block| &block.regions);
        let parts = (0..).zip(regions).flat_map(|(slot, region)| region.parts.iter().map(move |part| (slot, part)));
        let beaten = parts.filter(|(_, part)| part.state != State::Open && part.writer.is_some());
        beaten.map(|(slot, part)| Address { grant, slot, span: part.span }).collect()
    }

    /// The parts whose writers hold up that the rank is told of a skip.
    pub fn held_up(&self) -> Vec<Address> {
        let mut parts = Vec::new();
        for (&grant, block) in self.blocks.iter().filter(|(_, block)| !block.released) {
            for (slot, region) in (0..).zip(&block.regions).filter(|(_, region)| region.skipped && !region.told) {
                let written = region.parts.iter().filter(|part| part.writer.is_some());
                parts.extend(written.map(|part| Address { grant, slot, span: part.span }));
            }
        }
        parts
    }

    /// Whether the rank is to be told now that a sample is skipped: once, when nobody writes to its region any more.
    pub fn skip(&mut self, grant: u32, slot: u16) -> bool {
        let region = self.blocks.get_mut(&grant).and_then(|block| block.regions.get_mut(usize::from(slot)));
        let Some(region) = region.filter(|region| region.skipped && !region.told) else { return false };
        // Who writes to a spare place disturbs nobody: it stays apart as long as the batch is held.
        region.told = region.parts.iter().all(|part| part.writer.is_none());
        region.told
    }

    /// Whether a skipped sample's place can have another sample: once, when nobody writes for the old one any more.
    pub fn can_be_replaced(&self, grant: u32, slot: u16) -> bool {
        let wanted = self.blocks.get(&grant).is_some_and(|block| !block.released);
        let region = self.region(grant, slot).ok().filter(|region| wanted && region.skipped && !region.told);
        region.is_some_and(|region| !region.parts.iter().any(Part::is_being_written))
    }

    /// skipped → granted, for another sample of the same size: the `nth` that was tried.
    pub fn replace(&mut self, grant: u32, slot: u16, sample: u64, nth: u32) -> Result<&Region, Refused> {
        if !self.can_be_replaced(grant, slot) {
            return Err(Refused::State { grant, slot, wanted: "a skipped sample that nobody is at" });
        }
        let block = self.blocks.get_mut(&grant).ok_or(Refused::Grant(grant))?;
        let region = block.regions.get_mut(usize::from(slot)).ok_or(Refused::Slot(grant, slot))?;
        region.place.sample = sample;
        region.planned.1 = nth;
        region.parts.clear();
        (region.skipped, region.faults, region.kills) = (false, 0, 0);
        Ok(region)
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
        if !block.released || block.writers > 0 || block.readers > 0 {
            return None;
        }
        let block = self.blocks.remove(&grant)?;
        self.insert_free(block.offset, block.len);
        for (slot, region) in (0..).zip(&block.regions) {
            for part in &region.parts {
                let Some((spare, attempt)) = part.spare.and_then(|s| Some((s.grant, s.writer?))) else { continue };
                self.strays.insert((Address { grant, slot, span: part.span }, attempt), spare);
            }
        }
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

mod handed;

#[cfg(test)]
mod tests;
