//! An eventfd that no peer can make us block on.
//!
//! Everyone who was handed the descriptor shares its one file description, and may clear its `O_NONBLOCK`, fill its
//! counter or drain it. So a read carries its own `RWF_NOWAIT`. A write cannot. In a process that must not stand still
//! for a peer the [`Guard`] looks before each write whether the flag is still there, which no honest peer clears, and
//! frees the write whose peer was quicker. Elsewhere a job's own peer can hold a write up: until the sleeper, which
//! empties the counter at every look of its own, has made room.
//! What the counter counts means nothing but: look again.

mod guard;

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll, ppoll},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        eventfd::{EfdFlags, EventFd as NixEventFd},
        time::TimeSpec,
    },
    unistd,
};

pub use guard::Guard;

/// A shared eventfd; cloning it shares the descriptor.
#[derive(Debug, Clone)]
pub struct EventFd {
    fd: Arc<OwnedFd>,
    tampered: Arc<AtomicBool>,
}

impl From<OwnedFd> for EventFd {
    /// One that was made elsewhere and handed over.
    fn from(fd: OwnedFd) -> EventFd {
        EventFd { fd: Arc::new(fd), tampered: Arc::default() }
    }
}

impl EventFd {
    /// A new one: counter 0, non-blocking, closed on exec.
    pub fn new() -> io::Result<EventFd> {
        let fd = NixEventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(OwnedFd::from(fd).into())
    }

    /// The descriptor: readable when rung. For epoll, asyncio, io_uring, and for handing over.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Makes it readable, and wakes whoever waits for that.
    pub fn signal(&self) {
        if guard::here() {
            self.signal_guarded();
        } else {
            self.write();
        }
    }

    fn signal_guarded(&self) {
        let flags = fcntl(&*self.fd, FcntlArg::F_GETFL).map_or(OFlag::O_NONBLOCK, OFlag::from_bits_retain);
        if !flags.contains(OFlag::O_NONBLOCK) && !self.mend(flags) {
            return;
        }
        self.write_watched();
    }

    fn write_watched(&self) {
        if guard::watched(&self.fd, || self.write()) {
            self.tampered.store(true, Ordering::Relaxed);
        }
    }

    /// Makes it non-blocking again; whether there is room to write.
    #[cold]
    fn mend(&self, flags: OFlag) -> bool {
        self.tampered.store(true, Ordering::Relaxed);
        let _ = fcntl(&*self.fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK));
        has_room(&self.fd)
    }

    fn write(&self) {
        // Without room it is readable already; no other error is possible on a live eventfd.
        let _ = unistd::write(&*self.fd, &1u64.to_ne_bytes());
    }

    /// Whether a peer has cleared its `O_NONBLOCK`, or even made a guarded thread of ours wait. That takes intent.
    pub fn tampered(&self) -> bool {
        self.tampered.load(Ordering::Relaxed)
    }

    /// Makes it unreadable, whatever its count was.
    pub fn drain(&self) {
        drain(&self.fd);
    }
}

/// What one sleeper waits with. It is told once of each signal (an epoll of its own, edge-triggered), so that being
/// woken takes one system call: the counter need not be read to be quiet again.
#[derive(Debug)]
pub struct Watch {
    fd: EventFd,
    /// `None` if the process has no descriptor left for it: then two calls do.
    edges: Option<Epoll>,
}

impl Watch {
    /// Of signals that come from now on.
    pub fn new(fd: &EventFd) -> Watch {
        let edges = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).ok().filter(|edges| {
            let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
            edges.add(fd.fd(), event).is_ok()
        });
        Watch { fd: fd.clone(), edges }
    }

    /// epoll counts in milliseconds. A limit below a few of them is worth a second call.
    const FINEST: Duration = Duration::from_millis(10);

    /// Sleeps until there was a signal since the last wait, `timeout` has passed or a signal handler ran.
    pub fn wait(&self, timeout: Duration) {
        match &self.edges {
            Some(edges) if timeout >= Watch::FINEST => {
                if wait_for_edge(edges, timeout) {
                    return;
                }
            }
            _ => wait_for_level(&self.fd, timeout),
        }
        // Also when nobody woke us: a counter that a peer filled lets no signal through.
        self.fd.drain();
    }
}

/// Whether there was one. A limit of less than [`Watch::FINEST`] is not for this clock.
fn wait_for_edge(edges: &Epoll, timeout: Duration) -> bool {
    let limit = EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::MAX);
    edges.wait(&mut [EpollEvent::empty()], limit) == Ok(1)
}

fn wait_for_level(fd: &EventFd, timeout: Duration) {
    let mut news = [PollFd::new(fd.fd(), PollFlags::POLLIN)];
    let _ = ppoll(&mut news, Some(TimeSpec::from_duration(timeout)), None);
}

/// Whether a write would not wait.
fn has_room(fd: &OwnedFd) -> bool {
    let mut room = [PollFd::new(fd.as_fd(), PollFlags::POLLOUT)];
    matches!(poll(&mut room, PollTimeout::ZERO), Ok(1))
}

fn drain(fd: &OwnedFd) {
    let mut count = [0u8; 8];
    let iov = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
    // SAFETY: the one buffer described is ours and lives through the call; offset -1 means "as read does".
    let n = unsafe { libc::preadv2(fd.as_raw_fd(), &iov, 1, -1, libc::RWF_NOWAIT) };
    if n < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EOPNOTSUPP) {
        drain_before_5_8(fd);
    }
}

#[cold]
fn drain_before_5_8(fd: &OwnedFd) {
    let mut news = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    if matches!(poll(&mut news, PollTimeout::ZERO), Ok(1)) {
        let _ = unistd::read(fd, &mut [0u8; 8]);
    }
}

#[cfg(test)]
mod tests;
