//! The default device: the host itself. Uploads are real copies into memory of its own, made by a queue thread, so
//! that a trainer without an accelerator lives by the same rules as one with: a batch is released by an event, late.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Buffer, Counters, Device, DeviceError, Event, HostMemory, HostSource, Queue, Registration};

const NAME: &str = "host";

/// Memory of this process as a device.
#[derive(Default)]
pub struct HostDevice {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    slabs: Mutex<Vec<Arc<dyn HostMemory>>>,
    uploads: AtomicU64,
    registered: AtomicU64,
    pageable: AtomicU64,
    busy_ns: AtomicU64,
}

impl HostDevice {
    /// The host; there is nothing to open.
    pub fn new() -> Self {
        Self::default()
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing here leaves a half-made value behind a panic, so a poisoned lock still guards a good one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    fn knows(&self, run: &[u8]) -> bool {
        let start = run.as_ptr() as usize;
        lock(&self.slabs).iter().any(|s| start >= s.address() && start + run.len() <= s.address() + s.len())
    }

    /// Copies the runs of one upload; the caller checked that they fit.
    fn copy(&self, source: &dyn HostSource, buffer: &HostBuffer, mut at: usize) {
        let started = Instant::now();
        let runs = source.runs();
        let mut bytes = lock(&buffer.bytes);
        for run in &runs {
            bytes[at..at + run.len()].copy_from_slice(run);
            at += run.len();
        }
        drop(bytes);
        let busy = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        for run in &runs {
            let counter = if self.knows(run) { &self.registered } else { &self.pageable };
            counter.fetch_add(run.len() as u64, Relaxed);
        }
        self.busy_ns.fetch_add(busy, Relaxed);
        self.uploads.fetch_add(1, Relaxed);
    }
}

impl Device for HostDevice {
    fn name(&self) -> &str {
        NAME
    }

    fn register(&self, memory: Arc<dyn HostMemory>) -> Result<Registration, DeviceError> {
        let (address, len) = (memory.address(), memory.len());
        let mut slabs = lock(&self.inner.slabs);
        if slabs.iter().any(|s| address < s.address() + s.len() && s.address() < address + len) {
            return Err(DeviceError::Registered { address, len, device: NAME.into() });
        }
        slabs.push(memory);
        let inner = Arc::downgrade(&self.inner);
        Ok(Registration::new(move || {
            if let Some(inner) = inner.upgrade() {
                lock(&inner.slabs).retain(|s| s.address() != address);
            }
        }))
    }

    fn allocate(&self, len: usize) -> Result<Arc<dyn Buffer>, DeviceError> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| DeviceError::OutOfMemory { wanted: len, device: NAME.into() })?;
        bytes.resize(len, 0); // touches the pages now, not in the first upload
        Ok(Arc::new(HostBuffer { len, bytes: Arc::new(Mutex::new(bytes.into_boxed_slice())) }))
    }

    fn queue(&self) -> Result<Box<dyn Queue>, DeviceError> {
        let (sender, jobs) = mpsc::channel::<Job>();
        let inner = Arc::clone(&self.inner);
        let thread = std::thread::Builder::new()
            .name("helix-upload".into())
            .spawn(move || {
                for mut job in jobs {
                    if let Some(source) = job.source.take() {
                        inner.copy(&*source, &job.buffer, job.offset);
                    } // the source is released before anyone hears of the event
                    job.event.fire(Ok(()));
                }
            })
            .map_err(|e| DeviceError::Failed { device: NAME.into(), reason: format!("no queue thread: {e}") })?;
        Ok(Box::new(HostQueue { jobs: Some(sender), thread: Some(thread) }))
    }

    fn counters(&self) -> Counters {
        Counters {
            uploads: self.inner.uploads.load(Relaxed),
            registered: self.inner.registered.load(Relaxed),
            pageable: self.inner.pageable.load(Relaxed),
            busy_ns: self.inner.busy_ns.load(Relaxed),
        }
    }
}

