//! A batch: a lease on a block of the slab, and what is in it.

use std::sync::{Arc, OnceLock};

use super::fields::{Ragged, VIDEO};
use super::handed::{Borrowed, Came, Handover, Place};
use super::ledger::{Grant, Lease};
use super::store::Store;
use super::table::{Assembled, Piece as Part, Slot, SlotState};
use super::tensor::{BatchError, Tensor, TensorMut, extent};
use super::tokens::{self, Encode};
use crate::device::HostSource;
use crate::manifest::Manifest;
use crate::proto::fields::Audio;
use crate::proto::options::{Profile, Weigh};
use crate::proto::transform::Dtype;

/// Where the bytes of a sample begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// On the slab.
    Slab(u64),
    /// In one of the batch's own buffers.
    Heap(usize, u64),
    /// In one of the samples that lie in other ranks' slabs.
    Lent(usize, u64),
}

impl At {
    fn plus(self, bytes: u64) -> At {
        match self {
            At::Slab(offset) => At::Slab(offset + bytes),
            At::Heap(which, offset) => At::Heap(which, offset + bytes),
            At::Lent(which, offset) => At::Lent(which, offset + bytes),
        }
    }
}

/// What a stream's options make of its batches.
#[derive(Clone, Default)]
pub(crate) struct View {
    pub(crate) dtype: Dtype,
    /// The sound that goes with the frames.
    pub(crate) audio: Option<Audio>,
    /// Where the texts are.
    pub(crate) manifest: Option<Arc<Manifest>>,
    /// What makes tokens of them.
    pub(crate) encode: Option<Encode>,
    /// The shape of every sample, if the transform fixes it.
    pub(crate) fixed: Option<[u16; 4]>,
    pub(crate) profile: Profile,
    pub(crate) weigh: Weigh,
}

/// One delivered sample.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Piece {
    at: At,
    pub(super) bytes: u64,
    pub(super) shape: [u16; 4],
}

/// What a rank gets for a step. It can be sent to another thread and kept; its memory is in use until it is dropped.
pub struct Batch {
    lease: Lease,
    /// The blocks of samples that are not in their own places. Who is stuck in those places may still write to them, so
    /// nothing is moved there.
    spares: Vec<Lease>,
    /// Samples that were not in one place.
    heap: Vec<Vec<u8>>,
    /// Samples in other ranks' slabs.
    lent: Vec<Borrowed>,
    /// Whether samples were given to other ranks or came from them: then nothing is moved, since others read it.
    handed: bool,
    /// The plan by which its step was balanced once more.
    plan: u32,
    store: Arc<Store>,
    epoch: u32,
    step: u32,
    global: u32,
    planned: usize,
    cost: (f32, f32),
    /// Tokens of this batch and of the step over all ranks, before any sample was skipped.
    total_tokens: (f64, f64),
    /// Packed sequences, and the one that each sample is in.
    bins: u16,
    bin_of: Vec<u16>,
    pub(super) dtype: Dtype,
    pub(super) audio: Option<Audio>,
    pub(super) manifest: Option<Arc<Manifest>>,
    pub(super) token_ids: Option<Result<Ragged, String>>,
    /// The shape of every sample, if the transform fixes it.
    fixed: Option<[u16; 4]>,
    pub(super) ids: Vec<u64>,
    home_ranks: Vec<u32>,
    tokens: Vec<f64>,
    weights: Vec<f64>,
    /// The samples where the workers wrote them.
    pieces: Vec<Piece>,
    /// The samples where they are for good. Whoever first looks at a byte settles it: `tensor` moves them together
    /// if skipped ones left gaps, everyone else takes them as they are.
    placed: OnceLock<Vec<Piece>>,
    /// The tensor of a batch that was settled with gaps before anyone asked for it.
    gathered: OnceLock<Vec<u8>>,
}

