//! One stream: its samples' order, its plans, its ranks and what waits for a worker.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::queue::{Backlog, Item, Key, bytes_of, place};
use super::rank::{Batch, Rank, Site, State};
use crate::proto::handover::{Dealt, Known};
use crate::proto::options::{Policy, RunOptions, StreamOptions};
use crate::proto::order::Order as Given;
use crate::sched::event::{Catalog, ServerId, WorkerId};
use crate::sched::order::{self, Order};
use crate::sched::plan::{StepPlan, window_of};
use crate::sched::units::Units;

/// Samples whose plans are kept for the ranks that have not asked for them yet, over all steps: some 7 MB.
const KEPT_SAMPLES: u64 = 65_536;

/// Steps that the timeline may hold; ranks that are further apart than this are put in no good order.
const KEPT_STEPS: usize = 65_536;

/// Orders by samplers of the user's own that are kept: ranks are in different epochs for a moment when one ends.
const KEPT_ORDERS: usize = 3;

/// A step on a stream's timeline, which has the pace that is predicted, and no zero of meaning.
#[derive(Debug, Clone, Copy)]
struct Moment {
    /// When it is wanted, nanoseconds.
    at: u64,
    /// Ranks that have been granted it.
    taken: u32,
}

/// A stream.
pub(super) struct Stream {
    pub options: Arc<StreamOptions>,
    pub run: RunOptions,
    pub catalog: Arc<dyn Catalog>,
    order: Order,
    /// The micro-batches of the epoch that was planned last.
    units: Option<(u32, Units)>,
    /// Epochs that a sampler of the user's own has decided on, the oldest first.
    given: VecDeque<(u32, Units)>,
    /// Steps that were balanced once more.
    known: Known,
    /// Steps in an epoch of the stream's own order.
    steps: u32,
    /// Plans by (epoch, step), the oldest first.
    plans: VecDeque<(u32, u32, Arc<StepPlan>)>,
    /// Where steps lie on the stream's timeline, by place; gone when all ranks have taken theirs.
    timeline: BTreeMap<u64, Moment>,
    /// Where the next step that nobody has asked for will lie.
    timeline_end: u64,
    pub ranks: Vec<Rank>,
    /// What any worker may take, by the server of the rank's slab.
    pub shared: BTreeMap<ServerId, Backlog>,
    /// What was given to a worker of the rank's own.
    pub bound: BTreeMap<WorkerId, Backlog>,
}

impl Stream {
    pub(super) fn new(options: Arc<StreamOptions>, run: RunOptions, catalog: Arc<dyn Catalog>) -> Self {
        let samples = catalog.len();
        if samples > order::MAX_SAMPLES {
            tracing::warn!(samples, used = order::MAX_SAMPLES, "the manifest is longer than an epoch can be");
        }
        let mut order = Order::of(&options, &*catalog);
        let mut steps = options.steps(order.samples().into());
        let mut units = None;
        if !catalog.shapes().is_empty() {
            // How many micro-batches the shapes fill is the same in every epoch.
            let first = Units::new(&options, &*catalog, order.epoch(0), 0);
            steps = first.steps(&options);
            units = Some((0, first));
        }
        Stream {
            order,
            units,
            given: VecDeque::new(),
            known: Known::default(),
            steps,
            ranks: (0..options.world).map(|_| Rank::default()).collect(),
            plans: VecDeque::new(),
            timeline: BTreeMap::new(),
            timeline_end: 1 << 62,
            shared: BTreeMap::new(),
            bound: BTreeMap::new(),
            options,
            run,
            catalog,
        }
    }

