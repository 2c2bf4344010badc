//! One session with one daemon: the handshake on the socket, and the shared memory that comes with it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use super::ledger::Outlet;
use crate::proto::VERSION;
use crate::proto::message::Words;
use crate::proto::session::{FromRank, Join, MAX_FDS, MAX_PACKET, MAX_SESSIONS, MAX_WORKERS, Opened, ToRank};
use crate::ring::bell::{EventFd, Ringer, Sleeper, hints_bytes};
use crate::ring::fds::{recv_packet, send_packet};
use crate::ring::segment::Segment;
use crate::ring::spsc::{Consumer, Corrupt, Producer, PushError, ring_bytes};

/// How long a daemon may take to answer a Join: it opens the manifest and may be busy with other ranks.
const ANSWER: Duration = Duration::from_secs(30);
/// How often a waiting thread looks whether it is still wanted.
const GLANCE: Duration = Duration::from_millis(20);
/// The daemon's lanes of its own hints that belong to sessions start here.
const SESSION_LANES: u16 = MAX_WORKERS;
/// A daemon's lane and one a worker.
const MAX_LANES: u16 = 1 + MAX_WORKERS;

/// Why a session did not come about.
#[derive(Debug, thiserror::Error)]
pub(super) enum JoinError {
    /// The daemon ended in the middle; another may be there.
    #[error("the daemon went away while rank {0} joined")]
    Gone(u32),
    /// It said no.
    #[error("{0}")]
    Refused(String),
    /// It said what nobody may say here.
    #[error("{0}")]
    Protocol(String),
    /// The system refused.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// The socket to the daemon. Any thread sends; one receives.
pub(super) struct Socket {
    fd: OwnedFd,
}

/// What came on the socket.
pub(super) enum Packet {
    /// A packet with its descriptors.
    Said(Box<ToRank>, Vec<OwnedFd>),
    /// The other side is gone.
    End,
}

impl Socket {
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        // Packets from here are few and small. A daemon that reads none for this long is as good as dead.
        setsockopt(&fd, sockopt::SendTimeout, &TimeVal::seconds(5))?;
        Ok(Socket { fd })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn send(&self, packet: &FromRank, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(packet)?;
        if bytes.len() > MAX_PACKET {
            let what = format!("a packet of {} bytes is longer than {MAX_PACKET}: use shorter paths", bytes.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        send_packet(self.fd(), &bytes, fds)
    }

    /// Takes the packet that poll announced. The error is a violation, in words.
    pub(super) fn receive(&self) -> Result<Packet, String> {
        let mut bytes = Vec::new();
        match recv_packet(self.fd(), &mut bytes, MAX_PACKET, MAX_FDS) {
            Ok(Some((len, fds))) => {
                let packet = serde_json::from_slice(&bytes[..len]);
                let packet = packet.map_err(|e| format!("a packet that is not one of this version: {e}"))?;
                Ok(Packet::Said(Box::new(packet), fds))
            }
            Ok(None) => Ok(Packet::End),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(e.to_string()),
            // A reset is how a socket ends when packets of ours lay unread in it.
            Err(_) => Ok(Packet::End),
        }
    }

    /// Waits until a packet can be received; `false` when the time is over.
    pub(super) fn readable(&self, limit: Duration) -> io::Result<bool> {
        let begun = Instant::now();
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.fd(), PollFlags::POLLIN)], timeout) {
                Ok(n) if n > 0 => return Ok(true),
                Ok(_) if left.is_zero() => return Ok(false),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// What the daemon handed over, checked and mapped.
pub(super) struct Session {
    pub(super) socket: Arc<Socket>,
    pub(super) opened: Opened,
    pub(super) sleeper: Sleeper,
    /// Lane 0 is the daemon's, lane 1 + w worker w's.
    pub(super) lanes: Vec<Consumer>,
    /// Ends when no writer of this daemon's generation is left.
    pub(super) lifeline: OwnedFd,
}

/// The feedback ring and the daemon's bell.
struct Feedback {
    ring: Producer,
    ringer: Ringer,
    lane: usize,
}

impl Outlet for Feedback {
    fn push(&mut self, words: &Words) -> Result<bool, Corrupt> {
        match self.ring.push(words) {
            Ok(()) => {
                self.ringer.ring(self.lane);
                Ok(true)
            }
            Err(PushError::Full) => Ok(false),
            Err(PushError::Corrupt(corrupt)) => Err(corrupt),
        }
    }
}

/// Joins over a fresh connection, with the descriptors that a Join carries. Returns the session, and where feedback goes.
pub(super) fn join(
    socket: OwnedFd,
    join: Join,
    fds: &[BorrowedFd<'_>],
    cancelled: &dyn Fn() -> bool,
) -> Result<(Session, Box<dyn Outlet>), JoinError> {
    let rank = join.rank;
    // Whoever listens gets the slab and the manifest: it must be this user's daemon, or root's.
    let peer = getsockopt(&socket, sockopt::PeerCredentials).map_err(io::Error::from)?;
    let own = nix::unistd::geteuid().as_raw();
    if peer.uid() != own && peer.uid() != 0 {
        let what = format!(
            "user {} listens at the daemon's socket, not user {own} or root: choose another socket",
            peer.uid()
        );
        return Err(JoinError::Protocol(what));
    }
    let socket = Socket::new(socket)?;
    if let Err(e) = socket.send(&FromRank::Join(Box::new(join)), fds) {
        return Err(if e.kind() == io::ErrorKind::InvalidInput { e.into() } else { JoinError::Gone(rank) });
    }
    let begun = Instant::now();
    loop {
        if !socket.readable(GLANCE)? {
            if cancelled() {
                return Err(JoinError::Gone(rank));
            }
            if begun.elapsed() > ANSWER {
                return Err(JoinError::Protocol(format!("no answer within {ANSWER:?}")));
            }
            continue;
        }
        match socket.receive().map_err(JoinError::Protocol)? {
            Packet::End => return Err(JoinError::Gone(rank)),
            Packet::Said(packet, fds) => match *packet {
                ToRank::Opened(opened) => return open(socket, opened, fds).map_err(JoinError::Protocol),
                ToRank::Failed { reason, .. } => return Err(JoinError::Refused(reason)),
                ToRank::Notice { text } => tracing::warn!("helix-shmd: {text}"),
                other => return Err(JoinError::Protocol(format!("{other:?} in answer to Join"))),
            },
        }
    }
}

/// Checks and maps what came with Opened. The error says what is wrong with it.
fn open(socket: Socket, opened: Opened, fds: Vec<OwnedFd>) -> Result<(Session, Box<dyn Outlet>), String> {
    if opened.version != VERSION {
        return Err(format!("it speaks version {}, and this is version {VERSION}", opened.version));
    }
    if opened.session >= MAX_SESSIONS {
        return Err(format!("session {} of at most {MAX_SESSIONS}", opened.session));
    }
    if !(1..=MAX_LANES).contains(&opened.lanes) {
        return Err(format!("{} lanes; wanted 1 to {MAX_LANES}", opened.lanes));
    }
    let found = fds.len();
    let [inbox, hints, own_bell, daemon_bell, lifeline] =
        <[OwnedFd; 5]>::try_from(fds).map_err(|_| format!("Opened with {found} descriptors; wanted 5"))?;
    let lane_bytes = ring_bytes(opened.lane_capacity);
    let feedback_at = usize::from(opened.lanes) * lane_bytes;
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let bytes = feedback_at + ring_bytes(opened.feedback_capacity);
    let inbox = Arc::new(Segment::open(inbox, bytes).map_err(|e| text(&e))?);
    let entries = usize::from(opened.bell) + 1;
    let hints = Arc::new(Segment::open(hints, hints_bytes(entries)).map_err(|e| text(&e))?);
    let lanes = (0..usize::from(opened.lanes))
        .map(|lane| Consumer::new(Arc::clone(&inbox), lane * lane_bytes, opened.lane_capacity))
        .collect::<Result<_, _>>()
        .map_err(|e| text(&e))?;
    let own_bell = EventFd::from(own_bell);
    let sleeper = Sleeper::new(Arc::clone(&hints), opened.bell.into(), own_bell).map_err(|e| text(&e))?;
    let feedback = Feedback {
        ring: Producer::fresh(inbox, feedback_at, opened.feedback_capacity).map_err(|e| text(&e))?,
        ringer: Ringer::new(hints, 0, daemon_bell.into()).map_err(|e| text(&e))?,
        lane: usize::from(SESSION_LANES + opened.session),
    };
    let socket = Arc::new(socket);
    Ok((Session { socket, opened, sleeper, lanes, lifeline }, Box::new(feedback)))
}

/// Waits for the end of a generation's lifeline; `false` when the time is over or `cancelled` says so.
pub(super) fn generation_ended(
    lifeline: BorrowedFd<'_>,
    limit: Duration,
    cancelled: &dyn Fn() -> bool,
) -> io::Result<bool> {
    let begun = Instant::now();
    loop {
        // POLLHUP comes unasked when no writer is left. Bytes in the pipe mean nothing.
        let mut fds = [PollFd::new(lifeline, PollFlags::empty())];
        match poll(&mut fds, PollTimeout::try_from(GLANCE).unwrap_or(PollTimeout::ZERO)) {
            Ok(n) if n > 0 => return Ok(true),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if begun.elapsed() >= limit || cancelled() {
            return Ok(false);
        }
    }
}
