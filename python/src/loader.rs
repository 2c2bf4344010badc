//! The rank's stream, for Python.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use helix_shm::proto::order::Order;
use helix_shm::{LoaderError, State};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::Batch;
use crate::config::Config;
use crate::errors::{self, HelixError};
use crate::log;
use crate::meter::Meter;

/// How often a wait looks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// One rank's stream of batches: [`helix_shm::Loader`] behind a lock that is only taken without the GIL.
#[pyclass(frozen, module = "helix_shm._native")]
pub struct Loader {
    inner: Mutex<Option<helix_shm::Loader>>,
    owner: u32,
    /// Largest batches that the slab holds, and how many of them may be kept.
    depth: u32,
    keep: u32,
    /// Batches that Python has on the slab.
    live: Arc<AtomicU32>,
    meter: Mutex<Meter>,
}

impl Loader {
    /// Works with the loader, without the GIL.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut helix_shm::Loader) -> PyResult<T> + Send,
    ) -> PyResult<T> {
        // A fork()ed child's copy of the lock may be held for ever.
        let child = std::process::id();
        if child != self.owner {
            return Err(errors::loader(LoaderError::Forked { owner: self.owner, child }));
        }
        py.detach(|| match &mut *self.lock() {
            Some(loader) => act(loader),
            None => Err(HelixError::new_err("this loader is closed; make another one")),
        })
    }

    fn meter(&self) -> MutexGuard<'_, Meter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Option<helix_shm::Loader>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the next batch goes: it stays on the slab, unless too many are kept there.
    fn home(&self) -> PyResult<Option<Arc<AtomicU32>>> {
        let live = self.live.load(Ordering::Relaxed);
        if live >= self.depth {
            return Err(HelixError::new_err(format!(
                "all {live} batches that the slab holds are still in use, so that no other can come: let go of some \
                 (tensors made of them count), or give the loader a larger `budget`"
            )));
        }
        Ok((live <= self.keep).then(|| Arc::clone(&self.live)))
    }
}

/// An order, from arrays of 32-bit numbers of this machine.
fn made(lens: &[u8], samples: &[u8]) -> PyResult<Order> {
    let words = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|w| u32::from_ne_bytes(*w)).collect();
    Order::new(words(lens), words(samples)).map_err(|e| PyValueError::new_err(e.to_string()))
}

/// Says what waits to be said. Logging that fails is no reason to lose a batch.
fn pass_on(py: Python<'_>) {
    let _ = py.import("helix_shm._log").and_then(|module| module.call_method0("pass_on"));
}

/// Says what waits to be said, and answers whether a signal's handler raised.
fn glance(raised: &mut Option<PyErr>) -> bool {
    Python::attach(|py| {
        if log::has_news() {
            pass_on(py);
        }
        *raised = py.check_signals().err();
        raised.is_some()
    })
}

#[pymethods]
impl Loader {
    /// Makes the slab and joins the job; `config` is JSON.
    #[new]
    fn new(py: Python<'_>, config: &str) -> PyResult<Self> {
        let config: Config = serde_json::from_str(config).map_err(|e| PyValueError::new_err(e.to_string()))?;
        let loader = py.detach(|| config.options().and_then(helix_shm::Loader::connect)).map_err(errors::connect)?;
        let most = config.max_batches();
        let depth = loader.depth().max(2).min(if most > 0 { most.max(2) } else { u32::MAX });
        // One being made and one being delivered need room whatever is kept.
        let keep = config.keep.unwrap_or(depth / 2).min(depth - 2).max(1);
        let inner = Mutex::new(Some(loader));
        Ok(Loader { inner, owner: std::process::id(), depth, keep, live: Arc::default(), meter: Mutex::default() })
    }

    /// Begins an iteration.
    fn start(&self, py: Python<'_>, epoch: u32, step: u32) -> PyResult<()> {
        self.meter().pause();
        self.with(py, |loader| loader.start(epoch, step).map(|_| ()).map_err(errors::loader))
    }

    /// Begins an iteration whose micro-batches a sampler has made: the length of each, and the samples of all, as
    /// arrays of 32-bit numbers of this machine.
    fn start_ordered(&self, py: Python<'_>, epoch: u32, step: u32, lens: &[u8], samples: &[u8]) -> PyResult<()> {
        let order = made(lens, samples)?;
        self.meter().pause();
        self.with(py, |loader| loader.start_ordered(epoch, step, &order).map(|_| ()).map_err(errors::loader))
    }

