//! Samples packed into sequences of at most a budget of tokens, as many on every rank.
//!
//! The number of sequences is the least that works: first the largest samples go to the lightest sequence that has
//! room, which evens out what the ranks compute; where that does not fit, to the fullest that has room (best-fit
//! decreasing). Whole sequences are then dealt to the ranks in equal numbers. A pure function of its arguments.

use super::balance;

/// What is packed.
#[derive(Debug, Clone, Copy)]
pub struct Items<'a> {
    /// Tokens of each item.
    pub tokens: &'a [f64],
    /// What each costs its rank.
    pub costs: &'a [f64],
    /// Ids, by which ties go.
    pub ids: &'a [u64],
    /// The rank that the sampler dealt each to.
    pub home: &'a [u32],
}

/// Where it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// For each item its rank, and which of the rank's sequences it is in.
    pub places: Vec<(u32, u16)>,
    /// Sequences of each rank. Some may be empty: all ranks have the same number.
    pub bins: u16,
}

/// Packs items into sequences of at most `budget` tokens for `ranks` ranks, each of from one to `most` items. An item of
/// more tokens than that is a sequence of its own.
///
/// # Panics
/// When the lists are not of one length, or `home` names a rank that there is not.
pub fn pack(items: &Items<'_>, ranks: usize, budget: f64, most: usize) -> Packed {
    let order = largest_first(items);
    let home = as_dealt(items, &order, ranks, budget);
    let total: f64 = items.tokens.iter().sum();
    let least = (total / (budget * ranks as f64)).ceil().clamp(1.0, f64::from(home.bins)) as u16;
    let load = |packed: &Packed| {
        let deal: Vec<u32> = packed.places.iter().map(|(rank, _)| *rank).collect();
        balance::heaviest(items.costs, &deal, ranks)
    };
    for bins in least..=home.bins {
        let tries = [evenly, tightly].into_iter().filter_map(|fill: Fill| {
            let bin_of = fill(items, &order, ranks * usize::from(bins), budget)?;
            let packed = to_ranks(items, &bin_of, ranks, bins);
            fair(&packed, ranks, most).then_some(packed)
        });
        let as_it_is = (bins == home.bins).then(|| home.clone());
        // The first of equals, so that nothing moves for nothing.
        let found = as_it_is.into_iter().chain(tries).reduce(|a, b| if load(&b) < load(&a) { b } else { a });
        if let Some(found) = found {
            return found;
        }
    }
    home
}

/// Items by tokens, then by id, then by position.
fn largest_first(items: &Items<'_>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.tokens.len()).collect();
    let (tokens, ids) = (items.tokens, items.ids);
    order.sort_unstable_by(|&a, &b| tokens[b].total_cmp(&tokens[a]).then(ids[a].cmp(&ids[b])).then(a.cmp(&b)));
    order
}

