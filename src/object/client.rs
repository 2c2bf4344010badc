//! The worker's side of its helper: requests out, bytes in.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, BufReader, Read, Write};
use std::ops::Range;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::helper::{Answer, Request, read_json, write_json};
use super::store::Stamp;

/// A helper that runs beside this process.
#[derive(Debug)]
pub struct Client {
    pipes: Mutex<Pipes>,
}

#[derive(Debug)]
struct Pipes {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    next: u64,
    /// Answers that came while another was waited for.
    here: HashMap<u64, Result<Vec<Vec<u8>>, String>>,
    given_up: BTreeSet<u64>,
}

/// An object to be read from, as it was when it was indexed.
#[derive(Debug, Clone)]
pub struct Object {
    client: Arc<Client>,
    url: String,
    stamp: Stamp,
}

/// Ranges on their way.
#[derive(Debug)]
pub struct Fetch {
    object: Object,
    id: u64,
    taken: bool,
}

impl Client {
    /// Starts the helper, which may fetch from these stores. To be called before the sandbox closes.
    pub fn start(origins: &BTreeSet<String>) -> io::Result<Client> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("fetch").args(origins).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let missing = || io::Error::other("a helper without pipes");
        let (to, from) = (child.stdin.take().ok_or_else(missing)?, child.stdout.take().ok_or_else(missing)?);
        let (here, given_up) = (HashMap::new(), BTreeSet::new());
        Ok(Client { pipes: Mutex::new(Pipes { child, to, from: BufReader::new(from), next: 0, here, given_up }) })
    }

    /// An object of one of its stores.
    pub fn object(self: &Arc<Client>, url: &str, stamp: Stamp) -> Object {
        Object { client: Arc::clone(self), url: url.to_owned(), stamp }
    }

    fn pipes(&self) -> MutexGuard<'_, Pipes> {
        self.pipes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        // Its input ends, and it with it; at the latest it ends with this process. A sandbox may forbid more.
        let _ = self.child.try_wait();
    }
}

impl Object {
    /// Asks for ranges, and does not wait.
    pub fn fetch(&self, ranges: &[Range<u64>]) -> io::Result<Fetch> {
        let mut pipes = self.client.pipes();
        let id = pipes.next;
        pipes.next += 1;
        let Stamp { len, mtime_ns } = self.stamp;
        write_json(&mut pipes.to, &Request { id, url: self.url.clone(), len, mtime_ns, ranges: ranges.to_vec() })?;
        pipes.to.flush()?;
        Ok(Fetch { object: self.clone(), id, taken: false })
    }

    /// A range, waited for.
    pub fn read(&self, range: Range<u64>) -> Result<Vec<u8>, String> {
        let fetch = self.fetch(&[range]).map_err(|e| format!("{}: the helper that fetches: {e}", self.url))?;
        Ok(fetch.wait()?.into_iter().flatten().collect())
    }
}

impl Fetch {
    /// The bytes of each range.
    pub fn wait(mut self) -> Result<Vec<Vec<u8>>, String> {
        self.taken = true;
        let mut pipes = self.object.client.pipes();
        loop {
            if let Some(got) = pipes.here.remove(&self.id) {
                return got;
            }
            pipes.take_one().map_err(|e| format!("{}: the helper that fetches: {e}", self.object.url))?;
        }
    }

    /// The object that it is of.
    pub fn object(&self) -> Object {
        self.object.clone()
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if !self.taken {
            let mut pipes = self.object.client.pipes();
            if pipes.here.remove(&self.id).is_none() {
                pipes.given_up.insert(self.id);
            }
        }
    }
}

impl Pipes {
    fn take_one(&mut self) -> io::Result<()> {
        let ended = || io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended");
        let Answer { id, error, lens } = read_json(&mut self.from)?.ok_or_else(ended)?;
        let mut parts = Vec::with_capacity(lens.len());
        for len in lens {
            let len = usize::try_from(len).map_err(io::Error::other)?;
            let mut part = Vec::with_capacity(len);
            if (&mut self.from).take(len as u64).read_to_end(&mut part)? < len {
                return Err(ended());
            }
            parts.push(part);
        }
        if !self.given_up.remove(&id) {
            self.here.insert(id, error.map_or(Ok(parts), Err));
        }
        Ok(())
    }
}
