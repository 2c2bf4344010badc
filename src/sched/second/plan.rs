//! The plan: two ways of evening out the ranks, of which the one that gains more after paying for its moves is taken.

use super::matching::assign;
use crate::sched::balance;

/// Less than this part of the heaviest load is rounding, not gain.
const EPSILON: f64 = 1e-9;
/// Most ranks for which parts are dealt anew: matching them takes the third power of it. Beyond, single moves must do.
const MOST_MATCHED: usize = 256;

/// Where a sample's bytes are when the plan is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Site {
    /// In the slab of its rank, not yet uploaded: it changes hands by its descriptor.
    Host,
    /// On its rank's device.
    Device,
}

/// What moves as one: a sample, or a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Item {
    /// The rank that has it.
    pub rank: u32,
    /// Its place in that rank's batch; with the rank it names the item.
    pub slot: u32,
    /// What it costs whoever computes it, seconds, by its actual size.
    pub cost: f64,
    /// Its bytes.
    pub bytes: u64,
    /// Where they are.
    pub site: Site,
}

/// How many items a rank may end with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// As many as it had.
    Kept,
    /// From one to so many.
    Free {
        /// Most items of a rank.
        most: u32,
    },
}

/// What moving costs, and how much of it is allowed. Fixed when the job starts, so that all ranks have the same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// Bytes a second that a device sends, and as many that it takes.
    pub bandwidth: f64,
    /// Seconds that any copying takes on top: agreeing, starting, packing.
    pub latency: f64,
    /// Seconds that handing over costs, however many are handed over.
    pub hand_over: f64,
    /// A plan has to gain so many seconds on top of what it costs.
    pub margin: f64,
    /// Most bytes that a device may send in a step, and that it may take.
    pub cap: u64,
    /// How many items a rank may end with.
    pub counts: Counts,
}

impl Terms {
    /// Terms of a box whose devices copy at 20 GB/s.
    pub const BOX: Terms =
        Terms { bandwidth: 20e9, latency: 2e-3, hand_over: 0.2e-3, margin: 1e-3, cap: 4 << 30, counts: Counts::Kept };
}

/// How an item moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum How {
    /// The new rank gets a lease on the bytes where they are.
    HandOver,
    /// Its bytes are copied between devices.
    Copy,
}

/// One item goes to another rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Move {
    /// Who has it.
    pub from: u32,
    /// Its place there.
    pub slot: u32,
    /// Who is to compute it.
    pub to: u32,
    /// Its bytes.
    pub bytes: u64,
    /// How it gets there.
    pub how: How,
}

/// What is to be moved, in one order for all ranks: by sender, then by place.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// The moves.
    pub moves: Vec<Move>,
    /// Load of the heaviest rank as things are, seconds.
    pub before: f64,
    /// Load of the heaviest rank when the plan is carried out.
    pub after: f64,
    /// Seconds that moving takes.
    pub transfer: f64,
}

impl Plan {
    /// Whether all stays as it is.
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }

    /// Seconds that it gains, moving paid for.
    pub fn net(&self) -> f64 {
        self.before - self.after - self.transfer
    }

    /// What a rank copies to others, in the order in which they expect it.
    pub fn copies_from(&self, rank: u32) -> impl Iterator<Item = &Move> {
        self.moves.iter().filter(move |m| m.how == How::Copy && m.from == rank)
    }

    /// What others copy to a rank, in the order in which they send it.
    pub fn copies_to(&self, rank: u32) -> impl Iterator<Item = &Move> {
        self.moves.iter().filter(move |m| m.how == How::Copy && m.to == rank)
    }

    /// What changes hands by descriptor.
    pub fn hand_overs(&self) -> impl Iterator<Item = &Move> {
        self.moves.iter().filter(|m| m.how == How::HandOver)
    }

    /// A number that all ranks compare before anything is sent: ranks that were told different costs would wait for
    /// copies that never come.
    pub fn digest(&self, epoch: u32, step: u32) -> u64 {
        let mut words = vec![u64::from(epoch) << 32 | u64::from(step)];
        for m in &self.moves {
            words.push(u64::from(m.from) << 32 | u64::from(m.to));
            words.push(u64::from(m.slot) << 32 | u64::from(m.how == How::Copy));
            words.push(m.bytes);
        }
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }
}