#[derive(Clone)]
struct HostBuffer {
    len: usize,
    bytes: Arc<Mutex<Box<[u8]>>>,
}

fn fits(offset: usize, wanted: usize, len: usize) -> Result<(), DeviceError> {
    if offset.checked_add(wanted).is_some_and(|end| end <= len) {
        Ok(())
    } else {
        Err(DeviceError::TooLarge { wanted, offset, len, device: NAME.into() })
    }
}

impl Buffer for HostBuffer {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        fits(offset, out.len(), self.len)?;
        out.copy_from_slice(&lock(&self.bytes)[offset..offset + out.len()]);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct Job {
    /// Until its copy.
    source: Option<Box<dyn HostSource>>,
    buffer: HostBuffer,
    offset: usize,
    event: Arc<HostEvent>,
}

impl Drop for Job {
    fn drop(&mut self) {
        // A job that ends without its copy (its source panicked) must not leave anyone waiting.
        let reason = "the queue ended before the upload".to_owned();
        self.event.fire(Err(DeviceError::Failed { device: NAME.into(), reason }));
    }
}

struct HostQueue {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Queue for HostQueue {
    fn upload(
        &mut self,
        source: Box<dyn HostSource>,
        buffer: &Arc<dyn Buffer>,
        offset: usize,
    ) -> Result<Box<dyn Event>, DeviceError> {
        let Some(buffer) = buffer.as_any().downcast_ref::<HostBuffer>() else {
            return Err(DeviceError::ForeignBuffer { device: NAME.into() });
        };
        let wanted = source.runs().iter().map(|r| r.len()).sum();
        fits(offset, wanted, buffer.len)?;
        let event = Arc::new(HostEvent::default());
        let job = Job { source: Some(source), buffer: buffer.clone(), offset, event: Arc::clone(&event) };
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if !sent {
            let reason = "its queue thread has ended".to_owned();
            return Err(DeviceError::Failed { device: NAME.into(), reason });
        }
        Ok(Box::new(SharedEvent(event)))
    }
}

impl Drop for HostQueue {
    /// Lets what is pending end: a source must not vanish under a copy.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("a queue thread of the host device panicked; its uploads have failed");
        }
    }
}

#[derive(Default)]
struct HostEvent {
    end: Mutex<Option<Result<(), DeviceError>>>,
    fired: Condvar,
}

impl HostEvent {
    /// The first end counts.
    fn fire(&self, end: Result<(), DeviceError>) {
        lock(&self.end).get_or_insert(end);
        self.fired.notify_all();
    }
}

struct SharedEvent(Arc<HostEvent>);

impl Event for SharedEvent {
    fn query(&self) -> Result<bool, DeviceError> {
        match &*lock(&self.0.end) {
            None => Ok(false),
            Some(end) => end.clone().map(|()| true),
        }
    }

