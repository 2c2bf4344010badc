//! When a worker closes its sandbox, and what becomes of it when a session comes whose files are outside.

use std::path::Path;

use crate::decode::sandbox::{self, Roots};
use crate::foreign::link::Daemon;
use crate::proto::session::MAX_SESSIONS;

/// Descriptors that a worker may have open: those of every session there can be, and of the samples in hand.
const FILES: u64 = 5 * MAX_SESSIONS as u64 + 256;

/// The sandbox of a worker, from its start on.
pub(super) struct Cage {
    wanted: bool,
    memory: u64,
    /// What was let in when it closed.
    closed: Option<Roots>,
    /// Fingerprints of the manifests whose files are let in.
    known: Vec<String>,
    outgrown: bool,
}

impl Cage {
    pub(super) fn new(wanted: bool, memory: u64) -> Cage {
        // A process that is made to die at a point writes so into a file before it does.
        let wanted = wanted && !(cfg!(feature = "crash-points") && std::env::var_os("HELIX_CRASH").is_some());
        Cage { wanted, memory, closed: None, known: Vec::new(), outgrown: false }
    }

    /// Whether it is to be closed, and is not yet.
    pub(super) fn is_open(&self) -> bool {
        self.wanted && self.closed.is_none()
    }

    /// Whether a session is attached whose files are outside: the worker ends, and its successor lets them in.
    pub(super) fn is_outgrown(&self) -> bool {
        self.outgrown
    }

    /// Closes it around the files of all sessions attached by now; answers what is to be said of it.
    pub(super) fn close(&mut self, daemon: &Daemon) -> Vec<String> {
        let mut roots = Roots::default();
        for session in daemon.sessions() {
            let fingerprint = session.manifest.fingerprint();
            if !self.known.iter().any(|known| known == fingerprint) {
                roots.add(Roots::of(&session.manifest));
                self.known.push(fingerprint.to_owned());
            }
        }
        let missing = sandbox::close(&sandbox::Cage { roots: &roots, memory: self.memory, files: FILES });
        self.closed = Some(roots);
        missing
    }

    /// A session was attached.
    pub(super) fn visit(&mut self, daemon: &Daemon, session: u16) {
        let Some(roots) = &self.closed else { return };
        let Some(session) = daemon.attached(session) else { return };
        let fingerprint = session.manifest.fingerprint();
        if !self.known.iter().any(|known| known == fingerprint) {
            self.outgrown |= !roots.cover(&Roots::of(&session.manifest));
            self.known.push(fingerprint.to_owned());
        }
    }

    /// Adds to the reason of a file that cannot be opened that it is the sandbox which forbids it, if so.
    pub(super) fn explain(&self, reason: String, path: &str) -> String {
        match (&self.closed, Path::new(path).canonicalize()) {
            (Some(roots), Ok(real)) if !roots.hold(&real) => format!(
                "{reason} (it leads to {}, which is outside the folders that the manifest names: index it there, or \
                 set sandbox = false)",
                real.display()
            ),
            _ => reason,
        }
    }
}
