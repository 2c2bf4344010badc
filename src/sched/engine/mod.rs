//! The state machine: what happened, and what follows from it.
//!
//! - [`rank`] and [`stream`]: who was granted what, and when each rank will want its next batch;
//! - [`queue`]: what waits for a worker; [`workers`]: who holds what, and until when;
//! - [`grant`]: asking for memory, step by step; [`dispatch`]: giving tickets to workers, as late as can be;
//!   [`split`]: cutting a clip that would take too long into parts; [`hedge`]: a second attempt where one is stuck;
//!   [`scale`]: how many workers are used; [`replace`]: another sample for one that cannot be made.
//!
//! Under the deadline policy a sample goes before another if its rank stands still for it, then if it has to begin
//! sooner: its step's place on a timeline of the predicted pace, less the time that it will hardly exceed. So the
//! earliest step goes first and the longest within it, and a long sample of a later step begins in time.
//!
//! Each event touches only what it is about: the cost of a ticket is a few operations on ordered maps.

mod choose;
mod dispatch;
mod grant;
mod hedge;
mod outlook;
mod queue;
mod rank;
mod replace;
mod scale;
mod split;
mod stream;
mod workers;

use std::collections::{BTreeMap, BTreeSet};

use self::rank::{Site, State};
use self::scale::Scale;
use self::stream::Stream;
use self::workers::Workers;
use super::cost::Work;
use super::event::{Decision, Event, Measured, Scheduler, ServerId, StreamId, TicketId, Time, WorkerId};
use super::online::decode::DecodeModel;
use super::online::error::{Error, Errors};
use super::online::transfer::TransferModel;
use crate::proto::options::Policy;

pub use self::outlook::{Queue, Window};

/// Tunables of the engine. They change when work is done and by whom, never what is in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// A worker is given its next ticket at most this many nanoseconds before it is expected to be free. Long
    /// enough to read ahead; what is longer only takes choices away.
    pub horizon: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions { horizon: 50_000_000 }
    }
}

/// A ticket that a worker holds.
#[derive(Debug)]
struct Flight {
    stream: StreamId,
    rank: u32,
    iter: u32,
    step: u32,
    piece: u32,
    worker: WorkerId,
    server: ServerId,
    work: Work,
    expected: u64,
    safe: u64,
    /// Server of its rank, and nanoseconds that its sample is sent there.
    home: ServerId,
    sending: u64,
}

/// The scheduler of a job.
#[derive(Default)]
pub struct Engine {
    options: EngineOptions,
    streams: BTreeMap<StreamId, Stream>,
    workers: Workers,
    flights: BTreeMap<TicketId, Flight>,
    /// Tickets by when they will be long overdue; some have ended since.
    watched: BTreeSet<(Time, TicketId)>,
    /// Those that are, and that a second worker is to make; and from when on that goes before everything else.
    stuck: BTreeMap<TicketId, Time>,
    last_ticket: u64,
    decode: DecodeModel,
    transfer: TransferModel,
    scale: Scale,
    /// Grants that were not answered yet. While there are any, nothing is assigned: what comes may be more urgent.
    unanswered: u32,
    /// Ranks that may be asked memory for, or whose batches may be given to workers of their own.
    stirred: BTreeSet<(StreamId, u32)>,
    /// Workers that may have something of a rank's own to do.
    roused: BTreeSet<WorkerId>,
    /// The wish that the driver has.
    wake: Option<Time>,
}

impl Engine {
    /// An engine without streams and workers.
    pub fn new(options: EngineOptions) -> Self {
        Engine { options, ..Engine::default() }
    }

