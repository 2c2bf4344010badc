//! A mapped file may be cut by whoever may write to it, and to read behind its new end is a SIGBUS: `cp` onto a
//! manifest in use would kill the daemon, and every job with it. A process that serves others calls [`install`]; from
//! then on the lost part of a manifest reads as zeros, and `Guard::was_cut` tells.

use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Manifests that can be guarded at a time. A signal handler can take no lock, so the table has a fixed size; it is a
/// manifest a loader, and a job has few.
const PLACES: usize = 1024;

/// A guarded mapping: from `start` to `end`, or nothing when `end` is 0.
struct Place {
    taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    cut: AtomicBool,
}

static TABLE: [Place; PLACES] = [const {
    Place {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        cut: AtomicBool::new(false),
    }
}; PLACES];

/// Bytes of a page; asked for before the handler is installed.
static PAGE: AtomicUsize = AtomicUsize::new(4096);

/// Has a SIGBUS in a guarded manifest answered with zeros, in this process. Any other one kills as before.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Ok(Some(bytes)) = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE) {
            PAGE.store(bytes as usize, Ordering::Relaxed);
        }
        // SAFETY: all zeros is an action with an empty mask; its handler does what a signal handler may.
        let rc = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &action, null_mut())
        };
        if rc != 0 {
            let e = std::io::Error::last_os_error();
            tracing::warn!("no handler for SIGBUS: {e}; a manifest that is cut while in use ends this process");
        }
    });
}

/// Guards a mapping for as long as it lives; to be dropped before the mapping is.
#[derive(Debug)]
pub(super) struct Guard(Option<usize>);

impl Guard {
    pub(super) fn new(map: &[u8]) -> Guard {
        let free = TABLE.iter().position(|place| !place.taken.swap(true, Ordering::Acquire));
        match free {
            Some(at) => {
                let place = &TABLE[at];
                place.cut.store(false, Ordering::Relaxed);
                let start = map.as_ptr() as usize;
                place.start.store(start, Ordering::Relaxed);
                // Pairs with the handler's load: who sees the end sees the start.
                place.end.store(start + map.len(), Ordering::Release);
            }
            None => tracing::warn!("{PLACES} manifests are guarded against being cut, this one is not"),
        }
        Guard(free)
    }

    /// Whether the file was cut, and zeros were read in its place.
    pub(super) fn was_cut(&self) -> bool {
        self.0.is_some_and(|at| TABLE[at].cut.load(Ordering::Relaxed))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(at) = self.0 {
            TABLE[at].end.store(0, Ordering::Release);
            TABLE[at].taken.store(false, Ordering::Release);
        }
    }
}

/// Only atomics, mmap and sigaction in here: both are plain system calls.
extern "C" fn on_bus_error(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel hands over a valid description.
    let at = unsafe { (*info).si_addr() } as usize;
    for place in &TABLE {
        let end = place.end.load(Ordering::Acquire);
        let start = place.start.load(Ordering::Relaxed);
        if !(start..end).contains(&at) {
            continue;
        }
        // All behind the fault is lost too; one mapping for it, since their number is limited.
        let from = at & !(PAGE.load(Ordering::Relaxed) - 1);
        // SAFETY: the range is inside a live mapping of ours that nobody writes to; private zeros take its place.
        let zeros = unsafe {
            let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(from as *mut libc::c_void, end - from, libc::PROT_READ, flags, -1, 0)
        };
        if zeros != libc::MAP_FAILED {
            place.cut.store(true, Ordering::Relaxed);
            return;
        }
    }
    // SAFETY: the default action again; the instruction is repeated when this returns, and kills.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGBUS, &action, null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::super::Manifest;
    use super::super::testing::clip;
    use super::super::{Record, Writer};
    use std::fs::File;

    #[test]
    fn a_manifest_that_is_cut_while_in_use_reads_as_zeros() {
        super::install();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.arrow");
        let mut writer = Writer::new(File::create(&path).unwrap(), "{}").unwrap();
        (0..2000).map(clip).for_each(|record: Record| writer.push(&record.descriptor(0)).unwrap());
        writer.finish().unwrap();
        let manifest = Manifest::open(&path).unwrap();
        assert!(!manifest.was_cut() && manifest.facts(1999).frames > 0);
        File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
        let rows: Vec<_> =
            (0..manifest.len()).map(|row| (manifest.facts(row), manifest.descriptor(row).row)).collect();
        assert_eq!(rows.len(), 2000);
        assert!(manifest.was_cut());
    }
}
