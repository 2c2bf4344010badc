//! Frees a thread that a hostile peer makes wait within a write to an eventfd.
//!
//! No call writes to an eventfd without waiting whatever its `O_NONBLOCK` says, and between our look at that flag and
//! our write a peer can clear it and fill the counter. So a process that must not stand still for a peer (the daemon,
//! which serves other users too) has a second thread, which reads the counter of a write that lasts.

use std::{
    cell::RefCell,
    io,
    marker::PhantomData,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

/// A write takes microseconds. One that is seen at two looks this far apart waits for room, if there is none; where
/// there is, its thread is only waiting for a core.
const LOOK: Duration = Duration::from_millis(20);

thread_local! {
    static WATCH: RefCell<Option<Arc<Watch>>> = const { RefCell::new(None) };
}

/// The write that a guarded thread is in.
#[derive(Default)]
struct Watch {
    write: Mutex<Option<Arc<OwnedFd>>>,
    /// Writes begun.
    begun: AtomicU64,
    /// The write begun last that had to be freed.
    freed: AtomicU64,
    stop: AtomicBool,
}

/// Guards the thread that made it, until it is dropped.
pub struct Guard {
    watch: Arc<Watch>,
    thread: Option<thread::JoinHandle<()>>,
    /// It belongs to one thread.
    _not_send: PhantomData<*const ()>,
}

impl Guard {
    /// From now on this thread waits in no [`super::EventFd::signal`] for much longer than 40 ms.
    pub fn new() -> io::Result<Guard> {
        let watch = Arc::new(Watch::default());
        let thread = thread::Builder::new().name("bell guard".to_owned()).spawn({
            let watch = watch.clone();
            move || watch.run()
        })?;
        WATCH.set(Some(watch.clone()));
        Ok(Guard { watch, thread: Some(thread), _not_send: PhantomData })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        WATCH.set(None);
        self.watch.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It ends by itself and does not panic.
            let _ = thread.join();
        }
    }
}

impl Watch {
    fn current(&self) -> std::sync::MutexGuard<'_, Option<Arc<OwnedFd>>> {
        self.write.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut last = 0;
        let mut look = LOOK;
        while !self.stop.load(Ordering::Relaxed) {
            thread::park_timeout(look);
            look = LOOK;
            let write = self.current();
            let begun = self.begun.load(Ordering::Relaxed);
            if let Some(fd) = &*write {
                if begun == last && !super::has_room(fd) {
                    self.freed.store(begun, Ordering::Relaxed);
                    super::drain(fd);
                    // A peer may have filled it again before the write had its turn.
                    look = Duration::from_millis(1);
                }
                last = begun;
            }
        }
    }
}

/// Whether this thread is guarded.
pub(super) fn here() -> bool {
    WATCH.with_borrow(Option::is_some)
}

/// Runs a write to `fd`, guarded where this thread is; says whether it had to be freed.
pub(super) fn watched(fd: &Arc<OwnedFd>, write: impl FnOnce()) -> bool {
    let Some(watch) = WATCH.with_borrow(Option::clone) else {
        write();
        return false;
    };
    let number = {
        let mut current = watch.current();
        *current = Some(fd.clone());
        watch.begun.fetch_add(1, Ordering::Relaxed) + 1
    };
    write();
    *watch.current() = None;
    watch.freed.load(Ordering::Relaxed) == number
}
