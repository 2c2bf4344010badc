//! The daemon's part of its user's status page: written now and then, never waited for.

use std::time::{Duration, Instant};

use super::config::Config;
use super::job::{self, Job};
use crate::status::Writer;

/// The longest that the loop lets pass while there is a job, whatever the configuration says.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What this daemon shows.
pub struct StatusPage {
    /// Gone when it could not be had.
    writer: Option<Writer>,
    embedded: bool,
    /// When it was written last, and how many jobs it showed.
    last: Option<(Instant, usize)>,
    /// Whether it was said that it cannot be written.
    said: bool,
}

impl StatusPage {
    /// Takes hold of the page, if one is wanted. A daemon works as well without it.
    pub fn new(wanted: bool, embedded: bool) -> StatusPage {
        let writer = wanted.then(Writer::new).and_then(|made| {
            made.inspect_err(|e| tracing::warn!("no status page, so `helix top` shows nothing of this daemon: {e}"))
                .ok()
        });
        StatusPage { writer, embedded, last: None, said: false }
    }

    /// Writes it if it is time, or if a job has come or gone.
    pub fn tend<'a>(&mut self, config: &Config, jobs: impl ExactSizeIterator<Item = &'a Job>) {
        let Some(writer) = &mut self.writer else { return };
        let every = Duration::from_millis(config.status.every_ms.into());
        let now = Instant::now();
        if self.last.is_some_and(|(at, shown)| shown == jobs.len() && (shown == 0 || now - at < every)) {
            return;
        }
        self.last = Some((now, jobs.len()));
        let shown = if jobs.len() == 0 {
            writer.show([job::page::idle(self.embedded)].into_iter())
        } else {
            let every = every.max(LOOK_AGAIN).as_nanos() as u64;
            writer.show(jobs.map(|job| job.page(self.embedded, every)))
        };
        if let Err(e) = shown
            && !std::mem::replace(&mut self.said, true)
        {
            tracing::warn!("the status page does not show all of this daemon: {e}");
        }
    }
}