    /// Begins an iteration that workers of the user's own program make by `brief`.
    fn start_briefed(&self, py: Python<'_>, epoch: u32, step: u32, steps: u32, brief: &[u8]) -> PyResult<()> {
        self.meter().pause();
        self.with(py, |loader| loader.start_briefed(epoch, step, steps, brief).map(|_| ()).map_err(errors::loader))
    }

    /// As `start_briefed`, where each task is a sample: those of an order as `start_ordered` takes it, or without one the
    /// stream's own.
    #[pyo3(signature = (epoch, step, brief, order=None))]
    fn start_samples(
        &self,
        py: Python<'_>,
        epoch: u32,
        step: u32,
        brief: &[u8],
        order: Option<(Vec<u8>, Vec<u8>)>,
    ) -> PyResult<()> {
        let order = order.map(|(lens, samples)| made(&lens, &samples)).transpose()?;
        self.meter().pause();
        self.with(py, |loader| {
            loader.start_samples(epoch, step, order.as_ref(), brief).map(|_| ()).map_err(errors::loader)
        })
    }

    /// The next batch; `None` at the end of the epoch. `limit` is the most samples that it is to have.
    #[pyo3(signature = (limit=None))]
    fn next(&self, py: Python<'_>, limit: Option<usize>) -> PyResult<Option<Batch>> {
        let batch = self.with(py, |loader| {
            let home = self.home()?;
            let mut raised = None;
            let item = loader.next_unless(LOOK, &mut || glance(&mut raised));
            if let Some(error) = raised {
                return Err(error);
            }
            match item.transpose().map_err(errors::loader)? {
                Some(batch) => {
                    let batch = Batch::new(batch, home, limit).map_err(errors::batch)?;
                    self.meter().note(&batch);
                    Ok(Some(batch))
                }
                None => Ok(None),
            }
        });
        if log::has_news() {
            pass_on(py);
        }
        batch
    }

    /// Whether `next` would return at once.
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |loader| Ok(loader.is_ready()))
    }

    /// The next batch's (epoch, step).
    fn state(&self, py: Python<'_>) -> PyResult<(u32, u32)> {
        self.with(py, |loader| {
            let State { epoch, step } = loader.state();
            Ok((epoch, step))
        })
    }

    /// Steps in an epoch.
    fn steps(&self, py: Python<'_>) -> PyResult<u32> {
        self.with(py, |loader| Ok(loader.steps()))
    }

    /// Where the slab lies and how long it is.
    fn slab(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        self.with(py, |loader| Ok(loader.slab()))
    }

    /// Process id of the daemon.
    fn daemon_pid(&self, py: Python<'_>) -> PyResult<i32> {
        self.with(py, |loader| Ok(loader.daemon_pid()))
    }

    /// Batches that the slab holds, that may be kept there, and that are.
    fn room(&self) -> (u32, u32, u32) {
        (self.depth, self.keep, self.live.load(Ordering::Relaxed))
    }

    /// Counters.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.with(py, |loader| Ok(loader.stats()))?;
        let dict = PyDict::new(py);
        dict.set_item("batches", stats.batches)?;
        dict.set_item("samples", stats.samples)?;
        dict.set_item("skipped", stats.skipped)?;
        dict.set_item("wait", stats.wait.as_secs_f64())?;
        dict.set_item("longest_wait", stats.longest_wait.as_secs_f64())?;
        dict.set_item("stalls", stats.stalls)?;
        dict.set_item("bad", stats.bad)?;
        let reasons = stats.bad_samples.iter().map(|b| (b.sample, &b.path, &b.stage, &b.reason));
        dict.set_item("bad_samples", reasons.collect::<Vec<_>>())?;
        dict.set_item("restarts", stats.restarts)?;
        let meter = self.meter();
        let batches = meter.batches.max(1) as f64;
        dict.set_item("kept_copies", meter.kept_copies)?;
        dict.set_item("copied", stats.copied + meter.copied)?;
        dict.set_item("wait_share", if meter.elapsed > 0.0 { meter.waited / meter.elapsed } else { 0.0 })?;
        dict.set_item("spread", if meter.batches > 0 { meter.spread / batches } else { 1.0 })?;
        dict.set_item("spread_max", meter.spread_max)?;
        Ok(dict)
    }

    /// Leaves the job. Batches that are kept stay valid.
    fn close(&self, py: Python<'_>) {
        if std::process::id() == self.owner {
            py.detach(|| drop(self.lock().take()));
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let inner = std::mem::take(self.inner.get_mut().unwrap_or_else(PoisonError::into_inner));
        // Leaving takes a while, and the other threads need not wait for it.
        let mut inner = Some(inner);
        Python::try_attach(|py| py.detach(|| drop(inner.take())));
    }
}
