//! The bytes of one sample: the ranges that were read ahead, and the file for what was not foreseen.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Most bytes read ahead for one sample. A worker holds two samples, the one that it decodes and the next, so this
/// bounds its read buffers to twice as much; the clips of the usual data sets fit whole. Of a larger sample what is
/// beyond is read when the demuxer asks for it, through a window of at most 1 MiB.
pub const MAX_PREFETCH: u64 = 32 << 20;

/// First and largest read of the window: small, since a miss is mostly an index at the end of a file; doubled while
/// reads go on without a gap.
const MIN_WINDOW: usize = 64 << 10;
const MAX_WINDOW: usize = 1 << 20;

/// The bytes of one sample, by position from its start. A tar member looks like a file of its own.
#[derive(Debug)]
pub struct Input {
    len: u64,
    /// Where the sample starts in the file.
    base: u64,
    /// Ascending and apart.
    pub(super) parts: Vec<Part>,
    backing: Backing,
    read_ahead: u64,
    demand: RefCell<Demand>,
}

/// Where what was not read ahead is.
#[derive(Debug)]
pub(super) enum Backing {
    /// Nowhere: all of it is in memory.
    None,
    File(Arc<File>),
    #[cfg(feature = "object-store")]
    Object(crate::object::client::Object),
}

/// A range that was read ahead.
#[derive(Debug)]
pub(super) struct Part {
    /// Position in the sample.
    pub(super) start: u64,
    /// The bytes are the first `len` of it; the rest is a buffer's spare room.
    pub(super) buffer: Vec<u8>,
    pub(super) len: usize,
}

/// Reads that were not foreseen.
#[derive(Debug, Default)]
struct Demand {
    start: u64,
    window: Vec<u8>,
    next_size: usize,
    reads: u32,
    bytes: u64,
}

impl Input {
    /// A sample that is in memory as a whole.
    pub fn from_bytes(bytes: Vec<u8>) -> Input {
        let len = bytes.len();
        let parts = vec![Part { start: 0, buffer: bytes, len }];
        Input {
            len: len as u64,
            base: 0,
            parts,
            backing: Backing::None,
            read_ahead: len as u64,
            demand: RefCell::default(),
        }
    }

    /// A sample of `len` bytes at `base` of a file, with what was read of it ahead.
    pub(super) fn new(base: u64, len: u64, parts: Vec<Part>, backing: Backing) -> Input {
        let read_ahead = parts.iter().map(|p| p.len as u64).sum();
        Input { len, base, parts, backing, read_ahead, demand: RefCell::default() }
    }

    /// Bytes of the sample.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes read from storage for it so far, ahead and on demand.
    pub fn bytes_read(&self) -> u64 {
        self.read_ahead + self.demand.borrow().bytes
    }

    /// Reads from storage that were not foreseen.
    pub fn demand_reads(&self) -> u32 {
        self.demand.borrow().reads
    }

    /// Hands over bytes from a position on, at most `most`; fewer at the end of what is at hand, none only at the end.
    pub fn with_bytes<R>(&self, at: u64, most: usize, take: impl FnOnce(&[u8]) -> R) -> io::Result<R> {
        if at >= self.len {
            return Ok(take(&[]));
        }
        let cut = |bytes: &[u8]| take(&bytes[..most.min(bytes.len())]);
        let next = self.parts.partition_point(|p| p.start <= at);
        if let Some(part) = next.checked_sub(1).map(|i| &self.parts[i])
            && at - part.start < part.len as u64
        {
            return Ok(cut(&part.buffer[(at - part.start) as usize..part.len]));
        }
        let end = self.parts.get(next).map_or(self.len, |p| p.start.min(self.len));
        let demand = &mut *self.demand.borrow_mut();
        let window = demand.start..demand.start + demand.window.len() as u64;
        if !window.contains(&at) {
            self.move_window(demand, at, end)?;
        }
        Ok(cut(&demand.window[(at - demand.start) as usize..]))
    }

    /// Fills `out` with the bytes from a position on; an error if the sample ends before.
    pub fn read_exact(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let (mut at, mut rest) = (at, out);
        while !rest.is_empty() {
            let most = rest.len();
            let got = self.with_bytes(at, most, |bytes| {
                rest[..bytes.len()].copy_from_slice(bytes);
                bytes.len()
            })?;
            if got == 0 {
                let text = format!("{most} bytes are missing behind the sample's {} bytes", self.len);
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
            (at, rest) = (at + got as u64, &mut rest[got..]);
        }
        Ok(())
    }

    /// Reads from `at` on, no further than `end`, into the window.
    fn move_window(&self, demand: &mut Demand, at: u64, end: u64) -> io::Result<()> {
        let goes_on = demand.next_size != 0 && at == demand.start + demand.window.len() as u64;
        let size = if goes_on { demand.next_size } else { MIN_WINDOW };
        demand.next_size = (size * 2).min(MAX_WINDOW);
        let size = (end - at).min(size as u64) as usize;
        demand.start = at;
        demand.window.resize(size, 0);
        let from = self.base + at;
        let got = match &self.backing {
            Backing::None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("byte {at} is not in memory"))),
            Backing::File(file) => read_full(file, &mut demand.window, from),
            #[cfg(feature = "object-store")]
            Backing::Object(object) => object.read(from..from + size as u64).map_err(io::Error::other).map(|bytes| {
                let count = bytes.len().min(size);
                demand.window[..count].copy_from_slice(&bytes[..count]);
                count
            }),
        };
        demand.window.truncate(*got.as_ref().unwrap_or(&0));
        demand.reads += 1;
        demand.bytes += demand.window.len() as u64;
        if got? < size {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the file ends before byte {} and was longer when it was indexed", self.base + end),
            ));
        }
        Ok(())
    }
}

/// Reads until `out` is full or the file ends, whatever interrupts.
pub(super) fn read_full(file: &File, out: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < out.len() {
        match file.read_at(&mut out[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_was_not_read_ahead_is_read_on_demand_and_counted() {
        let data: Vec<u8> = (0..300_000u32).map(|i| (i * 7 % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&data).unwrap();
        let (base, len) = (1000u64, 290_000u64);
        let part =
            |start: u64, len: usize| Part { start, buffer: data[(base + start) as usize..][..len].to_vec(), len };
        let input = Input::new(base, len, vec![part(0, 100), part(150_000, 10_000)], Backing::File(Arc::new(file)));
        let mut got = vec![0; len as usize];
        let mut at = 0;
        while at < got.len() {
            let rest = &mut got[at..];
            let n = input
                .with_bytes(at as u64, 40_000, |bytes| {
                    rest[..bytes.len()].copy_from_slice(bytes);
                    bytes.len()
                })
                .unwrap();
            assert!(n > 0);
            at += n;
        }
        assert_eq!(got, &data[1000..291_000]);
        assert_eq!(input.with_bytes(len, 4, <[u8]>::len).unwrap(), 0);
        assert_eq!(input.bytes_read(), len, "nothing is read twice");
        assert!(input.demand_reads() >= 4);
    }

    #[test]
    fn a_file_that_shrank_is_an_error() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 500]).unwrap();
        let input = Input::new(0, 1000, Vec::new(), Backing::File(Arc::new(file)));
        let error = input.with_bytes(100, 10, <[u8]>::len).unwrap_err();
        assert!(error.to_string().contains("was longer when it was indexed"), "{error}");
    }
}
