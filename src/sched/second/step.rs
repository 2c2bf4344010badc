//! A step of a stream whose samples are all there: who is to get which of them.

use super::plan::{Counts, Item, Site, Terms, plan};
use crate::proto::handover::{Actual, Dealt, Shift};
use crate::proto::options::{Balance, StreamOptions};

/// What handing over costs, and what a plan must gain on top of it, in parts of what the mean rank computes. The figures
/// are in the profile's unit, whose seconds nobody knows before they are measured, and what is measured decides nothing
/// here: mapping a sample takes some ten microseconds, and a step hardly less than ten milliseconds.
const HAND_OVER: f64 = 2e-3;
const MARGIN: f64 = 8e-3;

/// What became of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    /// Its tokens, as it is.
    pub tokens: f64,
    /// What it costs whoever computes it, in the profile's unit.
    pub cost: f64,
    /// Whether it is not what was said of it.
    pub changed: bool,
    /// Its bytes.
    pub bytes: u64,
    /// Whether it is there; otherwise it was skipped.
    pub there: bool,
}

/// Balances a step; for each rank what became of its samples, in the order of its batch. A pure function.
pub fn balanced(options: &StreamOptions, ranks: &[Vec<Found>]) -> Dealt {
    let each = options.micro_batch.max(1) as usize;
    let units = (0u32..).zip(ranks).flat_map(|(rank, found)| {
        (0u32..).zip(found.chunks(each)).filter_map(move |(unit, samples)| {
            let there = || samples.iter().filter(|s| s.there);
            let slot = unit * each as u32;
            let (cost, bytes) = (there().map(|s| s.cost).sum(), there().map(|s| s.bytes).sum());
            // What has lost a sample would leave a hole, or not fill one: it stays, as if no byte could be sent.
            let site = if there().count() == samples.len() { Site::Host } else { Site::Device };
            (there().count() > 0).then_some(Item { rank, slot, cost, bytes, site })
        })
    });
    let units: Vec<Item> = units.collect();
    let mean = units.iter().map(|u| u.cost).sum::<f64>() / ranks.len().max(1) as f64;
    let counts = match options.balance {
        Balance::Free { most } => Counts::Free { most: (most / each as u32).max(options.units()) },
        _ => Counts::Kept,
    };
    let terms = Terms {
        bandwidth: f64::INFINITY,
        latency: 0.0,
        hand_over: HAND_OVER * mean,
        margin: MARGIN * mean,
        cap: 0,
        counts,
    };
    let mut shifts = Vec::new();
    for m in plan(&units, ranks.len() as u32, &terms).moves {
        let samples = ranks[m.from as usize].iter().skip(m.slot as usize).take(each);
        let shift = |slot| Shift { from: m.from, slot, to: m.to };
        shifts.extend((m.slot..).zip(samples).filter(|(_, s)| s.there).map(|(slot, _)| shift(slot)));
    }
    let places =
        (0u32..).zip(ranks).flat_map(|(rank, found)| (0u32..).zip(found).map(move |(slot, s)| (rank, slot, s)));
    let changed = places.clone().filter(|(.., s)| s.changed);
    let actual = changed.map(|(rank, slot, s)| Actual { rank, slot, tokens: s.tokens }).collect();
    Dealt { shifts, actual, total: places.map(|(.., s)| s.tokens).sum() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::client::Options;

    fn options(balance: Balance, micro_batch: u32) -> StreamOptions {
        Options::default().world(3).batch_size(4).balance(balance).micro_batch(micro_batch).stream
    }

    fn found(tokens: u32, there: bool) -> Found {
        Found { tokens: tokens.into(), cost: tokens.into(), changed: tokens % 2 == 1, bytes: 10, there }
    }

    fn spread(ranks: &[Vec<Found>], dealt: &Dealt) -> (f64, f64) {
        let load = |rank: u32| {
            let own = ranks[rank as usize].len() as u32;
            let its = dealt.batch(rank, own).into_iter().map(|(r, s)| ranks[r as usize][s as usize]);
            its.filter(|s| s.there).map(|s| s.cost).sum::<f64>()
        };
        let loads = || (0..ranks.len() as u32).map(load);
        (loads().fold(0.0, f64::max), loads().sum())
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_the_heaviest_rank_never_gets_heavier(
            tokens in proptest::collection::vec((1u32..1000, 0u32..8), 12), free in any::<bool>(), pairs in any::<bool>(),
        ) {
            let balance = if free { Balance::Free { most: 8 } } else { Balance::Cost };
            let options = options(balance, if pairs { 2 } else { 1 });
            let ranks: Vec<Vec<Found>> =
                tokens.chunks(4).map(|c| c.iter().map(|(t, skip)| found(*t, *skip > 0)).collect()).collect();
            let dealt = balanced(&options, &ranks);
            let (before, all) = spread(&ranks, &Dealt::default());
            let (after, still) = spread(&ranks, &dealt);
            prop_assert!(after <= before && (all - still).abs() < 1e-6);
            let mut given: Vec<_> = (0..3).flat_map(|r| dealt.batch(r, 4)).collect();
            given.sort_unstable();
            let every: Vec<_> = (0..3).flat_map(|r| (0..4).map(move |s| (r, s))).collect();
            prop_assert_eq!(given, every);
            prop_assert!(dealt.shifts.iter().all(|s| ranks[s.from as usize][s.slot as usize].there));
            if !free {
                prop_assert!((0..3).all(|r| dealt.batch(r, 4).len() == 4));
            }
            prop_assert_eq!(dealt.actual.len(), tokens.iter().filter(|(t, _)| t % 2 == 1).count());
        }
    }

    #[test]
    fn what_gains_too_little_stays() {
        let even = vec![vec![found(1000, true); 4], vec![found(1004, true); 4], vec![found(1002, true); 4]];
        assert_eq!(balanced(&options(Balance::Cost, 1), &even).shifts, []);
        let mut uneven = even;
        uneven[0][0] = found(4000, true);
        uneven[0][1] = found(3000, true);
        assert!(!balanced(&options(Balance::Cost, 1), &uneven).shifts.is_empty());
    }
}
