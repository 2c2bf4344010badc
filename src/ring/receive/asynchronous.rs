//! The bell under tokio: a task sleeps, its thread does not.
//!
//! Registering with the runtime's epoll is edge-triggered, and every write to an eventfd is an edge, also when it is
//! readable already. A wake-up that we need is written after our `park`, so after whatever an earlier wait cleared:
//! its edge is still to come, or remembered. Others make a wait return early, which every caller bears.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    task::coop,
    time,
};

use super::{Broken, Lanes};
use crate::ring::{
    bell::{RELOOK, Sleeper},
    spsc::{Consumer, Words},
};

/// A [`Sleeper`] whose sleep is a task's.
pub struct AsyncSleeper {
    sleeper: Sleeper,
    /// A descriptor of our own for the same bell, since registering takes one.
    fd: AsyncFd<OwnedFd>,
}

/// Ends a sleep however it ends, also when the future is dropped.
struct Parked<'a>(&'a Sleeper);

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

impl AsyncSleeper {
    /// Registers the bell with the runtime that we are in.
    ///
    /// # Panics
    /// Outside a tokio runtime that has its I/O and time drivers enabled.
    pub fn new(sleeper: Sleeper) -> io::Result<AsyncSleeper> {
        let fd = sleeper.fd().as_fd().try_clone_to_owned()?;
        // SAFETY: the descriptor is open, ours alone, and closed only with the `AsyncFd` that owns it.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(AsyncSleeper { sleeper, fd: registered.map_err(|error| error.into_parts().1)? })
    }

    /// What tells which lanes have news.
    pub fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }

    /// Waits for news, for [`RELOOK`] and `timeout` at most. Returns whether there is news; either way look at every
    /// ring once [`RELOOK`] has passed. May be dropped at any moment: nothing is lost.
    pub async fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        if self.sleeper.park() {
            let parked = Parked(&self.sleeper);
            let rung = time::timeout(timeout.min(RELOOK), self.fd.readable()).await;
            if let Ok(ready) = rung {
                // Only the readiness that we saw is cleared: an edge that came since is remembered.
                ready?.clear_ready();
            }
            drop(parked);
        }
        Ok(self.sleeper.has_news())
    }
}

/// Why an asynchronous receive ended.
#[derive(Debug, thiserror::Error)]
pub enum AsyncError {
    /// A lane was given up; the next receive goes on with the others.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The runtime is shutting down.
    #[error("the runtime no longer waits for the bell: {0}")]
    Runtime(#[from] io::Error),
}

/// Receives from many lanes in a task.
pub struct AsyncReceiver {
    sleeper: AsyncSleeper,
    lanes: Lanes,
}

impl AsyncReceiver {
    /// As [`super::Receiver::new`], in a tokio runtime.
    ///
    /// # Panics
    /// If a lane is not below [`super::LANES`], or has two rings; or outside a runtime, see [`AsyncSleeper::new`].
    pub fn new(sleeper: Sleeper, rings: impl IntoIterator<Item = (usize, Consumer)>) -> io::Result<AsyncReceiver> {
        Ok(AsyncReceiver { sleeper: AsyncSleeper::new(sleeper)?, lanes: Lanes::new(rings) })
    }

    /// The next message and its lane, if there is one.
    pub fn try_recv(&mut self) -> Result<Option<(usize, Words)>, Broken> {
        self.lanes.try_recv(self.sleeper.sleeper())
    }

    /// The next message and its lane. May be dropped at any moment: no message is lost. A task that always finds one
    /// still lets others run, as every I/O of tokio's does.
    pub async fn recv(&mut self) -> Result<(usize, Words), AsyncError> {
        coop::consume_budget().await;
        loop {
            if let Some(message) = self.try_recv()? {
                return Ok(message);
            }
            if self.lanes.cool(self.sleeper.sleeper()) {
                self.sleeper.wait(RELOOK).await?;
            }
        }
    }
}
