//! One connection of the Unix socket: packets in and out, never blocking.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::proto::session::{MAX_FDS, MAX_PACKET};
use crate::ring::fds::{recv_packet, send_packet};

/// Packets that may wait for a peer that does not read; one that lets more pile up has lost its session.
const MAX_BACKLOG: usize = 4096;

/// Who is at the other end, by the kernel's word (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Process id at connect time.
    pub pid: i32,
    /// User id.
    pub uid: u32,
}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum Gone {
    /// The peer closed it, or died.
    #[error("end of file")]
    End,
    /// The socket failed.
    #[error("socket: {0}")]
    Io(#[from] io::Error),
    /// A packet that does not belong here.
    #[error("not a packet of this protocol: {0}")]
    Packet(#[from] serde_json::Error),
    /// The peer does not read what is sent to it.
    #[error("the peer left {MAX_BACKLOG} packets unread")]
    Backlog,
}

/// A connected, non-blocking socket with what waits to be sent on it.
#[derive(Debug)]
pub struct Conn {
    sock: OwnedFd,
    peer: Peer,
    backlog: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    buf: Vec<u8>,
    broken: bool,
}

impl Conn {
    /// Takes over an accepted socket.
    pub fn new(sock: OwnedFd) -> io::Result<Conn> {
        let cred = nix::sys::socket::getsockopt(&sock, nix::sys::socket::sockopt::PeerCredentials)?;
        let peer = Peer { pid: cred.pid(), uid: cred.uid() };
        Ok(Conn { sock, peer, backlog: VecDeque::new(), buf: Vec::new(), broken: false })
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// The socket, to be watched.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.sock.as_fd()
    }

    /// Whether something could not be sent and never will be: the peer is gone, or does not read.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether packets wait for room in the socket.
    pub fn is_blocked(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Sends a packet, or queues it behind those that wait, with descriptors of its own.
    /// What fails here is remembered: see [`Conn::is_broken`].
    pub fn send(&mut self, packet: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<(), Gone> {
        let sent = self.try_send_or_queue(packet, fds);
        self.broken |= sent.is_err();
        sent
    }

    fn try_send_or_queue(&mut self, packet: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<(), Gone> {
        let bytes = serde_json::to_vec(packet)?;
        if self.backlog.len() >= MAX_BACKLOG {
            return Err(Gone::Backlog);
        }
        self.flush()?;
        if self.backlog.is_empty() && try_send(&self.sock, &bytes, fds)? {
            return Ok(());
        }
        let fds = fds.iter().map(|fd| fd.try_clone_to_owned()).collect::<io::Result<_>>()?;
        self.backlog.push_back((bytes, fds));
        Ok(())
    }

    /// Sends what waits, as far as the socket takes it.
    pub fn flush(&mut self) -> Result<(), Gone> {
        while let Some((bytes, fds)) = self.backlog.front() {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            if !try_send(&self.sock, bytes, &fds)? {
                break;
            }
            self.backlog.pop_front();
        }
        Ok(())
    }

    /// The next packet, if one is there.
    pub fn recv<T: DeserializeOwned>(&mut self) -> Result<Option<(T, Vec<OwnedFd>)>, Gone> {
        loop {
            match recv_packet(self.sock.as_fd(), &mut self.buf, MAX_PACKET, MAX_FDS) {
                Ok(None) => return Err(Gone::End),
                Ok(Some((len, fds))) => return Ok(Some((serde_json::from_slice(&self.buf[..len])?, fds))),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// `false` when the socket has no room.
fn try_send(sock: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<bool, Gone> {
    loop {
        match send_packet(sock.as_fd(), bytes, fds) {
            Ok(()) => return Ok(true),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            // Too many descriptors of this user are on their way; they will be received.
            Err(e) if e.raw_os_error() == Some(libc::ETOOMANYREFS) => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
}
