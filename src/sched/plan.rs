//! Steps, planned: which rank gets which samples, in which order.
//!
//! A pure function of (options, samples' facts, the epoch's order, step): nothing measured enters it.

use std::ops::Range;

use super::balance;
use super::cost::Work;
use super::event::{Catalog, Place};
use super::order;
use super::pack::{self, Items, Packed};
use super::regroup::{Candidate, like_costs};
use super::units::Units;
use crate::proto::handover::Dealt;
use crate::proto::options::{Balance, Profile, StreamOptions};

/// Less gain than this part of the time is rounding, and no reason to let other samples meet.
const EPSILON: f64 = 1e-9;

/// A sample and the work it takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Planned {
    /// What the rank is told.
    pub place: Place,
    /// What the worker has to do.
    pub work: Work,
}

/// A step of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct StepPlan {
    /// For each rank its samples, in the order of its batch: that of the sampler's positions.
    pub ranks: Vec<Vec<Planned>>,
    /// Samples of all ranks.
    pub samples: u32,
    /// Cost of the mean rank.
    pub mean_cost: f64,
    /// Cost of the heaviest rank.
    pub max_cost: f64,
    /// Tokens of all ranks.
    pub tokens: f64,
    /// Packed sequences of each rank; 0 where samples are not packed.
    pub bins: u16,
}

/// A micro-batch.
#[derive(Debug, Clone)]
struct Piece {
    cost: f64,
    samples: Vec<Planned>,
}

impl Piece {
    fn id(&self) -> u64 {
        self.samples.first().map_or(0, |p| p.place.sample)
    }
}

impl StepPlan {
    /// Plans `step`, below the epoch's steps.
    ///
    /// # Panics
    /// When the epoch has no micro-batch.
    pub fn new(options: &StreamOptions, catalog: &dyn Catalog, units: &Units, epoch: u32, step: u32) -> StepPlan {
        let window = window_of(options, units.steps(options), step);
        let at = (step - window.start) as usize;
        StepPlan::window(options, catalog, units, epoch, window).swap_remove(at)
    }

    /// Plans the steps that share their samples; `window` is one that [`window_of`] answers.
    ///
    /// # Panics
    /// When the epoch has no micro-batch.
    pub fn window(
        options: &StreamOptions,
        catalog: &dyn Catalog,
        units: &Units,
        epoch: u32,
        window: Range<u32>,
    ) -> Vec<StepPlan> {
        let first = window.start;
        let mut pieces: Vec<Vec<Piece>> = window.map(|step| sampled(options, catalog, units, step)).collect();
        if pieces.len() > 1 && options.profile != Profile::Equal {
            regroup(options, &mut pieces, epoch, first);
        }
        pieces.into_iter().map(|step| dealt(options, step)).collect()
    }
}

impl StepPlan {
    /// The same step, balanced once more.
    #[must_use]
    pub fn dealt_by(mut self, dealt: &Dealt, profile: Profile) -> StepPlan {
        for a in &dealt.actual {
            let planned = self.ranks.get_mut(a.rank as usize).and_then(|rank| rank.get_mut(a.slot as usize));
            if let Some(Planned { place, .. }) = planned {
                (place.tokens, place.cost) = (a.tokens, profile.cost(a.tokens));
            }
        }
        let at = |(rank, slot): (u32, u32)| self.ranks.get(rank as usize)?.get(slot as usize).copied();
        let batch =
            |(rank, own): (u32, &Vec<Planned>)| dealt.batch(rank, own.len() as u32).into_iter().filter_map(at);
        let ranks: Vec<Vec<Planned>> = (0..).zip(&self.ranks).map(|each| batch(each).collect()).collect();
        let loads = ranks.iter().map(|r| r.iter().map(|p| p.place.cost).sum());
        StepPlan { max_cost: loads.fold(0.0, f64::max), tokens: dealt.total, ranks, ..self }
    }
}

/// The steps among which `step` shares samples; the last window of an epoch may be shorter.
pub fn window_of(options: &StreamOptions, steps: u32, step: u32) -> Range<u32> {
    let each = options.regroup.max(1);
    let first = step / each * each;
    first..first.saturating_add(each).min(steps.max(step + 1))
}

/// A step's micro-batches, as the sampler has them.
fn sampled(options: &StreamOptions, catalog: &dyn Catalog, units: &Units, step: u32) -> Vec<Piece> {
    let count = u64::from(options.world) * u64::from(options.units());
    let piece = |n: u64| {
        let home_rank = (n / u64::from(options.units())) as u32;
        let planned = |index: u32| {
            let index = u64::from(index);
            let (work, cost) = catalog.appraise(index, options);
            let bytes = options.transform.max_bytes(&catalog.facts(index));
            let (sample, tokens) = (catalog.row(index), catalog.tokens(index, options));
            Planned { place: Place { sample, bytes, home_rank, cost, tokens, home_share: 0, bin: 0 }, work }
        };
        let samples: Vec<Planned> = units.unit(u64::from(step) * count + n).map(planned).collect();
        Piece { cost: samples.iter().map(|p| p.place.cost).sum(), samples }
    };
    (0..count).map(piece).collect()
}

