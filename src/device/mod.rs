//! Where batches go: an accelerator's memory, or the host's own where there is none.
//!
//! The door is four small traits. A [`Device`] registers a slab once, gives [`Buffer`]s and [`Queue`]s; a queue
//! takes the runs of a batch and copies them in order, asynchronously; an [`Event`] tells when the source may be
//! reused. [`host::HostDevice`] is the default backend; CUDA and Ascend come behind the same door.
//!
//! This room knows memory and time. It must not know batches, ranks or the daemon: the owner of a source moves into
//! the upload as a [`HostSource`] and is dropped, hence released, behind the copy and never before.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::ring::slab::Slab;

pub mod host;

/// What can go wrong on a device. Values, never panics: a machine without an accelerator is not an accident.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The buffer is too small for what is uploaded into it.
    #[error(
        "an upload of {wanted} bytes at offset {offset} does not fit into the buffer of {len} bytes on {device}; \
         allocate at least {}", offset.saturating_add(*wanted)
    )]
    TooLarge {
        /// Bytes to be uploaded.
        wanted: usize,
        /// Where in the buffer.
        offset: usize,
        /// Bytes of the buffer.
        len: usize,
        /// The device.
        device: String,
    },
    /// The buffer was allocated on another device.
    #[error("the buffer does not belong to {device}; allocate it with this device's `allocate`")]
    ForeignBuffer {
        /// The device that was asked to use it.
        device: String,
    },
    /// The memory overlaps a slab that is registered.
    #[error(
        "{len} bytes at {address:#x} overlap memory that {device} has registered already; register a slab once a \
             process"
    )]
    Registered {
        /// Where the memory starts.
        address: usize,
        /// Its length in bytes.
        len: usize,
        /// The device.
        device: String,
    },
    /// There is no memory for a buffer.
    #[error("{device} has no {wanted} bytes for a buffer; use fewer or smaller buffers")]
    OutOfMemory {
        /// Bytes asked for.
        wanted: usize,
        /// The device.
        device: String,
    },
    /// The event did not come in time.
    #[error("an upload on {device} had not ended after {waited:?}")]
    Timeout {
        /// How long was waited.
        waited: Duration,
        /// The device.
        device: String,
    },
    /// The device, its driver or its queue failed; nothing more comes from it.
    #[error("{device} failed: {reason}")]
    Failed {
        /// The device.
        device: String,
        /// What it said.
        reason: String,
    },
}

/// Host memory that stays mapped, at one address, for as long as the value lives: a slab.
pub trait HostMemory: Send + Sync {
    /// Where it starts in this process.
    fn address(&self) -> usize;
    /// Its length in bytes.
    fn len(&self) -> usize;
    /// Whether there is nothing in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl HostMemory for Slab {
    fn address(&self) -> usize {
        self.as_ptr() as usize
    }

    fn len(&self) -> usize {
        Slab::len(self)
    }
}

/// The source of an upload. It owns (or leases) the bytes: dropping it gives them back.
pub trait HostSource: Send {
    /// The pieces to be copied, in this order, one behind the other in the buffer.
    fn runs(&self) -> Vec<&[u8]>;
}

/// Bytes and time since the device was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Uploads that have ended.
    pub uploads: u64,
    /// Bytes uploaded from registered memory.
    pub registered: u64,
    /// Bytes uploaded from other memory, which an accelerator takes through a staging buffer.
    pub pageable: u64,
    /// Time that queues spent copying, nanoseconds; over several queues it adds up.
    pub busy_ns: u64,
}

impl Counters {
    /// Bytes a second while copying; 0 before the first upload.
    pub fn bandwidth(&self) -> f64 {
        if self.busy_ns == 0 { 0.0 } else { (self.registered + self.pageable) as f64 * 1e9 / self.busy_ns as f64 }
    }
}

/// A place where batches can go.
pub trait Device: Send + Sync {
    /// Its name for messages, e.g. `host` or `cuda:0`.
    fn name(&self) -> &str;
    /// Makes a slab known, once, so that uploads from it are direct. It is kept alive until the returned value and
    /// every upload under way are gone.
    fn register(&self, memory: Arc<dyn HostMemory>) -> Result<Registration, DeviceError>;
    /// Memory on the device.
    fn allocate(&self, len: usize) -> Result<Arc<dyn Buffer>, DeviceError>;
    /// A queue: uploads in it happen in order; queues do not wait for each other.
    fn queue(&self) -> Result<Box<dyn Queue>, DeviceError>;
    /// What was uploaded so far.
    fn counters(&self) -> Counters;
}

/// Holds a slab registered; dropping it takes the registration back.
#[must_use = "dropping the registration ends it"]
pub struct Registration {
    undo: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Registration {
    /// A registration that `undo` takes back.
    pub fn new(undo: impl FnOnce() + Send + Sync + 'static) -> Self {
        Registration { undo: Some(Box::new(undo)) }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            undo();
        }
    }
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registration")
    }
}

/// Memory on a device.
pub trait Buffer: Send + Sync {
    /// Its length in bytes.
    fn len(&self) -> usize;
    /// Whether there is nothing in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies `out.len()` bytes from `offset` back to the host, for checks. It does not wait for uploads: wait for
    /// their events first.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), DeviceError>;
    /// For the backend, which must recognise its own.
    fn as_any(&self) -> &dyn Any;
}

/// Uploads in order.
pub trait Queue: Send {
    /// Copies the runs of `source` one behind the other into `buffer` from `offset` on, later; returns at once.
    /// `source` is dropped after its last byte was read, before the event fires. An upload that is refused here
    /// drops its source at once.
    fn upload(
        &mut self,
        source: Box<dyn HostSource>,
        buffer: &Arc<dyn Buffer>,
        offset: usize,
    ) -> Result<Box<dyn Event>, DeviceError>;
}

/// The end of an upload.
pub trait Event: Send + Sync {
    /// Whether it has come.
    fn query(&self) -> Result<bool, DeviceError>;
    /// Waits for it; `None` waits for ever.
    fn wait(&self, limit: Option<Duration>) -> Result<(), DeviceError>;
}
