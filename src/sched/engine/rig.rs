//! A driver for tests: it checks every decision against what the door promises, and remembers what was granted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::{Engine, EngineOptions};
use crate::proto::options::{Balance, OnError, Policy, Profile, RunOptions, StreamOptions};
use crate::proto::transform::{Codec, Facts, Span, Transform};
use crate::sched::cost::Work;
use crate::sched::event::{
    Catalog, Chunk, Decision, Event, Measured, Place, Scheduler, ServerId, StreamId, TicketId, Time, WorkerId,
};
use crate::sched::online::margin::tests::Noise;

/// Clips whose lengths are drawn from a seed; every third row is bad and so not among them.
pub(super) struct Clips(pub Vec<Facts>);

impl Clips {
    pub(super) fn new(n: usize, seed: u64) -> Arc<Self> {
        let mut noise = Noise::new(seed);
        let mut clip = || {
            let frames = (100.0 * noise.lognormal(0.7)).ceil().min(5000.0) as u32;
            let (width, height) = [(640, 360), (1280, 720), (1920, 1080)][(noise.next() % 3) as usize];
            let codec = Codec::ALL[(noise.next() % 5) as usize];
            let (bytes, duration_ms, keyframes) = (u64::from(frames) * 9000, frames * 40, frames / 60);
            Facts { bytes, frames, duration_ms, width, height, keyframes, codec }
        };
        Arc::new(Clips((0..n).map(|_| clip()).collect()))
    }
}

impl Catalog for Clips {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
    fn row(&self, i: u64) -> u64 {
        i + i / 2
    }
    fn facts(&self, i: u64) -> Facts {
        self.0[i as usize]
    }
    /// A chunk a key frame, of frames as even as can be.
    fn chunks(&self, row: u64, _epoch: u32, options: &StreamOptions) -> Vec<Chunk> {
        let facts = self.0[(row - row / 3) as usize];
        let frames = options.transform.frames;
        let chunks = (facts.keyframes as u16).clamp(1, frames);
        let work = Work::of(&facts, &options.transform).share(1.0 / f64::from(chunks));
        let starts: Vec<u16> =
            (0..=chunks).map(|n| (u32::from(n) * u32::from(frames) / u32::from(chunks)) as u16).collect();
        let chunk = |w: &[u16]| Chunk { span: Span { first: w[0], frames: w[1] - w[0] }, work };
        starts.windows(2).map(chunk).collect()
    }
}

pub(super) fn options(world: u32, batch_size: u32) -> StreamOptions {
    StreamOptions {
        world,
        batch_size,
        seed: 1,
        shuffle: true,
        drop_last: false,
        balance: Balance::Cost,
        profile: Profile::Decode,
        on_error: OnError::Raise,
        transform: Transform::default(),
        micro_batch: 1,
        regroup: 1,
        weigh: Default::default(),
        mix: Vec::new(),
        rebalance: Default::default(),
    }
}

pub(super) fn run(policy: Policy, max_batches: u32) -> RunOptions {
    RunOptions { policy, max_batches, split_ms: 0, hedge: false, ..RunOptions::default() }
}

/// A ticket at a worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Live {
    pub worker: WorkerId,
    pub batch: BatchId,
    pub slot: u16,
    pub part: Option<Span>,
    /// Nanoseconds that the engine expected when it assigned it.
    pub expected: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BatchId {
    pub stream: StreamId,
    pub rank: u32,
    pub iter: u32,
    pub step: u32,
}

/// A batch that the driver has made room for.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Samples.
    pub samples: u16,
    /// Attempts so far, by slot and part.
    pub attempts: BTreeMap<(u16, Option<Span>), u16>,
    /// Parts that are there of slots that have not ended.
    pub parts: BTreeMap<u16, Vec<Span>>,
    /// Slots that have ended.
    pub ended: BTreeSet<u16>,
}

impl Room {
    fn end(&mut self, live: &Live, (well, twice): (bool, bool), frames: u16) {
        let Some(part) = live.part else {
            return assert!(self.ended.insert(live.slot) || twice, "ended twice: {live:?}");
        };
        if !well {
            self.parts.remove(&live.slot);
            self.ended.insert(live.slot); // another part may have failed before
        } else if !self.ended.contains(&live.slot) {
            let parts = self.parts.entry(live.slot).or_default();
            if twice && parts.contains(&part) {
                return;
            }
            let apart = |other: &Span| part.end() <= other.first.into() || other.end() <= part.first.into();
            assert!(parts.iter().all(apart), "{live:?} is on {parts:?}");
            parts.push(part);
            if parts.iter().map(|p| p.frames).sum::<u16>() == frames {
                self.ended.insert(live.slot);
            }
        }
    }