    /// The plan of a step; `step` is below `steps`.
    pub(super) fn plan(&mut self, epoch: u32, step: u32) -> Arc<StepPlan> {
        if let Some((_, _, plan)) = self.plans.iter().find(|(e, s, _)| (*e, *s) == (epoch, step)) {
            return plan.clone();
        }
        let units = self.units(epoch);
        let window = window_of(&self.options, self.steps(epoch), step);
        let plans = StepPlan::window(&self.options, &*self.catalog, &units, epoch, window.clone());
        let room = (KEPT_SAMPLES / self.options.global_batch().max(1)).clamp(4, 256) as usize;
        let room = room.max(2 * plans.len());
        let as_known = |(plan, step): (StepPlan, u32)| match self.known.get(epoch, step) {
            Some(dealt) => Arc::new(plan.dealt_by(dealt, self.options.profile)),
            None => Arc::new(plan),
        };
        let plans: Vec<Arc<StepPlan>> = plans.into_iter().zip(window.clone()).map(as_known).collect();
        let wanted = plans[(step - window.start) as usize].clone();
        // What lies behind has been taken already.
        let ahead = window.zip(plans).filter(|(s, _)| *s >= step);
        self.plans.extend(ahead.map(|(s, plan)| (epoch, s, plan)));
        let surplus = self.plans.len().saturating_sub(room);
        self.plans.drain(..surplus);
        wanted
    }

    /// Takes in what a sampler of the user's own has decided on for an epoch.
    pub(super) fn ordered(&mut self, epoch: u32, order: &Given) {
        if self.given.iter().any(|(e, _)| *e == epoch) {
            return;
        }
        if self.given.len() == KEPT_ORDERS {
            self.given.pop_front();
        }
        self.given.push_back((epoch, Units::given(order)));
    }

    /// Takes in what balancing a step once more came to.
    pub(super) fn dealt(&mut self, epoch: u32, step: u32, dealt: Arc<Dealt>) {
        // The driver knows the same steps, and says so when two of them differ.
        if self.known.learn(epoch, step, dealt).is_ok() {
            self.plans.retain(|(e, s, _)| (*e, *s) != (epoch, step));
        }
    }

    fn given(&self, epoch: u32) -> Option<&Units> {
        self.given.iter().find(|(e, _)| *e == epoch).map(|(_, units)| units)
    }

    /// Steps in an epoch.
    pub(super) fn steps(&self, epoch: u32) -> u32 {
        self.given(epoch).map_or(self.steps, |units| units.steps(&self.options))
    }

    fn units(&mut self, epoch: u32) -> Units {
        if let Some(units) = self.given(epoch) {
            return units.clone();
        }
        if let Some((_, units)) = self.units.as_ref().filter(|(e, _)| *e == epoch) {
            return units.clone();
        }
        let units = Units::new(&self.options, &*self.catalog, self.order.epoch(epoch), epoch);
        self.units = Some((epoch, units.clone()));
        units
    }

    /// A rank takes its part of a plan; when all have, the plan goes. Answers when the step is wanted on the
    /// timeline; a step that is new there takes the time that `lasts` says.
    pub(super) fn take(
        &mut self,
        epoch: u32,
        step: u32,
        lasts: impl FnOnce(&StepPlan) -> u64,
    ) -> (u64, Arc<StepPlan>) {
        let plan = self.plan(epoch, step);
        let moment = self.timeline.entry(place(epoch, step)).or_insert_with(|| {
            let at = self.timeline_end;
            self.timeline_end = at.saturating_add(lasts(&plan));
            Moment { at, taken: 0 }
        });
        let at = moment.at;
        moment.taken += 1;
        if moment.taken >= self.options.world {
            self.timeline.remove(&place(epoch, step));
            self.plans.retain(|(e, s, _)| (*e, *s) != (epoch, step));
        }
        if self.timeline.len() > KEPT_STEPS {
            self.timeline.pop_first();
        }
        (at, plan)
    }

    fn backlog(&mut self, site: Site) -> &mut Backlog {
        match site {
            Site::Server(server) => self.shared.entry(server).or_default(),
            Site::Worker(worker) => self.bound.entry(worker).or_default(),
        }
    }

