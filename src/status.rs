//! A user's status page: the daemons' [pages](crate::proto::page) on one [`crate::ring::board`].
//!
//! One fixed name a user, and on it a slot a job, whichever of the user's daemons serves it. Daemons write, a tool
//! reads; nobody asks anybody, so that the page can be read while its daemon hangs, and after it died. What cannot be
//! had (no `/dev/shm`, a name that is another user's) never keeps a daemon from its work.

use std::io;

use crate::proto::page::{MAX_BYTES, Page, VERSION};
use crate::ring::board::{self, Board, BoardError, Layout, Reader, Slot};

/// 64 jobs of a user at once; each takes memory for what it shows only.
const LAYOUT: Layout = Layout { version: VERSION, slots: 64, record_bytes: MAX_BYTES };

/// The one name that a user's page has.
pub fn name(uid: u32) -> String {
    format!("/helix-shm-{uid}")
}

/// One slot, as a reader sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    /// Whether the daemon lives; one that is stopped or hangs does.
    pub alive: bool,
    /// Its page; `None` if it has not written one yet, or somebody has spoilt it.
    pub page: Option<Page>,
}

/// What the page of a user shows; empty where there is none of this version.
pub fn read(uid: u32) -> Result<Vec<Shown>, BoardError> {
    let Some(reader) = Reader::open(&name(uid), LAYOUT, uid)? else { return Ok(Vec::new()) };
    let shown = |seen: board::Seen| Shown { alive: seen.alive, page: seen.record.as_deref().and_then(Page::parse) };
    Ok(reader.read()?.into_iter().map(shown).collect())
}

/// Removes the page that this user's killed daemons left behind, if no daemon lives.
pub fn sweep() {
    board::sweep(&name(nix::unistd::geteuid().as_raw()));
}

/// A daemon's hold of its user's page: a slot for each job, and one when it has none.
#[derive(Debug)]
pub struct Writer {
    board: Board,
    slots: Vec<Slot>,
    record: Vec<u8>,
}

impl Writer {
    /// Takes hold of the page.
    pub fn new() -> Result<Writer, BoardError> {
        let board = Board::open(&name(nix::unistd::geteuid().as_raw()), LAYOUT)?;
        Ok(Writer { board, slots: Vec::new(), record: Vec::new() })
    }

    /// Shows these pages, and no others of this daemon. What cannot be shown does not keep the rest from it.
    pub fn show(&mut self, pages: impl ExactSizeIterator<Item = Page>) -> io::Result<()> {
        let mut shown = Ok(());
        self.slots.truncate(pages.len());
        while self.slots.len() < pages.len() {
            match self.board.claim() {
                Ok(slot) => self.slots.push(slot),
                Err(e) => {
                    shown = Err(io::Error::other(e));
                    break;
                }
            }
        }
        for (slot, mut page) in self.slots.iter_mut().zip(pages) {
            page.encode(&mut self.record);
            shown = shown.and(slot.write(&self.record));
        }
        shown
    }
}
