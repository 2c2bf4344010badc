//! The side that answers: a process or a thread that does the half of a burst which it is told to.
//!
//! It is told over a socket, on which it sleeps between bursts, and says so when it is about to begin: from then on
//! the burst alone is under way.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use helix_shm::ring::segment::Segment;

use crate::cores::pin;
use crate::ends::Bursts;
use crate::floor;
use crate::publish::Taker;
use crate::wakers::Waker;

/// What the other side does in a burst; `usize` says in which of its lists.
#[derive(Debug, Clone, Copy)]
pub enum Job {
    /// Answers over the floor's line.
    Floor,
    /// The same without `pause`.
    BusyFloor,
    /// Answers over a line for each direction.
    TwoLines,
    /// Answers messages.
    Echo(usize),
    /// Takes messages.
    Consume(usize),
    /// Sleeps and wakes.
    Wake(usize),
    /// Takes what is published.
    Take,
    /// Watches the flag.
    Watch,
}

impl Job {
    fn encode(self) -> [u64; 2] {
        match self {
            Job::Floor => [0, 0],
            Job::Echo(which) => [1, which as u64],
            Job::Consume(which) => [2, which as u64],
            Job::Wake(which) => [3, which as u64],
            Job::Take => [4, 0],
            Job::Watch => [5, 0],
            Job::TwoLines => [6, 0],
            Job::BusyFloor => [7, 0],
        }
    }

    fn decode([kind, which]: [u64; 2]) -> io::Result<Job> {
        let which = which as usize;
        Ok(match kind {
            0 => Job::Floor,
            1 => Job::Echo(which),
            2 => Job::Consume(which),
            3 => Job::Wake(which),
            4 => Job::Take,
            5 => Job::Watch,
            6 => Job::TwoLines,
            7 => Job::BusyFloor,
            _ => return Err(io::Error::other(format!("no job has the number {kind}"))),
        })
    }
}

/// Tells the other side what to do.
pub struct Peer {
    control: UnixStream,
}

impl Peer {
    /// Over its socket.
    pub fn new(control: UnixStream) -> Peer {
        Peer { control }
    }

    /// Waits until the other side is made.
    pub fn await_ready(&mut self) -> io::Result<()> {
        self.control.read_exact(&mut [0])
    }

    /// Has it begin `n` times the `job` on `core`.
    pub fn begin(&mut self, job: Job, n: u64, core: usize) -> io::Result<()> {
        let [kind, which] = job.encode();
        let mut packet = [0; 32];
        for (to, from) in packet.chunks_exact_mut(8).zip([kind, which, n, core as u64]) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        self.control.write_all(&packet)?;
        self.await_ready()
    }
}

/// All that the answering side answers with.
pub struct Answers {
    /// The words that bursts are counted in.
    pub words: Arc<Segment>,
    /// Ends of queues.
    pub ends: Vec<Box<dyn Bursts>>,
    /// Ways to be woken.
    pub wakers: Vec<Box<dyn Waker>>,
    /// Takes what is published.
    pub taker: Option<Taker>,
}

impl Answers {
    /// Does as told until the end of file.
    pub fn serve(mut self, mut control: UnixStream) -> io::Result<()> {
        control.write_all(&[1])?;
        loop {
            let mut packet = [0; 32];
            match control.read_exact(&mut packet) {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                other => other?,
            }
            let mut words = packet.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().expect("eight bytes")));
            let [kind, which, n, core] = std::array::from_fn(|_| words.next().unwrap_or(0));
            pin(core as usize)?;
            let job = Job::decode([kind, which])?;
            control.write_all(&[1])?;
            match job {
                Job::Floor => floor::echo::<true>(&self.words, n),
                Job::BusyFloor => floor::echo::<false>(&self.words, n),
                Job::TwoLines => floor::echo_two_lines(&self.words, n),
                Job::Echo(which) => self.ends[which].echo(n),
                Job::Consume(which) => self.ends[which].consume(n, &self.words),
                Job::Wake(which) => self.wakers[which].echo(n),
                Job::Take => self.taker.as_mut().ok_or(io::ErrorKind::NotFound)?.take(n),
                Job::Watch => self.taker.as_ref().ok_or(io::ErrorKind::NotFound)?.watch(n),
            }
        }
    }
}
