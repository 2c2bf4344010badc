//! What the client says through `tracing`, kept until Python passes it on to its `logging`.
//!
//! The client speaks on threads and under locks of its own; taking the GIL there could wait for whoever waits for
//! that lock. So lines are queued, and those who hold the GIL anyway take them out.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

/// Lines that wait; a program that never looks at its loader loses the oldest.
const KEPT: usize = 1000;

static LINES: Mutex<VecDeque<(u8, &'static str, String)>> = Mutex::new(VecDeque::new());
static NEWS: AtomicBool = AtomicBool::new(false);

/// Whether lines wait.
pub fn has_news() -> bool {
    NEWS.load(Ordering::Relaxed)
}

fn lines() -> MutexGuard<'static, VecDeque<(u8, &'static str, String)>> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the lines that wait: (level of `logging`, target, text).
#[pyfunction]
pub fn take_log() -> Vec<(u8, &'static str, String)> {
    if !NEWS.swap(false, Ordering::Relaxed) {
        return Vec::new();
    }
    lines().drain(..).collect()
}

/// Makes this the process's subscriber, unless it has one.
pub fn install() {
    // An embedding program that set its own hears the client there.
    let _ = tracing::subscriber::set_global_default(Queue);
}

struct Queue;

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl Subscriber for Queue {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.is_event()
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let level = match *event.metadata().level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            _ => 20,
        };
        let mut lines = lines();
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back((level, event.metadata().target(), text.0));
        NEWS.store(true, Ordering::Relaxed);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