    /// Queues one piece of a batch.
    pub(super) fn enqueue(&mut self, rank: u32, step: u32, piece: u32, site: Site) {
        let policy = self.run.policy;
        let Some(r) = self.ranks.get_mut(rank as usize) else { return };
        let ahead = policy != Policy::Helix || !r.waits_for(step);
        let place = place(r.epoch, step);
        let Some(b) = r.batches.get_mut(&step) else { return };
        let Some(p) = b.pieces.get_mut(piece as usize) else { return };
        // A pool takes samples in the order of the ranks' batches, a worker of a rank's own in that of its batch.
        let start = if policy == Policy::Helix { b.wanted.saturating_sub(p.lead) } else { 0 };
        let key = Key { ahead, fresh: p.attempts == 0, start, place, rank, piece };
        let bytes = bytes_of(&p.work);
        let item = Item { step, expected: p.expected, safe: p.safe, bytes };
        p.state = State::Queued(site, key);
        self.backlog(site).push(key, item);
    }

    /// Queues all pieces of a batch that are not with a worker and have not ended.
    pub(super) fn enqueue_batch(&mut self, rank: u32, step: u32, site: Site) {
        let Some(batch) = self.ranks.get(rank as usize).and_then(|r| r.batches.get(&step)) else { return };
        let waiting = |state| matches!(state, State::Unbound | State::Queued(..));
        let pieces: Vec<u32> = (0..).zip(&batch.pieces).filter(|(_, p)| waiting(p.state)).map(|(i, _)| i).collect();
        for piece in pieces {
            self.dequeue(rank, step, piece);
            self.enqueue(rank, step, piece, site);
        }
    }

    /// Takes a piece out of its queue.
    pub(super) fn dequeue(&mut self, rank: u32, step: u32, piece: u32) {
        let Some(r) = self.ranks.get_mut(rank as usize) else { return };
        let Some(p) = r.batches.get_mut(&step).and_then(|b| b.pieces.get_mut(piece as usize)) else { return };
        if let State::Queued(site, key) = p.state {
            p.state = State::Unbound;
            self.unqueue(site, &key);
        }
    }

    fn unqueue(&mut self, site: Site, key: &Key) {
        let backlog = self.backlog(site);
        backlog.remove(key);
        if backlog.is_empty() {
            match site {
                Site::Server(server) => self.shared.remove(&server),
                Site::Worker(worker) => self.bound.remove(&worker),
            };
        }
    }

    /// One part of a sample cannot be made: so the others need not be. What workers have in hand ends as it may.
    pub(super) fn give_up(&mut self, rank: u32, step: u32, (slot, sample): (u16, u64)) {
        let Some(batch) = self.ranks.get(rank as usize).and_then(|r| r.batches.get(&step)) else { return };
        let parts =
            (0..).zip(&batch.pieces).filter(|(_, p)| (p.slot, p.sample) == (slot, sample) && p.state != State::Ended);
        for piece in parts.map(|(i, _)| i).collect::<Vec<u32>>() {
            self.dequeue(rank, step, piece);
            if let Some(batch) = self.ranks.get_mut(rank as usize).and_then(|r| r.batches.get_mut(&step)) {
                let ended = &mut batch.pieces[piece as usize];
                (ended.state, ended.hedge) = (State::Ended, None);
                batch.left -= 1;
            }
        }
    }

    /// Takes all that is queued of these batches out of the queues.
    pub(super) fn forget(&mut self, batches: BTreeMap<u32, Batch>) {
        for piece in batches.into_values().flat_map(|b| b.pieces) {
            if let State::Queued(site, key) = piece.state {
                self.unqueue(site, &key);
            }
        }
    }

    /// Moves the batch that a rank has begun to wait for before all lookahead.
    pub(super) fn hurry(&mut self, rank: u32) {
        let Some(r) = self.ranks.get(rank as usize) else { return };
        let (step, site) = (r.position, Site::Server(r.server));
        if self.run.policy == Policy::Helix && r.waits_for(step) {
            self.enqueue_batch(rank, step, site);
        }
    }
}