    pub(super) fn complete(&self) -> bool {
        self.ended.len() == usize::from(self.samples)
    }
}

#[derive(Debug, Default)]
pub(super) struct RankView {
    pub iter: u32,
    pub active: bool,
    pub next: u32,
    pub ended_at: Option<u32>,
    /// The first step not ended by the rank.
    pub position: u32,
}

/// Batches by (stream, rank, iteration, step): the content of the stream.
pub(super) type Content = BTreeMap<BatchId, (u32, Vec<Place>, u32, u64)>;

/// The driver.
pub(super) struct Rig {
    pub engine: Engine,
    pub now: Time,
    pub workers: BTreeMap<WorkerId, ServerId>,
    pub ranks: BTreeMap<(StreamId, u32), RankView>,
    pub rooms: BTreeMap<BatchId, Room>,
    pub max: BTreeMap<StreamId, u32>,
    pub frames: BTreeMap<StreamId, u16>,
    pub live: BTreeMap<TicketId, Live>,
    /// Tickets by worker, first is being decoded.
    pub queues: BTreeMap<WorkerId, VecDeque<TicketId>>,
    pub content: Content,
    pub log: Vec<(Time, Decision)>,
    pub wake: Option<Time>,
    /// Whether the next grant is refused; the refusals asked for are taken from the front.
    pub refuse: VecDeque<bool>,
    /// What was given to two workers.
    pub hedged: BTreeSet<(BatchId, u16, Option<Span>)>,
    /// Rooms a rank's memory has; 0 is without limit.
    pub slab: usize,
}

impl Rig {
    pub(super) fn new(options: EngineOptions) -> Self {
        Rig {
            engine: Engine::new(options),
            now: 1_000,
            workers: BTreeMap::new(),
            ranks: BTreeMap::new(),
            rooms: BTreeMap::new(),
            max: BTreeMap::new(),
            frames: BTreeMap::new(),
            live: BTreeMap::new(),
            queues: BTreeMap::new(),
            content: BTreeMap::new(),
            log: Vec::new(),
            wake: None,
            refuse: VecDeque::new(),
            hedged: BTreeSet::new(),
            slab: 0,
        }
    }

    pub(super) fn open(&mut self, stream: u16, options: StreamOptions, run: RunOptions, catalog: Arc<Clips>) {
        let stream = StreamId(stream);
        self.max.insert(stream, run.max_batches);
        self.frames.insert(stream, options.transform.frames);
        for rank in 0..options.world {
            self.ranks.insert((stream, rank), RankView::default());
        }
        self.tell(Event::StreamOpened { stream, options: Arc::new(options), run, catalog });
    }

    pub(super) fn close(&mut self, stream: StreamId) {
        self.ranks.retain(|(s, _), _| *s != stream);
        self.rooms.retain(|b, _| b.stream != stream);
        self.tell(Event::StreamClosed { stream });
    }

    pub(super) fn start(&mut self, stream: u16, rank: u32, server: u16, epoch: u32, step: u32) {
        let stream = StreamId(stream);
        let Some(view) = self.ranks.get_mut(&(stream, rank)) else { return };
        let iter = view.iter + 1;
        *view = RankView { iter, active: true, next: step, ended_at: None, position: step };
        self.tell(Event::RankStarted { stream, rank, server: ServerId(server), iter, epoch, step });
    }

    pub(super) fn leave(&mut self, stream: StreamId, rank: u32) {
        let Some(view) = self.ranks.get_mut(&(stream, rank)) else { return };
        view.active = false;
        self.rooms.retain(|b, _| (b.stream, b.rank) != (stream, rank));
        self.tell(Event::RankLeft { stream, rank });
    }

    pub(super) fn worker_up(&mut self, worker: u16, server: u16) {
        let (worker, server) = (WorkerId(worker), ServerId(server));
        self.workers.entry(worker).or_insert(server);
        self.tell(Event::WorkerUp { worker, server });
    }

