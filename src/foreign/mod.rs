//! Workers of the user's own program: the worker's side of the rings without a decoder.
//!
//! A program that [`RunOptions::program`](crate::proto::options::RunOptions::program) names is started in the place
//! of the built-in worker, with the daemon's socket, the job's name and its slot as its last arguments. It makes a
//! [`Worker`], asks it for [`Task`]s, writes into each task's region and says how that went. What the tasks of an epoch
//! mean is in the [brief](Worker::brief) that the rank gave with it.
//!
//! The built-in worker has its connections from here as well (`link`). This room knows ring, manifest and proto. It
//! must not know what a program makes.

pub(crate) mod link;

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::proto::message::{Body, Done, Head, Ready, Ticket, kind};
use crate::proto::session::{FromWorker, ToWorker};
use crate::proto::transform::Span;
use crate::ring::bell::Sleeper;
use link::{Attached, Daemon, Packet};

/// How often a sleeping worker looks again, whatever its bell says.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Why a worker ended other than on the daemon's wish.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The daemon cannot be reached, or does not want this process.
    #[error("no daemon for this worker at {path}: {why}. Workers are started by helix-shmd")]
    Daemon {
        /// The socket.
        path: String,
        /// Why.
        why: String,
    },
    /// A message that does not fit.
    #[error("the daemon broke the protocol: {0}")]
    Protocol(String),
    /// The system refused something that is always there.
    #[error("the system refused: {0}")]
    Io(#[from] std::io::Error),
}

/// Something to be made: a ticket with its region.
pub struct Task {
    /// The session, by which briefs are told apart.
    pub session: u16,
    /// Epoch.
    pub epoch: u32,
    /// Step.
    pub step: u32,
    /// Row of the stream's manifest.
    pub sample: u64,
    /// Where its region lies in this process. Nobody else writes there until the task is over.
    pub address: usize,
    /// Length of the region, bytes.
    pub len: usize,
    ticket: Ticket,
    taken: Cell<Instant>,
    attached: Rc<Attached>,
}

impl Task {
    /// The program begins with it now: what it had to load before that is not counted as the task's, or the first few
    /// would spoil what the scheduler learns of all.
    pub fn begin(&self) {
        self.taken.set(Instant::now());
    }

    /// The pages that it is about: all of the sample's, or where several workers make it together some of them.
    pub fn span(&self) -> Span {
        Span { first: self.ticket.first, frames: self.ticket.frames }
    }
}

/// See the head of the file.
pub struct Worker {
    daemon: Daemon,
    sleeper: Sleeper,
    tickets: VecDeque<Ticket>,
    over: bool,
}