impl Batch {
    /// Takes over a block whose samples are all there or skipped.
    pub(crate) fn new(store: Arc<Store>, assembled: Assembled, view: View) -> Batch {
        let Assembled {
            lease,
            epoch,
            step,
            global,
            mean_cost,
            tokens_global,
            bins,
            slots,
            scattered,
            spares,
            handover,
        } = assembled;
        let Handover { digest: plan, came, .. } = handover;
        let View { dtype, audio, manifest, encode, fixed, profile, weigh } = view;
        let away = |slot: &&Slot| slot.state == SlotState::Away;
        let handed = !came.is_empty() || slots.iter().any(|slot| away(&slot));
        let its = || slots.iter().filter(|s| !away(s)).chain(came.iter().map(|came| &came.slot));
        let planned = its().count();
        let cost = its().map(|s| profile.cost(s.tokens)).sum::<f64>() as f32;
        let tokens_rank = its().map(|s| s.tokens).sum();
        let mut batch = Batch {
            lease,
            spares,
            heap: Vec::new(),
            lent: Vec::new(),
            handed,
            plan,
            store,
            epoch,
            step,
            global,
            planned,
            cost: (cost, mean_cost),
            total_tokens: (tokens_rank, tokens_global),
            bins,
            bin_of: Vec::with_capacity(planned),
            dtype,
            audio,
            manifest,
            token_ids: None,
            fixed,
            ids: Vec::with_capacity(planned),
            home_ranks: Vec::with_capacity(planned),
            tokens: Vec::with_capacity(planned),
            weights: Vec::with_capacity(planned),
            pieces: Vec::with_capacity(planned),
            placed: OnceLock::new(),
            gathered: OnceLock::new(),
        };
        // Those that come take the places of those that go; the rest of them is appended.
        let mut came = came.into_iter();
        for (nth, slot) in (0..).zip(slots) {
            let at = match (slot.state, scattered.get(&nth)) {
                (SlotState::Away, _) => {
                    came.next().into_iter().for_each(|came| batch.take_in(came, weigh));
                    continue;
                }
                (_, None) => At::Slab(slot.offset),
                (_, Some(parts)) => batch.join(parts),
            };
            batch.push(at, &slot, weigh);
        }
        came.for_each(|came| batch.take_in(came, weigh));
        if let (Some(encode), Some(manifest)) = (&encode, &batch.manifest) {
            let texts = batch.ids.iter().map(|&row| manifest.descriptor(row).text);
            batch.token_ids = Some(tokens::ids(encode, texts));
        }
        batch
    }

    /// Takes in a sample that came from another rank.
    fn take_in(&mut self, came: Came, weigh: Weigh) {
        let at = match came.at {
            Place::Lent(borrowed) => {
                self.lent.push(borrowed);
                At::Lent(self.lent.len() - 1, 0)
            }
            Place::Copied(bytes) => {
                self.heap.push(bytes);
                At::Heap(self.heap.len() - 1, 0)
            }
        };
        self.push(at, &came.slot, weigh);
    }

    /// Appends a sample, if it is there.
    fn push(&mut self, at: At, slot: &Slot, weigh: Weigh) {
        if let SlotState::Ready { written: bytes, shape } = slot.state {
            self.pieces.push(Piece { at, bytes, shape });
            self.ids.push(slot.sample);
            self.home_ranks.push(slot.home_rank);
            self.tokens.push(slot.tokens);
            self.bin_of.push(slot.bin);
            self.weights.push(weight(weigh, slot, self.global, self.total_tokens.1));
        }
    }

    /// Brings the parts of a sample together.
    fn join(&mut self, parts: &[Part]) -> At {
        let parts: Vec<&[u8]> = parts.iter().map(|part| self.bytes(At::Slab(part.offset), part.bytes)).collect();
        let whole = parts.concat();
        self.lease.ledger().copied(whole.len() as u64);
        self.heap.push(whole);
        At::Heap(self.heap.len() - 1, 0)
    }

    /// Where the samples are; see the field.
    fn placed(&self) -> &[Piece] {
        self.placed.get_or_init(|| self.pieces.clone())
    }

    /// Where the samples are, together if nobody has looked yet.
    fn placed_together(&self) -> &[Piece] {
        self.placed.get_or_init(|| {
            let mut pieces = self.pieces.clone();
            // SAFETY: nothing was settled, so no byte of this batch was handed out yet.
            unsafe { self.close_gaps(&mut pieces) };
            pieces
        })
    }

