//! What a step's second balancing came to, in the form that daemon and ranks keep and tell each other.
//!
//! A [`Dealt`] is a pure function of what the samples turned out to be; it is kept by all, so that a rank which makes
//! its batch again, after others have theirs, gets the same one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Steps whose outcome is kept at least, and at most.
const KEPT_STEPS: (usize, usize) = (64, 4096);
/// Shifts and token counts that are kept, over all steps: some 20 MB.
const KEPT_ITEMS: usize = 1 << 20;
/// Words of a step in what ranks state, before its shifts and token counts.
const HEAD: usize = 5;

/// A sample goes to another rank. Its first place names it: the rank that it was dealt to, and the slot there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shift {
    /// The rank that it was dealt to.
    pub from: u32,
    /// Its slot there.
    pub slot: u32,
    /// The rank that gets it.
    pub to: u32,
}

/// A sample has other tokens than was said of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Actual {
    /// The rank that it was dealt to.
    pub rank: u32,
    /// Its slot there.
    pub slot: u32,
    /// What it has.
    pub tokens: f64,
}

/// What a step's second balancing came to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Dealt {
    /// Who gets what instead; by first place.
    pub shifts: Vec<Shift>,
    /// Samples that are not what was said of them; by first place.
    pub actual: Vec<Actual>,
    /// Tokens of the step over all ranks.
    pub total: f64,
}

impl Dealt {
    /// A number that all ranks compare.
    pub fn digest(&self, epoch: u32, step: u32) -> u64 {
        let mut bytes = Vec::with_capacity(32 + 16 * (self.shifts.len() + self.actual.len()));
        self.words(epoch, step, |word| bytes.extend_from_slice(&word.to_le_bytes()));
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }

    fn words(&self, epoch: u32, step: u32, mut word: impl FnMut(u64)) {
        let pair = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
        let (shifts, actual) = (self.shifts.len() as u64, self.actual.len() as u64);
        [epoch.into(), step.into(), shifts, actual, self.total.to_bits()].into_iter().for_each(&mut word);
        for s in &self.shifts {
            word(pair(s.from, s.slot));
            word(s.to.into());
        }
        for a in &self.actual {
            word(pair(a.rank, a.slot));
            word(a.tokens.to_bits());
        }
    }

    /// A rank's batch, each sample by its first place: who is given away leaves a gap, which the first of those that
    /// come fills, and so on; the rest of them is appended, or the rest of the gaps closed.
    pub fn batch(&self, rank: u32, own: u32) -> Vec<(u32, u32)> {
        let mut coming = self.shifts.iter().filter(|s| s.to == rank).map(|s| (s.from, s.slot));
        let gone: BTreeSet<u32> = self.shifts.iter().filter(|s| s.from == rank).map(|s| s.slot).collect();
        let mut batch = Vec::with_capacity(own as usize);
        for slot in 0..own {
            if gone.contains(&slot) { batch.extend(coming.next()) } else { batch.push((rank, slot)) }
        }
        batch.extend(coming);
        batch
    }

    fn size(&self) -> usize {
        self.shifts.len() + self.actual.len()
    }
}

/// Two say different things of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "epoch {epoch}, step {step} was balanced in two ways ({digests:x?}): the ranks do not agree on who gets what; \
     start the job anew from its last checkpoint"
)]
pub struct Disagreement {
    /// Epoch.
    pub epoch: u32,
    /// Step.
    pub step: u32,
    /// Both numbers.
    pub digests: [u64; 2],
}

/// Why a statement of ranks cannot be taken in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadStatement {
    /// It ends in the middle.
    #[error("the steps that a rank states as balanced end in the middle of one")]
    Short,
    /// It names a rank or a slot that there is not.
    #[error("a step that a rank states as balanced names rank {rank}, slot {slot}, of {world} ranks")]
    Place {
        /// The rank.
        rank: u32,
        /// The slot.
        slot: u32,
        /// Ranks that there are.
        world: u32,
    },
    /// It contradicts what is known.
    #[error(transparent)]
    Disagreement(#[from] Disagreement),
}

/// The outcomes of the latest steps.
#[derive(Debug, Clone, Default)]
pub struct Known {
    steps: BTreeMap<(u32, u32), Arc<Dealt>>,
    /// In the order in which they came.
    order: VecDeque<(u32, u32)>,
    items: usize,
}

impl Known {
    /// The outcome of a step.
    pub fn get(&self, epoch: u32, step: u32) -> Option<&Arc<Dealt>> {
        self.steps.get(&(epoch, step))
    }

    /// Takes a step in, and forgets the oldest when there are too many.
    pub fn learn(&mut self, epoch: u32, step: u32, dealt: Arc<Dealt>) -> Result<(), Disagreement> {
        if let Some(known) = self.steps.get(&(epoch, step)) {
            let digests = [known.digest(epoch, step), dealt.digest(epoch, step)];
            return if digests[0] == digests[1] { Ok(()) } else { Err(Disagreement { epoch, step, digests }) };
        }
        self.items += dealt.size();
        self.steps.insert((epoch, step), dealt);
        self.order.push_back((epoch, step));
        let (least, most) = KEPT_STEPS;
        while self.order.len() > most || (self.order.len() > least && self.items > KEPT_ITEMS) {
            let Some(dealt) = self.order.pop_front().and_then(|oldest| self.steps.remove(&oldest)) else { break };
            self.items -= dealt.size();
        }
        Ok(())
    }

