//! A board: named shared memory with slots, each written by one process and read by anyone of the same user.
//!
//! Unlike a [`Segment`](super::segment::Segment), which is handed over as a descriptor and sealed, a board is found by
//! its name, also by someone to whom its writers cannot talk any more. A name cannot be sealed: whoever may write to
//! it may also cut it, and a mapping of a cut file kills whoever touches it. So nobody maps it; both sides copy, with
//! `pwrite` and `pread`, which fall short instead.
//!
//! - **A slot belongs to whoever holds its lock** (a lock of an open file description on one byte). The kernel lets
//!   go of it when its holder dies, however it dies, so that a slot of the dead is free at once, and a reader knows
//!   the living from the dead without asking who they are.
//! - **A record is written whole**, in turn to one of the slot's two places, with a number that counts up and a
//!   checksum: a seqlock whose reader never meets only a half. A writer that is stopped, or killed in the middle of a
//!   copy, leaves the record before in the other place.
//! - **The name goes with its last holder.** What a killed one leaves is taken over by the next, or swept.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::mman::{shm_open, shm_unlink};
use nix::sys::stat::Mode;

mod lock;
mod reader;

pub use reader::{Reader, Seen};

/// First word of a board: "helixbrd".
const MAGIC: u64 = u64::from_le_bytes(*b"helixbrd");
/// Where the slots begin.
const SLOTS_AT: u64 = 4096;
/// The byte that is locked while a board is set up or given up: nobody does that in between.
const SETUP: i64 = 0;
/// The byte that every holder of the board has a shared lock on.
const PRESENCE: i64 = 1;
/// The byte that is locked by whoever asked to be alone.
const TURN: i64 = 2;
/// The byte of slot 0; the others follow.
const FIRST_SLOT: i64 = 3;
/// How long the setup of another process may take; it is a few system calls.
const PATIENCE: Duration = Duration::from_secs(1);
/// Boards that may vanish between being opened and being locked.
const MAX_VANISHED: u32 = 100;

/// Why there is no board.
#[derive(Debug, thiserror::Error)]
pub enum BoardError {
    /// The kernel refused a step.
    #[error("shared memory `{name}`: {step} failed: {errno}")]
    System {
        /// The name.
        name: String,
        /// The system call.
        step: &'static str,
        /// Its answer.
        errno: Errno,
    },
    /// Somebody else's file has the name.
    #[error(
        "shared memory `{name}` is not this user's own: it belongs to user {owner} and has mode {mode:o}, where \
         user {wanted} and mode 600 are wanted; have it removed from /dev/shm"
    )]
    Foreign {
        /// The name.
        name: String,
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: u32,
        /// The owner that was wanted.
        wanted: u32,
    },
    /// Another process has it locked and does not go on.
    #[error("shared memory `{name}` is being set up by another process, which does not come to an end with it")]
    Busy {
        /// The name.
        name: String,
    },
    /// Every slot has a living holder.
    #[error("all {slots} slots of shared memory `{name}` are taken")]
    Full {
        /// The name.
        name: String,
        /// How many there are.
        slots: u32,
    },
}

/// How a board is divided. Holders and readers of a name agree on it, or the name is made anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Version of what is in the records.
    pub version: u32,
    /// Slots.
    pub slots: u32,
    /// Largest record, bytes.
    pub record_bytes: u32,
}

impl Layout {
    /// What the first bytes of a board say.
    fn header(&self) -> [u64; 4] {
        [MAGIC, self.version.into(), self.slots.into(), self.record_bytes.into()]
    }

    /// Bytes from one place of a record to the next.
    fn stride(&self) -> u64 {
        (size_of::<Head>() as u64 + u64::from(self.record_bytes)).next_multiple_of(SLOTS_AT)
    }

    /// Where a place of a slot begins.
    fn place(&self, slot: u32, copy: u64) -> u64 {
        SLOTS_AT + (2 * u64::from(slot) + copy) * self.stride()
    }

    fn bytes(&self) -> u64 {
        self.place(self.slots, 0)
    }
}

/// In front of each record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Head {
    /// Counts the records of a slot, from 1; 0 where there is none.
    number: u64,
    /// Bytes of the record.
    len: u64,
    /// xxh3 of both numbers and the record.
    sum: u64,
}

