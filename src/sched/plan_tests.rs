//! What a plan promises, with and without regrouping.

use proptest::prelude::*;

use super::*;
use crate::proto::options::OnError;
use crate::proto::transform::{Facts, Transform};
use crate::sched::online::margin::tests::Noise;
use crate::sched::order::Permutation;

/// Samples of lognormal costs.
struct Costs(Vec<f64>);

impl Costs {
    fn new(n: usize, seed: u64) -> Self {
        let mut noise = Noise::new(seed);
        Costs((0..n).map(|_| noise.lognormal(1.0)).collect())
    }
}

impl Catalog for Costs {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
    fn row(&self, i: u64) -> u64 {
        i
    }
    fn facts(&self, _: u64) -> Facts {
        Facts::default()
    }
    fn appraise(&self, i: u64, _: &StreamOptions) -> (Work, f64) {
        (Work::default(), self.0[i as usize])
    }
    fn tokens(&self, i: u64, _: &StreamOptions) -> f64 {
        (1000.0 * self.0[i as usize]).ceil()
    }
}

fn options(world: u32, batch_size: u32, regroup: u32, balance: Balance) -> StreamOptions {
    StreamOptions {
        world,
        batch_size,
        seed: 3,
        shuffle: true,
        drop_last: true,
        balance,
        profile: Profile::Decode,
        on_error: OnError::Raise,
        transform: Transform::default(),
        micro_batch: 1,
        regroup,
        weigh: Default::default(),
        mix: Vec::new(),
        rebalance: Default::default(),
    }
}

/// All steps of an epoch, each planned on its own, as after a resume there.
fn epoch(options: &StreamOptions, catalog: &Costs, epoch: u32) -> Vec<StepPlan> {
    let order = Permutation::shuffled(catalog.len() as u32, options.seed, epoch);
    let units = Units::new(options, catalog, order, epoch);
    (0..units.steps(options)).map(|step| StepPlan::new(options, catalog, &units, epoch, step)).collect()
}

fn ids(plans: &[StepPlan]) -> Vec<u64> {
    let mut ids: Vec<u64> = plans.iter().flat_map(|p| p.ranks.iter().flatten()).map(|p| p.place.sample).collect();
    ids.sort_unstable();
    ids
}

fn length(plans: &[StepPlan]) -> f64 {
    plans.iter().map(|p| p.max_cost).sum()
}

proptest! {
    #[test]
    fn a_window_keeps_its_samples_and_a_step_its_number(
        world in 1u32..5, each in 1u32..4, regroup in 2u32..9, steps in 1usize..20, seed: u64,
        balance in prop_oneof![Just(Balance::None), Just(Balance::Cost), Just(Balance::Free { most: 8 })],
    ) {
        let global = (world * each) as usize;
        let catalog = Costs::new(steps * global, seed);
        let options = options(world, each, regroup, balance);
        let plain = epoch(&StreamOptions { regroup: 1, ..options.clone() }, &catalog, 1);
        let grouped = epoch(&options, &catalog, 1);
        prop_assert_eq!(grouped.len(), plain.len());
        for (a, b) in plain.chunks(regroup as usize).zip(grouped.chunks(regroup as usize)) {
            prop_assert_eq!(ids(a), ids(b));
            prop_assert!(length(b) <= length(a) * (1.0 + 1e-9));
        }
        for plan in &grouped {
            prop_assert_eq!(plan.samples as usize, global);
            for rank in &plan.ranks {
                prop_assert!(!rank.is_empty());
                let free = matches!(balance, Balance::Free { .. });
                prop_assert!(free || rank.len() == each as usize);
                prop_assert!(rank.len() <= options.largest_batch() as usize);
            }
        }
    }

    #[test]
    fn micro_batches_stay_together(world in 2u32..5, units in 1u32..4, micro in 2u32..4, regroup in 1u32..5, seed: u64) {
        let catalog = Costs::new((world * units * micro * 7) as usize, seed);
        let options = StreamOptions { micro_batch: micro, ..options(world, units * micro, regroup, Balance::Cost) };
        let order = Permutation::shuffled(catalog.len() as u32, options.seed, 0);
        let mut at = vec![0; catalog.0.len()];
        (0..catalog.len()).for_each(|p| at[order.at(p) as usize] = p);
        for plan in epoch(&options, &catalog, 0) {
            for rank in plan.ranks {
                for unit in rank.chunks(micro as usize) {
                    let first = at[unit[0].place.sample as usize];
                    prop_assert!(first.is_multiple_of(micro.into()));
                    for (i, planned) in (0..).zip(unit) {
                        prop_assert_eq!(at[planned.place.sample as usize], first + i);
                    }
                }
            }
        }
    }
}

#[test]
fn it_is_a_function_of_seed_epoch_and_step() {
    let catalog = Costs::new(8 * 40, 1);
    let options = options(8, 1, 8, Balance::Cost);
    let first = epoch(&options, &catalog, 0);
    assert_eq!(first, epoch(&options, &catalog, 0));
    assert_ne!(first, epoch(&options, &catalog, 1));
    assert_ne!(first, epoch(&StreamOptions { seed: 4, ..options }, &catalog, 0));
}

#[test]
fn samples_of_like_cost_meet_and_a_window_does_not_go_from_heavy_to_light() {
    let catalog = Costs::new(8 * 64, 2);
    let plain = epoch(&options(8, 1, 1, Balance::Cost), &catalog, 0);
    let grouped = epoch(&options(8, 1, 8, Balance::Cost), &catalog, 0);
    let perfect: f64 = plain.iter().map(|p| p.mean_cost).sum();
    assert!(length(&plain) > 2.0 * perfect, "{} of {perfect}", length(&plain));
    assert!(length(&grouped) < 0.8 * length(&plain), "{} of {perfect}", length(&grouped));
    let falls = |w: &[StepPlan]| w.windows(2).all(|p| p[0].mean_cost >= p[1].mean_cost);
    assert!(grouped.chunks(8).filter(|w| falls(w)).count() <= 1);
}

#[test]
fn equal_costs_stay_where_they_were() {
    let catalog = Costs(vec![1.0; 64]);
    let plain = epoch(&options(4, 2, 1, Balance::Cost), &catalog, 0);
    assert_eq!(epoch(&options(4, 2, 4, Balance::Cost), &catalog, 0), plain);
}