    pub(super) fn worker_down(&mut self, worker: WorkerId) {
        self.workers.remove(&worker);
        for ticket in self.queues.remove(&worker).unwrap_or_default() {
            self.live.remove(&ticket);
        }
        self.tell(Event::WorkerDown { worker });
    }

    /// A ticket's sample is bad, and its place free for another.
    pub(super) fn forget(&mut self, ticket: TicketId) {
        let Some(live) = self.live.remove(&ticket) else { return };
        if let Some(queue) = self.queues.get_mut(&live.worker) {
            queue.retain(|t| *t != ticket);
        }
        if let Some(room) = self.rooms.get_mut(&live.batch) {
            room.attempts.retain(|(slot, _), _| *slot != live.slot);
        }
    }

    /// Ends a ticket; `wall_us` of 0 fails it.
    pub(super) fn end(&mut self, ticket: TicketId, wall_us: u32) {
        if let Some(live) = self.live.remove(&ticket) {
            if let Some(queue) = self.queues.get_mut(&live.worker) {
                queue.retain(|t| *t != ticket);
            }
            let frames = self.frames[&live.batch.stream];
            let twice = self.hedged.contains(&(live.batch, live.slot, live.part));
            if let Some(room) = self.rooms.get_mut(&live.batch) {
                room.end(&live, (wall_us > 0, twice), frames);
            }
        }
        self.tell(if wall_us == 0 {
            Event::TicketFailed { ticket }
        } else {
            Event::TicketDone { ticket, measured: Measured { wall_us, read_us: 300, ..Measured::default() } }
        });
    }

    pub(super) fn release(&mut self, batch: BatchId) {
        self.rooms.remove(&batch);
        let BatchId { stream, rank, iter, step } = batch;
        self.tell(Event::Released { stream, rank, iter, step });
    }

    pub(super) fn end_step(&mut self, batch: BatchId, busy_ns: u64) {
        let BatchId { stream, rank, iter, step } = batch;
        if let Some(view) = self.ranks.get_mut(&(stream, rank)) {
            view.position = view.position.max(step + 1);
        }
        self.tell(Event::StepEnded { stream, rank, iter, step, wait_ns: 0, busy_ns });
    }

    pub(super) fn tick(&mut self) {
        if self.wake.is_some_and(|w| w <= self.now) {
            self.wake = None;
        }
        self.tell(Event::Tick);
    }

    /// Whether the next step of a rank is complete.
    pub(super) fn ready(&self, stream: StreamId, rank: u32) -> Option<BatchId> {
        let view = self.ranks.get(&(stream, rank)).filter(|v| v.active)?;
        let batch = BatchId { stream, rank, iter: view.iter, step: view.position };
        self.rooms.get(&batch).is_some_and(Room::complete).then_some(batch)
    }

    /// Tells the engine, and carries out what comes back in order; grants are answered at once.
    pub(super) fn tell(&mut self, event: Event) {
        let mut todo = VecDeque::from([event]);
        while let Some(event) = todo.pop_front() {
            let mut out = Vec::new();
            self.engine.handle(self.now, event, &mut out);
            for decision in out {
                self.log.push((self.now, decision.clone()));
                todo.extend(self.carry_out(decision));
            }
        }
    }