impl Head {
    fn new(number: u64, record: &[u8]) -> Head {
        let len = record.len() as u64;
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        hasher.update(bytemuck::bytes_of(&[number, len]));
        hasher.update(record);
        Head { number, len, sum: hasher.digest() }
    }
}

/// A board that this process holds. Sparse: what no record ever filled takes no memory.
#[derive(Debug)]
pub struct Board(Arc<Held>);

#[derive(Debug)]
struct Held {
    name: String,
    layout: Layout,
    file: File,
    /// Slots of this process: its own locks do not stand in its way.
    mine: Mutex<BTreeSet<u32>>,
}

impl Board {
    /// Takes hold of the board of this name, mode 0600; makes it if there is none, and clears what the dead left.
    ///
    /// Holders whose layout differs keep theirs, under no name any more: the newest is the one that is found.
    pub fn open(name: &str, layout: Layout) -> Result<Board, BoardError> {
        let failed = |step| move |errno| BoardError::System { name: name.to_owned(), step, errno };
        for _ in 0..MAX_VANISHED {
            let file = File::from(open(name, OFlag::O_CREAT | OFlag::O_RDWR).map_err(failed("shm_open"))?);
            own(name, &file, nix::unistd::geteuid().as_raw())?;
            let setup = Turn::take(name, &file, SETUP)?;
            if !is_named(name, &file) {
                continue;
            }
            if !has_header(&file, &layout) {
                if lock::is_held(&file, PRESENCE, 1).map_err(failed("fcntl"))? {
                    shm_unlink(name).map_err(failed("shm_unlink"))?;
                    continue;
                }
                make(&file, &layout).map_err(|e| failed("ftruncate")(errno_of(&e)))?;
            }
            lock::share(&file, PRESENCE).map_err(failed("fcntl"))?;
            drop(setup);
            let held = Held { name: name.to_owned(), layout, file, mine: Mutex::default() };
            held.clear_the_dead();
            return Ok(Board(Arc::new(held)));
        }
        Err(BoardError::Busy { name: name.to_owned() })
    }

    /// Waits for the turn of this process, for what is to be read and written in one piece: until what comes back is
    /// dropped nobody else gets one.
    pub fn turn(&self) -> Result<Turn<'_>, BoardError> {
        Turn::take(&self.0.name, &self.0.file, TURN)
    }

    /// Every slot that is in use, but this process's own: those look as if their holder were dead.
    pub fn read(&self) -> Result<Vec<Seen>, BoardError> {
        reader::read(&self.0.name, &self.0.file, &self.0.layout)
    }

    /// Takes a slot that nobody alive has.
    pub fn claim(&self) -> Result<Slot, BoardError> {
        let held = &self.0;
        let mut mine = held.mine();
        for slot in (0..held.layout.slots).filter(|slot| !mine.contains(slot)).collect::<Vec<_>>() {
            match lock::claim(&held.file, FIRST_SLOT + i64::from(slot)) {
                Ok(true) => {
                    held.clear(slot);
                    mine.insert(slot);
                    return Ok(Slot { held: Arc::clone(held), slot, number: 0, buffer: Vec::new() });
                }
                Ok(false) => {}
                Err(errno) => return Err(BoardError::System { name: held.name.clone(), step: "fcntl", errno }),
            }
        }
        Err(BoardError::Full { name: held.name.clone(), slots: held.layout.slots })
    }
}

