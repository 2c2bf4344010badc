//! What is to be thought of a page: how its daemon is, and what holds the job up.

use helix_shm::proto::page::{Page, UNKNOWN};
use helix_shm::status::Shown;
use serde::Serialize;

/// Pages that a daemon may leave out before it is said to be silent: a busy machine is no fault of its own.
const MISSED_PAGES: u64 = 5;

/// How a daemon is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Daemon {
    /// It writes its page.
    Well,
    /// Its process is stopped, by a signal or a debugger.
    Stopped,
    /// It lives, and has not written its page for long.
    Silent,
    /// It died without taking its page along.
    Gone,
    /// Its page is not to be read.
    Unreadable,
}

/// What a job waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Binding {
    /// Nothing: no rank iterates.
    Nobody,
    /// The ranks: every batch is there in time.
    Ranks,
    /// Workers: all are busy and ranks stand still.
    Workers,
    /// Room in the slabs: workers are idle and ranks stand still, with nothing that could be decoded.
    Memory,
    /// One sample, or a few: workers are idle, and ranks stand still for what others decode.
    Samples,
}

/// A job of the page.
#[derive(Debug, Serialize)]
pub struct Job {
    pub daemon: Daemon,
    /// Seconds since its page was written.
    pub age_s: Option<f64>,
    pub binding: Option<Binding>,
    #[serde(flatten)]
    pub page: Option<Page>,
    /// When it was looked at, for what is said relative to it.
    #[serde(skip)]
    pub now: u64,
}

impl Job {
    pub fn new(shown: Shown, now: u64) -> Job {
        let Shown { alive, page } = shown;
        let age = page.as_ref().map(|page| now.saturating_sub(page.top.at));
        let daemon = match &page {
            _ if !alive => Daemon::Gone,
            None => Daemon::Unreadable,
            Some(page) if is_stopped(page.top.pid) => Daemon::Stopped,
            Some(page) => {
                let late = page.top.every.saturating_mul(MISSED_PAGES);
                // Without a job it sleeps until somebody comes.
                if late > 0 && age.is_some_and(|age| age > late) { Daemon::Silent } else { Daemon::Well }
            }
        };
        let binding = page.as_ref().map(binding);
        Job { daemon, age_s: age.map(|ns| ns as f64 / 1e9), binding, page, now }
    }

    pub fn is_well(&self) -> bool {
        self.daemon == Daemon::Well
    }
}

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

fn binding(page: &Page) -> Binding {
    let served = || page.ranks.iter().filter(|rank| rank.phase == 0);
    let iterates = served().any(|rank| rank.window != UNKNOWN || rank.steps > 0);
    if !iterates {
        return Binding::Nobody;
    }
    if served().all(|rank| rank.window != 0) {
        return Binding::Ranks;
    }
    let idle: u64 = page.servers.iter().map(|server| u64::from(server.idle)).sum();
    match (idle, page.top.in_flight) {
        (0, _) => Binding::Workers,
        (_, 0) => Binding::Memory,
        _ => Binding::Samples,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::Zeroable;
    use helix_shm::proto::page::{Rank, Server, Top};

    fn page(window: u64, idle: u32, in_flight: u64) -> Page {
        let top = Top { at: 1_000_000_000, every: 100_000_000, in_flight, ..Top::zeroed() };
        let ranks = vec![Rank { window: UNKNOWN, steps: 1, ..Rank::zeroed() }, Rank { window, ..Rank::zeroed() }];
        Page { top, ranks, servers: vec![Server { workers: 4, idle, ..Server::zeroed() }], workers: Vec::new() }
    }

    #[test]
    fn what_holds_a_job_up() {
        assert_eq!(binding(&Page { ranks: Vec::new(), ..page(0, 0, 0) }), Binding::Nobody);
        assert_eq!(binding(&page(5_000_000, 0, 9)), Binding::Ranks);
        assert_eq!(binding(&page(0, 0, 9)), Binding::Workers);
        assert_eq!(binding(&page(0, 2, 0)), Binding::Memory);
        assert_eq!(binding(&page(0, 2, 1)), Binding::Samples);
    }

    #[test]
    fn how_a_daemon_is() {
        let job = |alive, page: Option<Page>, now| Job::new(Shown { alive, page }, now).daemon;
        let at = 1_000_000_000;
        assert_eq!(job(true, Some(page(0, 0, 0)), at + 100_000_000), Daemon::Well);
        assert_eq!(job(true, Some(page(0, 0, 0)), at + 600_000_000), Daemon::Silent);
        assert_eq!(job(false, Some(page(0, 0, 0)), at), Daemon::Gone);
        assert_eq!(job(true, None, at), Daemon::Unreadable);
        let mut asleep = page(0, 0, 0);
        asleep.top.every = 0;
        assert_eq!(job(true, Some(asleep), u64::MAX), Daemon::Well);
    }
}
