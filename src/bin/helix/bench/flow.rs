//! The fewest bytes that could have crossed between servers: a min-cost flow.
//!
//! Each server decodes as much as it did; free is only which samples. A sample costs nothing on its rank's server and
//! its bytes on any other, and may be cut into parts, so that this is a bound below any schedule with these loads. All
//! samples begin at home; then work flows from servers with too much to those with too little along the cheapest paths
//! (successive shortest paths). What a step of a path costs is what its cheapest sample costs, so that the graph has
//! only as many nodes as there are servers.

use std::collections::BTreeMap;

use helix_shm::sim::Placed;

/// Less work than this is none, as a share of all.
const EPSILON: f64 = 1e-9;

/// A float that orders a map.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cost(f64);
impl Eq for Cost {}
impl PartialOrd for Cost {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Cost {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Samples on a server of one home: (bytes a second of work, number) to seconds of work.
type Pile = BTreeMap<(Cost, usize), f64>;

struct Flow {
    /// `piles[server][home]`.
    piles: Vec<Vec<Pile>>,
}

impl Flow {
    /// What the cheapest work that can go from a server to another costs a second, and of which home it is.
    fn edge(&self, from: usize, to: usize) -> Option<(f64, usize)> {
        let homes = 0..self.piles.len();
        let cost = |home: usize| {
            let pile = &self.piles[from][home];
            match () {
                () if home == from => pile.first_key_value().map(|((c, _), _)| c.0),
                () if home == to => pile.last_key_value().map(|((c, _), _)| -c.0),
                () => pile.first_key_value().map(|_| 0.0),
            }
        };
        homes.filter_map(|home| Some((cost(home)?, home))).min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// The cheapest path from any of `from` to any of `to`, as its servers.
    fn path(&self, from: &[bool], to: &[bool]) -> Option<Vec<usize>> {
        let n = self.piles.len();
        let mut cost: Vec<f64> = from.iter().map(|f| if *f { 0.0 } else { f64::INFINITY }).collect();
        let mut before = vec![usize::MAX; n];
        for _ in 0..n {
            for a in 0..n {
                for b in (0..n).filter(|b| *b != a) {
                    let Some((step, _)) = self.edge(a, b) else { continue };
                    if cost[a] + step < cost[b] - EPSILON * cost[b].abs().min(1.0) {
                        (cost[b], before[b]) = (cost[a] + step, a);
                    }
                }
            }
        }
        let end = (0..n).filter(|s| to[*s] && cost[*s].is_finite()).min_by(|a, b| cost[*a].total_cmp(&cost[*b]))?;
        let mut path = vec![end];
        while before[path[path.len() - 1]] != usize::MAX && path.len() <= n {
            path.push(before[path[path.len() - 1]]);
        }
        path.reverse();
        Some(path)
    }

    /// Takes the cheapest piece of work from one server to the next; it may be less than `most`.
    fn shift(&mut self, from: usize, to: usize, most: f64) -> f64 {
        let Some((_, home)) = self.edge(from, to) else { return 0.0 };
        let pile = &mut self.piles[from][home];
        let piece = if home == to { pile.last_entry() } else { pile.first_entry() };
        let Some(mut piece) = piece else { return 0.0 };
        let (key, moved) = (*piece.key(), piece.get().min(most));
        *piece.get_mut() -= moved;
        if *piece.get() <= 0.0 {
            piece.remove();
        }
        *self.piles[to][home].entry(key).or_insert(0.0) += moved;
        moved
    }

    fn smallest(&self, from: usize, to: usize) -> f64 {
        let Some((_, home)) = self.edge(from, to) else { return 0.0 };
        let pile = &self.piles[from][home];
        let piece = if home == to { pile.last_key_value() } else { pile.first_key_value() };
        piece.map_or(0.0, |(_, work)| *work)
    }

    fn bytes(&self) -> f64 {
        let away = |(server, homes): (usize, &Vec<Pile>)| -> f64 {
            let others = homes.iter().enumerate().filter(|(home, _)| *home != server);
            others.flat_map(|(_, pile)| pile).map(|((cost, _), work)| cost.0 * work).sum()
        };
        self.piles.iter().enumerate().map(away).sum()
    }
}

/// The fewest bytes that cross if each of `servers` does the work that it did.
pub(super) fn fewest_bytes(placed: &[Placed], servers: usize) -> f64 {
    let mut flow = Flow { piles: vec![vec![Pile::new(); servers]; servers] };
    let mut surplus = vec![0.0; servers];
    for (number, p) in placed.iter().enumerate().filter(|(_, p)| p.work_s > 0.0) {
        let home = usize::from(p.home);
        surplus[home] += p.work_s;
        surplus[usize::from(p.server)] -= p.work_s;
        flow.piles[home][home].insert((Cost(p.bytes as f64 / p.work_s), number), p.work_s);
    }
    let little = EPSILON * placed.iter().map(|p| p.work_s).sum::<f64>();
    for _ in 0..64 * (placed.len() + servers) {
        let from: Vec<bool> = surplus.iter().map(|s| *s > little).collect();
        let to: Vec<bool> = surplus.iter().map(|s| *s < -little).collect();
        let Some(path) = flow.path(&from, &to) else { break };
        let (first, last) = (path[0], path[path.len() - 1]);
        let steps = || path.windows(2).map(|w| (w[0], w[1]));
        let room = surplus[first].min(-surplus[last]);
        let most = steps().map(|(a, b)| flow.smallest(a, b)).fold(room, f64::min);
        let steps: Vec<(usize, usize)> = steps().collect();
        for (a, b) in steps {
            flow.shift(a, b, most);
        }
        surplus[first] -= most;
        surplus[last] += most;
    }
    flow.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(list: &[(u16, u16, u64)]) -> Vec<Placed> {
        let one = |&(home, server, bytes)| Placed { step: 0, home, server, bytes, work_s: 1.0 };
        list.iter().map(one).collect()
    }

    /// The fewest bytes of all ways to give unit samples to servers in these numbers.
    fn brute(list: &[Placed], servers: usize) -> u64 {
        let mut wanted = vec![0; servers];
        list.iter().for_each(|p| wanted[usize::from(p.server)] += 1);
        let mut best = u64::MAX;
        for code in 0..(servers as u64).pow(list.len() as u32) {
            let on = |n: usize| (code / (servers as u64).pow(n as u32) % servers as u64) as usize;
            let mut had = vec![0; servers];
            (0..list.len()).for_each(|n| had[on(n)] += 1);
            if had == wanted {
                let away = |(n, p): (usize, &Placed)| if on(n) == usize::from(p.home) { 0 } else { p.bytes };
                best = best.min(list.iter().enumerate().map(away).sum());
            }
        }
        best
    }

    #[test]
    fn what_was_exchanged_for_nothing_need_not_have_crossed() {
        assert_eq!(fewest_bytes(&placed(&[(0, 1, 100), (1, 0, 50)]), 2), 0.0);
        assert_eq!(fewest_bytes(&placed(&[(0, 1, 100), (0, 0, 30), (1, 1, 50)]), 2), 30.0);
    }

    #[test]
    fn no_way_of_small_cases_needs_fewer() {
        let mut state = 1u64;
        let mut draw = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for _ in 0..60 {
            let list: Vec<(u16, u16, u64)> = (0..7).map(|_| (draw(3) as u16, draw(3) as u16, 1 + draw(40))).collect();
            let placed = placed(&list);
            let (found, best) = (fewest_bytes(&placed, 3), brute(&placed, 3) as f64);
            assert!((found - best).abs() < 1e-6, "{found}, not {best}: {list:?}");
        }
    }
}
