//! The properties of the balancers.

use proptest::prelude::*;

use super::*;
use crate::sched::online::margin::tests::Noise;

fn ids(n: usize) -> Vec<u64> {
    (0..n as u64).collect()
}

fn mean(costs: &[f64], ranks: usize) -> f64 {
    let largest = costs.iter().copied().fold(0.0, f64::max);
    (costs.iter().sum::<f64>() / ranks as f64).max(largest)
}

/// The least possible heaviest load, by trying everything; `room` items a rank at most.
fn optimum(costs: &[f64], ranks: usize, room: usize) -> f64 {
    fn go(rest: &[f64], loads: &mut [(f64, usize)], room: usize, best: &mut f64) {
        let Some((cost, rest)) = rest.split_first() else {
            *best = loads.iter().map(|l| l.0).fold(0.0, f64::max);
            return;
        };
        for r in 0..loads.len() {
            // Ranks that are alike need not be tried twice.
            if loads[r].1 == room || loads[r].0 + cost >= *best || loads[..r].contains(&loads[r]) {
                continue;
            }
            let before = loads[r];
            loads[r] = (before.0 + cost, before.1 + 1);
            go(rest, loads, room, best);
            loads[r] = before;
        }
    }
    let mut best = f64::INFINITY;
    go(costs, &mut vec![(0.0, 0); ranks], room, &mut best);
    best
}

fn counts(deal: &[u32], ranks: usize) -> Vec<usize> {
    (0..ranks as u32).map(|r| deal.iter().filter(|d| **d == r).count()).collect()
}

fn home(n: usize, ranks: usize) -> Vec<u32> {
    (0..n).map(|i| (i / (n / ranks)) as u32).collect()
}

proptest! {
    #[test]
    fn an_equal_deal_is_equal_and_never_worse(
        ranks in 1usize..9,
        each in 1usize..9,
        seed: u64,
        coarse: bool,
    ) {
        let mut noise = Noise::new(seed);
        let mut cost = || if coarse { (4.0 * noise.uniform()).floor() } else { noise.lognormal(1.0) };
        let costs: Vec<f64> = (0..ranks * each).map(|_| cost()).collect();
        let deal = equal_counts(&costs, &ids(costs.len()), ranks);
        prop_assert_eq!(counts(&deal, ranks), vec![each; ranks]);
        prop_assert!(heaviest(&costs, &deal, ranks) <= heaviest(&costs, &home(costs.len(), ranks), ranks));
        prop_assert_eq!(&deal, &equal_counts(&costs, &ids(costs.len()), ranks));
    }

    #[test]
    fn no_single_swap_from_the_heaviest_rank_helps(ranks in 2usize..5, each in 1usize..6, seed: u64) {
        let mut noise = Noise::new(seed);
        let costs: Vec<f64> = (0..ranks * each).map(|_| noise.lognormal(1.0)).collect();
        let deal = equal_counts(&costs, &ids(costs.len()), ranks);
        prop_assume!(deal != home(costs.len(), ranks));
        let worst = heaviest(&costs, &deal, ranks);
        for i in 0..costs.len() {
            for j in 0..i {
                let mut other = deal.clone();
                other.swap(i, j);
                prop_assert!(heaviest(&costs, &other, ranks) >= worst * (1.0 - 1e-6));
            }
        }
    }

    #[test]
    fn longest_first_keeps_grahams_bound(ranks in 1usize..5, n in 1usize..11, seed: u64) {
        let mut noise = Noise::new(seed);
        let costs: Vec<f64> = (0..n).map(|_| noise.lognormal(1.0)).collect();
        let parts = longest_first(&items(&costs, &ids(n)), &vec![n; ranks]);
        let worst = parts.loads.iter().copied().fold(0.0, f64::max);
        let bound = 4.0 / 3.0 - 1.0 / (3.0 * ranks as f64);
        prop_assert!(worst <= bound * optimum(&costs, ranks, n) * (1.0 + 1e-9));
    }

    #[test]
    fn a_free_deal_keeps_every_item_and_is_never_worse(ranks in 1usize..6, n in 0usize..30, seed: u64) {
        let mut noise = Noise::new(seed);
        let costs: Vec<f64> = (0..n).map(|_| noise.lognormal(1.0)).collect();
        let home: Vec<u32> = (0..n).map(|_| (noise.next() % ranks as u64) as u32).collect();
        let deal = free_counts(&costs, &ids(n), &home, ranks, costs.len());
        prop_assert_eq!(deal.len(), n);
        prop_assert!(deal.iter().all(|r| (*r as usize) < ranks));
        prop_assert!(heaviest(&costs, &deal, ranks) <= heaviest(&costs, &home, ranks));
    }

    #[test]
    fn where_samples_stand_does_not_matter_beyond_ties(seed: u64) {
        // The same samples at other positions are grouped alike, unless nothing moves at all.
        let mut noise = Noise::new(seed);
        let costs: Vec<f64> = (0..24).map(|_| noise.lognormal(1.0)).collect();
        let reversed: Vec<f64> = costs.iter().rev().copied().collect();
        let back: Vec<u64> = ids(24).into_iter().rev().collect();
        let one = equal_counts(&costs, &ids(24), 4);
        let mut two = equal_counts(&reversed, &back, 4);
        two.reverse();
        prop_assume!(one != home(24, 4) && two.iter().rev().copied().ne(home(24, 4)));
        prop_assert_eq!(one, two);
    }
}

