//! What the user's thread and the collector share: one lock around the table, the queue of finished batches and the
//! wish of the user.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use nix::sys::socket::{Shutdown, shutdown};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::batch::Batch;
use super::error::LoaderError;
use super::handed::Slabs;
use super::ledger::Ledger;
use super::options::{Options, State};
use super::session::Socket;
use super::store::Store;
use super::table::{Rules, Table};
use crate::manifest::Manifest;
use crate::proto::options::Rebalance;
use crate::proto::session::{BadSample, FromRank, Given};
use crate::ring::bell::EventFd;

/// Bad samples that are kept with their reasons; all are counted.
const BAD_KEPT: usize = 1000;

/// What does not change in the life of a loader.
pub(super) struct Setup {
    pub(super) options: Options,
    pub(super) job: String,
    pub(super) path: PathBuf,
    pub(super) manifest: Arc<Manifest>,
    pub(super) store: Arc<Store>,
    /// The shape of every sample, if the transform fixes it.
    pub(super) fixed: Option<[u16; 4]>,
    /// What makes tokens of captions.
    pub(super) encode: Option<super::tokens::Encode>,
}

impl Setup {
    pub(super) fn rules(&self, session: u16) -> Rules {
        let stream = &self.options.stream;
        let (manifest, transform) = (Arc::clone(&self.manifest), stream.transform.clone());
        let fixed = self.fixed;
        Rules {
            session,
            rank: self.options.rank,
            slab_bytes: self.store.slab.len() as u64,
            rows: self.manifest.len(),
            world: stream.world,
            batch_size: stream.largest_batch(),
            global_batch: stream.global_batch(),
            transform: Arc::new(stream.transform.clone()),
            rebalance: stream.rebalance != Rebalance::Off,
            may_skip: stream.on_error == crate::proto::options::OnError::Skip,
            may_replace: stream.on_error == crate::proto::options::OnError::Substitute,
            shape: Arc::new(move |row| fixed.unwrap_or_else(|| transform.shape(&manifest.facts(row)))),
        }
    }
}

pub(super) struct Shared {
    core: Mutex<Core>,
    /// Something for `next()` to look at.
    pub(super) ready: Condvar,
    pub(super) ledger: Arc<Ledger>,
    pub(super) setup: Setup,
    /// Wakes the collector.
    pub(super) wake: EventFd,
    leaving: AtomicBool,
}

/// What the lock guards. Lock order: this, then the ledger's.
#[derive(Default)]
pub(super) struct Core {
    /// While there is a daemon.
    pub(super) link: Option<Link>,
    /// Finished batches in step order.
    pub(super) queue: VecDeque<Batch>,
    /// Counts iterations over all daemons: a batch that was finished for an earlier one is not queued.
    pub(super) serial: u64,
    /// The next batch to be queued, while an iteration is under way.
    pub(super) wanted: Option<State>,
    /// What decides the iteration's epoch in place of the stream's own order.
    pub(super) given: Option<(Given, OwnedFd)>,
    /// The iteration has no more batches than those queued.
    pub(super) over: bool,
    pub(super) error: Option<LoaderError>,
    pub(super) bad: Vec<BadSample>,
    pub(super) bad_count: u64,
    pub(super) restarts: u32,
    /// The slabs of other ranks, as far as they were passed on.
    pub(super) slabs: Slabs,
    pub(super) daemon: i32,
}

/// One session, as far as both threads use it.
pub(super) struct Link {
    pub(super) table: Table,
    pub(super) socket: Arc<Socket>,
    pub(super) iter: u32,
}

impl Shared {
    pub(super) fn new(setup: Setup, ledger: Arc<Ledger>, wake: EventFd) -> Self {
        let (core, ready, leaving) = (Mutex::default(), Condvar::new(), AtomicBool::new(false));
        Shared { core, ready, ledger, setup, wake, leaving }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the collector to end in good order.
    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        self.wake.signal();
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// The session is over; whoever waits or asks later gets this error. Finished batches are let go: a trainer
    /// that took them would wait for ranks that do not.
    pub(super) fn fail(&self, error: LoaderError) {
        self.ledger.down();
        let mut core = self.lock();
        core.link = None;
        core.queue.clear();
        core.error.get_or_insert(error);
        self.ready.notify_all();
    }

    /// Begins an iteration for the user.
    pub(super) fn start(&self, at: State, given: Option<(Given, OwnedFd)>) -> Result<(), LoaderError> {
        let mut core = self.lock();
        if let Some(error) = &core.error {
            return Err(error.clone());
        }
        core.serial += 1;
        core.queue.clear();
        core.wanted = Some(at);
        core.given = given;
        core.over = false;
        core.send_start();
        Ok(())
    }
}

impl Core {
    /// Tells the daemon, if there is one, what is wanted next. If there is none the collector does so later.
    pub(super) fn send_start(&mut self) {
        let (Some(link), Some(State { epoch, step })) = (&mut self.link, self.wanted) else { return };
        link.iter += 1;
        let iter = link.iter;
        link.table.start(iter, epoch, step);
        crate::crash::point("start.unsaid");
        let given = self.given.as_ref().map(|(given, _)| *given);
        let fds: Vec<_> = self.given.iter().map(|(_, fd)| fd.as_fd()).collect();
        if let Err(e) = link.socket.send(&FromRank::Start { iter, epoch, step, given }, &fds) {
            tracing::debug!("the daemon does not take `start`: {e}");
            // Then the collector sees the end of file and finds another daemon.
            let _ = shutdown(link.socket.fd().as_raw_fd(), Shutdown::Both);
        }
    }

    pub(super) fn note_bad(&mut self, bad: BadSample) {
        self.bad_count += 1;
        if self.bad.len() < BAD_KEPT {
            self.bad.push(bad);
        }
    }

    /// What the next batch waits for, in words.
    pub(super) fn missing(&self, manifest: &Manifest) -> String {
        let Some(link) = &self.link else { return "the daemon is gone and is being replaced".into() };
        match link.table.missing() {
            None => "the daemon has not granted this batch yet: a rank that has not started, or held batches".into(),
            Some((step, samples)) if samples.is_empty() => format!(
                "step {step} is complete here, and waits for the samples of other ranks, by which it is balanced once more"
            ),
            Some((step, samples)) => {
                let first = samples.first().filter(|row| **row < manifest.len());
                let path = first.map_or("", |row| manifest.descriptor(*row).path);
                format!("step {step} lacks samples {samples:?}, the first of them {path}")
            }
        }
    }
}