impl Worker {
    /// Introduces this process to the daemon, which started it. The kernel ends it when the daemon's process does.
    pub fn introduce(socket: &Path, job: &str, slot: u16) -> Result<Worker, WorkerError> {
        crate::manifest::guard::install();
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).map_err(std::io::Error::from)?;
        let (daemon, sleeper, _) = Daemon::introduce(socket, job, slot)?;
        Ok(Worker { daemon, sleeper, tickets: VecDeque::new(), over: false })
    }

    /// Whether the daemon wants nothing more of this process.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Says that this process is about to sleep on [`fds`](Self::fds), for at most 100 ms; `false` if there is
    /// news already.
    pub fn park(&mut self) -> bool {
        self.sleeper.park() && self.daemon.is_idle()
    }

    /// It is awake again.
    pub fn unpark(&mut self) {
        self.sleeper.unpark();
        self.sleeper.take(|_| ());
    }

    /// What can be read from when there is news: the bell and the socket.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.sleeper.fd(), self.daemon.socket()]
    }

    /// What the rank gave with an epoch.
    pub fn brief(&mut self, session: u16, epoch: u32) -> Result<OwnedFd, WorkerError> {
        let fd = self.daemon.brief(session, epoch)?;
        fd.ok_or_else(|| WorkerError::Protocol(format!("no brief for epoch {epoch} of session {session}")))
    }

    /// The next task, if there is one now. One that cannot be begun is failed here.
    pub fn poll(&mut self) -> Result<Option<Task>, WorkerError> {
        self.take_packets()?;
        self.take_tickets()?;
        while let Some(ticket) = self.tickets.pop_front() {
            // From now on, not from when it came: it may have waited behind another one.
            let taken = Instant::now();
            match self.begin(ticket, taken) {
                Ok(task) => return Ok(Some(task)),
                Err(reason) => self.refuse(&ticket, taken, "worker", &reason)?,
            }
        }
        Ok(None)
    }

    fn take_packets(&mut self) -> Result<(), WorkerError> {
        loop {
            match self.daemon.packet()? {
                Packet::None => return Ok(()),
                Packet::End => {
                    self.over = true;
                    return Ok(());
                }
                Packet::Some(ToWorker::Detach { session }) => self.detach(session)?,
                Packet::Some(ToWorker::Welcome { .. }) => {
                    return Err(WorkerError::Protocol("a second welcome".into()));
                }
                Packet::Some(ToWorker::Attach { .. } | ToWorker::Brief { .. }) => {}
            }
        }
    }

    fn take_tickets(&mut self) -> Result<(), WorkerError> {
        while let Some(words) = self.daemon.next_ticket()? {
            let ticket = Ticket::parse(&words).map_err(|e| WorkerError::Protocol(e.to_string()))?;
            self.tickets.push_back(ticket);
        }
        Ok(())
    }

    /// Ends the tickets of a session that is over, and lets go of its slab.
    fn detach(&mut self, session: u16) -> Result<(), WorkerError> {
        // Tickets that are still in the ring belong to it too: they were pushed before the packet was sent.
        self.take_tickets()?;
        let (over, rest): (VecDeque<_>, _) =
            self.tickets.drain(..).partition(|ticket| ticket.head.session == session);
        self.tickets = rest;
        for ticket in over {
            self.refuse(&ticket, Instant::now(), "worker", "its session is over")?;
        }
        self.daemon.detach(session);
        self.daemon.say(&FromWorker::Detached { session })
    }

    fn begin(&mut self, ticket: Ticket, taken: Instant) -> Result<Task, String> {
        let session = ticket.head.session;
        if self.daemon.attached(session).is_none() {
            self.daemon.attach_pending(session).map_err(|e| e.to_string())?;
        }
        let attached = self.daemon.attached(session).ok_or_else(|| format!("session {session} is not attached"))?;
        let address = attached.with_region(ticket.offset, ticket.len, |out| out.as_mut_ptr() as usize)?;
        let Ticket { epoch, step, sample, len, .. } = ticket;
        let len = usize::try_from(len).map_err(|e| e.to_string())?;
        Ok(Task { session, epoch, step, sample, address, len, ticket, taken: Cell::new(taken), attached })
    }

    /// The task's region holds what it is to hold. `cpu` is the time that it took on a core.
    pub fn done(&mut self, task: &Task, cpu: Duration) -> Result<(), WorkerError> {
        let Ticket { sample, offset, grant, step, .. } = task.ticket;
        let transform = &task.attached.options.transform;
        let facts = task.attached.manifest.facts(sample);
        let place = transform.place(&facts, task.span());
        let (written, shape) = (place.map_or(0, |(_, bytes)| bytes), transform.shape(&facts));
        let room = task.attached.has_room();
        self.daemon.tell(&Done {
            head: Head { kind: kind::DONE, ..task.ticket.head },
            ticket: task.ticket.ticket,
            written,
            shape,
            cpu_us: micros(cpu),
            wall_us: micros(task.taken.get().elapsed()),
            flags: if room { 0 } else { crate::proto::message::DONE_UNTOLD },
            ..bytemuck::Zeroable::zeroed()
        })?;
        if room {
            let head = Head { kind: kind::READY, ..task.ticket.head };
            let (first, frames) = (task.ticket.first, task.ticket.frames);
            let zero = bytemuck::Zeroable::zeroed();
            task.attached.tell(&Ready { head, sample, offset, written, shape, grant, step, first, frames, ..zero });
        }
        Ok(())
    }

    /// The task cannot be done, by anyone.
    pub fn fail(&mut self, task: &Task, stage: &str, reason: &str) -> Result<(), WorkerError> {
        self.refuse(&task.ticket, task.taken.get(), stage, reason)
    }

    fn refuse(&mut self, ticket: &Ticket, taken: Instant, stage: &str, reason: &str) -> Result<(), WorkerError> {
        let mut reason = reason.to_string();
        reason.truncate(reason.floor_char_boundary(2000));
        self.daemon.say(&FromWorker::BadSample { ticket: ticket.ticket, stage: stage.into(), reason })?;
        self.daemon.tell(&Done {
            head: Head { kind: kind::FAILED, ..ticket.head },
            ticket: ticket.ticket,
            wall_us: micros(taken.elapsed()),
            ..bytemuck::Zeroable::zeroed()
        })
    }
}

fn micros(d: Duration) -> u32 {
    u32::try_from(d.as_micros()).unwrap_or(u32::MAX)
}
