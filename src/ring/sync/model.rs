//! Loom's atomics, on the heap.

use std::{
    cell::Cell,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::OnceLock,
    time::Duration,
};

pub(crate) use loom::hint::spin_loop;
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::{
    cell::UnsafeCell,
    sync::{Condvar, Mutex},
};

use super::Created;

/// Two words of bitmap: the second shows that each is treated as the first.
pub(crate) const BITMAP: usize = 2;

fn mutated(name: &str) -> bool {
    static MUTANT: OnceLock<Option<String>> = OnceLock::new();
    MUTANT.get_or_init(|| std::env::var("HELIX_MUTANT").ok()).as_deref() == Some(name)
}

pub(crate) fn point(name: &str, ordering: Ordering) -> Ordering {
    if mutated(name) { Ordering::Relaxed } else { ordering }
}

pub(crate) fn fence(name: &str) {
    if !mutated(name) {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// A model orders by the rules of the language alone.
pub(crate) fn fence_after_rmw(name: &str) {
    fence(name);
}

/// How a process dies in a model: it unwinds with this from the step that was named.
pub struct Death;

thread_local! {
    static DIES: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// From now on whoever comes by the step so named dies there; `None`: nobody does.
pub fn die_at(step: Option<&'static str>) {
    DIES.set(step);
}

pub(crate) fn step(name: &'static str) {
    if DIES.get() == Some(name) {
        DIES.set(None);
        std::panic::resume_unwind(Box::new(Death));
    }
}

/// The body is a cell whose every access loom checks: one that is not ordered after the last is a failure. That
/// is stricter than to look for torn words, and it sees a load that could be overtaken by a later store.
pub(crate) struct Line {
    pub(crate) count: AtomicU64,
    /// What hints use of a line, beside `count`.
    more: [AtomicU64; BITMAP],
    body: UnsafeCell<[u64; 7]>,
}

// SAFETY: loom checks each access to the cell.
unsafe impl Send for Line {}
// SAFETY: as above.
unsafe impl Sync for Line {}

impl Line {
    fn new() -> Line {
        let more = std::array::from_fn(|_| AtomicU64::new(0));
        Line { count: AtomicU64::new(0), more, body: UnsafeCell::new([0; 7]) }
    }

    pub(crate) fn store(&self, words: &[u64; 7]) {
        self.body.with_mut(|body| {
            // SAFETY: loom fails the model if anybody else has access.
            let body = unsafe { &mut *body };
            body[..4].copy_from_slice(&words[..4]);
            step("push.half");
            body[4..].copy_from_slice(&words[4..]);
        });
    }

    pub(crate) fn load(&self) -> [u64; 7] {
        // SAFETY: loom fails the model if anybody writes meanwhile.
        self.body.with(|body| unsafe { *body })
    }
}

/// Words and flags on the heap. A place is used as one or as the other, never as both.
pub(crate) struct Memory {
    lines: Vec<Line>,
    flags: Vec<AtomicU32>,
}

impl Memory {
    pub(crate) fn create(_name: &str, bytes: usize) -> Created {
        let lines = bytes / 64;
        let memory = Memory {
            lines: (0..lines).map(|_| Line::new()).collect(),
            flags: (0..lines).map(|_| AtomicU32::new(0)).collect(),
        };
        Ok((std::sync::Arc::new(memory), None))
    }

    /// A model has one process, and hands no memory over.
    pub(crate) fn open(_fd: &OwnedFd, bytes: usize) -> nix::Result<std::sync::Arc<Memory>> {
        Memory::create("", bytes).map(|(memory, _)| memory).map_err(|(_, errno)| errno)
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        let line = &self.lines[offset / 64];
        if offset.is_multiple_of(64) { &line.count } else { &line.more[offset % 64 / 8 - 1] }
    }

    pub(crate) fn flag(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(64), "the model keeps one flag a line");
        &self.flags[offset / 64]
    }

    pub(crate) fn lines(self: &std::sync::Arc<Memory>, offset: usize, count: usize) -> Lines {
        assert!(count.is_power_of_two() && offset.is_multiple_of(64));
        assert!(self.lines.len() >= offset / 64 + count);
        Lines { memory: std::sync::Arc::clone(self), first: offset / 64, mask: count - 1 }
    }
}

pub(crate) struct Lines {
    memory: std::sync::Arc<Memory>,
    first: usize,
    mask: usize,
}

impl Lines {
    pub(crate) fn at(&self, position: u64) -> &Line {
        &self.memory.lines[self.first + (position as usize & self.mask)]
    }
}

/// An eventfd whose sleep loom can see: a wake-up that is lost is a deadlock, which loom reports.
#[derive(Clone)]
pub struct EventFd {
    state: std::sync::Arc<(Mutex<u64>, Condvar)>,
}

impl From<OwnedFd> for EventFd {
    fn from(_fd: OwnedFd) -> EventFd {
        EventFd { state: std::sync::Arc::new((Mutex::new(0), Condvar::new())) }
    }
}

impl EventFd {
    /// A new one: counter 0.
    pub fn new() -> io::Result<EventFd> {
        Ok(EventFd { state: std::sync::Arc::new((Mutex::new(0), Condvar::new())) })
    }

    /// Makes it readable.
    pub fn signal(&self) {
        *self.state.0.lock().unwrap() += 1;
        self.state.1.notify_one();
    }

    /// No peer of a model is hostile.
    pub fn tampered(&self) -> bool {
        false
    }

    /// Makes it unreadable, whatever its count was.
    pub fn drain(&self) {
        *self.state.0.lock().unwrap() = 0;
    }

    /// None: a model sleeps in [`EventFd::wait`] alone.
    ///
    /// # Panics
    /// Always.
    pub fn fd(&self) -> BorrowedFd<'_> {
        panic!("a model's eventfd has no descriptor");
    }
}

/// A sleeper's epoll. Its edge is the count, which only it takes.
pub struct Watch {
    fd: EventFd,
}

impl Watch {
    /// Of signals that come from now on.
    pub fn new(fd: &EventFd) -> Watch {
        Watch { fd: fd.clone() }
    }

    /// Sleeps until there was a signal since the last wait, however long that takes.
    pub fn wait(&self, _timeout: Duration) {
        let mut count = self.fd.state.0.lock().unwrap();
        while *count == 0 {
            count = self.fd.state.1.wait(count).unwrap();
        }
        *count = 0;
    }
}