    /// Moves the pieces beside the longest run of them, which stays.
    ///
    /// # Safety
    /// No slice of this batch is alive.
    unsafe fn close_gaps(&self, pieces: &mut [Piece]) {
        let bounds = run_bounds(pieces);
        let Some(&(first, last)) = bounds.iter().max_by_key(|(first, last)| last - first) else { return };
        let (At::Slab(begin), At::Slab(end)) = (pieces[0].at, pieces[pieces.len() - 1].at) else { return };
        if bounds.len() == 1 || self.handed || !self.spares.is_empty() {
            return;
        }
        let len = (end + pieces[pieces.len() - 1].bytes - begin) as usize;
        // SAFETY: all of it is inside the block that this batch leases alone, the caller vouches for the slices, and
        // no process writes to a region that is ready or was given up.
        let memory = unsafe { self.store.slab.slice_mut(begin as usize, len) };
        let mut copied = 0;
        let mut shift = |piece: &mut Piece, to: u64| {
            let At::Slab(from) = piece.at else { return };
            let from = (from - begin) as usize;
            memory.copy_within(from..from + piece.bytes as usize, (to - begin) as usize);
            piece.at = At::Slab(to);
            copied += piece.bytes;
        };
        let start = |piece: &Piece| if let At::Slab(offset) = piece.at { offset } else { begin };
        for i in last..pieces.len() {
            let to = start(&pieces[i - 1]) + pieces[i - 1].bytes;
            shift(&mut pieces[i], to);
        }
        for i in (0..first).rev() {
            let to = start(&pieces[i + 1]) - pieces[i].bytes;
            shift(&mut pieces[i], to);
        }
        self.lease.ledger().copied(copied);
    }

    /// The table has checked every region against the slab's size.
    fn bytes(&self, at: At, bytes: u64) -> &[u8] {
        match at {
            // SAFETY: a ready region of a block that this batch leases alone: nobody writes there until it is dropped,
            // and we only through `&mut self`.
            At::Slab(offset) => unsafe { self.store.slab.slice(offset as usize, bytes as usize) },
            At::Heap(which, offset) => &self.heap[which][offset as usize..][..bytes as usize],
            // SAFETY: the loan is held as long as the mapping: nobody writes there, and we only through `&mut self`.
            At::Lent(which, offset) => unsafe {
                &self.lent[which].bytes.bytes()[offset as usize..][..bytes as usize]
            },
        }
    }

    fn bytes_mut(&mut self, at: At, bytes: u64) -> &mut [u8] {
        match at {
            // SAFETY: as in `bytes`, and `&mut self` says that no other slice of this batch is alive.
            At::Slab(offset) => unsafe { self.store.slab.slice_mut(offset as usize, bytes as usize) },
            At::Heap(which, offset) => &mut self.heap[which][offset as usize..][..bytes as usize],
            At::Lent(which, offset) => {
                // SAFETY: as in `bytes`; what is written is this rank's own copy.
                let lent = unsafe { self.lent[which].bytes.bytes_mut() };
                &mut lent[offset as usize..][..bytes as usize]
            }
        }
    }

    pub(crate) fn grant(&self) -> Grant {
        self.lease.id()
    }

    /// The low half of the digest of the plan by which its step was balanced; 0 without one.
    pub(crate) fn plan(&self) -> u32 {
        self.plan
    }

    pub(crate) fn waited(&mut self, ns: u64) {
        self.lease.waited(ns);
    }

    /// Samples in it; skipped ones are not.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether every sample was skipped. Such a batch is delivered all the same, so that all ranks make equal steps.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Samples of it that lie in the slabs of other ranks, where they were made before the step was balanced once more.
    pub fn handed_over(&self) -> usize {
        self.lent.len()
    }

    /// Samples that were skipped.
    pub fn skipped(&self) -> usize {
        self.planned - self.len()
    }

    /// The samples' rows in the manifest.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// Epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Step within the epoch.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// Weight of each sample in the mean over the global batch that the options ask for ([`Weigh`]), by default
    /// 1 / [`n_global`](Self::n_global). Over all ranks they sum to 1, wherever samples have been moved: under gradient
    /// averaging over `R` ranks the rank's loss is `R · Σ wᵢ·ℓᵢ`.
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// Samples of this rank in the step, before any was skipped.
    pub fn n_rank(&self) -> u32 {
        self.planned as u32
    }

