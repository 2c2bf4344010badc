//! What the engine expects, for whoever looks at it from outside. Nothing is decided from here.

use std::collections::BTreeMap;

use super::Engine;
use crate::sched::event::{ServerId, StreamId, Time};

/// When a rank will ask for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// It stands still for it.
    Waits,
    /// In so many nanoseconds.
    In(u64),
    /// Its pace is not known yet, or it does not iterate.
    Unknown,
}

/// What waits for the workers of a server, and how many those are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Queue {
    /// Workers.
    pub workers: u64,
    /// Those without a ticket.
    pub idle: u64,
    /// Samples that wait for one of them.
    pub queued: u64,
    /// The time that those are expected to take, nanoseconds of one worker.
    pub work: u64,
}

impl Engine {
    /// The time until a rank will ask for its next batch.
    pub fn window(&self, now: Time, stream: StreamId, rank: u32) -> Window {
        let ranks = self.streams.get(&stream).map(|s| &s.ranks);
        let Some(rank) = ranks.and_then(|r| r.get(rank as usize)).filter(|r| r.active && r.position < r.next) else {
            return Window::Unknown;
        };
        if rank.waits_for(rank.position) {
            return Window::Waits;
        }
        rank.due(rank.position + 1, now).map_or(Window::Unknown, |due| Window::In(due.saturating_sub(now)))
    }

    /// Every server with its queue: what its workers are to do, whether it was given to one of them or not.
    pub fn queues(&self) -> BTreeMap<ServerId, Queue> {
        let mut queues: BTreeMap<ServerId, Queue> = BTreeMap::new();
        for (server, workers, idle) in self.workers.counts() {
            queues.insert(server, Queue { workers, idle: idle as u64, ..Queue::default() });
        }
        for stream in self.streams.values() {
            let shared = stream.shared.iter().map(|(server, backlog)| (*server, backlog));
            let own = stream.bound.iter().filter_map(|(worker, b)| Some((self.workers.server(*worker)?, b)));
            for (server, backlog) in shared.chain(own) {
                let queue = queues.entry(server).or_default();
                queue.queued += backlog.len() as u64;
                queue.work = queue.work.saturating_add(backlog.work());
            }
        }
        queues
    }
}