    fn take(&mut self, now: Time, event: Event) {
        match event {
            Event::StreamOpened { stream, options, run, catalog } => {
                if options.global_batch() > 0 {
                    self.streams.entry(stream).or_insert_with(|| Stream::new(options, run, catalog));
                }
            }
            Event::StreamClosed { stream } => self.close(stream),
            Event::Ordered { stream, epoch, order } => {
                if let Some(s) = self.streams.get_mut(&stream) {
                    s.ordered(epoch, &order);
                }
            }
            Event::Dealt { stream, epoch, step, dealt } => {
                if let Some(s) = self.streams.get_mut(&stream) {
                    s.dealt(epoch, step, dealt);
                }
            }
            Event::RankStarted { stream, rank, server, iter, epoch, step } => {
                self.start(stream, rank, server, (iter, epoch, step), now);
            }
            Event::RankLeft { stream, rank } => self.leave(stream, rank),
            Event::Granted { stream, rank, iter, step } => self.granted(stream, rank, iter, step),
            Event::NoRoom { stream, rank } => self.no_room(stream, rank),
            Event::Released { stream, rank, iter, step } => self.released(stream, rank, (iter, step), now),
            Event::StepEnded { stream, rank, iter, step, wait_ns, busy_ns } => {
                self.rescale(stream, wait_ns, busy_ns);
                self.step_ended(stream, rank, (iter, step), busy_ns, now);
            }
            Event::Link { from, to, bytes_per_s, latency_ns } => {
                self.transfer.link((from, to), bytes_per_s, latency_ns);
            }
            Event::WorkerUp { worker, server } => self.worker_up(worker, server),
            Event::WorkerDown { worker } => self.worker_down(worker, now),
            Event::TicketDone { ticket, measured } => self.ended(ticket, Some(measured), now),
            Event::TicketFailed { ticket } => self.ended(ticket, None, now),
            Event::Replaced { stream, rank, iter, step, slot, sample, work } => {
                self.replaced((stream, rank), (iter, step), (slot, sample), work);
            }
            Event::Unassigned { ticket } => self.unassigned(ticket, now),
            Event::Tick => self.wake = self.wake.filter(|&wish| wish > now),
        }
    }

    fn close(&mut self, stream: StreamId) {
        if let Some(closed) = self.streams.remove(&stream) {
            self.unanswered -= closed.ranks.iter().filter(|r| r.asked.is_some()).count() as u32;
        }
    }

    fn leave(&mut self, stream: StreamId, rank: u32) {
        let Some(s) = self.streams.get_mut(&stream) else { return };
        let Some(r) = s.ranks.get_mut(rank as usize).filter(|r| r.active) else { return };
        r.active = false;
        r.held.clear();
        self.unanswered -= u32::from(r.asked.take().is_some());
        let batches = std::mem::take(&mut r.batches);
        s.forget(batches);
    }

    fn step_ended(&mut self, stream: StreamId, rank: u32, at: (u32, u32), busy_ns: u64, now: Time) {
        let Some(s) = self.streams.get_mut(&stream) else { return };
        let Some(r) = s.ranks.get_mut(rank as usize).filter(|r| r.active && r.iter == at.0) else { return };
        let (_, step) = at;
        if step < r.position || step >= r.next {
            return;
        }
        if let Some(batch) = r.batches.get(&step) {
            r.model.learn(batch.cost, busy_ns);
        }
        r.reach(step + 1, now);
        r.settle(now);
        s.hurry(rank);
        self.stirred.insert((stream, rank));
    }

    fn worker_up(&mut self, worker: WorkerId, server: ServerId) {
        if !self.workers.up(worker, server) {
            return;
        }
        self.roused.insert(worker);
        self.stir_own();
    }

    /// Lets every rank that has workers of its own look for one again.
    fn stir_own(&mut self) {
        for (id, s) in self.streams.iter().filter(|(_, s)| s.run.policy == Policy::Local) {
            self.stirred.extend((0..s.options.world).map(|rank| (*id, rank)));
        }
    }