/// Fills at most so many sequences: the sequence of each item, or `None` when they do not do.
type Fill = fn(&Items<'_>, &[usize], usize, f64) -> Option<Vec<usize>>;

/// The sequence with room for an item that `better` prefers, if any.
fn choose(
    full: &[(f64, f64)],
    tokens: f64,
    budget: f64,
    better: impl Fn(&(f64, f64), &(f64, f64)) -> bool,
) -> Option<usize> {
    // An item over the budget has room in an empty sequence only.
    let room = |bin: &(f64, f64)| bin.0 == 0.0 || bin.0 + tokens <= budget;
    (0..full.len()).filter(|b| room(&full[*b])).reduce(|a, b| if better(&full[b], &full[a]) { b } else { a })
}

fn evenly(items: &Items<'_>, order: &[usize], bins: usize, budget: f64) -> Option<Vec<usize>> {
    fill(items, order, bins, budget, |a, b| a.1 < b.1)
}

fn tightly(items: &Items<'_>, order: &[usize], bins: usize, budget: f64) -> Option<Vec<usize>> {
    fill(items, order, bins, budget, |a, b| a.0 > b.0)
}

/// Each item in `order` to the preferred of `bins` sequences; a sequence is (tokens, cost).
fn fill(
    items: &Items<'_>,
    order: &[usize],
    bins: usize,
    budget: f64,
    better: fn(&(f64, f64), &(f64, f64)) -> bool,
) -> Option<Vec<usize>> {
    let mut full = vec![(0.0, 0.0); bins];
    let mut bin_of = vec![0; items.tokens.len()];
    for &item in order {
        let bin = choose(&full, items.tokens[item], budget, better)?;
        full[bin].0 += items.tokens[item];
        full[bin].1 += items.costs[item];
        bin_of[item] = bin;
    }
    Some(bin_of)
}

/// Deals sequences to ranks in equal numbers, of as equal a cost as can be.
fn to_ranks(items: &Items<'_>, bin_of: &[usize], ranks: usize, bins: u16) -> Packed {
    let count = ranks * usize::from(bins);
    let (mut costs, mut ids) = (vec![0.0; count], vec![u64::MAX; count]);
    for (item, &bin) in bin_of.iter().enumerate() {
        costs[bin] += items.costs[item];
        ids[bin] = ids[bin].min(items.ids[item]);
    }
    let rank_of = balance::with_counts(&costs, &ids, &vec![bins.into(); ranks]);
    // A rank's sequences are numbered in the order of theirs.
    let mut next = vec![0u16; ranks];
    let place = |&rank: &u32| {
        let number = next[rank as usize];
        next[rank as usize] += 1;
        (rank, number)
    };
    let places: Vec<(u32, u16)> = rank_of.iter().map(place).collect();
    Packed { places: bin_of.iter().map(|bin| places[*bin]).collect(), bins }
}

/// Whether nobody goes without, or has more than it has room for.
fn fair(packed: &Packed, ranks: usize, most: usize) -> bool {
    let mut counts = vec![0; ranks];
    packed.places.iter().for_each(|(rank, _)| counts[*rank as usize] += 1);
    counts.iter().all(|count| (1..=most).contains(count))
}

/// Every item with the rank that the sampler dealt it to, packed there.
fn as_dealt(items: &Items<'_>, order: &[usize], ranks: usize, budget: f64) -> Packed {
    let mut full: Vec<Vec<(f64, f64)>> = vec![Vec::new(); ranks];
    let mut places = vec![(0, 0); items.tokens.len()];
    for &item in order {
        let (rank, tokens) = (items.home[item], items.tokens[item]);
        let bins = &mut full[rank as usize];
        let bin = choose(bins, tokens, budget, |a, b| a.0 > b.0).unwrap_or_else(|| {
            bins.push((0.0, 0.0));
            bins.len() - 1
        });
        bins[bin].0 += tokens;
        places[item] = (rank, bin as u16);
    }
    let bins = full.iter().map(Vec::len).max().unwrap_or(0).max(1) as u16;
    Packed { places, bins }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sched::online::margin::tests::Noise;

    fn packed(tokens: &[f64], ranks: usize, budget: f64, most: usize) -> Packed {
        let ids: Vec<u64> = (0..tokens.len() as u64).collect();
        let costs: Vec<f64> = tokens.iter().map(|s| s + 1e-4 * s * s).collect();
        let each = tokens.len() / ranks;
        let home: Vec<u32> = (0..tokens.len()).map(|i| (i / each) as u32).collect();
        pack(&Items { tokens, costs: &costs, ids: &ids, home: &home }, ranks, budget, most)
    }

    fn lengths(n: usize, seed: u64) -> Vec<f64> {
        let mut noise = Noise::new(seed);
        (0..n).map(|_| (1000.0 * noise.lognormal(0.8)).ceil()).collect()
    }

    proptest! {
        #[test]
        fn no_sequence_is_over_the_budget_and_all_ranks_have_as_many(
            ranks in 1usize..6, each in 1usize..9, seed: u64, budget in 500f64..8000.0, room in 0usize..9,
        ) {
            let tokens = lengths(ranks * each, seed);
            let most = each + room;
            let packed = packed(&tokens, ranks, budget, most);
            let mut bins = vec![(0.0, 0); ranks * usize::from(packed.bins)];
            let mut counts = vec![0; ranks];
            for (tokens, (rank, bin)) in tokens.iter().zip(&packed.places) {
                prop_assert!((*rank as usize) < ranks && *bin < packed.bins);
                let bin = &mut bins[*rank as usize * usize::from(packed.bins) + usize::from(*bin)];
                *bin = (bin.0 + tokens, bin.1 + 1);
                counts[*rank as usize] += 1;
            }
            prop_assert!(bins.iter().all(|(tokens, count)| *tokens <= budget || *count == 1), "{bins:?}");
            prop_assert!(counts.iter().all(|c| (1..=most).contains(c)), "{counts:?}");
        }

        #[test]
        fn packing_follows_from_ids_and_not_from_the_order_of_the_list(seed: u64, turn in 0usize..24) {
            let tokens = lengths(24, seed);
            let ids: Vec<u64> = (0..24).collect();
            let home: Vec<u32> = (0..24).map(|i| i / 6).collect();
            let run = |turn: usize| {
                let at: Vec<usize> = (0..24).map(|i| (i + turn) % 24).collect();
                let tokens: Vec<f64> = at.iter().map(|i| tokens[*i]).collect();
                let ids: Vec<u64> = at.iter().map(|i| ids[*i]).collect();
                let home: Vec<u32> = at.iter().map(|i| home[*i]).collect();
                let packed = pack(&Items { tokens: &tokens, costs: &tokens, ids: &ids, home: &home }, 4, 5000.0, 24);
                let mut places: Vec<_> = ids.into_iter().zip(packed.places).collect();
                places.sort_unstable();
                (places, packed.bins)
            };
            prop_assert_eq!(run(0), run(turn));
        }
    }

    #[test]
    fn as_few_sequences_as_the_tokens_need_or_one_more_a_rank() {
        for seed in 0..200 {
            let tokens = lengths(64, seed);
            let packed = packed(&tokens, 8, 8192.0, 64);
            let least = (tokens.iter().sum::<f64>() / (8.0 * 8192.0)).ceil() as u16;
            let over = tokens.iter().filter(|t| **t > 8192.0).count().div_ceil(8) as u16;
            assert!(
                packed.bins <= least + 1 + over,
                "seed {seed}: {} sequences a rank, {least} at least",
                packed.bins
            );
        }
    }

    #[test]
    fn ranks_compute_about_as_long() {
        let mut worst = 0.0;
        for seed in 0..100 {
            let tokens = lengths(128, seed);
            let costs: Vec<f64> = tokens.iter().map(|s| s + 1e-4 * s * s).collect();
            let packed = packed(&tokens, 8, 16_384.0, 64);
            let deal: Vec<u32> = packed.places.iter().map(|p| p.0).collect();
            let mean = costs.iter().sum::<f64>() / 8.0;
            worst +=
                balance::heaviest(&costs, &deal, 8) / mean.max(costs.iter().copied().fold(0.0, f64::max)) / 100.0;
        }
        assert!(worst < 1.1, "{worst}");
    }
}
