//! Ways to wake a sleeper. Both sides sleep in the kernel at once, so that what is measured is a wake-up and not a
//! look; nobody spins.

use std::os::fd::OwnedFd;
use std::time::Duration;

use helix_shm::ring::bell::{RELOOK, Ringer, Sleeper};
use nix::unistd;

use crate::ends::iceoryx::Events;
use crate::shared::{Shared, Side};
use crate::windows::{WAKES, Windows};

/// Wakes the other side, and sleeps until the other wakes us.
pub trait Waker {
    /// Wakes the other.
    fn wake(&mut self);
    /// Sleeps until woken.
    fn wait(&mut self);

    /// Wakes and sleeps, `n` times; nanoseconds a wake-up.
    fn ping(&mut self, n: u64) -> f64 {
        let mut windows = Windows::new(n, WAKES);
        for i in 0..n {
            self.wake();
            self.wait();
            windows.done(i);
        }
        windows.median() / 2.0
    }

    /// Sleeps and wakes, `n` times.
    fn echo(&mut self, n: u64) {
        for _ in 0..n {
            self.wait();
            self.wake();
        }
    }
}

/// Blocking descriptors that carry `BYTES` at a time: a bare eventfd (8), a pipe or a datagram socket (1).
pub struct Descriptors<const BYTES: usize> {
    to: OwnedFd,
    from: OwnedFd,
}

impl Descriptors<8> {
    /// An eventfd each.
    pub fn eventfds(shared: &Shared) -> std::io::Result<Self> {
        let (from, to) = shared.raw()?;
        Ok(Descriptors { to, from })
    }
}

impl Descriptors<1> {
    /// A pipe in each direction.
    pub fn pipes(shared: &Shared) -> std::io::Result<Self> {
        let (to, from) = shared.wake_pipe()?;
        Ok(Descriptors { to, from })
    }

    /// A pair of datagram sockets.
    pub fn datagrams(shared: &Shared) -> std::io::Result<Self> {
        Ok(Descriptors { to: shared.wake_datagram()?, from: shared.wake_datagram()? })
    }
}

impl<const BYTES: usize> Waker for Descriptors<BYTES> {
    fn wake(&mut self) {
        let mut one = [0; BYTES];
        one[0] = 1;
        assert_eq!(unistd::write(&self.to, &one), Ok(BYTES));
    }

    fn wait(&mut self) {
        assert_eq!(unistd::read(&self.from, &mut [0; BYTES]), Ok(BYTES));
    }
}

/// Our bell: lane bit, parked flag and eventfd.
pub struct Bell {
    ringer: Ringer,
    sleeper: Sleeper,
}

impl Bell {
    /// Over two entries of the hints that the queues, which may leave a bit set, do not use.
    pub fn new(shared: &Shared) -> std::io::Result<Bell> {
        let (own, other) = shared.bells()?;
        let (own_entry, other_entry) = if shared.side() == Side::A { (4, 5) } else { (5, 4) };
        let ringer = Ringer::new(shared.hints.clone(), other_entry, other.into());
        let sleeper = Sleeper::new(shared.hints.clone(), own_entry, own.into());
        Ok(Bell { ringer: ringer.map_err(std::io::Error::other)?, sleeper: sleeper.map_err(std::io::Error::other)? })
    }
}

impl Waker for Bell {
    fn wake(&mut self) {
        self.ringer.ring(0);
    }

    fn wait(&mut self) {
        let mut woken = false;
        while !woken {
            if self.sleeper.wait(RELOOK, Duration::ZERO) {
                self.sleeper.take(|lane| woken |= lane == 0);
            }
        }
    }
}

impl Waker for Events {
    fn wake(&mut self) {
        self.notify();
    }

    fn wait(&mut self) {
        Events::wait(self);
    }
}