/// Plans the moves of a step of `ranks` ranks. The order of `items` does not matter.
///
/// # Panics
/// When an item is of a rank that there is not.
pub fn plan(items: &[Item], ranks: u32, terms: &Terms) -> Plan {
    let mut items = items.to_vec();
    items.sort_unstable_by_key(|i| (i.rank, i.slot));
    let state = State::new(&items, ranks as usize);
    let before = state.peak();
    let stay = Plan { before, after: before, ..Plan::default() };
    // Nobody moves for costs that are no numbers.
    if ranks < 2 || state.loads.iter().any(|load| !load.is_finite()) {
        return stay;
    }
    let greedy = single_moves(state.clone(), terms);
    let anew = dealt_anew(&items, state, terms);
    let best = [greedy, anew].into_iter().flatten().max_by(|a, b| a.net().total_cmp(&b.net()));
    best.filter(|b| b.net() > terms.margin.max(0.0)).unwrap_or(stay)
}

/// An item's number in `State::items`.
type Number = u32;

/// Who would have what.
#[derive(Debug, Clone)]
struct State<'a> {
    items: &'a [Item],
    at: Vec<u32>,
    /// The numbers of each rank's items, the heaviest first.
    lists: Vec<Vec<Number>>,
    loads: Vec<f64>,
    /// Bytes that each rank's device would send and take.
    sent: Vec<u64>,
    taken: Vec<u64>,
    /// Items handed over.
    handed: u32,
}

impl<'a> State<'a> {
    fn new(items: &'a [Item], ranks: usize) -> Self {
        let mut lists = vec![Vec::new(); ranks];
        let mut loads = vec![0.0; ranks];
        for (number, item) in (0..).zip(items) {
            lists[item.rank as usize].push(number);
            loads[item.rank as usize] += item.cost;
        }
        let mut state = State {
            items,
            at: items.iter().map(|i| i.rank).collect(),
            lists,
            loads,
            sent: vec![0; ranks],
            taken: vec![0; ranks],
            handed: 0,
        };
        let order = |a: &Number, b: &Number| state_order(items, *a, *b);
        state.lists.iter_mut().for_each(|list| list.sort_unstable_by(order));
        state
    }

    fn peak(&self) -> f64 {
        self.loads.iter().copied().fold(0.0, f64::max)
    }

    fn heaviest(&self) -> usize {
        (0..self.loads.len()).fold(0, |h, r| if self.loads[r] > self.loads[h] { r } else { h })
    }

    /// Moves an item. Bytes are counted against where it really is.
    fn shift(&mut self, number: Number, to: u32) {
        let item = self.items[number as usize];
        let from = std::mem::replace(&mut self.at[number as usize], to);
        let place = |list: &[Number]| list.partition_point(|n| state_order(self.items, *n, number).is_lt());
        let at = place(&self.lists[from as usize]);
        self.lists[from as usize].remove(at);
        let at = place(&self.lists[to as usize]);
        self.lists[to as usize].insert(at, number);
        self.loads[from as usize] -= item.cost;
        self.loads[to as usize] += item.cost;
        let (was, is) = (from != item.rank, to != item.rank);
        if item.site == Site::Host {
            self.handed = self.handed + u32::from(is) - u32::from(was);
            return;
        }
        let home = item.rank as usize;
        if was {
            self.sent[home] -= item.bytes;
            self.taken[from as usize] -= item.bytes;
        }
        if is {
            self.sent[home] += item.bytes;
            self.taken[to as usize] += item.bytes;
        }
    }