/// Deals a step's micro-batches, in the order of the sampler's positions, to the ranks.
fn deal(options: &StreamOptions, pieces: &[Piece]) -> Vec<u32> {
    let (world, each) = (options.world as usize, options.units().max(1) as usize);
    let home = || (0..pieces.len()).map(|i| (i / each) as u32).collect::<Vec<_>>();
    if options.balance == Balance::None || options.profile == Profile::Equal {
        return home();
    }
    let costs: Vec<f64> = pieces.iter().map(|p| p.cost).collect();
    let ids: Vec<u64> = pieces.iter().map(Piece::id).collect();
    match options.balance {
        Balance::Free { most } => {
            let most = most / options.micro_batch.max(1);
            balance::free_counts(&costs, &ids, &home(), world, (most as usize).max(each))
        }
        Balance::Packed { .. } => packed(options, pieces).places.into_iter().map(|(rank, _)| rank).collect(),
        _ => balance::equal_counts(&costs, &ids, world),
    }
}

/// Packs a step's samples, each a micro-batch.
fn packed(options: &StreamOptions, pieces: &[Piece]) -> Packed {
    let Balance::Packed { budget, most } = options.balance else {
        return Packed { places: Vec::new(), bins: 0 };
    };
    let of = |value: fn(&Place) -> f64| -> Vec<f64> {
        pieces.iter().map(|p| p.samples.iter().map(|s| value(&s.place)).sum()).collect()
    };
    let (tokens, costs) = (of(|p| p.tokens), of(|p| p.cost));
    let ids: Vec<u64> = pieces.iter().map(Piece::id).collect();
    let each = options.units().max(1) as usize;
    // After regrouping a step has no ranks of its own any more: its places are dealt in turn.
    let home: Vec<u32> = (0..pieces.len()).map(|i| (i / each) as u32).collect();
    let items = Items { tokens: &tokens, costs: &costs, ids: &ids, home: &home };
    pack::pack(&items, options.world as usize, budget.into(), most as usize)
}

fn dealt(options: &StreamOptions, pieces: Vec<Piece>) -> StepPlan {
    let world = options.world as usize;
    let mut ranks = vec![Vec::with_capacity(options.batch_size as usize); world];
    let mut bins = 0;
    if matches!(options.balance, Balance::Packed { .. }) {
        let packed = packed(options, &pieces);
        bins = packed.bins;
        for (piece, (rank, bin)) in pieces.into_iter().zip(packed.places) {
            ranks[rank as usize].extend(piece.samples.into_iter().map(|mut p| {
                p.place.bin = bin;
                p
            }));
        }
        // Stable: within a sequence the sampler's order.
        ranks.iter_mut().for_each(|rank: &mut Vec<Planned>| rank.sort_by_key(|p| p.place.bin));
    } else {
        let deal = deal(options, &pieces);
        for (piece, rank) in pieces.into_iter().zip(deal) {
            ranks[rank as usize].extend(piece.samples);
        }
    }
    share_homes(&mut ranks, world);
    let tokens = ranks.iter().flatten().map(|p| p.place.tokens).sum();
    let loads: Vec<f64> = ranks.iter().map(|r: &Vec<Planned>| r.iter().map(|p| p.place.cost).sum()).collect();
    let mean_cost = loads.iter().sum::<f64>() / world as f64;
    let samples = ranks.iter().map(Vec::len).sum::<usize>() as u32;
    StepPlan { ranks, samples, mean_cost, max_cost: loads.into_iter().fold(0.0, f64::max), tokens, bins }
}

/// Tells each sample what its home rank's mean is made of.
fn share_homes(ranks: &mut [Vec<Planned>], world: usize) {
    let mut homes = vec![0u64; world];
    ranks.iter().flatten().for_each(|p| homes[p.place.home_rank as usize] += 1);
    let with_any = homes.iter().filter(|n| **n > 0).count() as u64;
    for planned in ranks.iter_mut().flatten() {
        planned.place.home_share = homes[planned.place.home_rank as usize] * with_any;
    }
}

/// The sum over steps of what each one's heaviest rank costs.
fn length(options: &StreamOptions, window: &[Vec<Piece>]) -> f64 {
    let peak = |pieces: &Vec<Piece>| {
        let costs: Vec<f64> = pieces.iter().map(|p| p.cost).collect();
        balance::heaviest(&costs, &deal(options, pieces), options.world as usize)
    };
    window.iter().map(peak).sum()
}

/// Lets micro-batches of like cost meet in a step, if that makes the window shorter.
fn regroup(options: &StreamOptions, window: &mut Vec<Vec<Piece>>, epoch: u32, first: u32) {
    let candidate = |p: &Piece| Candidate { cost: p.cost, id: p.id(), size: p.samples.len() };
    let candidates: Vec<Vec<Candidate>> = window.iter().map(|step| step.iter().map(candidate).collect()).collect();
    let mut turns: Vec<u32> = (0..window.len() as u32).collect();
    order::shuffle(&mut turns, options.seed, epoch, b"turns", first);
    let to = like_costs(&candidates, &turns);
    let mut grouped: Vec<Vec<Piece>> = window.iter().map(|step| Vec::with_capacity(step.len())).collect();
    for (pieces, steps) in window.iter().zip(to) {
        for (piece, step) in pieces.iter().zip(steps) {
            grouped[step as usize].push(piece.clone());
        }
    }
    if length(options, &grouped) < length(options, window) * (1.0 - EPSILON) {
        *window = grouped;
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
