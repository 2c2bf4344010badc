//! When a worker starts the helper that fetches objects for it: before its sandbox closes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::cage::Cage;
use crate::decode::Reader;
use crate::foreign::link::Daemon;
use crate::object::client::Client;
use crate::object::origins;

/// What is known of the stores that a worker needs.
#[derive(Default)]
pub(super) struct Objects {
    /// Fingerprints of the manifests that were looked through.
    known: Vec<String>,
    origins: BTreeSet<String>,
}

impl Objects {
    /// A session was attached: where the sandbox has closed without its stores, the worker has to be followed by one
    /// that knows of them.
    pub(super) fn visit(&mut self, daemon: &Daemon, session: u16, cage: &mut Cage) {
        let Some(session) = daemon.attached(session).filter(|_| cage.is_closed()) else { return };
        let fingerprint = session.manifest.fingerprint();
        if self.known.iter().any(|known| known == fingerprint) {
            return;
        }
        if origins(&session.manifest).is_subset(&self.origins) {
            self.known.push(fingerprint.to_owned());
        } else {
            cage.outgrow();
        }
    }

    /// Before a ticket is begun, the sandbox being open: sees to it that what it may need can be fetched.
    pub(super) fn before(&mut self, daemon: &Daemon, reader: &mut Reader) -> Result<(), String> {
        let had = self.origins.len();
        for session in daemon.sessions() {
            let fingerprint = session.manifest.fingerprint();
            if !self.known.iter().any(|known| known == fingerprint) {
                self.origins.extend(origins(&session.manifest));
                self.known.push(fingerprint.to_owned());
            }
        }
        if self.origins.len() == had {
            return Ok(());
        }
        let client = Client::start(&self.origins).map_err(|e| format!("a helper that fetches from stores: {e}"))?;
        reader.fetch_with(Arc::new(client));
        Ok(())
    }
}
