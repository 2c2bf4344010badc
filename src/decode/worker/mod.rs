//! The worker process: tickets in, pixels into the slab, word of it out.
//!
//! [`run`] introduces itself at the daemon's socket and then turns in one loop: take packets, take tickets, start
//! the reads of the next one, decode the oldest. Order of telling: pixels, then `Done` to the daemon, then `Ready`
//! to the rank, so that what a rank has heard the daemon can always find out; see `docs/protocol.md`.
//!
//! The worker ends when the daemon's socket does, and the kernel ends it when the daemon's process does.

mod cage;
#[cfg(feature = "object-store")]
mod objects;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};

use super::{Actual, Decoder, Decoders, Mode, Outcome, ReadId, Reader, Request, SampleKey, Source, Stage, plan};
use crate::crash;
use crate::foreign::LOOK_AGAIN;
pub use crate::foreign::WorkerError;
use crate::foreign::link::{self, Attached, Daemon};
use crate::proto::message::{self, Body, Done, Head, Ready, Ticket, kind};
use crate::proto::session::{FromWorker, ToWorker};
use crate::proto::transform::Span;
use crate::ring::bell::Sleeper;
use cage::Cage;

const MANIFEST_CUT: &str =
    "the manifest was cut while it was in use: make it under another name, or move it in place";

/// A ticket in hand, with its reads if they are under way.
struct Job {
    ticket: Ticket,
    taken: Instant,
    started: Result<(Rc<Attached>, ReadId), (&'static str, String)>,
}

/// What a finished ticket is reported with.
struct Report {
    outcome: Outcome,
    read_us: u32,
    cpu_us: u32,
    bytes_read: u32,
}

/// Runs a worker with the built-in decoders until the daemon ends it.
pub fn run(socket: &Path, job: &str, slot: u16) -> Result<(), WorkerError> {
    run_with(socket, job, slot, Decoders::new)
}

/// The main function of a program of the user's own that is a worker: [`run_with`] on its last three arguments.
pub fn serve<D: Decoder>(make: fn() -> D) -> Result<(), WorkerError> {
    let mut last = std::env::args_os().rev().take(3);
    let slot = last.next().and_then(|slot| slot.to_str()?.parse().ok());
    let (job, socket) = (last.next().and_then(|job| job.into_string().ok()), last.next());
    match (socket, job, slot) {
        (Some(socket), Some(job), Some(slot)) => run_with(Path::new(&socket), &job, slot, make),
        _ => {
            let text = "the last arguments are no socket, job and slot: a daemon starts workers";
            Err(WorkerError::Protocol(text.into()))
        }
    }
}

/// As [`run`], with a decoder of one's own, which is made anew after a panic. A program that calls this with its last
/// three arguments can be a job's worker (`RunOptions::program`): its reading, sandbox and telling are the built-in
/// one's, and so are the limits of what it decodes.
pub fn run_with<D: Decoder>(socket: &Path, job: &str, slot: u16, make: fn() -> D) -> Result<(), WorkerError> {
    crash::arm("worker");
    crate::manifest::guard::install();
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).map_err(std::io::Error::from)?;
    let (daemon, sleeper, bounds) = Daemon::introduce(socket, job, slot)?;
    if let Some(&core) = bounds.cores.first()
        && !core_affinity::set_for_current(core_affinity::CoreId { id: core as usize })
    {
        let text = format!("workers could not be pinned to their cores (core {core} refused); they run unpinned");
        daemon.say(&FromWorker::Notice { text })?;
    }
    let (reader, decoder) = (Reader::new(Mode::Auto), make());
    let cage = Cage::new(bounds.sandbox, bounds.memory);
    Worker {
        daemon,
        sleeper,
        reader,
        decoder,
        make,
        cage,
        #[cfg(feature = "object-store")]
        objects: objects::Objects::default(),
        jobs: VecDeque::new(),
        noticed: false,
    }
    .work()
}

struct Worker<D> {
    daemon: Daemon,
    sleeper: Sleeper,
    reader: Reader,
    decoder: D,
    make: fn() -> D,
    cage: Cage,
    #[cfg(feature = "object-store")]
    objects: objects::Objects,
    jobs: VecDeque<Job>,
    /// Whether the daemon knows that io_uring is refused.
    noticed: bool,
}

impl<D: Decoder> Worker<D> {
    fn work(&mut self) -> Result<(), WorkerError> {
        loop {
            if let Some(text) = self.reader.notice().filter(|_| !self.noticed) {
                self.daemon.say(&FromWorker::Notice { text })?;
                self.noticed = true;
            }
            if !self.take_packets()? {
                return Ok(());
            }
            self.take_tickets()?;
            match self.jobs.pop_front() {
                Some(job) => self.finish(job)?,
                // The tickets that it has not taken go to its successor, which has the files of all sessions.
                None if self.cage.is_outgrown() => return Ok(()),
                None => self.sleep()?,
            }
        }
    }

