//! What the two processes share: one segment, two slabs, and descriptors, all inherited by the child.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use helix_shm::ring::bell::hints_bytes;
use helix_shm::ring::segment::Segment;
use helix_shm::ring::slab::{Slab, SlabOptions};
use helix_shm::ring::spsc::ring_bytes;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::pipe2;

/// Messages that every queue in the comparison holds.
pub const CAPACITY: u32 = 256;
/// Regions of a slab, as many as messages can be under way.
pub const REGIONS: usize = CAPACITY as usize;
/// Bytes of a region.
pub const REGION: usize = 128;

const RINGS: usize = 12;
const HINTS: usize = 6;
const RINGS_AT: usize = 4096;

/// Offset of ring `i`.
pub const fn ring_at(i: usize) -> usize {
    RINGS_AT + i * ring_bytes(CAPACITY)
}

/// Words of the segment, each on 128 bytes of its own.
pub mod word {
    /// The line that the floor's ping-pong goes over.
    pub const FLOOR: usize = 0;
    /// The lines of the ping-pong in which each side writes a line of its own: there, and back.
    pub const LANES: [usize; 2] = [512, 640];
    /// Messages that the consumer has taken in this burst.
    pub const TAKEN: usize = 128;
    /// The flag of the least that publishing could cost.
    pub const FLAG: usize = 256;
    /// The word beside it, which says whether anybody sleeps.
    pub const PARKED: usize = 384;
}

/// The descriptors, in the order in which the child is told them.
#[derive(Clone, Copy)]
enum Fd {
    Words,
    Hints,
    SlabA,
    SlabB,
    BellA,
    BellB,
    PublishBell,
    RawA,
    RawB,
    PollPipeToB,
    PollPipeFromA,
    PollPipeToA,
    PollPipeFromB,
    WakePipeToB,
    WakePipeFromA,
    WakePipeToA,
    WakePipeFromB,
    PollDatagramA,
    PollDatagramB,
    WakeDatagramA,
    WakeDatagramB,
    Control,
}

const FDS: usize = Fd::Control as usize + 1;

/// Which of the two one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that measures.
    A,
    /// The one that answers.
    B,
}

/// Everything shared, as seen by one of the two.
pub struct Shared {
    /// Rings and words.
    pub words: Arc<Segment>,
    /// Parked flags and bitmaps.
    pub hints: Arc<Segment>,
    /// The slab that we allocate in, and the one that the other does.
    pub slabs: [Arc<Slab>; 2],
    fds: [OwnedFd; FDS],
    side: Side,
}

impl Shared {
    /// For the parent; with the numbers that the child will find its descriptors under.
    pub fn create() -> std::io::Result<(Shared, Vec<RawFd>, OwnedFd)> {
        let words = Segment::create("words", ring_at(RINGS)).map_err(std::io::Error::other)?;
        let hints = Segment::create("hints", hints_bytes(HINTS)).map_err(std::io::Error::other)?;
        let slab = || {
            let options = SlabOptions { prefault: true, huge: false, node: None };
            Slab::create("slab", REGIONS * REGION, options).map_err(std::io::Error::other)
        };
        let (slab_a, slab_b) = (slab()?, slab()?);
        let dup = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
        let event = |flags| EventFd::from_value_and_flags(0, flags | EfdFlags::EFD_CLOEXEC).map(OwnedFd::from);
        let poll_pipe = || pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK);
        let wake_pipe = || pipe2(OFlag::O_CLOEXEC);
        let datagrams =
            |flags| socketpair(AddressFamily::Unix, SockType::Datagram, None, flags | SockFlag::SOCK_CLOEXEC);
        let (poll_from_a, poll_to_b) = poll_pipe()?;
        let (poll_from_b, poll_to_a) = poll_pipe()?;
        let (wake_from_a, wake_to_b) = wake_pipe()?;
        let (wake_from_b, wake_to_a) = wake_pipe()?;
        let (poll_datagram_a, poll_datagram_b) = datagrams(SockFlag::SOCK_NONBLOCK)?;
        let (wake_datagram_a, wake_datagram_b) = datagrams(SockFlag::empty())?;
        let (control, theirs) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        let fds = [
            dup(words.fd().ok_or(std::io::ErrorKind::NotFound)?)?,
            dup(hints.fd().ok_or(std::io::ErrorKind::NotFound)?)?,
            dup(slab_a.fd().ok_or(std::io::ErrorKind::NotFound)?)?,
            dup(slab_b.fd().ok_or(std::io::ErrorKind::NotFound)?)?,
            event(EfdFlags::EFD_NONBLOCK)?,
            event(EfdFlags::EFD_NONBLOCK)?,
            event(EfdFlags::EFD_NONBLOCK)?,
            event(EfdFlags::empty())?,
            event(EfdFlags::empty())?,
            poll_to_b,
            poll_from_a,
            poll_to_a,
            poll_from_b,
            wake_to_b,
            wake_from_a,
            wake_to_a,
            wake_from_b,
            poll_datagram_a,
            poll_datagram_b,
            wake_datagram_a,
            wake_datagram_b,
            theirs,
        ];
        for fd in &fds {
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        let numbers = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let shared = Shared {
            words: Arc::new(words),
            hints: Arc::new(hints),
            slabs: [slab_a.into(), slab_b.into()],
            fds,
            side: Side::A,
        };
        Ok((shared, numbers, control))
    }

