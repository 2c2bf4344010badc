//! Ctrl-C and its relatives, as a flag that loops look at. The second one ends the process at once.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};

static ASKED: AtomicBool = AtomicBool::new(false);

/// Exit code of a process that was interrupted, as shells expect it.
pub(crate) const EXIT_CODE: i32 = 130;

/// From now on Ctrl-C, `kill` and a closed terminal ask for an end instead of forcing one.
///
/// Call it before any thread is started: threads inherit the mask, and the signals must come to this one alone.
/// Processes that are started inherit nothing, since `Command` clears the mask.
pub(crate) fn install() {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    if let Err(error) = signals.thread_block() {
        tracing::warn!("cannot watch for Ctrl-C ({error}); it will end this process at once");
        return;
    }
    std::thread::spawn(move || {
        while signals.wait().is_ok() {
            if ASKED.swap(true, Ordering::Relaxed) {
                std::process::exit(EXIT_CODE);
            }
        }
    });
}

/// The flag, for those who take one.
pub(crate) fn flag() -> &'static AtomicBool {
    &ASKED
}

/// Whether an end was asked for.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}
