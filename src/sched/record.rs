//! What happened to a stream, and what was decided, as lines that a run can be replayed from.
//!
//! Pure: a driver that records passes every event and decision through [`Line::of_event`] and [`Line::of_decision`] and
//! keeps what comes out, a JSON object a line. What a replay does not need is not in it.

use serde::{Deserialize, Serialize};

use super::event::{Decision, Event, Time};
use crate::proto::options::{RunOptions, StreamOptions};

/// Version of the lines.
pub const VERSION: u32 = 1;

/// One line. Times are nanoseconds of the driver's clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    /// A stream is open.
    Stream {
        /// When.
        at: Time,
        /// [`VERSION`].
        version: u32,
        /// Its number.
        stream: u16,
        /// What was in it.
        options: Box<StreamOptions>,
        /// How it was run.
        run: RunOptions,
    },
    /// A worker came or went.
    Worker {
        /// When.
        at: Time,
        /// Its number.
        worker: u16,
        /// Its server, if it came.
        server: Option<u16>,
    },
    /// A rank begins an iteration.
    Rank {
        /// When.
        at: Time,
        /// The stream.
        stream: u16,
        /// The rank.
        rank: u32,
        /// Server of its slab.
        server: u16,
        /// Number of the iteration.
        iter: u32,
    },
    /// Memory for a batch was asked for.
    Batch {
        /// When.
        at: Time,
        /// The stream.
        stream: u16,
        /// The rank.
        rank: u32,
        /// Number of the iteration.
        iter: u32,
        /// Epoch.
        epoch: u32,
        /// Step.
        step: u32,
        /// Rows of its samples.
        samples: Vec<u64>,
        /// What each costs its rank by the profile.
        costs: Vec<f64>,
        /// Bytes of each.
        bytes: Vec<u64>,
    },
    /// A ticket was given to a worker.
    Given {
        /// When.
        at: Time,
        /// Its number.
        ticket: u64,
        /// The worker.
        worker: u16,
        /// The stream.
        stream: u16,
        /// The rank.
        rank: u32,
        /// Number of the iteration.
        iter: u32,
        /// Step.
        step: u32,
        /// Place in the batch.
        slot: u16,
    },
    /// A ticket has ended.
    Ended {
        /// When.
        at: Time,
        /// Its number.
        ticket: u64,
        /// Reading, microseconds.
        read_us: u32,
        /// CPU time, microseconds; 0 if it failed.
        cpu_us: u32,
        /// Frames that went through the decoder.
        frames: u32,
    },
    /// A rank asked for the next batch.
    Step {
        /// When.
        at: Time,
        /// The stream.
        stream: u16,
        /// The rank.
        rank: u32,
        /// Number of the iteration.
        iter: u32,
        /// The step that has ended.
        step: u32,
        /// How long it had waited for the batch, nanoseconds.
        wait: u64,
        /// From having it to now, nanoseconds.
        busy: u64,
    },
    /// A batch's memory is free.
    Released {
        /// When.
        at: Time,
        /// The stream.
        stream: u16,
        /// The rank.
        rank: u32,
        /// Number of the iteration.
        iter: u32,
        /// Step.
        step: u32,
    },
}

impl Line {
    /// The line of something that happened, if it makes one.
    pub fn of_event(at: Time, event: &Event) -> Option<Line> {
        Some(match event {
            Event::StreamOpened { stream, options, run, .. } => Line::Stream {
                at,
                version: VERSION,
                stream: stream.0,
                options: Box::new((**options).clone()),
                run: run.clone(),
            },
            Event::WorkerUp { worker, server } => Line::Worker { at, worker: worker.0, server: Some(server.0) },
            Event::WorkerDown { worker } => Line::Worker { at, worker: worker.0, server: None },
            Event::RankStarted { stream, rank, server, iter, .. } => {
                Line::Rank { at, stream: stream.0, rank: *rank, server: server.0, iter: *iter }
            }
            Event::StepEnded { stream, rank, iter, step, wait_ns, busy_ns } => Line::Step {
                at,
                stream: stream.0,
                rank: *rank,
                iter: *iter,
                step: *step,
                wait: *wait_ns,
                busy: *busy_ns,
            },
            Event::Released { stream, rank, iter, step } => {
                Line::Released { at, stream: stream.0, rank: *rank, iter: *iter, step: *step }
            }
            Event::TicketDone { ticket, measured: m } => {
                Line::Ended { at, ticket: ticket.0, read_us: m.read_us, cpu_us: m.cpu_us, frames: m.frames }
            }
            Event::TicketFailed { ticket } => Line::Ended { at, ticket: ticket.0, read_us: 0, cpu_us: 0, frames: 0 },
            _ => return None,
        })
    }

    /// The line of something that was decided, if it makes one.
    pub fn of_decision(at: Time, decision: &Decision) -> Option<Line> {
        Some(match decision {
            Decision::Grant { stream, rank, iter, epoch, step, places, .. } => Line::Batch {
                at,
                stream: stream.0,
                rank: *rank,
                iter: *iter,
                epoch: *epoch,
                step: *step,
                samples: places.iter().map(|p| p.sample).collect(),
                costs: places.iter().map(|p| p.cost).collect(),
                bytes: places.iter().map(|p| p.bytes).collect(),
            },
            Decision::Assign { worker, ticket, stream, rank, iter, step, slot, .. } => Line::Given {
                at,
                ticket: ticket.0,
                worker: worker.0,
                stream: stream.0,
                rank: *rank,
                iter: *iter,
                step: *step,
                slot: *slot,
            },
            _ => return None,
        })
    }
}
