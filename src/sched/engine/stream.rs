//! One stream: its samples' order, its plans, its ranks and what waits for a worker.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::queue::{Backlog, Item, Key, place};
use super::rank::{Batch, Rank, Site, State};
use crate::proto::options::{Policy, RunOptions, StreamOptions};
use crate::sched::event::{Catalog, ServerId, WorkerId};
use crate::sched::order::{self, Order};
use crate::sched::plan::StepPlan;

/// Samples whose plans are kept for the ranks that have not asked for them yet, over all steps: some 7 MB.
const KEPT_SAMPLES: u64 = 65_536;

/// A stream.
pub(super) struct Stream {
    pub options: Arc<StreamOptions>,
    pub run: RunOptions,
    catalog: Arc<dyn Catalog>,
    order: Order,
    /// Steps in an epoch.
    pub steps: u32,
    /// Plans by (epoch, step), the oldest first, with the number of ranks that have taken theirs.
    plans: VecDeque<(u32, u32, u32, Arc<StepPlan>)>,
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
        Stream {
            order: Order::new(samples, options.seed, options.shuffle),
            steps: options.steps(samples.min(order::MAX_SAMPLES)),
            ranks: (0..options.world).map(|_| Rank::default()).collect(),
            plans: VecDeque::new(),
            shared: BTreeMap::new(),
            bound: BTreeMap::new(),
            options,
            run,
            catalog,
        }
    }

    /// The plan of a step; `step` is below `steps`.
    pub(super) fn plan(&mut self, epoch: u32, step: u32) -> Arc<StepPlan> {
        if let Some((.., plan)) = self.plans.iter().find(|(e, s, ..)| (*e, *s) == (epoch, step)) {
            return plan.clone();
        }
        let order = self.order.epoch(epoch);
        let plan = Arc::new(StepPlan::new(&self.options, &*self.catalog, &order, step));
        let room = (KEPT_SAMPLES / self.options.global_batch().max(1)).clamp(4, 256) as usize;
        if self.plans.len() >= room {
            self.plans.pop_front();
        }
        self.plans.push_back((epoch, step, 0, plan.clone()));
        plan
    }

    /// A rank has taken its part of a plan; when all have, it goes.
    pub(super) fn taken(&mut self, epoch: u32, step: u32) {
        let Some(at) = self.plans.iter().position(|(e, s, ..)| (*e, *s) == (epoch, step)) else { return };
        self.plans[at].2 += 1;
        if self.plans[at].2 >= self.options.world {
            self.plans.remove(at);
        }
    }

    fn backlog(&mut self, site: Site) -> &mut Backlog {
        match site {
            Site::Server(server) => self.shared.entry(server).or_default(),
            Site::Worker(worker) => self.bound.entry(worker).or_default(),
        }
    }

    /// Queues one sample of a batch.
    pub(super) fn enqueue(&mut self, rank: u32, step: u32, slot: u16, site: Site) {
        let policy = self.run.policy;
        let Some(r) = self.ranks.get_mut(rank as usize) else { return };
        let ahead = policy != Policy::Helix || !r.waits_for(step);
        let place = place(r.epoch, step);
        let Some(s) = r.batches.get_mut(&step).and_then(|b| b.slots.get_mut(slot as usize)) else { return };
        // A pool takes samples in the order of the ranks' batches, a worker of a rank's own in that of its batch.
        let length = Reverse(if policy == Policy::Helix { s.expected } else { 0 });
        let key = Key { ahead, place, fresh: s.attempt == 1, length, rank, slot };
        let item = Item { step, expected: s.expected };
        s.state = State::Queued(site, key);
        self.backlog(site).push(key, item);
    }

    /// Queues all samples of a batch that are not with a worker and have not ended.
    pub(super) fn enqueue_batch(&mut self, rank: u32, step: u32, site: Site) {
        let Some(batch) = self.ranks.get(rank as usize).and_then(|r| r.batches.get(&step)) else { return };
        let waiting = |state| matches!(state, State::Unbound | State::Queued(..));
        let slots: Vec<u16> = (0..).zip(&batch.slots).filter(|(_, s)| waiting(s.state)).map(|(i, _)| i).collect();
        for slot in slots {
            self.dequeue(rank, step, slot);
            self.enqueue(rank, step, slot, site);
        }
    }

    /// Takes a sample out of its queue.
    pub(super) fn dequeue(&mut self, rank: u32, step: u32, slot: u16) {
        let Some(r) = self.ranks.get_mut(rank as usize) else { return };
        let Some(s) = r.batches.get_mut(&step).and_then(|b| b.slots.get_mut(slot as usize)) else { return };
        if let State::Queued(site, key) = s.state {
            s.state = State::Unbound;
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

    /// Takes all that is queued of these batches out of the queues.
    pub(super) fn forget(&mut self, batches: BTreeMap<u32, Batch>) {
        for slot in batches.into_values().flat_map(|b| b.slots) {
            if let State::Queued(site, key) = slot.state {
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
