//! Asks a running daemon what it is doing.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::proto;
use crate::proto::session::{FromTool, ToTool};
use crate::ring::fds::{recv_packet, send_packet};

/// Largest answer: what a Unix socket takes in one packet by default.
const MAX_STATUS: usize = 200 * 1024;
/// How long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The state of the daemon that listens at `path`, as far as this user may see it: jobs, sessions with their slabs,
/// workers with what they decode, and counters. An error says why nobody answers.
pub fn status(path: &Path) -> io::Result<serde_json::Value> {
    let sock = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    connect(sock.as_raw_fd(), &UnixAddr::new(path)?)?;
    let question = serde_json::to_vec(&FromTool::Status { version: proto::VERSION })?;
    send_packet(sock.as_fd(), &question, &[])?;
    let mut fds = [PollFd::new(sock.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, PollTimeout::from(PATIENCE.as_millis() as u16))? == 0 {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the daemon does not answer"));
    }
    let mut buf = Vec::new();
    let (len, _) = recv_packet(sock.as_fd(), &mut buf, MAX_STATUS, 0)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon hung up"))?;
    let ToTool::Status { status } = serde_json::from_slice(&buf[..len])?;
    Ok(status)
}