    /// Sleeps until the bell or the socket has news.
    fn sleep(&mut self) -> Result<(), WorkerError> {
        if self.sleeper.park() && self.daemon.is_idle() {
            let mut fds = [
                PollFd::new(self.sleeper.fd(), PollFlags::POLLIN),
                PollFd::new(self.daemon.socket(), PollFlags::POLLIN),
            ];
            let timeout = PollTimeout::from(LOOK_AGAIN.as_millis() as u16);
            match poll(&mut fds, timeout) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(e) => return Err(WorkerError::Io(e.into())),
            }
        }
        self.sleeper.unpark();
        self.sleeper.take(|_| ());
        Ok(())
    }

    /// Handles the packets that wait. `false` when the daemon has closed the socket.
    fn take_packets(&mut self) -> Result<bool, WorkerError> {
        loop {
            match self.daemon.packet()? {
                link::Packet::None => return Ok(true),
                link::Packet::End => return Ok(false),
                link::Packet::Some(ToWorker::Detach { session }) => self.detach(session)?,
                link::Packet::Some(ToWorker::Welcome { .. }) => {
                    return Err(WorkerError::Protocol("a second welcome".into()));
                }
                link::Packet::Some(ToWorker::Attach { session, .. }) => self.visit(session),
                link::Packet::Some(ToWorker::Brief { .. }) => {}
            }
        }
    }

    /// A session was attached: whether what it needs can be reached from within the sandbox.
    fn visit(&mut self, session: u16) {
        self.cage.visit(&self.daemon, session);
        #[cfg(feature = "object-store")]
        self.objects.visit(&self.daemon, session, &mut self.cage);
    }

    /// Whether a ticket of this session can be begun. If not the worker ends, and its successor gets the ticket.
    fn admits(&mut self, session: u16) -> bool {
        // The packet that attaches it was sent before the ticket, but may have waited for room in the socket.
        if self.daemon.attached(session).is_none() && self.daemon.attach_pending(session).is_ok() {
            self.visit(session);
        }
        !self.cage.is_outgrown()
    }

    /// Ends the tickets of a session that is over, and lets go of its slab.
    fn detach(&mut self, session: u16) -> Result<(), WorkerError> {
        // Tickets that are still in the ring belong to it too: they were pushed before the packet was sent.
        self.take_tickets()?;
        let (over, rest) = self.jobs.drain(..).partition(|job| job.ticket.head.session == session);
        self.jobs = rest;
        let over: VecDeque<Job> = over;
        for job in over {
            if let Ok((_, read)) = job.started {
                self.reader.cancel(read);
            }
            self.fail(&job.ticket, job.taken, "worker", "its session is over")?;
        }
        crash::point("detach.unsaid");
        self.daemon.detach(session);
        self.daemon.say(&FromWorker::Detached { session })?;
        crash::point("detach.said");
        Ok(())
    }

    /// Takes tickets over and starts their reads, which then go on while the one before is decoded.
    fn take_tickets(&mut self) -> Result<(), WorkerError> {
        while !self.cage.is_outgrown()
            && let Some(words) = self.daemon.next_ticket()?
        {
            let ticket = Ticket::parse(&words).map_err(|e| WorkerError::Protocol(e.to_string()))?;
            if !self.admits(ticket.head.session) {
                break;
            }
            let taken = Instant::now();
            crash::point("ticket.taken");
            // As in `make`: a panic here is this sample's, not that of the one which is decoded next.
            let started = catch_unwind(AssertUnwindSafe(|| self.start(&ticket)));
            let started = started
                .unwrap_or_else(|panic| Err(("worker", format!("panic while reading: {}", panic_text(&*panic)))));
            crash::point("reads.submitted");
            self.jobs.push_back(Job { ticket, taken, started });
        }
        Ok(())
    }

    fn start(&mut self, ticket: &Ticket) -> Result<(Rc<Attached>, ReadId), (&'static str, String)> {
        let session = ticket.head.session;
        let attached = self.daemon.attached(session);
        let attached = attached.ok_or_else(|| ("worker", format!("session {session} is not attached")))?;
        #[cfg(feature = "object-store")]
        if !self.cage.is_closed() {
            self.objects.before(&self.daemon, &mut self.reader).map_err(|e| ("open", e))?;
        }
        if self.cage.is_open() {
            for line in self.cage.close(&self.daemon) {
                self.daemon.say(&FromWorker::Notice { text: line }).map_err(|e| ("worker", e.to_string()))?;
            }
        }
        if ticket.sample >= attached.manifest.len() {
            return Err(("worker", format!("sample {} of a manifest of {}", ticket.sample, attached.manifest.len())));
        }
        let descriptor = attached.manifest.descriptor(ticket.sample);
        if attached.manifest.was_cut() {
            return Err(("open", MANIFEST_CUT.into()));
        }
        let key = SampleKey::new(attached.options.seed, ticket.epoch, ticket.sample);
        let ranges = plan::ranges_of(&descriptor, &attached.options.transform, &key, span_of(ticket));
        let read = self.reader.submit(&Source::from(&descriptor), &ranges);
        let read = read.map_err(|e| (e.stage.name(), self.cage.explain(e.reason, descriptor.path)))?;
        Ok((attached, read))
    }

    /// Decodes the oldest ticket into its place and tells of it.
    fn finish(&mut self, job: Job) -> Result<(), WorkerError> {
        let Job { ticket, taken, started } = job;
        let made = match started {
            Ok((attached, read)) => {
                let made = self.make(&ticket, &attached, read, taken);
                made.map(|report| (report, attached))
            }
            Err((stage, reason)) => Err((stage, reason)),
        };
        match made {
            Ok((report, attached)) => self.tell(&ticket, taken, &report, &attached),
            Err((stage, reason)) => self.fail(&ticket, taken, stage, &reason),
        }
    }

    fn make(
        &mut self,
        ticket: &Ticket,
        attached: &Attached,
        read: ReadId,
        taken: Instant,
    ) -> Result<Report, (&'static str, String)> {
        let input = self.reader.finish(read).map_err(|e| (e.stage.name(), e.reason))?;
        let read_us = micros(taken.elapsed());
        let descriptor = attached.manifest.descriptor(ticket.sample);
        let key = SampleKey::new(attached.options.seed, ticket.epoch, ticket.sample);
        let request = Request { descriptor, transform: &attached.options.transform, key, span: span_of(ticket) };
        crash::point("decode.before");
        let before = cpu_time();
        let decoder = &mut self.decoder;
        let made = attached.with_region(ticket.offset, ticket.len, |out| {
            // A panic is a bug of ours, but one sample's: the worker goes on with a decoder made anew.
            catch_unwind(AssertUnwindSafe(|| decoder.decode(&input, &request, out)))
        });
        let outcome = match made.map_err(|e| ("worker", e))? {
            Ok(outcome) => outcome.map_err(|e| {
                if e.stage == Stage::Memory {
                    // What a decoder keeps from sample to sample must not be what the next one lacks.
                    self.decoder = (self.make)();
                }
                (e.stage.name(), e.reason)
            })?,
            Err(panic) => {
                self.decoder = (self.make)();
                return Err(("worker", format!("panic while decoding: {}", panic_text(&*panic))));
            }
        };
        let cpu_us = micros(cpu_time().saturating_sub(before));
        let bytes_read = u32::try_from(input.bytes_read()).unwrap_or(u32::MAX);
        self.reader.recycle(input);
        crash::point("pixels.written");
        Ok(Report { outcome, read_us, cpu_us, bytes_read })
    }

    fn tell(
        &mut self,
        ticket: &Ticket,
        taken: Instant,
        report: &Report,
        attached: &Attached,
    ) -> Result<(), WorkerError> {
        let Outcome { written, shape, frames_decoded, actual } = report.outcome;
        let Ticket { sample, offset, grant, step, first, frames, .. } = *ticket;
        let room = attached.has_room();
        let done = Done {
            head: Head { kind: kind::DONE, ..ticket.head },
            ticket: ticket.ticket,
            written,
            shape,
            read_us: report.read_us,
            cpu_us: report.cpu_us,
            wall_us: micros(taken.elapsed()),
            frames_decoded,
            bytes_read: report.bytes_read,
            flags: if room { 0 } else { crate::proto::message::DONE_UNTOLD },
        };
        if let Some(Actual { frames, duration_ms, shown: (width, height) }) = actual {
            let head = Head { kind: kind::ACTUAL, ..ticket.head };
            let zero = bytemuck::Zeroable::zeroed();
            let ticket = ticket.ticket;
            let actual = message::Actual { head, ticket, frames, duration_ms, width, height, ..zero };
            self.daemon.tell(&actual)?;
            crash::point("actual.told");
        }
        self.daemon.tell(&done)?;
        crash::point("done.told");
        if room {
            let head = Head { kind: kind::READY, ..ticket.head };
            attached.tell(&Ready { head, sample, offset, written, shape, grant, step, first, frames, reserved: 0 });
            crash::point("ready.told");
        }
        Ok(())
    }

    /// Reports a ticket that cannot be made: the reason on the socket, then the end on the ring.
    fn fail(&mut self, ticket: &Ticket, taken: Instant, stage: &str, reason: &str) -> Result<(), WorkerError> {
        let mut reason = reason.to_string();
        reason.truncate(reason.floor_char_boundary(2000));
        self.daemon.say(&FromWorker::BadSample { ticket: ticket.ticket, stage: stage.into(), reason })?;
        crash::point("complaint.said");
        let done = Done {
            head: Head { kind: kind::FAILED, ..ticket.head },
            ticket: ticket.ticket,
            wall_us: micros(taken.elapsed()),
            ..bytemuck::Zeroable::zeroed()
        };
        self.daemon.tell(&done)
    }
}

/// Which frames of the output a ticket is about.
fn span_of(ticket: &Ticket) -> Span {
    Span { first: ticket.first, frames: ticket.frames }
}

fn micros(d: Duration) -> u32 {
    u32::try_from(d.as_micros()).unwrap_or(u32::MAX)
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    // Cannot fail for the calling thread; a zero would only blur a cost estimate.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
