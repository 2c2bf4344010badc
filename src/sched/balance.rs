//! Dealing the samples of one step to the ranks, so that all ranks take about as long.
//!
//! Pure functions of (costs, ids): ties go by id, then by position. A deal is never worse than the one it started
//! from, and where it would be no better, nothing moves.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Swaps that gain less than this part of the heaviest load are rounding, not gain.
const EPSILON: f64 = 1e-9;

/// An item to be dealt.
#[derive(Debug, Clone, Copy)]
struct Item {
    cost: f64,
    id: u64,
    position: u32,
}

impl Item {
    /// Heaviest first, then by id, then by position.
    fn order(&self, other: &Item) -> Ordering {
        other.cost.total_cmp(&self.cost).then(self.id.cmp(&other.id)).then(self.position.cmp(&other.position))
    }
}

/// A float with a total order, for heaps.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Load(f64);

impl Eq for Load {}
impl PartialOrd for Load {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Load {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

fn items(costs: &[f64], ids: &[u64]) -> Vec<Item> {
    assert_eq!(costs.len(), ids.len(), "a cost and an id for each item");
    let mut items: Vec<Item> =
        (0..).zip(costs.iter().zip(ids)).map(|(p, (&cost, &id))| Item { cost, id, position: p }).collect();
    items.sort_unstable_by(Item::order);
    items
}

/// Deals items so that each of `ranks` gets the same number of them, of as equal a cost as can be.
///
/// Answers the rank of each item. The starting deal is the sampler's: item `i` to rank `i / (items / ranks)`.
///
/// # Panics
/// When the items cannot be dealt in equal numbers, or `ids` is not as long as `costs`.
pub fn equal_counts(costs: &[f64], ids: &[u64], ranks: usize) -> Vec<u32> {
    assert!(ranks > 0 && costs.len().is_multiple_of(ranks), "{} items for {ranks} ranks", costs.len());
    let each = costs.len() / ranks;
    let home: Vec<u32> = (0..costs.len()).map(|i| (i / each.max(1)) as u32).collect();
    if ranks == 1 || each == 0 {
        return home;
    }
    let mut parts = longest_first(&items(costs, ids), &vec![each; ranks]);
    swap_until_even(&mut parts);
    let deal = ranks_of(&parts, costs.len());
    let worst = |deal: &[u32]| heaviest(costs, deal, ranks);
    if worst(&deal) < worst(&home) * (1.0 - EPSILON) { deal } else { home }
}

/// The heaviest rank's load under a deal.
pub fn heaviest(costs: &[f64], deal: &[u32], ranks: usize) -> f64 {
    let mut loads = vec![0.0; ranks];
    for (cost, &rank) in costs.iter().zip(deal) {
        loads[rank as usize] += cost;
    }
    loads.into_iter().fold(0.0, f64::max)
}

/// Items in parts, each part heaviest first.
struct Parts {
    items: Vec<Vec<Item>>,
    loads: Vec<f64>,
}

/// Deals items so that each rank gets the number of them that `counts` gives it, of as equal a cost as can be.
/// Answers the rank of each item.
///
/// # Panics
/// When `counts` does not add up to the items, or `ids` is not as long as `costs`.
pub fn with_counts(costs: &[f64], ids: &[u64], counts: &[usize]) -> Vec<u32> {
    assert_eq!(counts.iter().sum::<usize>(), costs.len(), "the counts add up to the items");
    let mut parts = longest_first(&items(costs, ids), counts);
    swap_until_even(&mut parts);
    ranks_of(&parts, costs.len())
}

/// Each item, heaviest first, to the lightest part that has room for one more.
fn longest_first(sorted: &[Item], rooms: &[usize]) -> Parts {
    let parts = rooms.len();
    let mut out = Parts { items: vec![Vec::new(); parts], loads: vec![0.0; parts] };
    let mut lightest: BinaryHeap<Reverse<(Load, usize)>> =
        (0..parts).filter(|p| rooms[*p] > 0).map(|p| Reverse((Load(0.0), p))).collect();
    for item in sorted {
        let Some(Reverse((_, part))) = lightest.pop() else { break };
        out.items[part].push(*item);
        out.loads[part] += item.cost;
        if out.items[part].len() < rooms[part] {
            lightest.push(Reverse((Load(out.loads[part]), part)));
        }
    }
    out
}

/// A swap of the `i`-th item of the heaviest part against the `j`-th of another.
struct Swap {
    other: usize,
    i: usize,
    j: usize,
    /// The heavier of the two loads after it.
    peak: f64,
}

/// Makes the best swap from the heaviest part until none helps.
fn swap_until_even(parts: &mut Parts) {
    let count: usize = parts.items.iter().map(Vec::len).sum();
    for _ in 0..4 * count {
        let heavy = (0..parts.loads.len()).fold(0, |h, p| if parts.loads[p] > parts.loads[h] { p } else { h });
        let Some(swap) = best_swap(parts, heavy) else { return };
        let out = parts.items[heavy].remove(swap.i);
        let back = parts.items[swap.other].remove(swap.j);
        for (part, item, lost) in [(heavy, back, out), (swap.other, out, back)] {
            let at = parts.items[part].partition_point(|x| x.order(&item).is_lt());
            parts.items[part].insert(at, item);
            parts.loads[part] += item.cost - lost.cost;
        }
    }
}

/// The swap that leaves the lowest peak. Both parts are sorted, so for each item of the one the best partner in the
/// other is found by bisection: it is next to the item whose exchange would even the two out.
fn best_swap(parts: &Parts, heavy: usize) -> Option<Swap> {
    let load = parts.loads[heavy];
    let mut best: Option<Swap> = None;
    for (other, theirs) in parts.items.iter().enumerate().filter(|(p, _)| *p != heavy) {
        let gap = load - parts.loads[other];
        for (i, mine) in parts.items[heavy].iter().enumerate() {
            let ideal = mine.cost - gap / 2.0;
            let at = theirs.partition_point(|x| x.cost > ideal);
            for j in [at.wrapping_sub(1), at] {
                let Some(item) = theirs.get(j) else { continue };
                let moved = mine.cost - item.cost;
                let peak = (load - moved).max(parts.loads[other] + moved);
                if peak < best.as_ref().map_or(load * (1.0 - EPSILON), |b| b.peak) {
                    best = Some(Swap { other, i, j, peak });
                }
            }
        }
    }
    best
}

/// Deals items to `ranks` in any numbers from one to `most`: the better of the largest differencing method of
/// Karmarkar and Karp and of longest-first.
///
/// Answers the rank of each item. Never worse than `home`, the deal it starts from.
///
/// # Panics
/// When `ids` or `home` is not as long as `costs`, or there is no rank.
pub fn free_counts(costs: &[f64], ids: &[u64], home: &[u32], ranks: usize, most: usize) -> Vec<u32> {
    assert!(ranks > 0 && home.len() == costs.len(), "{} items, {} homes, {ranks} ranks", costs.len(), home.len());
    let sorted = items(costs, ids);
    let mut best = home.to_vec();
    let mut least = heaviest(costs, home, ranks) * (1.0 - EPSILON);
    for deal in [differences(&sorted, ranks, costs.len()), largest_first(costs, ids, ranks, most)] {
        let mut counts = vec![0; ranks];
        deal.iter().for_each(|rank| counts[*rank as usize] += 1);
        // Nobody goes without: a rank with nothing to do could not take part in the step.
        let fair = counts.iter().all(|count| (1..=most).contains(count));
        let peak = heaviest(costs, &deal, ranks);
        if fair && peak < least {
            (best, least) = (deal, peak * (1.0 - EPSILON));
        }
    }
    best
}

/// Deals each item, the largest first, to the lightest of `ranks` that has fewer than `room`.
///
/// # Panics
/// When `ids` is not as long as `costs`, or there is no room for all.
pub fn largest_first(costs: &[f64], ids: &[u64], ranks: usize, room: usize) -> Vec<u32> {
    assert!(costs.len() <= ranks.saturating_mul(room), "{} items, {ranks} ranks of {room}", costs.len());
    ranks_of(&longest_first(&items(costs, ids), &vec![room; ranks]), costs.len())
}

fn ranks_of(parts: &Parts, count: usize) -> Vec<u32> {
    let mut deal = vec![0; count];
    for (rank, part) in (0..).zip(&parts.items) {
        for item in part {
            deal[item.position as usize] = rank;
        }
    }
    deal
}

/// A partial solution: its parts, heaviest first, as (load, list of items).
struct Partial {
    spread: f64,
    number: u32,
    parts: Vec<(f64, Vec<u32>)>,
}

/// Merges the two partial solutions of the largest spread, heaviest parts with lightest, until one is left.
fn differences(sorted: &[Item], ranks: usize, count: usize) -> Vec<u32> {
    let mut heap: BinaryHeap<(Load, Reverse<u32>)> = BinaryHeap::new();
    let mut partials: Vec<Option<Partial>> = Vec::new();
    for (number, item) in (0..).zip(sorted) {
        let mut parts = vec![(0.0, Vec::new()); ranks];
        parts[0] = (item.cost, vec![item.position]);
        heap.push((Load(item.cost), Reverse(number)));
        partials.push(Some(Partial { spread: item.cost, number, parts }));
    }
    while heap.len() > 1 {
        let mut take = || heap.pop().and_then(|(_, Reverse(n))| partials[n as usize].take());
        let (Some(mut a), Some(b)) = (take(), take()) else { break };
        for (mine, theirs) in a.parts.iter_mut().zip(b.parts.into_iter().rev()) {
            mine.0 += theirs.0;
            mine.1.extend(theirs.1);
        }
        // Stable, so that equal parts keep their order and the result is one function of the input.
        a.parts.sort_by(|x, y| y.0.total_cmp(&x.0));
        a.spread = a.parts[0].0 - a.parts[ranks - 1].0;
        heap.push((Load(a.spread), Reverse(a.number)));
        let slot = a.number as usize;
        partials[slot] = Some(a);
    }
    let mut deal = vec![0; count];
    for (rank, (_, part)) in (0..).zip(partials.into_iter().flatten().flat_map(|p| p.parts)) {
        for position in part {
            deal[position as usize] = rank;
        }
    }
    deal
}

#[cfg(test)]
#[path = "balance_tests.rs"]
mod tests;