    fn worker_down(&mut self, worker: WorkerId, now: Time) {
        if !self.workers.contains(worker) {
            return;
        }
        for ticket in self.workers.down(worker) {
            let Some(flight) = self.land(ticket) else { continue };
            let Some(s) = self.streams.get_mut(&flight.stream) else { continue };
            let r = &mut s.ranks[flight.rank as usize];
            let (server, iter) = (r.server, r.iter);
            let batch = r.batches.get_mut(&flight.step);
            let Some(piece) = batch.and_then(|b| b.pieces.get_mut(flight.piece as usize)) else { continue };
            if iter != flight.iter {
                continue;
            }
            if piece.hedge == Some(ticket) {
                piece.hedge = None;
                self.watch_again(flight, now);
                continue;
            }
            if piece.state != State::Flying(ticket) {
                continue;
            }
            // The second attempt is the first now.
            if let Some(hedge) = piece.hedge.take() {
                piece.state = State::Flying(hedge);
                continue;
            }
            piece.state = State::Unbound;
            if s.run.policy != Policy::Local {
                s.enqueue(flight.rank, flight.step, flight.piece, Site::Server(server));
            }
        }
        self.lose_bound(worker);
        self.stir_own();
    }

    /// How wrong predictions were.
    pub fn errors(&self) -> Errors {
        let ranks = self.streams.values().flat_map(|s| &s.ranks);
        Errors {
            decode: self.decode.error,
            read: self.decode.reads.error,
            transfer: self.transfer.error,
            step: Error::mean(ranks.map(|r| r.model.error)),
        }
    }

    /// What a ticket took longer because its sample went to another server's memory.
    fn learn_transfer(&mut self, flight: &Flight, measured: &Measured) {
        // Megapixels of three bytes.
        let (pair, megabytes) = ((flight.server, flight.home), 3.0 * flight.work.output);
        if measured.wall_us > 0 {
            let near = flight.expected as f64 / 1e6;
            self.transfer.learn(pair, megabytes, near, f64::from(measured.wall_us) / 1e3);
        }
    }

    /// A ticket is under way no more.
    fn land(&mut self, ticket: TicketId) -> Option<Flight> {
        let flight = self.flights.remove(&ticket)?;
        self.transfer.sent(flight.home, flight.sending);
        Some(flight)
    }

    /// A ticket has ended, well or badly.
    fn ended(&mut self, ticket: TicketId, measured: Option<Measured>, now: Time) {
        let Some(flight) = self.land(ticket) else { return };
        self.workers.end(flight.worker, ticket, now);
        self.roused.insert(flight.worker);
        if let Some(measured) = measured {
            self.learn_transfer(&flight, &measured);
            self.decode.learn(&flight.work, flight.server, &measured);
            self.scale.ticket(&flight.work, &measured);
        }
        let Some(s) = self.streams.get_mut(&flight.stream) else { return };
        let r = &mut s.ranks[flight.rank as usize];
        let Some(batch) = r.batches.get_mut(&flight.step).filter(|_| r.iter == flight.iter) else { return };
        let Some(piece) = batch.pieces.get_mut(flight.piece as usize) else { return };
        if piece.state != State::Flying(ticket) && piece.hedge != Some(ticket) {
            return;
        }
        // Whoever else has it ends as it may.
        (piece.state, piece.hedge) = (State::Ended, None);
        batch.left -= 1;
        let (slot, in_parts) = ((piece.slot, piece.sample), piece.part.is_some());
        if measured.is_none() && in_parts {
            s.give_up(flight.rank, flight.step, slot);
        }
        let r = &mut s.ranks[flight.rank as usize];
        if r.batches.get(&flight.step).is_some_and(|b| b.left == 0) {
            r.settle(now);
            self.stirred.insert((flight.stream, flight.rank));
        }
    }
}

impl Scheduler for Engine {
    fn handle(&mut self, now: Time, event: Event, out: &mut Vec<Decision>) {
        self.take(now, event);
        while let Some((stream, rank)) = self.stirred.pop_first() {
            self.ask(stream, rank, out);
            self.bind(stream, rank);
        }
        if self.unanswered == 0 {
            self.dispatch(now, out);
        }
    }

    fn predicted(&self, ticket: TicketId) -> Option<u64> {
        self.flights.get(&ticket).map(|f| f.expected)
    }
}

#[cfg(test)]
mod edf_tests;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod tests;
