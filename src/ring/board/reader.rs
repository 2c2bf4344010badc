//! Who looks at a board: trusts nothing that is on it, holds nothing of it, and cannot disturb it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use bytemuck::Zeroable;
use nix::fcntl::OFlag;

use super::{BoardError, FIRST_SLOT, Head, Layout, errno_of, has_header, lock, open, own};

/// Looks at a record that changes under the reader's eyes, until it is given up. One look is enough unless the writer
/// writes twice in the time of a copy.
const TRIES: u32 = 16;

/// A board, opened for reading alone.
#[derive(Debug)]
pub struct Reader {
    name: String,
    file: File,
    layout: Layout,
}

/// A slot that is, or was, in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its number.
    pub slot: u32,
    /// Whether its holder lives. One that is stopped does.
    pub alive: bool,
    /// The newest record that is whole; `None` if both of them are spoilt.
    pub record: Option<Vec<u8>>,
}

impl Reader {
    /// Opens the board of this name that belongs to user `owner`. `None` if there is none, or one of another layout:
    /// its version is not ours to read.
    pub fn open(name: &str, layout: Layout, owner: u32) -> Result<Option<Reader>, BoardError> {
        let file = match open(name, OFlag::O_RDONLY) {
            Ok(fd) => File::from(fd),
            Err(nix::errno::Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(BoardError::System { name: name.to_owned(), step: "shm_open", errno }),
        };
        own(name, &file, owner)?;
        Ok(has_header(&file, &layout).then(|| Reader { name: name.to_owned(), file, layout }))
    }

    /// Every slot that is in use, or was when its holder died. Each is copied once, and no more than its size.
    pub fn read(&self) -> Result<Vec<Seen>, BoardError> {
        read(&self.name, &self.file, &self.layout)
    }
}

pub(super) fn read(name: &str, file: &File, layout: &Layout) -> Result<Vec<Seen>, BoardError> {
    let mut seen = Vec::new();
    for slot in 0..layout.slots {
        let failed = |step, errno| BoardError::System { name: name.to_owned(), step, errno };
        let alive = lock::is_held(file, FIRST_SLOT + i64::from(slot), 1).map_err(|errno| failed("fcntl", errno))?;
        match newest(file, layout, slot).map_err(|e| failed("pread", errno_of(&e)))? {
            Found::Nothing if !alive => {}
            Found::Nothing | Found::Spoilt => seen.push(Seen { slot, alive, record: None }),
            Found::Whole(bytes) => seen.push(Seen { slot, alive, record: Some(bytes) }),
        }
    }
    Ok(seen)
}

enum Found {
    Nothing,
    Spoilt,
    Whole(Vec<u8>),
}

/// The newest record of a slot that is whole.
fn newest(file: &File, layout: &Layout, slot: u32) -> io::Result<Found> {
    for _ in 0..TRIES {
        let mut heads = [Head::zeroed(); 2];
        for (copy, head) in heads.iter_mut().enumerate() {
            read_at(file, layout.place(slot, copy as u64), bytemuck::bytes_of_mut(head))?;
        }
        if heads.iter().all(|head| head.number == 0) {
            return Ok(Found::Nothing);
        }
        // The newer one first; the older stands in for one that is being written, or was when its writer died.
        let newer = usize::from(heads[1].number > heads[0].number);
        for copy in [newer, 1 - newer] {
            if let Some(record) = whole(file, layout, (slot, copy as u64), &heads[copy])? {
                return Ok(Found::Whole(record));
            }
        }
        std::thread::yield_now();
    }
    Ok(Found::Spoilt)
}

/// The record behind a head, if it is the one that the head speaks of.
fn whole(file: &File, layout: &Layout, (slot, copy): (u32, u64), head: &Head) -> io::Result<Option<Vec<u8>>> {
    if head.number == 0 || head.len > u64::from(layout.record_bytes) {
        return Ok(None);
    }
    let mut record = vec![0; head.len as usize];
    read_at(file, layout.place(slot, copy) + size_of::<Head>() as u64, &mut record)?;
    Ok((Head::new(head.number, &record) == *head).then_some(record))
}

/// Copies bytes; those behind the end of a file that was cut are zeros.
fn read_at(file: &File, at: u64, to: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < to.len() {
        match file.read_at(&mut to[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    to[done..].fill(0);
    Ok(())
}