    /// Tokens of this rank in the step by the profile, before any sample was skipped.
    pub fn tokens_rank(&self) -> f64 {
        self.total_tokens.0
    }

    /// Tokens of the step over all ranks, before any sample was skipped.
    pub fn tokens_global(&self) -> f64 {
        self.total_tokens.1
    }

    /// The packed sequences of the batch, each as a range of its samples; as many on every rank, so that some may be
    /// empty. One sequence of all samples where they are not packed.
    pub fn sequences(&self) -> Vec<std::ops::Range<usize>> {
        let from = |bin: u16| self.bin_of.partition_point(|b| *b < bin);
        (0..self.bins.max(1)).map(|bin| from(bin)..from(bin + 1)).collect()
    }

    /// Where the samples of a packed sequence begin, in tokens, and where the last one ends: what attention over
    /// sequences of several lengths asks for. Empty if there is no such sequence.
    pub fn cu_seqlens(&self, sequence: usize) -> Vec<u64> {
        let Some(samples) = self.sequences().get(sequence).cloned() else { return Vec::new() };
        let ends = self.tokens[samples].iter().scan(0, |end, tokens| {
            *end += tokens.round().max(0.0) as u64;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }

    /// Samples of the step over all ranks, before any was skipped.
    pub fn n_global(&self) -> u32 {
        self.global
    }

    /// For each sample the rank that the sampler dealt it to, before balancing.
    pub fn home_ranks(&self) -> &[u32] {
        &self.home_ranks
    }

    /// The profile's tokens of each sample; under [`Profile::Decode`] the milliseconds that decoding it takes.
    pub fn tokens(&self) -> &[f64] {
        &self.tokens
    }

    /// Predicted cost of this batch and of the step's mean rank, in the profile's unit.
    pub fn cost(&self) -> (f32, f32) {
        self.cost
    }

    /// Type of its numbers.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// How long `next()` had waited for it.
    pub fn wait(&self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.lease.wait_ns())
    }

    /// Shape of a sample, in the order of the transform's layout.
    pub fn shape(&self, i: usize) -> Result<[u16; 4], BatchError> {
        self.piece(i).map(|p| p.shape)
    }

    pub(super) fn piece(&self, index: usize) -> Result<&Piece, BatchError> {
        self.pieces.get(index).ok_or(BatchError::Index { index, len: self.len() })
    }

    /// The bytes of a field (`video`, `audio`) of a sample, on the slab: no byte is copied.
    pub fn sample(&self, i: usize, name: &str) -> Result<&[u8], BatchError> {
        let (from, len) = self.field(i, name)?;
        Ok(self.within(i, from, len))
    }

    /// Bytes of a sample's region, which has them.
    pub(super) fn within(&self, i: usize, from: u64, len: u64) -> &[u8] {
        self.bytes(self.placed()[i].at.plus(from), len)
    }

    /// The bytes of all samples with all their fields, in order, in as few pieces as there are: one, unless shapes differ or samples were
    /// skipped. No byte is copied.
    pub fn runs(&self) -> Vec<&[u8]> {
        let placed = self.placed();
        let runs = run_bounds(placed).into_iter().map(|(first, last)| &placed[first..last]);
        runs.map(|run| self.bytes(run[0].at, run.iter().map(|p| p.bytes).sum())).collect()
    }

    /// All samples as one tensor, on the slab. No byte is copied, unless skipped samples left gaps: then the fewest
    /// samples are moved, in place, or if samples were looked at one by one before, gathered elsewhere. Both count
    /// as copied bytes.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, BatchError> {
        let (shape, strides) = self.geometry(name)?;
        let runs = run_bounds(self.placed_together()).len();
        let data = if runs > 1 { self.gathered.get_or_init(|| self.gather()) } else { self.whole() };
        Ok(Tensor { data: &data[..extent(&shape, &strides, self.dtype)], shape, strides, dtype: self.dtype })
    }

    fn gather(&self) -> Vec<u8> {
        let bytes = self.runs().concat();
        self.lease.ledger().copied(bytes.len() as u64);
        bytes
    }