    /// For the child, from the numbers that [`Shared::create`] gave.
    pub fn inherit(numbers: &[RawFd]) -> std::io::Result<Shared> {
        let wrong = || std::io::Error::other(format!("{} descriptors were named; wanted {FDS}", numbers.len()));
        let numbers: [RawFd; FDS] = numbers.try_into().map_err(|_| wrong())?;
        // SAFETY: the parent made these descriptors for us and left them open across our exec; nobody else here
        // knows of them, and this runs once.
        let fds = numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) });
        let dup = |fd: Fd| fds[fd as usize].try_clone();
        let segment = |fd, bytes| Segment::open(dup(fd)?, bytes).map(Arc::new).map_err(std::io::Error::other);
        let slab = |fd| Slab::open(dup(fd)?, REGIONS * REGION).map_err(std::io::Error::other);
        Ok(Shared {
            words: segment(Fd::Words, ring_at(RINGS))?,
            hints: segment(Fd::Hints, hints_bytes(HINTS))?,
            slabs: [slab(Fd::SlabB)?.into(), slab(Fd::SlabA)?.into()],
            fds,
            side: Side::B,
        })
    }

    /// Which of the two we are.
    pub fn side(&self) -> Side {
        self.side
    }

    fn of(&self, a: Fd, b: Fd) -> std::io::Result<OwnedFd> {
        self.fds[if self.side == Side::A { a } else { b } as usize].as_fd().try_clone_to_owned()
    }

    /// (the bell that we sleep on, the other's bell).
    pub fn bells(&self) -> std::io::Result<(OwnedFd, OwnedFd)> {
        Ok((self.of(Fd::BellA, Fd::BellB)?, self.of(Fd::BellB, Fd::BellA)?))
    }

    /// The bell of whoever takes what is published.
    pub fn publish_bell(&self) -> std::io::Result<OwnedFd> {
        self.of(Fd::PublishBell, Fd::PublishBell)
    }

    /// Blocking eventfds (ours, the other's).
    pub fn raw(&self) -> std::io::Result<(OwnedFd, OwnedFd)> {
        Ok((self.of(Fd::RawA, Fd::RawB)?, self.of(Fd::RawB, Fd::RawA)?))
    }

    /// Non-blocking pipe ends (to write, to read).
    pub fn poll_pipe(&self) -> std::io::Result<(OwnedFd, OwnedFd)> {
        Ok((self.of(Fd::PollPipeToB, Fd::PollPipeToA)?, self.of(Fd::PollPipeFromB, Fd::PollPipeFromA)?))
    }

    /// Blocking pipe ends (to write, to read).
    pub fn wake_pipe(&self) -> std::io::Result<(OwnedFd, OwnedFd)> {
        Ok((self.of(Fd::WakePipeToB, Fd::WakePipeToA)?, self.of(Fd::WakePipeFromB, Fd::WakePipeFromA)?))
    }

    /// Our end of a non-blocking pair of datagram sockets.
    pub fn poll_datagram(&self) -> std::io::Result<OwnedFd> {
        self.of(Fd::PollDatagramA, Fd::PollDatagramB)
    }

    /// Our end of a blocking pair of datagram sockets.
    pub fn wake_datagram(&self) -> std::io::Result<OwnedFd> {
        self.of(Fd::WakeDatagramA, Fd::WakeDatagramB)
    }

    /// The child's end of the socket over which it is told what to do.
    pub fn control(&self) -> std::io::Result<OwnedFd> {
        self.fds[Fd::Control as usize].try_clone()
    }

    /// Closes the child's descriptors in the parent, so that the death of either shows.
    pub fn close_control(mut self) -> std::io::Result<Shared> {
        let null = std::fs::File::open("/dev/null")?;
        self.fds[Fd::Control as usize] = null.into();
        Ok(self)
    }
}