    fn transfer(&self, terms: &Terms) -> f64 {
        let most = self.sent.iter().chain(&self.taken).copied().max().unwrap_or(0);
        let copies = if most > 0 { most as f64 / terms.bandwidth + terms.latency } else { 0.0 };
        copies + if self.handed > 0 { terms.hand_over } else { 0.0 }
    }

    /// Whether one more item of these bytes may leave `item.rank` for `to`, and by how much that is in the way.
    fn burden(&self, number: Number, to: u32, terms: &Terms) -> Option<u64> {
        let item = &self.items[number as usize];
        if item.site == Site::Host || to == item.rank {
            return Some(0);
        }
        let at_home = self.at[number as usize] == item.rank;
        let sent = self.sent[item.rank as usize] + if at_home { item.bytes } else { 0 };
        let fits = sent <= terms.cap && self.taken[to as usize] + item.bytes <= terms.cap;
        fits.then_some(item.bytes)
    }

    fn plan(&self, before: f64, terms: &Terms) -> Plan {
        let moved = self.items.iter().zip(&self.at).filter(|(item, to)| item.rank != **to);
        let moves = moved.map(|(item, to)| {
            let how = if item.site == Site::Host { How::HandOver } else { How::Copy };
            Move { from: item.rank, slot: item.slot, to: *to, bytes: item.bytes, how }
        });
        // Sums that were kept up to date have drifted from those of the lists by rounding; what is promised has not.
        let load = |list: &Vec<Number>| list.iter().map(|n| self.items[*n as usize].cost).sum::<f64>();
        let after = self.lists.iter().map(load).fold(0.0, f64::max);
        Plan { moves: moves.collect(), before, after, transfer: self.transfer(terms) }
    }
}

/// The heaviest first, then by place.
fn state_order(items: &[Item], a: Number, b: Number) -> std::cmp::Ordering {
    items[b as usize].cost.total_cmp(&items[a as usize].cost).then(a.cmp(&b))
}

/// A move from the heaviest rank, or a swap with one of another's.
#[derive(Debug, Clone, Copy)]
struct Step {
    out: Number,
    back: Option<Number>,
    other: u32,
    gain: f64,
    bytes: u64,
}

impl Step {
    /// What it gains for each byte, compared without dividing: nothing is as good as what moves no byte.
    fn beats(&self, than: &Step) -> bool {
        match (self.bytes, than.bytes) {
            (0, 0) => self.gain > than.gain,
            (a, b) => self.gain * b as f64 > than.gain * a as f64,
        }
    }
}

/// The best move or swap for its bytes from the heaviest rank, again and again; of all that were on the way the one of
/// the best net.
fn single_moves(mut state: State<'_>, terms: &Terms) -> Option<Plan> {
    let before = state.peak();
    let mut best: Option<(f64, Vec<u32>)> = None;
    for _ in 0..2 * state.items.len() {
        let Some(step) = best_step(&state, terms) else { break };
        let heavy = state.at[step.out as usize];
        state.shift(step.out, step.other);
        if let Some(back) = step.back {
            state.shift(back, heavy);
        }
        let net = before - state.peak() - state.transfer(terms);
        if best.as_ref().is_none_or(|(most, _)| net > *most) {
            best = Some((net, state.at.clone()));
        }
    }
    let (_, at) = best?;
    Some(placed(state.items, &at, state.loads.len()).plan(before, terms))
}

/// The state in which everything is where `at` says.
fn placed<'a>(items: &'a [Item], at: &[u32], ranks: usize) -> State<'a> {
    let mut state = State::new(items, ranks);
    for (number, &to) in (0..).zip(at) {
        if state.at[number as usize] != to {
            state.shift(number, to);
        }
    }
    state
}

