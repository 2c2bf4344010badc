//! One step, planned: which rank gets which samples, in which order.
//!
//! A pure function of (options, samples' facts, permutation, step): nothing measured enters it.

use super::balance;
use super::cost::Work;
use super::event::{Catalog, Place};
use super::order::Permutation;
use crate::proto::options::{Balance, Profile, StreamOptions};

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
    /// Cost of the mean rank.
    pub mean_cost: f64,
    /// Cost of the heaviest rank.
    pub max_cost: f64,
}

impl StepPlan {
    /// Plans `step`. The catalog must not be empty, and `order` must be of its length.
    pub fn new(options: &StreamOptions, catalog: &dyn Catalog, order: &Permutation, step: u32) -> StepPlan {
        let (world, each) = (options.world as usize, options.batch_size as usize);
        let first = u64::from(step) * options.global_batch();
        let mut planned = Vec::with_capacity(world * each);
        for position in 0..options.global_batch() {
            let index = u64::from(order.at(first + position));
            let facts = catalog.facts(index);
            let (work, cost) = catalog.appraise(index, options);
            let home_rank = (position / u64::from(options.batch_size)) as u32;
            let bytes = options.transform.max_bytes(&facts);
            planned.push(Planned { place: Place { sample: catalog.row(index), bytes, home_rank, cost }, work });
        }
        let deal = match (options.balance, options.profile) {
            (Balance::None, _) | (_, Profile::Equal) => None,
            (Balance::Cost, _) => {
                let costs: Vec<f64> = planned.iter().map(|p| p.place.cost).collect();
                let ids: Vec<u64> = planned.iter().map(|p| p.place.sample).collect();
                Some(balance::equal_counts(&costs, &ids, world))
            }
        };
        let mut ranks = vec![Vec::with_capacity(each); world];
        for (i, p) in planned.into_iter().enumerate() {
            let rank = deal.as_ref().map_or(p.place.home_rank, |d| d[i]);
            ranks[rank as usize].push(p);
        }
        let loads: Vec<f64> = ranks.iter().map(|r| r.iter().map(|p| p.place.cost).sum()).collect();
        let mean_cost = loads.iter().sum::<f64>() / world as f64;
        StepPlan { ranks, mean_cost, max_cost: loads.into_iter().fold(0.0, f64::max) }
    }
}
