//! One worker process, seen from the daemon: starting it, its link, and the tickets it holds.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::conn::{Conn, Gone};
use super::pidfd::PidFd;
use crate::proto::message::{Body, Ticket, Words};
use crate::proto::session::ToWorker;
use crate::proto::{self};
use crate::ring::bell::{EventFd, Ringer, eventfd};
use crate::ring::segment::Segment;
use crate::ring::spsc::{Consumer, Producer, ring_bytes};

/// Messages in each ring of a link: two tickets are the most a worker holds, the rest is slack.
const LINK_CAPACITY: u32 = 16;

/// A worker that is to do something and does not run for so long is stuck.
const STILL: Duration = Duration::from_secs(1);

/// What every worker of a job shares.
pub struct Shared<'a> {
    /// The job's name.
    pub job: &'a str,
    /// The daemon's socket.
    pub socket: &'a Path,
    /// The hints segment.
    pub hints: &'a Arc<Segment>,
    /// Write end of the lifeline pipe: as long as it is open somewhere, a writer may live.
    pub lifeline: &'a OwnedFd,
    /// A program of the user's own and its arguments; empty = the built-in worker.
    pub program: &'a [String],
    /// In which form to log.
    pub log: &'a str,
    /// What bounds it.
    pub bounds: Bounds,
}

/// What bounds a worker.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Whether it closes a sandbox around itself.
    pub sandbox: bool,
    /// Most private memory, bytes.
    pub memory: u64,
}

/// A worker at a ticket, as a look at it found.
#[derive(Debug, Clone, Copy)]
pub struct SeenAt {
    /// The ticket.
    pub ticket: u64,
    /// When it was first seen at it.
    pub since: Instant,
    /// The CPU time that its process had used by then.
    pub cpu: Duration,
}

/// A worker process and what the daemon knows of it.
pub struct Worker {
    /// Slot in the job.
    pub slot: u16,
    /// Counts the processes of this slot.
    pub generation: u32,
    /// Its connection, once it has introduced itself.
    pub conn: Option<Conn>,
    /// Its process.
    pub pidfd: PidFd,
    /// Tickets handed over and not ended, oldest first.
    pub held: VecDeque<u64>,
    /// Whether it has ended a ticket.
    pub proven: bool,
    /// Sessions whose slab it may have mapped.
    pub attached: BTreeSet<u16>,
    /// The core it runs on, if it is pinned.
    pub core: Option<u32>,
    pid: u32,
    /// Until it is reaped.
    child: Option<Child>,
    /// What bounds it.
    pub bounds: Bounds,
    /// The ticket that it was at when it was looked at last.
    pub noticed: Option<u64>,
    /// The ticket that it was seen at, and since when.
    pub seen_at: Option<SeenAt>,
    /// Why it was ended over the ticket in its hands: the ticket, stage and reason.
    pub sentence: Option<(u64, &'static str, String)>,
    token: String,
    segment: Arc<Segment>,
    tickets: Producer,
    done: Consumer,
    ringer: Ringer,
    bell: EventFd,
    /// When its CPU time was looked at, and what it was, clock ticks.
    look: Option<(Instant, u64)>,
}

impl Worker {
    /// Starts the process. It will connect to the socket and introduce itself with the token.
    pub fn start(shared: &Shared<'_>, slot: u16, generation: u32, core: Option<u32>) -> io::Result<Worker> {
        let segment = Segment::create("helix-link", 2 * ring_bytes(LINK_CAPACITY)).map_err(io::Error::other)?;
        let segment = Arc::new(segment);
        let tickets = Producer::fresh(segment.clone(), 0, LINK_CAPACITY).map_err(io::Error::other)?;
        let done =
            Consumer::new(segment.clone(), ring_bytes(LINK_CAPACITY), LINK_CAPACITY).map_err(io::Error::other)?;
        let bell = eventfd()?;
        let ringer = Ringer::new(shared.hints.clone(), bell_of(slot), bell.clone()).map_err(io::Error::other)?;
        let token = token()?;
        let mut command = match shared.program {
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
            // A job's name may begin with a dash.
            [] => {
                let mut command = Command::new("/proc/self/exe");
                command.args(["worker", "--"]);
                command
            }
        };
        let child = command
            .args([shared.socket.as_os_str(), shared.job.as_ref(), slot.to_string().as_ref()])
            .env("HELIX_SHM_TOKEN", &token)
            .env(super::LOG_FORMAT, shared.log)
            // The lifeline reaches the worker as its standard input: inherited across exec without further ado.
            .stdin(Stdio::from(shared.lifeline.try_clone()?))
            .stdout(Stdio::null())
            .spawn()?;
        let pidfd = PidFd::open(child.id())?;
        Ok(Worker {
            slot,
            generation,
            conn: None,
            pidfd,
            held: VecDeque::new(),
            proven: false,
            attached: BTreeSet::new(),
            core,
            pid: child.id(),
            child: Some(child),
            bounds: shared.bounds,
            noticed: None,
            seen_at: None,
            sentence: None,
            token,
            segment,
            tickets,
            done,
            ringer,
            bell,
            look: None,
        })
    }

