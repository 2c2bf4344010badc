//! The worker's connections: the daemon's socket and rings, and the slabs and lanes of the ranks it serves.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use super::{LOOK_AGAIN, WorkerError};
use crate::manifest::Manifest;
use crate::proto;
use crate::proto::message::{Body, Ready, Words};
use crate::proto::options::StreamOptions;
use crate::proto::session::{FromWorker, MAX_FDS, MAX_PACKET, MAX_SESSIONS, MAX_WORKERS, ToWorker};
use crate::ring::bell::{Ringer, Sleeper, hints_bytes};
use crate::ring::fds::{recv_packet, send_packet};
use crate::ring::segment::Segment;
use crate::ring::slab::Slab;
use crate::ring::spsc::{Consumer, Producer, ring_bytes};

/// How long a ticket waits for the packet that attaches its session.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);
/// Epochs of a session whose briefs are kept: that which ends, and that which begins.
const KEPT_BRIEFS: usize = 3;
/// Entries that a hints segment has; its size is checked when it is mapped.
const HINTS: usize = 1 + MAX_WORKERS as usize + MAX_SESSIONS as usize;

/// What the daemon bounds a worker by; a program of the user's own goes where it likes.
#[cfg_attr(not(feature = "decode"), allow(dead_code, reason = "for the built-in worker"))]
pub(crate) struct Bounds {
    /// Where it is to run.
    pub(crate) cores: Vec<u32>,
    /// Whether in a sandbox.
    pub(crate) sandbox: bool,
    /// Private memory, bytes.
    pub(crate) memory: u64,
}

/// A rank's slab and lane.
pub(crate) struct Attached {
    pub(crate) manifest: Manifest,
    pub(crate) options: StreamOptions,
    slab: Slab,
    lane: RefCell<Producer>,
    ringer: Ringer,
    lane_number: usize,
}

impl Attached {
    /// Lends the region to `write`, and to nobody else for that time.
    pub(crate) fn with_region<R>(
        &self,
        offset: u64,
        len: u64,
        write: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, String> {
        let range = self.slab.range(offset, len).map_err(|e| e.to_string())?;
        // SAFETY: the range is inside the mapping, which is sealed against shrinking. The daemon's ticket makes this
        // worker the region's only writer until it says Done, and no rank reads a region before that.
        let out = unsafe { self.slab.slice_mut(range.start, range.len()) };
        Ok(write(out))
    }

    /// Whether the rank's lane takes a message now.
    pub(crate) fn has_room(&self) -> bool {
        self.lane.borrow_mut().free_slots().is_ok_and(|n| n > 0)
    }

    /// Tells the rank. The lane had room a moment ago and has no other producer.
    pub(crate) fn tell(&self, ready: &Ready) {
        if self.lane.borrow_mut().push(&ready.words()).is_ok() {
            self.ringer.ring(self.lane_number);
        } else {
            tracing::warn!(session = ready.head.session, "the rank's lane is spoilt: it was not told of a sample");
        }
    }
}

/// What came on the socket.
pub(crate) enum Packet {
    /// Nothing now.
    None,
    /// The daemon closed it.
    End,
    /// A packet.
    Some(ToWorker),
}

/// The daemon, as the worker knows it.
pub(crate) struct Daemon {
    sock: OwnedFd,
    slot: u16,
    hints: Arc<Segment>,
    tickets: Consumer,
    done: Producer,
    ringer: Ringer,
    sessions: HashMap<u16, Rc<Attached>>,
    /// What a rank gave with its latest epochs, by session; only programs of the user's own ask for it.
    briefs: HashMap<u16, Vec<(u32, OwnedFd)>>,
    buf: Vec<u8>,
    /// Packets that were read while one that attaches was looked for.
    early: std::collections::VecDeque<ToWorker>,
}

impl Daemon {
    /// Connects, introduces this process and takes what the daemon gives: rings, bells, cores.
    pub(crate) fn introduce(
        socket_path: &Path,
        job: &str,
        slot: u16,
    ) -> Result<(Daemon, Sleeper, Bounds), WorkerError> {
        let failed = |why: String| WorkerError::Daemon { path: socket_path.display().to_string(), why };
        let token = std::env::var("HELIX_SHM_TOKEN").map_err(|_| failed("HELIX_SHM_TOKEN is not set".into()))?;
        let sock = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None);
        let sock = sock.map_err(io::Error::from)?;
        let addr = UnixAddr::new(socket_path).map_err(|e| failed(e.to_string()))?;
        connect(sock.as_raw_fd(), &addr).map_err(|e| failed(e.to_string()))?;
        let hello = FromWorker::Introduce { version: proto::VERSION, job: job.to_string(), slot, token };
        send(sock.as_fd(), &hello)?;
        let mut buf = Vec::new();
        let (len, fds) = recv_packet(sock.as_fd(), &mut buf, MAX_PACKET, MAX_FDS)?
            .ok_or_else(|| failed("it turned this process away".into()))?;
        let ToWorker::Welcome { version, link_capacity, bell, cores, sandbox, memory } = parse(&buf[..len])? else {
            return Err(WorkerError::Protocol("no welcome".into()));
        };
        if version != proto::VERSION {
            return Err(failed(format!("it speaks version {version}, this worker {}", proto::VERSION)));
        }
        let [link, hints, own_bell, daemon_bell] = four(fds)?;
        let link = Arc::new(Segment::open(link, 2 * ring_bytes(link_capacity)).map_err(io::Error::other)?);
        let hints = Arc::new(Segment::open(hints, hints_bytes(HINTS)).map_err(io::Error::other)?);
        let sleeper = Sleeper::new(hints.clone(), usize::from(bell), own_bell.into()).map_err(io::Error::other)?;
        let ringer = Ringer::new(hints.clone(), 0, daemon_bell.into()).map_err(io::Error::other)?;
        let tickets = Consumer::new(link.clone(), 0, link_capacity).map_err(io::Error::other)?;
        let done = Producer::fresh(link, ring_bytes(link_capacity), link_capacity).map_err(io::Error::other)?;
        nonblocking(&sock)?;
        crate::crash::point("welcomed");
        let daemon = Daemon {
            sock,
            slot,
            hints,
            tickets,
            done,
            ringer,
            sessions: HashMap::new(),
            briefs: HashMap::new(),
            buf,
            early: Default::default(),
        };
        Ok((daemon, sleeper, Bounds { cores, sandbox, memory }))
    }

