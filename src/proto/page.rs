//! The status page: what a daemon shows of a job in named shared memory, so that it can be seen even when the daemon
//! does not answer. [`crate::status`] is where it is written and read; `docs/operations.md` tells what it says.
//!
//! A page is plain numbers: one [`Top`], then so many [`Rank`]s, [`Server`]s and [`Worker`]s. A reader believes none
//! of them: counts must fit the length, and text may be any bytes.

use bytemuck::{Pod, Zeroable};
use serde::{Serialize, Serializer};

use super::session::{MAX_SESSIONS, MAX_WORKERS};

/// Version of everything below. A reader of another version sees no page.
pub const VERSION: u32 = 1;
/// Most servers of a job that are shown: NUMA nodes of a box.
pub const MAX_SERVERS: u16 = 64;
/// A number that is not known.
pub const UNKNOWN: u64 = u64::MAX;

/// Bytes of the largest page.
pub const MAX_BYTES: u32 = (size_of::<Top>()
    + MAX_SESSIONS as usize * size_of::<Rank>()
    + MAX_SERVERS as usize * size_of::<Server>()
    + MAX_WORKERS as usize * size_of::<Worker>()) as u32;

/// A short text; longer ones are cut, at a character.
#[derive(Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Text([u8; 64]);

impl Text {
    /// The text as far as it fits.
    pub fn new(text: &str) -> Text {
        let mut bytes = [0; 64];
        let fits = &text[..text.floor_char_boundary(bytes.len())];
        bytes[..fits.len()].copy_from_slice(fits.as_bytes());
        Text(bytes)
    }
}

impl std::fmt::Display for Text {
    /// What the terminal shows must not be able to steer it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = self.0.iter().position(|b| *b == 0).unwrap_or(self.0.len());
        let text = String::from_utf8_lossy(&self.0[..end]);
        f.pad(&text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect::<String>())
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Numbers that are not known are null in JSON.
fn known<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    if *number == UNKNOWN { serializer.serialize_none() } else { serializer.serialize_u64(*number) }
}

/// The job as a whole. Counters start with the job.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable, Serialize)]
#[repr(C)]
pub struct Top {
    /// Process id of the daemon.
    pub pid: u32,
    /// Whether it belongs to one job.
    pub embedded: u32,
    /// When this was written, nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// The longest that a daemon with work lets pass between two pages, nanoseconds; 0 if it has none and sleeps.
    pub every: u64,
    /// Name of the job; empty if the daemon has none.
    pub job: Text,
    /// Tickets handed to workers.
    pub tickets: u64,
    /// Samples in their place.
    pub done: u64,
    /// Samples that could not be made.
    pub bad: u64,
    /// Tickets given to another worker after a death.
    pub reissued: u64,
    /// Workers that died and were replaced.
    pub restarts: u64,
    /// Messages from ranks or workers that were refused.
    pub refused: u64,
    /// CPU time of decoding, microseconds.
    pub cpu_us: u64,
    /// Bytes read from storage.
    pub bytes_read: u64,
    /// Frames that went through a decoder.
    pub frames: u64,
    /// Tickets that workers hold.
    pub in_flight: u64,
    /// Tickets whose time was predicted.
    pub predicted: u64,
    /// Mean distance of prediction and fact, in parts of the fact, of late.
    pub prediction_error: f64,
    /// The same with its sign: above 0 where tickets take longer than predicted.
    pub prediction_bias: f64,
    /// Ranks, servers and workers that follow; counted when the page is written.
    #[serde(skip)]
    pub counts: [u32; 4],
}

/// A rank of a loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable, Serialize)]
#[repr(C)]
pub struct Rank {
    /// Name of the loader.
    pub loader: Text,
    /// The rank.
    pub rank: u32,
    /// Its process.
    pub pid: u32,
    /// Node of its slab.
    pub server: u32,
    /// 0 = served, 1 = leaving, 2 = over.
    pub phase: u32,
    /// Iteration.
    pub iter: u32,
    /// The step that it ended last.
    pub step: u32,
    /// Nanoseconds until it will ask for its next batch; 0 if it stands still for it; `u64::MAX` if not known.
    #[serde(serialize_with = "known")]
    pub window: u64,
    /// Steps ended.
    pub steps: u64,
    /// Steps whose batch was not there in time; see [`is_miss`].
    pub misses: u64,
    /// Sum of waits, nanoseconds.
    pub wait: u64,
    /// Longest wait, nanoseconds.
    pub wait_max: u64,
    /// The last wait, nanoseconds.
    pub wait_last: u64,
    /// Bytes that it copied on the host.
    pub copied: u64,
    /// Samples that were skipped.
    pub skipped: u64,
    /// Bytes of its slab.
    pub slab: u64,
    /// Bytes of it that belong to batches.
    pub used: u64,
    /// Batches that are granted or held.
    pub batches: u64,
}

/// The workers of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable, Serialize)]
#[repr(C)]
pub struct Server {
    /// The node.
    pub server: u32,
    /// Its workers.
    pub workers: u32,
    /// Those without a ticket.
    pub idle: u32,
    /// Samples that wait for one of them.
    pub queued: u32,
    /// The time that those are expected to take, nanoseconds of one worker.
    pub queued_ns: u64,
}