    fn wait(&self, limit: Option<Duration>) -> Result<(), DeviceError> {
        let end = lock(&self.0.end);
        let end = match limit {
            None => self.0.fired.wait_while(end, |e| e.is_none()).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let waited = self.0.fired.wait_timeout_while(end, limit, |e| e.is_none());
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        match (&*end, limit) {
            (Some(end), _) => end.clone(),
            (None, limit) => Err(DeviceError::Timeout { waited: limit.unwrap_or_default(), device: NAME.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// A source that says when it is read and when it is let go.
    struct Probe {
        bytes: Vec<Vec<u8>>,
        gate: Option<Arc<Barrier>>,
        calls: AtomicU64,
        dropped: Option<mpsc::Sender<u8>>,
    }

    impl Probe {
        fn new(fill: u8, len: usize) -> Self {
            let half = len / 2;
            let bytes = vec![vec![fill; half], vec![fill; len - half]];
            Probe { bytes, gate: None, calls: AtomicU64::new(0), dropped: None }
        }

        fn behind(mut self, gate: &Arc<Barrier>) -> Self {
            self.gate = Some(Arc::clone(gate));
            self
        }

        fn telling(mut self, dropped: &mpsc::Sender<u8>) -> Self {
            self.dropped = Some(dropped.clone());
            self
        }
    }

    impl HostSource for Probe {
        fn runs(&self) -> Vec<&[u8]> {
            // The first call measures, in `upload`; the second reads, on the queue thread.
            if self.calls.fetch_add(1, Relaxed) == 1
                && let Some(gate) = &self.gate
            {
                gate.wait();
            }
            self.bytes.iter().map(Vec::as_slice).collect()
        }
    }

    impl Drop for Probe {
        fn drop(&mut self) {
            if let Some(dropped) = &self.dropped {
                let _ = dropped.send(self.bytes[0].first().copied().unwrap_or(0));
            }
        }
    }

    fn contents(buffer: &Arc<dyn Buffer>) -> Vec<u8> {
        let mut out = vec![0; buffer.len()];
        buffer.read(0, &mut out).unwrap();
        out
    }

    #[test]
    fn uploads_of_a_queue_happen_in_order() {
        let device = HostDevice::new();
        let buffer = device.allocate(9).unwrap();
        let mut queue = device.queue().unwrap();
        let (sender, order) = mpsc::channel();
        let mut last = None;
        for i in 1..=100 {
            let source = Probe::new(i, 9).telling(&sender);
            last = Some(queue.upload(Box::new(source), &buffer, 0).unwrap());
        }
        last.unwrap().wait(None).unwrap();
        assert_eq!(contents(&buffer), vec![100; 9]);
        assert_eq!(order.try_iter().collect::<Vec<_>>(), (1..=100).collect::<Vec<_>>());
        let counters = device.counters();
        assert_eq!((counters.uploads, counters.pageable, counters.registered), (100, 900, 0));
        assert!(counters.bandwidth() > 0.0);
    }

    #[test]
    fn the_source_is_held_until_its_copy_and_gone_at_its_event() {
        let device = HostDevice::new();
        let buffer = device.allocate(8).unwrap();
        let mut queue = device.queue().unwrap();
        let gate = Arc::new(Barrier::new(2));
        let (sender, dropped) = mpsc::channel();
        let source = Probe::new(7, 8).behind(&gate).telling(&sender);
        let event = queue.upload(Box::new(source), &buffer, 0).unwrap();
        assert!(!event.query().unwrap());
        assert!(dropped.try_recv().is_err(), "the source was let go before it was read");
        assert!(matches!(event.wait(Some(Duration::from_millis(1))), Err(DeviceError::Timeout { .. })));
        gate.wait();
        event.wait(None).unwrap();
        assert_eq!(dropped.try_recv(), Ok(7), "the event came before the source was let go");
        assert!(event.query().unwrap());
        assert_eq!(contents(&buffer), vec![7; 8]);
    }

    #[test]
    fn a_dropped_queue_finishes_its_work() {
        let device = HostDevice::new();
        let buffer = device.allocate(4).unwrap();
        let mut queue = device.queue().unwrap();
        let events: Vec<_> = (0..50).map(|i| queue.upload(Box::new(Probe::new(i, 4)), &buffer, 0).unwrap()).collect();
        drop(queue);
        assert!(events.iter().all(|e| e.query().unwrap()));
        assert_eq!(contents(&buffer), vec![49; 4]);
    }

    #[test]
    fn queues_do_not_wait_for_each_other() {
        let device = HostDevice::new();
        let (one, two) = (device.allocate(4).unwrap(), device.allocate(4).unwrap());
        let (mut slow, mut fast) = (device.queue().unwrap(), device.queue().unwrap());
        let gate = Arc::new(Barrier::new(2));
        let held = Probe::new(1, 4).behind(&gate);
        let late = slow.upload(Box::new(held), &one, 0).unwrap();
        fast.upload(Box::new(Probe::new(2, 4)), &two, 0).unwrap().wait(None).unwrap();
        assert!(!late.query().unwrap());
        assert_eq!(contents(&two), vec![2; 4]);
        gate.wait();
        late.wait(None).unwrap();
        assert_eq!(contents(&one), vec![1; 4]);
    }

    #[test]
    fn what_does_not_fit_or_is_foreign_is_refused_and_let_go() {
        struct Other;
        impl Buffer for Other {
            fn len(&self) -> usize {
                8
            }
            fn read(&self, _: usize, _: &mut [u8]) -> Result<(), DeviceError> {
                Ok(())
            }
            fn as_any(&self) -> &dyn Any {
                self
            }
        }
        let device = HostDevice::new();
        let mut queue = device.queue().unwrap();
        let buffer = device.allocate(8).unwrap();
        let (sender, dropped) = mpsc::channel();
        let source = || Box::new(Probe::new(3, 8).telling(&sender));
        assert!(matches!(queue.upload(source(), &buffer, 1), Err(DeviceError::TooLarge { .. })));
        assert!(matches!(queue.upload(source(), &buffer, usize::MAX), Err(DeviceError::TooLarge { .. })));
        let other: Arc<dyn Buffer> = Arc::new(Other);
        assert!(matches!(queue.upload(source(), &other, 0), Err(DeviceError::ForeignBuffer { .. })));
        assert_eq!(dropped.try_iter().count(), 3);
        assert!(matches!(buffer.read(5, &mut [0; 4]), Err(DeviceError::TooLarge { .. })));
        assert!(matches!(device.allocate(usize::MAX), Err(DeviceError::OutOfMemory { .. })));
    }

    #[test]
    fn a_panicking_source_fails_its_event_and_the_queue() {
        struct Bomb(AtomicU64);
        impl HostSource for Bomb {
            fn runs(&self) -> Vec<&[u8]> {
                assert_eq!(self.0.fetch_add(1, Relaxed), 0, "asked twice");
                vec![&[1, 2]]
            }
        }
        let device = HostDevice::new();
        let buffer = device.allocate(8).unwrap();
        let mut queue = device.queue().unwrap();
        let event = queue.upload(Box::new(Bomb(AtomicU64::new(0))), &buffer, 0).unwrap();
        assert!(matches!(event.wait(None), Err(DeviceError::Failed { .. })));
    }

    #[test]
    fn a_slab_is_registered_once_and_its_uploads_are_counted_apart() {
        struct Slab(Vec<u8>);
        impl HostMemory for Slab {
            fn address(&self) -> usize {
                self.0.as_ptr() as usize
            }
            fn len(&self) -> usize {
                self.0.len()
            }
        }
        struct Piece(Arc<Slab>);
        impl HostSource for Piece {
            fn runs(&self) -> Vec<&[u8]> {
                vec![&self.0.0[4..8]]
            }
        }
        let device = HostDevice::new();
        let slab = Arc::new(Slab(vec![9; 16]));
        let registration = device.register(Arc::clone(&slab) as Arc<dyn HostMemory>).unwrap();
        let again = device.register(Arc::clone(&slab) as Arc<dyn HostMemory>);
        assert!(matches!(again, Err(DeviceError::Registered { .. })));
        let buffer = device.allocate(4).unwrap();
        let mut queue = device.queue().unwrap();
        queue.upload(Box::new(Piece(Arc::clone(&slab))), &buffer, 0).unwrap().wait(None).unwrap();
        assert_eq!(device.counters().registered, 4);
        drop(registration);
        queue.upload(Box::new(Piece(Arc::clone(&slab))), &buffer, 0).unwrap().wait(None).unwrap();
        assert_eq!((device.counters().registered, device.counters().pageable), (4, 4));
        assert_eq!(Arc::strong_count(&slab), 1);
    }
}
