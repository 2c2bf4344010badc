//! The process beside a worker that fetches for it, since the worker itself has no network.
//!
//! It reads requests from its standard input and writes answers to its standard output, in the order in which they are
//! ready, and ends with the worker. Either way goes a length (`u32`), so many bytes of JSON, and behind an answer's the
//! bytes that its `lens` say. It fetches from the stores that it was told at its start and from no others, so that a
//! worker which has been taken over cannot send it elsewhere; it only reads.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::origin;
use super::store::{Stamp, Stores};

/// Longest JSON of a message: a request has its ranges in it.
const MOST_JSON: u32 = 16 << 20;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) url: String,
    pub(super) len: u64,
    pub(super) mtime_ns: i64,
    pub(super) ranges: Vec<Range<u64>>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) id: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(default)]
    pub(super) lens: Vec<u64>,
}

/// Writes a message's JSON.
pub(super) fn write_json(out: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    let len = u32::try_from(json.len()).ok().filter(|&len| len <= MOST_JSON);
    let len = len.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "too many ranges for one request"))?;
    out.write_all(&len.to_ne_bytes())?;
    out.write_all(&json)
}

/// Reads a message's JSON; `None` at the end.
pub(super) fn read_json<T: for<'a> Deserialize<'a>>(input: &mut impl Read) -> io::Result<Option<T>> {
    let mut len = [0; 4];
    match input.read_exact(&mut len) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e),
    }
    let len = u32::from_ne_bytes(len);
    if len > MOST_JSON {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {len} bytes")));
    }
    let mut json = vec![0; len as usize];
    input.read_exact(&mut json)?;
    Ok(Some(serde_json::from_slice(&json)?))
}

/// Serves until the standard input ends.
pub fn serve(origins: Vec<String>) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (stores, origins) = (Arc::new(Stores::default()), Arc::new(origins));
    let (send, mut receive) = unbounded_channel::<(Answer, Vec<Vec<u8>>)>();
    let writer = std::thread::spawn(move || -> io::Result<()> {
        let mut out = io::stdout().lock();
        while let Some((answer, parts)) = receive.blocking_recv() {
            write_json(&mut out, &answer)?;
            parts.iter().try_for_each(|part| out.write_all(part))?;
            out.flush()?;
        }
        Ok(())
    });
    let mut input = io::stdin().lock();
    while let Some(request) = read_json::<Request>(&mut input)? {
        let (stores, origins, send) = (Arc::clone(&stores), Arc::clone(&origins), send.clone());
        runtime.spawn(answer(stores, origins, request, send));
    }
    // Nobody waits for what is under way.
    drop((send, runtime));
    writer.join().unwrap_or(Ok(()))
}

async fn answer(
    stores: Arc<Stores>,
    origins: Arc<Vec<String>>,
    request: Request,
    send: UnboundedSender<(Answer, Vec<Vec<u8>>)>,
) {
    let Request { id, url, len, mtime_ns, ranges } = request;
    let known = origin(&url).is_some_and(|origin| origins.iter().any(|known| known == origin));
    let made = match known && ranges.iter().all(|r| r.start <= r.end && r.end <= len) {
        true => stores.ranges(&url, Stamp { len, mtime_ns }, &ranges).await,
        false => Err(format!("{url}: not in the stores of the manifest, or ranges beyond the object")),
    };
    let told = match made {
        Ok(parts) => (Answer { id, error: None, lens: parts.iter().map(|part| part.len() as u64).collect() }, parts),
        Err(error) => (Answer { id, error: Some(error), lens: Vec::new() }, Vec::new()),
    };
    // The writer has ended if the worker has.
    let _ = send.send(told);
}