/// A worker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable, Serialize)]
#[repr(C)]
pub struct Worker {
    /// Its process.
    pub pid: u32,
    /// Slot in the job.
    pub slot: u32,
    /// Counts the processes of the job.
    pub generation: u32,
    /// Whether it can be given tickets.
    pub up: u32,
    /// Its core; `u32::MAX` if it is not pinned.
    pub core: u32,
    /// Tickets that it holds.
    pub held: u32,
    /// The rank that it decodes for, and the step; of no meaning without a sample.
    pub rank: u32,
    /// See [`Worker::rank`].
    pub step: u32,
    /// The sample that it decodes: its row in the manifest; `u64::MAX` if none.
    #[serde(serialize_with = "known")]
    pub sample: u64,
    /// How long that is expected to take, nanoseconds; `u64::MAX` if not known.
    #[serde(serialize_with = "known")]
    pub expected: u64,
    /// When it was given it, nanoseconds of `CLOCK_MONOTONIC`.
    pub since: u64,
}

/// Whether a wait counts as a miss: more than a millisecond, and more than a twentieth of the step that follows it.
pub fn is_miss(wait_ns: u64, busy_ns: u64) -> bool {
    wait_ns > 1_000_000 && wait_ns > busy_ns / 20
}

/// Everything that is shown of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Page {
    /// The job.
    #[serde(flatten)]
    pub top: Top,
    /// Its ranks.
    pub ranks: Vec<Rank>,
    /// Its servers.
    pub servers: Vec<Server>,
    /// Its workers.
    pub workers: Vec<Worker>,
}

impl Page {
    /// The record to write.
    pub fn encode(&mut self, record: &mut Vec<u8>) {
        self.ranks.truncate(MAX_SESSIONS.into());
        self.servers.truncate(MAX_SERVERS.into());
        self.workers.truncate(MAX_WORKERS.into());
        self.top.counts = [self.ranks.len(), self.servers.len(), self.workers.len(), 0].map(|n| n as u32);
        record.clear();
        record.extend_from_slice(bytemuck::bytes_of(&self.top));
        record.extend_from_slice(bytemuck::cast_slice(&self.ranks));
        record.extend_from_slice(bytemuck::cast_slice(&self.servers));
        record.extend_from_slice(bytemuck::cast_slice(&self.workers));
    }

    /// Reads a record; `None` if its counts do not fit its length.
    pub fn parse(record: &[u8]) -> Option<Page> {
        let (top, mut rest) = record.split_at_checked(size_of::<Top>())?;
        let top: Top = bytemuck::pod_read_unaligned(top);
        let [ranks, servers, workers, _] = top.counts.map(|n| n as usize);
        let page = Page {
            top,
            ranks: take(&mut rest, ranks)?,
            servers: take(&mut rest, servers)?,
            workers: take(&mut rest, workers)?,
        };
        rest.is_empty().then_some(page)
    }
}

fn take<T: Pod>(from: &mut &[u8], count: usize) -> Option<Vec<T>> {
    let (head, rest) = from.split_at_checked(count.checked_mul(size_of::<T>())?)?;
    *from = rest;
    Some(head.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        let top = Top { pid: 7, job: Text::new("train-7b"), prediction_error: 0.25, ..Top::zeroed() };
        let rank = Rank { loader: Text::new("train"), rank: 3, window: UNKNOWN, ..Rank::zeroed() };
        let servers = vec![Server { server: 1, queued: 9, ..Server::zeroed() }];
        Page { top, ranks: vec![rank; 3], servers, workers: vec![Worker { pid: 9, ..Worker::zeroed() }; 2] }
    }

    #[test]
    fn what_is_written_is_read() {
        let (mut page, mut record) = (page(), Vec::new());
        page.encode(&mut record);
        assert_eq!(Page::parse(&record), Some(page));
    }

    #[test]
    fn a_full_page_fits_its_slot() {
        let (mut page, mut record) = (page(), Vec::new());
        page.ranks = vec![page.ranks[0]; 10_000];
        page.servers = vec![page.servers[0]; 10_000];
        page.workers = vec![page.workers[0]; 10_000];
        page.encode(&mut record);
        assert_eq!(record.len(), MAX_BYTES as usize);
        assert_eq!(Page::parse(&record).unwrap().ranks.len(), usize::from(MAX_SESSIONS));
    }

    #[test]
    fn counts_that_do_not_fit_are_no_page() {
        let (mut page, mut record) = (page(), Vec::new());
        page.encode(&mut record);
        for len in [0, 1, size_of::<Top>() - 1, size_of::<Top>(), record.len() - 1] {
            assert_eq!(Page::parse(&record[..len]), None, "{len}");
        }
        record.push(0);
        assert_eq!(Page::parse(&record), None);
        page.top.counts = [u32::MAX; 4];
        assert_eq!(Page::parse(bytemuck::bytes_of(&page.top)), None);
    }

    #[test]
    fn text_is_cut_at_a_character_and_cannot_steer_a_terminal() {
        let long = "ä".repeat(40);
        assert_eq!(Text::new(&long).to_string(), "ä".repeat(32));
        assert_eq!(Text::new("a\x1b[2Jb\n").to_string(), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(Text([0xff; 64]).to_string().chars().count(), 64);
    }

    #[test]
    fn a_miss_is_a_wait_that_is_felt() {
        assert!(!is_miss(900_000, 0), "less than a millisecond");
        assert!(!is_miss(2_000_000, 100_000_000), "a fiftieth of the step");
        assert!(is_miss(6_000_000, 100_000_000));
    }
}