/// Mean of heaviest load over what no deal can beat.
fn quality(sigma: f64, each: usize, deal: impl Fn(&[f64]) -> Vec<u32>) -> f64 {
    let mut noise = Noise::new(11);
    let mut sum = 0.0;
    for _ in 0..200 {
        let costs: Vec<f64> = (0..8 * each).map(|_| noise.lognormal(sigma)).collect();
        sum += heaviest(&costs, &deal(&costs), 8) / mean(&costs, 8);
    }
    sum / 200.0
}

#[test]
fn lognormal_costs_are_dealt_within_the_figures_published_for_the_methods() {
    for (sigma, each) in [(0.5, 8), (1.0, 8), (1.0, 16)] {
        let equal = quality(sigma, each, |c| equal_counts(c, &ids(c.len()), 8));
        let free = quality(sigma, each, |c| free_counts(c, &ids(c.len()), &home(c.len(), 8), 8, c.len()));
        assert!(equal <= 1.05, "equal counts, sigma {sigma}: {equal}");
        assert!(free <= 1.01, "free counts, sigma {sigma}: {free}");
    }
}

#[test]
fn small_equal_deals_are_near_the_optimum() {
    let mut noise = Noise::new(5);
    let mut worst = 1.0f64;
    for _ in 0..200 {
        let costs: Vec<f64> = (0..9).map(|_| noise.lognormal(1.0)).collect();
        let deal = equal_counts(&costs, &ids(9), 3);
        worst = worst.max(heaviest(&costs, &deal, 3) / optimum(&costs, 3, 3));
    }
    assert!(worst < 1.25, "{worst}");
}

#[test]
fn nothing_moves_when_nothing_is_gained() {
    assert_eq!(equal_counts(&[3.0; 12], &ids(12), 4), home(12, 4));
    assert_eq!(equal_counts(&[5.0, 1.0, 3.0, 3.0], &ids(4), 2), [0, 0, 1, 1]);
    assert_eq!(free_counts(&[], &[], &[], 3, 1), Vec::<u32>::new());
}

#[test]
fn zero_and_infinite_costs_are_survived() {
    let costs = [0.0, f64::INFINITY, 1.0, 0.0];
    assert_eq!(counts(&equal_counts(&costs, &ids(4), 2), 2), [2, 2]);
    assert_eq!(counts(&equal_counts(&[0.0; 4], &ids(4), 2), 2), [2, 2]);
}
