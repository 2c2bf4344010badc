//! epoll with names: which event source is which.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// What woke the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// A new connection waits.
    Listener,
    /// A signal arrived.
    Signals,
    /// A connection that has not said yet who it is.
    Stranger(u64),
    /// The doorbell of a job.
    Bell(u32),
    /// A rank's socket: job, session, and the session's serial number.
    Rank(u32, u16, u32),
    /// A rank's pidfd: job, session, and the session's serial number.
    RankDeath(u32, u16, u32),
    /// A worker's socket: job, slot and generation.
    Worker(u32, u16, u32),
    /// A worker's pidfd: job, slot and generation.
    WorkerDeath(u32, u16, u32),
}

/// The sources that are watched. A descriptor must be dropped from here before it is closed.
#[derive(Debug)]
pub struct Poller {
    epoll: Epoll,
    names: HashMap<u64, Source>,
    /// Number of each source, and whether it is watched for room to send too.
    numbers: HashMap<Source, (u64, bool)>,
    next: u64,
}

impl Poller {
    /// An empty set.
    pub fn new() -> io::Result<Poller> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Poller { epoll, names: HashMap::new(), numbers: HashMap::new(), next: 0 })
    }

    /// Watches a descriptor for news.
    pub fn add(&mut self, fd: BorrowedFd<'_>, source: Source) -> io::Result<()> {
        self.next += 1;
        self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, self.next))?;
        self.names.insert(self.next, source);
        self.numbers.insert(source, (self.next, false));
        Ok(())
    }

    /// Whether to be woken when the descriptor takes output again, too.
    pub fn watch_output(&mut self, fd: BorrowedFd<'_>, source: Source, output: bool) {
        let Some((number, watched)) = self.numbers.get_mut(&source) else { return };
        if *watched == output {
            return;
        }
        *watched = output;
        let number = *number;
        let flags = if output { EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
        if let Err(e) = self.epoll.modify(fd.as_fd(), &mut EpollEvent::new(flags, number)) {
            tracing::warn!("cannot watch {source:?} for room to send: {e}");
        }
    }

    /// Stops watching.
    pub fn remove(&mut self, fd: BorrowedFd<'_>, source: Source) {
        if let Some((number, _)) = self.numbers.remove(&source) {
            self.names.remove(&number);
            // Fails only for a descriptor that was never added, which `numbers` excludes.
            let _ = self.epoll.delete(fd);
        }
    }

    /// Waits until something happens or the time is over (`None`: for ever); what happened goes to `woken`.
    pub fn wait(&mut self, timeout_ms: Option<u16>, woken: &mut Vec<Source>) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); 64];
        let timeout = timeout_ms.map_or(EpollTimeout::NONE, EpollTimeout::from);
        let n = match self.epoll.wait(&mut events, timeout) {
            Ok(n) => n,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(e) => return Err(e.into()),
        };
        woken.clear();
        woken.extend(events[..n].iter().filter_map(|event| self.names.get(&event.data()).copied()));
        Ok(())
    }
}