    fn carry_out(&mut self, decision: Decision) -> Option<Event> {
        match decision {
            Decision::Grant { stream, rank, iter, epoch, step, places, global, mean_cost, .. } => {
                let view = self.ranks.get(&(stream, rank)).expect("a grant for a rank that is not there");
                assert!(view.active && view.iter == iter && view.next == step, "{view:?} step {step}");
                let batch = BatchId { stream, rank, iter, step };
                let held = self.rooms.keys().filter(|b| (b.stream, b.rank) == (stream, rank)).count();
                let max = self.max[&stream] as usize;
                assert!(max == 0 || held < max, "{held} of {max} held");
                let row = (epoch, places, global, mean_cost.to_bits());
                if let Some(before) = self.content.insert(batch, row.clone()) {
                    assert_eq!(before, row, "the same grant was another one");
                }
                let refuse = self.refuse.pop_front().unwrap_or(false) && held > 0;
                if refuse || (self.slab > 0 && held >= self.slab) {
                    return Some(Event::NoRoom { stream, rank });
                }
                self.ranks.get_mut(&(stream, rank)).expect("seen above").next += 1;
                self.rooms.insert(batch, Room { samples: row.1.len() as u16, ..Room::default() });
                Some(Event::Granted { stream, rank, iter, step })
            }
            Decision::End { stream, rank, iter, step } => {
                let view = self.ranks.get_mut(&(stream, rank)).expect("an end for a rank that is not there");
                assert!(view.active && view.iter == iter && view.ended_at.is_none() && view.next >= step);
                view.ended_at = Some(step);
                None
            }
            Decision::Assign {
                worker,
                ticket,
                stream,
                rank,
                iter,
                epoch,
                step,
                slot,
                part,
                attempt,
                hedge,
                due: _,
            } => {
                let batch = BatchId { stream, rank, iter, step };
                let on = |a: Span, b: Span| a.end() > b.first.into() && b.end() > a.first.into();
                let touches = |other: Option<Span>| part.zip(other).is_none_or(|(a, b)| on(a, b));
                let same = |l: &Live| l.batch == batch && l.slot == slot && touches(l.part);
                let beside = self.live.values().filter(|l| same(l)).count();
                assert_eq!(beside, usize::from(hedge), "attempts beside that at {batch:?} {slot}");
                if hedge && self.refuse.pop_front().unwrap_or(false) {
                    return Some(Event::Unassigned { ticket });
                }
                if hedge {
                    self.hedged.insert((batch, slot, part));
                }
                let expected = self.engine.predicted(ticket).expect("a live ticket has a prediction");
                self.live.insert(ticket, Live { worker, batch, slot, part, expected });
                assert!(self.workers.contains_key(&worker), "{worker:?} is not there");
                let queue = self.queues.entry(worker).or_default();
                queue.push_back(ticket);
                assert!(queue.len() <= 2, "{worker:?} holds {queue:?}");
                let view = &self.ranks[&(stream, rank)];
                assert!(view.active && view.iter == iter && self.content[&batch].0 == epoch);
                let room = self.rooms.get_mut(&batch).expect("assigned without memory");
                assert!(!room.ended.contains(&slot), "{batch:?} {slot} had ended");
                let attempts = room.attempts.entry((slot, part)).or_default();
                *attempts += 1;
                assert_eq!(*attempts, attempt);
                let given = room.attempts.keys().filter(|(of, _)| *of == slot);
                assert!(given.clone().count() == 1 || given.clone().all(|(_, p)| p.is_some()), "whole and in parts");
                None
            }
            Decision::WakeAt(at) => {
                assert!(at > self.now);
                self.wake = Some(at);
                None
            }
        }
    }

    /// Lets every worker finish and every rank consume until nothing is left, and checks that nothing is.
    pub(super) fn drain(&mut self) {
        self.refuse.clear();
        assert!(!self.workers.is_empty());
        loop {
            let mut moved = false;
            if let Some((&ticket, _)) = self.live.iter().next() {
                self.now += 1_000_000;
                self.end(ticket, 1_000);
                moved = true;
            }
            let views: Vec<_> = self.ranks.keys().copied().collect();
            for (stream, rank) in views {
                let view = &self.ranks[&(stream, rank)];
                let stale = self.rooms.keys().copied().filter(|b| (b.stream, b.rank) == (stream, rank));
                let stale: Vec<_> = stale.filter(|b| b.iter != view.iter || b.step < view.position).collect();
                moved |= !stale.is_empty();
                stale.into_iter().for_each(|b| self.release(b));
                if let Some(batch) = self.ready(stream, rank) {
                    self.now += 1_000;
                    self.end_step(batch, 1_000);
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        for (id, view) in self.ranks.iter().filter(|(_, v)| v.active) {
            assert!(view.ended_at.is_some(), "{id:?} did not reach its end: {view:?}");
            assert_eq!(view.position.max(view.next), view.next, "{id:?}");
            assert!(view.ended_at.is_none_or(|end| view.position >= end), "{id:?} was not fed: {view:?}");
        }
        assert!(self.rooms.is_empty() && self.live.is_empty());
        assert!(self.engine.flights.is_empty());
        assert!(self.engine.streams.values().all(|s| s.shared.is_empty() && s.bound.is_empty()));
    }
}