    /// Process id, for messages.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether a connection may be this worker.
    pub fn is(&self, pid: i32, token: &str) -> bool {
        self.conn.is_none() && pid as u32 == self.pid && self.token == token
    }

    /// Takes the worker in.
    pub fn welcome(&mut self, mut conn: Conn, hints: &Segment, daemon_bell: &EventFd) -> Result<(), Gone> {
        let packet = ToWorker::Welcome {
            version: proto::VERSION,
            link_capacity: LINK_CAPACITY,
            bell: bell_of(self.slot) as u16,
            cores: self.core.into_iter().collect(),
            sandbox: self.bounds.sandbox,
            memory: self.bounds.memory,
        };
        let fds = [segment_fd(&self.segment)?, segment_fd(hints)?, self.bell.fd(), daemon_bell.fd()];
        conn.send(&packet, &fds)?;
        self.conn = Some(conn);
        Ok(())
    }

    /// Whether tickets can be given to it.
    pub fn is_up(&self) -> bool {
        self.conn.is_some()
    }

    /// Hands a ticket over. `false` if its ring is full or spoilt, which an honest worker never lets happen.
    pub fn push(&mut self, ticket: &Ticket) -> bool {
        if self.tickets.push(&ticket.words()).is_err() {
            return false;
        }
        self.held.push_back(ticket.ticket);
        self.look = None;
        self.ringer.ring(0);
        true
    }

    /// Whether it has taken the oldest of its tickets out of the ring.
    pub fn has_taken_a_ticket(&mut self) -> bool {
        // A head that cannot be true is no excuse.
        let untaken = self.tickets.free_slots().map_or(0, |free| LINK_CAPACITY - free);
        (untaken as usize) < self.held.len()
    }

    /// The next message of the worker. `Err` when its ring is spoilt.
    pub fn pop(&mut self) -> Result<Option<Words>, ()> {
        self.done.pop().map_err(|_| ())
    }

    /// Whether it has used the CPU since this was asked before, [`STILL`] ago or more; yes, when that is not known.
    pub fn has_run(&mut self) -> bool {
        let Some(ticks) = cpu_ticks(self.pid()) else { return true };
        match self.look {
            Some((at, before)) if before == ticks => at.elapsed() < STILL,
            _ => {
                self.look = Some((Instant::now(), ticks));
                true
            }
        }
    }

    /// Asks it to let go of a session's slab.
    pub fn detach(&mut self, session: u16) -> Result<(), Gone> {
        // Until now it may have had no reason to run.
        self.look = None;
        self.conn.as_mut().ok_or(Gone::End)?.send(&ToWorker::Detach { session }, &[])
    }

    /// Reaps the dead process. `None` if its end is not to be had yet, since a debugger watches it.
    pub fn reap(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = self.child.as_mut().map_or(Ok(None), Child::try_wait)?;
        if status.is_some() {
            self.child = None;
        }
        Ok(status)
    }

    /// Ends the process, if it has not ended, without waiting for it.
    pub fn bury(mut self) -> Corpse {
        self.pidfd.kill();
        Corpse(self.child.take())
    }
}

/// A worker process that is as good as dead: it cannot do anything any more, but may be a while in the kernel, which
/// lets nobody go who waits for a disk, and must not make the daemon wait with it.
pub struct Corpse(Option<Child>);

impl Corpse {
    /// Whether it is gone, and nothing is left of it.
    pub fn is_gone(&mut self) -> bool {
        self.0.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Its process id, for messages.
    pub fn pid(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // One that could not be watched, moments after its start; all others are reaped or buried.
        if let Some(child) = &mut self.child {
            self.pidfd.kill();
            let _ = child.wait();
        }
    }
}

/// Entry of a worker in the hints segment; entry 0 is the daemon's.
pub const fn bell_of(slot: u16) -> usize {
    1 + slot as usize
}

/// CPU time of a process, clock ticks: the 14th and 15th field of its `stat`.
fn cpu_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind_the_name) = stat.rsplit_once(')')?;
    let mut fields = behind_the_name.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// A secret that only the daemon and the worker it starts know: 128 random bits.
fn token() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    let file = std::fs::File::open("/dev/urandom")?;
    io::Read::read_exact(&mut &file, &mut bytes)?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// A segment's descriptor, to be sent.
pub fn segment_fd(segment: &Segment) -> io::Result<BorrowedFd<'_>> {
    segment.fd().ok_or_else(|| io::Error::other("a segment made here has no descriptor"))
}