fn best_step(state: &State<'_>, terms: &Terms) -> Option<Step> {
    let heavy = state.heaviest();
    let load = state.loads[heavy];
    let mut best: Option<Step> = None;
    for other in (0..state.loads.len()).filter(|r| *r != heavy) {
        let theirs = &state.lists[other];
        let gap = load - state.loads[other];
        for &out in &state.lists[heavy] {
            let cost = state.items[out as usize].cost;
            // The best partner is next to the one whose exchange would even the two out.
            let at = theirs.partition_point(|n| state.items[*n as usize].cost > cost - gap / 2.0);
            let near = [at.checked_sub(1), Some(at)].into_iter().flatten().filter_map(|i| theirs.get(i).copied());
            let alone = may_go(state, heavy, other, terms).then_some(None);
            for back in near.map(Some).chain(alone) {
                let moved = cost - back.map_or(0.0, |n| state.items[n as usize].cost);
                let gain = load - (load - moved).max(state.loads[other] + moved);
                if gain <= load * EPSILON {
                    continue;
                }
                let burden = |number, to: usize| state.burden(number, to as u32, terms);
                let Some(bytes) = burden(out, other) else { continue };
                let Some(returned) = back.map_or(Some(0), |n| burden(n, heavy)) else { continue };
                let step = Step { out, back, other: other as u32, gain, bytes: bytes + returned };
                if best.as_ref().is_none_or(|b| step.beats(b)) {
                    best = Some(step);
                }
            }
        }
    }
    best
}

/// Whether an item may go without another's coming back.
fn may_go(state: &State<'_>, from: usize, to: usize, terms: &Terms) -> bool {
    match terms.counts {
        Counts::Kept => false,
        Counts::Free { most } => state.lists[from].len() > 1 && state.lists[to].len() < most as usize,
    }
}

/// Deals everything anew, then gives each part to the rank that has most of its bytes.
fn dealt_anew(items: &[Item], state: State<'_>, terms: &Terms) -> Option<Plan> {
    let ranks = state.loads.len();
    if ranks > MOST_MATCHED || items.is_empty() {
        return None;
    }
    let costs: Vec<f64> = items.iter().map(|i| i.cost).collect();
    let ids: Vec<u64> = (0..items.len() as u64).collect();
    let home: Vec<u32> = items.iter().map(|i| i.rank).collect();
    let counts: Vec<usize> = state.lists.iter().map(Vec::len).collect();
    let deal = match terms.counts {
        Counts::Kept => balance::with_counts(&costs, &ids, &counts),
        Counts::Free { most } => balance::free_counts(&costs, &ids, &home, ranks, most as usize),
    };
    // What a part has of each rank, in bytes that would not have to move. Hand-overs count a little, for ties.
    let mut staying = vec![vec![0.0; ranks]; ranks];
    let mut sizes = vec![0; ranks];
    for (item, &part) in items.iter().zip(&deal) {
        sizes[part as usize] += 1;
        let bytes = if item.site == Site::Device { item.bytes as f64 } else { 1.0 };
        staying[part as usize][item.rank as usize] -= bytes;
    }
    if terms.counts == Counts::Kept {
        forbid_other_sizes(&mut staying, &sizes, &counts);
    }
    let rank_of = assign(&staying);
    let at: Vec<u32> = deal.iter().map(|part| rank_of[*part as usize] as u32).collect();
    let moved = placed(items, &at, ranks);
    let allowed = moved.sent.iter().chain(&moved.taken).all(|bytes| *bytes <= terms.cap);
    allowed.then(|| moved.plan(state.peak(), terms))
}

/// A part may only go to a rank that had as many items as it has.
fn forbid_other_sizes(staying: &mut [Vec<f64>], sizes: &[usize], counts: &[usize]) {
    let all: f64 = staying.iter().flatten().map(|bytes| bytes.abs()).sum();
    for (row, size) in staying.iter_mut().zip(sizes) {
        for (cost, count) in row.iter_mut().zip(counts) {
            if size != count {
                *cost = 2.0 * all + 1.0;
            }
        }
    }
}