    /// As [`tensor`](Self::tensor), to be written to in place.
    pub fn tensor_mut(&mut self, name: &str) -> Result<TensorMut<'_>, BatchError> {
        let (shape, strides) = self.geometry(name)?;
        self.gathered.take();
        let mut pieces = self.placed.take().unwrap_or_else(|| self.pieces.clone());
        // SAFETY: `&mut self` says that no slice of this batch is alive.
        unsafe { self.close_gaps(&mut pieces) };
        if run_bounds(&pieces).len() > 1 {
            self.placed = OnceLock::from(pieces);
            pieces = self.move_out();
        }
        let (at, bytes) = span(&pieces);
        self.placed = OnceLock::from(pieces);
        let dtype = self.dtype;
        let data = &mut self.bytes_mut(at, bytes)[..extent(&shape, &strides, dtype)];
        Ok(TensorMut { data, shape, strides, dtype })
    }

    /// Copies all samples into one buffer, and answers where they are in it.
    fn move_out(&mut self) -> Vec<Piece> {
        let (all, which) = (self.gather(), self.heap.len());
        self.heap.push(all);
        let place = |end: &mut u64, piece: &Piece| {
            let at = At::Heap(which, *end);
            *end += piece.bytes;
            Some(Piece { at, ..*piece })
        };
        self.pieces.iter().scan(0, place).collect()
    }

    /// As [`sample`](Self::sample), to be written to in place.
    pub fn sample_mut(&mut self, i: usize, name: &str) -> Result<&mut [u8], BatchError> {
        let (from, len) = self.field(i, name)?;
        let Piece { at, .. } = self.placed()[i];
        self.gathered.take();
        Ok(self.bytes_mut(at.plus(from), len))
    }

    /// The bytes of a batch without gaps.
    fn whole(&self) -> &[u8] {
        let (at, bytes) = span(self.placed());
        self.bytes(at, bytes)
    }

    fn geometry(&self, name: &str) -> Result<([usize; 5], [usize; 5]), BatchError> {
        if name != VIDEO {
            return Err(BatchError::field("tensor", name, false));
        }
        let first = self.pieces.first().map(|p| p.shape).or(self.fixed).ok_or(BatchError::Empty)?;
        if let Some(piece) = self.pieces.iter().find(|p| p.shape != first) {
            return Err(BatchError::Ragged { first, other: piece.shape });
        }
        let [a, b, c, d] = first.map(usize::from);
        // Regions of one shape are of one size.
        let step = match (&self.audio, self.pieces.first()) {
            (Some(_), Some(piece)) => piece.bytes as usize / self.dtype.size(),
            _ => a * b * c * d,
        };
        Ok(([self.len(), a, b, c, d], [step, b * c * d, c * d, d, 1]))
    }
}

/// A sample's share in the step's loss.
fn weight(weigh: Weigh, slot: &Slot, global: u32, tokens: f64) -> f64 {
    match weigh {
        Weigh::Tokens if tokens > 0.0 => slot.tokens / tokens,
        Weigh::Ranks => 1.0 / slot.home_share as f64,
        Weigh::Samples | Weigh::Tokens => 1.0 / f64::from(global),
    }
}

/// Start and length of pieces without gaps.
fn span(pieces: &[Piece]) -> (At, u64) {
    pieces.first().map_or((At::Slab(0), 0), |p| (p.at, pieces.iter().map(|p| p.bytes).sum()))
}

/// Where pieces touch: (first, one past the last) of each run.
fn run_bounds(pieces: &[Piece]) -> Vec<(usize, usize)> {
    let mut bounds: Vec<(usize, usize)> = Vec::new();
    for (i, piece) in pieces.iter().enumerate() {
        match bounds.last_mut() {
            Some((_, last)) if pieces[i - 1].at.plus(pieces[i - 1].bytes) == piece.at => *last = i + 1,
            _ => bounds.push((i, i + 1)),
        }
    }
    bounds
}

impl HostSource for Batch {
    fn runs(&self) -> Vec<&[u8]> {
        Batch::runs(self)
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch(epoch {}, step {}, {} of {} samples)", self.epoch, self.step, self.len(), self.planned)
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