    /// All steps, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = ((u32, u32), &Arc<Dealt>)> {
        self.order.iter().filter_map(|at| Some((*at, self.steps.get(at)?)))
    }

    /// The steps as bytes, for another daemon.
    pub fn state(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for ((epoch, step), dealt) in self.iter() {
            dealt.words(epoch, step, |word| bytes.extend_from_slice(&word.to_le_bytes()));
        }
        bytes
    }

    /// Takes in what [`state`](Self::state) made, of a stream of `world` ranks with at most `batch` samples each.
    pub fn hear(&mut self, bytes: &[u8], world: u32, batch: u32) -> Result<(), BadStatement> {
        let mut words =
            bytes.chunks_exact(8).map(|c| u64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]));
        let place = |word: u64, to: u64| {
            let (rank, slot) = ((word >> 32) as u32, word as u32);
            let ok = rank < world && to < u64::from(world) && slot < batch;
            if ok { Ok((rank, slot)) } else { Err(BadStatement::Place { rank, slot, world }) }
        };
        let mut next = move || words.next().ok_or(BadStatement::Short);
        for _ in 0..bytes.len() / (8 * HEAD) {
            let Ok(epoch) = next() else { break };
            let (step, shifts, actual, total) = (next()?, next()?, next()?, next()?);
            let mut dealt = Dealt { total: f64::from_bits(total), ..Dealt::default() };
            for _ in 0..shifts {
                let (first, to) = (next()?, next()?);
                let (from, slot) = place(first, to)?;
                dealt.shifts.push(Shift { from, slot, to: to as u32 });
            }
            for _ in 0..actual {
                let (first, tokens) = (next()?, next()?);
                let (rank, slot) = place(first, 0)?;
                dealt.actual.push(Actual { rank, slot, tokens: f64::from_bits(tokens) });
            }
            self.learn(epoch as u32, step as u32, dealt.into())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dealt(shifts: &[(u32, u32, u32)]) -> Arc<Dealt> {
        let shifts = shifts.iter().map(|&(from, slot, to)| Shift { from, slot, to }).collect();
        Arc::new(Dealt { shifts, actual: vec![Actual { rank: 1, slot: 2, tokens: 7.5 }], total: 99.0 })
    }

    #[test]
    fn those_that_come_take_the_places_of_those_that_go() {
        let swap = dealt(&[(0, 1, 1), (1, 0, 0)]);
        assert_eq!(swap.batch(0, 3), [(0, 0), (1, 0), (0, 2)]);
        assert_eq!(swap.batch(1, 3), [(0, 1), (1, 1), (1, 2)]);
        let one_way = dealt(&[(0, 0, 1), (0, 2, 1)]);
        assert_eq!(one_way.batch(0, 3), [(0, 1)]);
        assert_eq!(one_way.batch(1, 1), [(1, 0), (0, 0), (0, 2)]);
    }

    #[test]
    fn what_is_stated_is_heard_as_it_was_and_contradictions_are_named() {
        let mut known = Known::default();
        known.learn(0, 3, dealt(&[(0, 1, 1), (1, 0, 0)])).unwrap();
        known.learn(0, 4, dealt(&[])).unwrap();
        let mut heard = Known::default();
        heard.hear(&known.state(), 2, 3).unwrap();
        assert_eq!(
            heard.iter().map(|(at, d)| (at, d.clone())).collect::<Vec<_>>(),
            [((0, 3), dealt(&[(0, 1, 1), (1, 0, 0)])), ((0, 4), dealt(&[]))]
        );
        heard.hear(&known.state(), 2, 3).unwrap();
        let other = heard.learn(0, 3, dealt(&[])).unwrap_err();
        assert_eq!((other.epoch, other.step), (0, 3));
        assert_eq!(heard.hear(&known.state()[..48], 2, 3), Err(BadStatement::Short));
        let place = Known::default().hear(&known.state(), 1, 3);
        assert_eq!(place, Err(BadStatement::Place { rank: 0, slot: 1, world: 1 }));
    }

    #[test]
    fn the_oldest_steps_are_forgotten() {
        let mut known = Known::default();
        for step in 0..5000 {
            known.learn(0, step, dealt(&[])).unwrap();
        }
        assert!(known.get(0, 4999).is_some() && known.get(0, 4999 - 4096).is_none());
    }

    #[test]
    fn any_bytes_are_a_statement_or_an_error() {
        for seed in 0..200u64 {
            let bytes: Vec<u8> = (0..seed * 3).map(|i| (i.wrapping_mul(seed ^ 0x9E37) >> 3) as u8 & 3).collect();
            let _ = Known::default().hear(&bytes, 4, 4);
        }
    }
}
