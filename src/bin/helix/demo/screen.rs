//! What the user sees while it runs: one live bar, and lines above it, each said once.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Without a terminal the bar is a line now and then.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The terminal's lower edge. Shared by threads.
pub(crate) struct Screen {
    bar: Mutex<ProgressBar>,
    seen: Mutex<HashSet<String>>,
    last_line: Mutex<Instant>,
}

impl Screen {
    pub(crate) fn new() -> Screen {
        Screen {
            bar: Mutex::new(ProgressBar::hidden()),
            seen: Mutex::new(HashSet::new()),
            last_line: Mutex::new(Instant::now()),
        }
    }

    /// Begins a bar, ending the one before.
    pub(crate) fn begin(&self, what: &str, total: u64) {
        let style = "{prefix:>12} [{bar:40}] {percent:>3} % {elapsed}, {eta} left  {wide_msg}";
        let style = ProgressStyle::with_template(style).expect("the template is ours").progress_chars("=> ");
        let target = ProgressDrawTarget::stderr_with_hz(10);
        let bar = ProgressBar::with_draw_target(Some(total), target).with_style(style).with_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(250));
        std::mem::replace(&mut *lock(&self.bar), bar).finish_and_clear();
    }

    /// Moves the bar to `done`, with a few words on how it goes.
    pub(crate) fn at(&self, done: u64, words: impl FnOnce() -> String) {
        let bar = lock(&self.bar);
        bar.set_position(done);
        if !std::io::stderr().is_terminal() {
            let mut last = lock(&self.last_line);
            if last.elapsed() < LINE_EVERY {
                return;
            }
            *last = Instant::now();
            eprintln!("{}: {} of {}  {}", bar.prefix(), done, bar.length().unwrap_or(0), words());
        } else {
            bar.set_message(words());
        }
    }

    /// Ends the bar.
    pub(crate) fn end(&self) {
        std::mem::replace(&mut *lock(&self.bar), ProgressBar::hidden()).finish_and_clear();
    }

    /// A line above the bar.
    pub(crate) fn line(&self, line: &str) {
        lock(&self.bar).suspend(|| eprintln!("{line}"));
    }

    /// A line that several processes may say and the user wants to read once.
    pub(crate) fn once(&self, line: &str) {
        if lock(&self.seen).insert(line.to_owned()) {
            self.line(line);
        }
    }
}

/// A panic elsewhere must not take the screen with it.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
