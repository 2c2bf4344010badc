//! Which samples meet in a step, where several steps share theirs.
//!
//! A step takes as long as its heaviest rank. Within a step costs are evened out as far as whole samples can be; what
//! is left goes when samples of like cost meet. So the micro-batches of a window of steps are sorted by cost and dealt
//! to its steps in turn, and the steps are shuffled, or each window would go from heavy to light. A pure function of
//! its arguments; each micro-batch keeps its place in the window's multiset, and each step its number of every size.

use std::collections::BTreeMap;

/// A micro-batch of a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// What it costs its rank.
    pub cost: f64,
    /// Number of its first sample, by which ties go.
    pub id: u64,
    /// Its samples.
    pub size: usize,
}

/// The step of each micro-batch of a window; `window` lists them step by step, and `turns` is an order of the steps,
/// of which the first gets the heaviest.
///
/// # Panics
/// When a number in `turns` is not that of a step.
pub fn like_costs(window: &[Vec<Candidate>], turns: &[u32]) -> Vec<Vec<u32>> {
    let mut sizes: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    for (step, units) in window.iter().enumerate() {
        for (place, unit) in units.iter().enumerate() {
            sizes.entry(unit.size).or_default().push((step, place));
        }
    }
    let mut to: Vec<Vec<u32>> = window.iter().map(|units| vec![0; units.len()]).collect();
    for (size, mut places) in sizes {
        places.sort_by(|&(s, p), &(t, q)| {
            let (a, b) = (window[s][p], window[t][q]);
            b.cost.total_cmp(&a.cost).then(a.id.cmp(&b.id)).then((s, p).cmp(&(t, q)))
        });
        let room = |step: &u32| window[*step as usize].iter().filter(|u| u.size == size).count();
        let seats = turns.iter().flat_map(|step| std::iter::repeat_n(*step, room(step)));
        for ((step, place), seat) in places.into_iter().zip(seats) {
            to[step][place] = seat;
        }
    }
    to
}