impl Held {
    fn mine(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        // Whoever panicked with it had not begun to change it.
        self.mine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Empties a slot whose lock this process has.
    fn clear(&self, slot: u32) {
        for copy in 0..2 {
            // Should it fail, an old record is shown until there is a new one.
            let _ = self.file.write_all_at(&[0; size_of::<Head>()], self.layout.place(slot, copy));
        }
    }

    /// Empties the slots whose holders are dead, so that they are not shown for ever.
    fn clear_the_dead(&self) {
        for slot in 0..self.layout.slots {
            let at = FIRST_SLOT + i64::from(slot);
            let mut number = [0; 8];
            let used = (0..2).any(|copy| {
                self.file.read_exact_at(&mut number, self.layout.place(slot, copy)).is_ok() && number != [0; 8]
            });
            if used && lock::claim(&self.file, at) == Ok(true) {
                self.clear(slot);
                lock::release(&self.file, at);
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Where that cannot be had, the next one takes the name over.
        let Ok(_setup) = Turn::take(&self.name, &self.file, SETUP) else { return };
        lock::release(&self.file, PRESENCE);
        give_up(&self.name, &self.file);
    }
}

/// A slot of a board, held until this is dropped.
#[derive(Debug)]
pub struct Slot {
    held: Arc<Held>,
    slot: u32,
    number: u64,
    buffer: Vec<u8>,
}

impl Slot {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.slot
    }

    /// Writes a record over the one before the last.
    pub fn write(&mut self, record: &[u8]) -> io::Result<()> {
        let most = self.held.layout.record_bytes;
        if record.len() > most as usize {
            let what = format!("a record of {} bytes; wanted at most {most}", record.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        self.number += 1;
        self.buffer.clear();
        self.buffer.extend_from_slice(bytemuck::bytes_of(&Head::new(self.number, record)));
        self.buffer.extend_from_slice(record);
        // In one call, which only a kill can end half way.
        self.held.file.write_all_at(&self.buffer, self.held.layout.place(self.slot, self.number & 1))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut mine = self.held.mine();
        self.held.clear(self.slot);
        lock::release(&self.held.file, FIRST_SLOT + i64::from(self.slot));
        mine.remove(&self.slot);
    }
}

/// Removes a board that killed holders left behind, unless somebody holds it.
pub fn sweep(name: &str) {
    let Ok(file) = open(name, OFlag::O_RDWR).map(File::from) else { return };
    if let Ok(_setup) = Turn::take(name, &file, SETUP) {
        give_up(name, &file);
    }
}

/// Removes the name if nobody else holds the board and it is still this one's. Only during setup.
fn give_up(name: &str, file: &File) {
    if lock::is_held(file, PRESENCE, 1) == Ok(false) && is_named(name, file) {
        let _ = shm_unlink(name);
    }
}

/// A time in which nobody else does what is done in turns.
#[derive(Debug)]
pub struct Turn<'a>(&'a File, i64);

impl<'a> Turn<'a> {
    fn take(name: &str, file: &'a File, byte: i64) -> Result<Turn<'a>, BoardError> {
        let begun = Instant::now();
        loop {
            match lock::claim(file, byte) {
                Ok(true) => return Ok(Turn(file, byte)),
                Ok(false) if begun.elapsed() < PATIENCE => std::thread::sleep(Duration::from_micros(200)),
                Ok(false) => return Err(BoardError::Busy { name: name.to_owned() }),
                Err(errno) => return Err(BoardError::System { name: name.to_owned(), step: "fcntl", errno }),
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock::release(self.0, self.1);
    }
}

fn open(name: &str, flags: OFlag) -> nix::Result<OwnedFd> {
    shm_open(name, flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::S_IRUSR | Mode::S_IWUSR)
}

/// Refuses a file that others than `owner` may have made, or may write to. In /dev/shm everybody may make names.
fn own(name: &str, file: &File, owner: u32) -> Result<(), BoardError> {
    let meta =
        file.metadata().map_err(|e| BoardError::System { name: name.into(), step: "fstat", errno: errno_of(&e) })?;
    if meta.is_file() && meta.uid() == owner && meta.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(BoardError::Foreign { name: name.into(), owner: meta.uid(), mode: meta.mode() & 0o7777, wanted: owner })
}

/// Whether a file is what is found under a name.
fn is_named(name: &str, file: &File) -> bool {
    let id = |file: &File| file.metadata().ok().map(|m| (m.dev(), m.ino()));
    open(name, OFlag::O_RDONLY).is_ok_and(|there| id(&File::from(there)) == id(file))
}

fn has_header(file: &File, layout: &Layout) -> bool {
    let mut header = [0u64; 4];
    file.read_exact_at(bytemuck::bytes_of_mut(&mut header), 0).is_ok() && header == layout.header()
}

fn make(file: &File, layout: &Layout) -> io::Result<()> {
    file.set_len(0)?;
    file.set_len(layout.bytes())?;
    file.write_all_at(bytemuck::bytes_of(&layout.header()), 0)
}

fn errno_of(e: &io::Error) -> Errno {
    Errno::from_raw(e.raw_os_error().unwrap_or(0))
}

#[cfg(test)]
mod tests;
