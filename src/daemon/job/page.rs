//! What the status page shows of a job.

use super::{Job, now};
use crate::daemon::sessions::{Phase, Session};
use crate::daemon::workers::Worker;
use crate::proto::page::{Page, Rank, Server, Text, Top, UNKNOWN, Worker as ShownWorker};
use crate::sched::event::{Scheduler, StreamId, TicketId, Time};
use crate::sched::{Queue, Window};

/// Weight of the last ticket in the mean of what predictions are off by.
const GAIN: f64 = 0.02;

/// How good the predictions of late have been.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Accuracy {
    count: u64,
    error: f64,
    bias: f64,
}

impl Accuracy {
    /// A ticket was expected to take so long, and took so long, nanoseconds.
    pub(super) fn note(&mut self, expected: u64, took: u64) {
        if took == 0 {
            return; // nothing was measured
        }
        self.count += 1;
        // The first few count the same, each later one for a fiftieth.
        let gain = GAIN.max(1.0 / self.count as f64);
        // A worker may say that it took next to no time.
        let off = ((took as f64 - expected as f64) / took as f64).clamp(-100.0, 1.0);
        self.error += gain * (off.abs() - self.error);
        self.bias += gain * (off - self.bias);
    }
}

/// The page of a daemon that has no job.
pub fn idle(embedded: bool) -> Page {
    let top = Top { pid: std::process::id(), embedded: embedded.into(), at: now(), ..bytemuck::Zeroable::zeroed() };
    Page { top, ranks: Vec::new(), servers: Vec::new(), workers: Vec::new() }
}

impl Job {
    /// What is shown of the job; the next page comes within `every` nanoseconds.
    pub fn page(&self, embedded: bool, every: u64) -> Page {
        let now = now();
        let mut page = idle(embedded);
        let stats = &self.stats;
        page.top = Top {
            every,
            job: Text::new(&self.name),
            tickets: stats.tickets,
            done: stats.done,
            bad: stats.bad,
            reissued: stats.reissued,
            restarts: stats.restarts,
            refused: stats.refused,
            cpu_us: stats.cpu_us,
            bytes_read: stats.bytes_read,
            frames: stats.frames,
            in_flight: self.flights.len() as u64,
            predicted: self.accuracy.count,
            prediction_error: self.accuracy.error,
            prediction_bias: self.accuracy.bias,
            ..page.top
        };
        page.ranks = self.sessions.values().map(|s| self.shown_rank(now, s)).collect();
        let shown = |(id, queue): (crate::sched::event::ServerId, Queue)| Server {
            server: id.0.into(),
            workers: queue.workers as u32,
            idle: queue.idle as u32,
            queued: queue.queued as u32,
            queued_ns: queue.work,
        };
        page.servers = self.sched.queues().into_iter().map(shown).collect();
        page.workers = self.workers.iter().flatten().map(|w| self.shown_worker(w)).collect();
        page
    }

    fn shown_rank(&self, now: Time, s: &Session) -> Rank {
        let window = match self.sched.window(now, s.stream, s.rank) {
            Window::Waits => 0,
            Window::In(ns) => ns.clamp(1, UNKNOWN - 1),
            Window::Unknown => UNKNOWN,
        };
        Rank {
            loader: self.loader_of(s.stream),
            rank: s.rank,
            pid: s.conn.as_ref().map_or(0, |conn| conn.peer().pid as u32),
            server: s.server.0.into(),
            phase: match s.phase {
                Phase::Live => 0,
                Phase::Leaving => 1,
                Phase::Over => 2,
            },
            iter: s.iter,
            step: s.stats.step,
            window,
            steps: s.stats.steps,
            misses: s.stats.misses,
            wait: s.stats.wait_ns,
            wait_max: s.stats.wait_max_ns,
            wait_last: s.stats.wait_last_ns,
            copied: s.stats.copied,
            skipped: s.stats.skipped,
            slab: s.regions.bytes(),
            used: s.regions.used(),
            batches: s.regions.blocks().count() as u64,
        }
    }

    fn loader_of(&self, stream: StreamId) -> Text {
        Text::new(self.stream_of(stream).map_or("", |stream| &stream.loader))
    }

    fn shown_worker(&self, w: &Worker) -> ShownWorker {
        let oldest = w.held.front().and_then(|ticket| Some((*ticket, self.flights.get(ticket)?)));
        let mut shown = ShownWorker {
            pid: w.pid(),
            slot: w.slot.into(),
            generation: w.generation,
            up: w.is_up().into(),
            core: w.core.unwrap_or(u32::MAX),
            held: w.held.len() as u32,
            rank: 0,
            step: 0,
            sample: UNKNOWN,
            expected: UNKNOWN,
            since: 0,
        };
        if let Some((ticket, flight)) = oldest {
            shown.rank = self.sessions.get(&flight.session).map_or(0, |s| s.rank);
            (shown.step, shown.sample, shown.since) = (flight.step, flight.sample, flight.since);
            shown.expected = self.sched.predicted(TicketId(ticket)).unwrap_or(UNKNOWN);
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accuracy_is_a_mean_of_what_was_off() {
        let mut accuracy = Accuracy::default();
        accuracy.note(100, 0);
        assert_eq!(accuracy.count, 0);
        accuracy.note(50, 100);
        accuracy.note(100, 100);
        assert_eq!((accuracy.error, accuracy.bias), (0.25, 0.25));
        (0..2000).for_each(|_| accuracy.note(150, 100));
        assert!((accuracy.error - 0.5).abs() < 0.01 && (accuracy.bias + 0.5).abs() < 0.01);
        accuracy.note(u64::MAX, 1);
        assert!(accuracy.error < 3.0, "no worker can make it endless");
    }
}