    /// The socket, to be waited on.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.sock.as_fd()
    }

    /// Whether no ticket waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.tickets.is_empty()
    }

    /// Sends a packet, waiting for room if need be: the daemon always reads.
    pub(crate) fn say(&self, packet: &FromWorker) -> Result<(), WorkerError> {
        send(self.sock.as_fd(), packet)
    }

    /// The next packet. Those that attach are carried out here and returned all the same.
    pub(crate) fn packet(&mut self) -> Result<Packet, WorkerError> {
        if let Some(packet) = self.early.pop_front() {
            return Ok(Packet::Some(packet));
        }
        loop {
            match recv_packet(self.sock.as_fd(), &mut self.buf, MAX_PACKET, MAX_FDS) {
                Ok(None) => return Ok(Packet::End),
                Ok(Some((len, fds))) => {
                    let packet = parse(&self.buf[..len])?;
                    self.attach(&packet, fds)?;
                    return Ok(Packet::Some(packet));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Packet::None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(Packet::End),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Carries out the attaching packets until this session is attached; others are kept for their turn.
    pub(crate) fn attach_pending(&mut self, session: u16) -> Result<(), WorkerError> {
        let begun = std::time::Instant::now();
        let mut kept = std::mem::take(&mut self.early);
        loop {
            match self.packet()? {
                Packet::Some(packet) => kept.push_back(packet),
                Packet::None if !self.sessions.contains_key(&session) && begun.elapsed() < PATIENCE => {
                    let mut fds = [PollFd::new(self.sock.as_fd(), PollFlags::POLLIN)];
                    let _ = poll(&mut fds, PollTimeout::from(LOOK_AGAIN.as_millis() as u16));
                }
                Packet::None | Packet::End => break,
            }
        }
        self.early = kept;
        Ok(())
    }

    /// What the rank gave with an epoch; waits for the packet that brings it.
    #[allow(dead_code, reason = "for programs of the user's own")]
    pub(crate) fn brief(&mut self, session: u16, epoch: u32) -> Result<Option<OwnedFd>, WorkerError> {
        let begun = std::time::Instant::now();
        loop {
            let kept = self.briefs.get(&session).and_then(|briefs| briefs.iter().find(|(e, _)| *e == epoch));
            if let Some((_, fd)) = kept {
                return Ok(Some(fd.try_clone()?));
            }
            if begun.elapsed() > PATIENCE {
                return Ok(None);
            }
            let mut kept = std::mem::take(&mut self.early);
            while let Packet::Some(packet) = self.packet()? {
                kept.push_back(packet);
            }
            self.early = kept;
            let mut fds = [PollFd::new(self.sock.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, PollTimeout::from(LOOK_AGAIN.as_millis() as u16));
        }
    }

    fn attach(&mut self, packet: &ToWorker, fds: Vec<OwnedFd>) -> Result<(), WorkerError> {
        if let ToWorker::Brief { session, epoch } = packet {
            let briefs = self.briefs.entry(*session).or_default();
            briefs.retain(|(e, _)| e != epoch);
            if briefs.len() == KEPT_BRIEFS {
                briefs.remove(0);
            }
            briefs.extend(fds.into_iter().map(|fd| (*epoch, fd)).take(1));
            return Ok(());
        }
        let ToWorker::Attach { session, slab_bytes, lanes, lane_capacity, bell, manifest, stream } = packet else {
            return Ok(());
        };
        let [slab, inbox, rank_bell, manifest_fd] = four(fds)?;
        let lane_number = 1 + usize::from(self.slot);
        if lane_number >= usize::from(*lanes) {
            return Err(WorkerError::Protocol(format!("{lanes} lanes do not reach worker {}", self.slot)));
        }
        let bytes = usize::try_from(*slab_bytes).map_err(io::Error::other)?;
        let lane_bytes = ring_bytes(*lane_capacity);
        let inbox = Arc::new(Segment::open(inbox, usize::from(*lanes) * lane_bytes).map_err(io::Error::other)?);
        let attached = Attached {
            manifest: Manifest::from_fd(manifest_fd, Path::new(manifest)).map_err(io::Error::other)?,
            options: (**stream).clone(),
            slab: Slab::open(slab, bytes).map_err(io::Error::other)?,
            // A worker that died in this slot may have used the lane before.
            lane: RefCell::new(
                Producer::resume(inbox, lane_number * lane_bytes, *lane_capacity).map_err(io::Error::other)?,
            ),
            ringer: Ringer::new(self.hints.clone(), usize::from(*bell), rank_bell.into())
                .map_err(io::Error::other)?,
            lane_number,
        };
        // The predecessor may have died between a message and its bell.
        attached.ringer.ring_anyway(lane_number);
        self.sessions.insert(*session, Rc::new(attached));
        crate::crash::point("attached");
        Ok(())
    }

    /// A session's slab and lane.
    pub(crate) fn attached(&self, session: u16) -> Option<Rc<Attached>> {
        self.sessions.get(&session).cloned()
    }

    /// The sessions that are attached.
    #[allow(dead_code, reason = "for the built-in worker")]
    pub(crate) fn sessions(&self) -> impl Iterator<Item = &Rc<Attached>> {
        self.sessions.values()
    }

    /// Lets go of a session's slab and lane.
    pub(crate) fn detach(&mut self, session: u16) {
        self.sessions.remove(&session);
        self.briefs.remove(&session);
    }

    /// The next ticket, unchecked.
    pub(crate) fn next_ticket(&mut self) -> Result<Option<Words>, WorkerError> {
        self.tickets.pop().map_err(|e| WorkerError::Protocol(e.to_string()))
    }

    /// Publishes the end of a ticket. The ring has room for every ticket that a worker may hold.
    pub(crate) fn tell(&mut self, news: &impl Body) -> Result<(), WorkerError> {
        while let Err(e) = self.done.push(&news.words()) {
            use crate::ring::spsc::PushError;
            match e {
                // The daemon is stopped or busy; it will take them.
                PushError::Full => std::thread::sleep(LOOK_AGAIN / 100),
                PushError::Corrupt(e) => return Err(WorkerError::Protocol(e.to_string())),
            }
        }
        self.ringer.ring(usize::from(self.slot));
        Ok(())
    }
}

fn parse(bytes: &[u8]) -> Result<ToWorker, WorkerError> {
    serde_json::from_slice(bytes).map_err(|e| WorkerError::Protocol(e.to_string()))
}

fn four(fds: Vec<OwnedFd>) -> Result<[OwnedFd; 4], WorkerError> {
    fds.try_into().map_err(|fds: Vec<_>| WorkerError::Protocol(format!("{} descriptors, not 4", fds.len())))
}

fn nonblocking(sock: &OwnedFd) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(sock, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Sends a packet, waiting for room.
fn send(sock: BorrowedFd<'_>, packet: &FromWorker) -> Result<(), WorkerError> {
    let bytes = serde_json::to_vec(packet).map_err(io::Error::other)?;
    loop {
        match send_packet(sock, &bytes, &[]) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(sock, PollFlags::POLLOUT)];
                let _ = poll(&mut fds, PollTimeout::NONE);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
}
