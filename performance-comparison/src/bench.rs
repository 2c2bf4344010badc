//! The side that measures: one burst of anything, in nanoseconds an operation.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use helix_shm::ring::segment::Segment;

use crate::cores::pin;
use crate::crowd;
use crate::ends::iceoryx::{Failed, Iceoryx};
use crate::ends::posix::Descriptors;
use crate::ends::ring::Ring;
use crate::ends::slab::Regions;
use crate::ends::threads::{Array, Rtrb};
use crate::ends::{Bursts, End};
use crate::floor;
use crate::peer::{Answers, Job, Peer};
use crate::publish::{Consumes, Publisher, Taker};
use crate::shared::{Shared, Side};
use crate::wakers::{self, Bell, Waker};

/// What can be measured. Queues and wakers are named by their place in [`ends`] and [`wakers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// One way of a word on a line.
    Floor,
    /// The same, polled without `pause`.
    BusyFloor,
    /// The same over a line for each direction.
    TwoLines,
    /// One way of a message.
    OneWay(Queue),
    /// A message of a stream.
    Rate(Queue),
    /// One wake-up, with both sides on one core or each on its own.
    Wake(usize, Sharing),
    /// Publishing.
    Publish(Consumes),
    /// Storing a flag, fencing and looking.
    Flag(Consumes),
    /// A message of many producers: to our matrix, or else to one `ArrayQueue`.
    Crowd {
        /// Whether to ours.
        ours: bool,
    },
}

/// A queue, by its place in the list of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// Between processes.
    Process(usize),
    /// Between threads.
    Thread(usize),
}

/// Where the two sides of a wake-up are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// On one core.
    SameCore,
    /// On two.
    OtherCore,
}

/// Queues between processes, ours first; the full path with and without the bell.
pub const PROCESS_QUEUES: [&str; 6] =
    ["helix ring", "helix full path", "helix full path + bell", "iceoryx2", "pipe", "unix datagram"];
/// Queues between threads.
pub const THREAD_QUEUES: [&str; 2] = ["rtrb (threads)", "ArrayQueue (threads)"];
/// Ways to wake; the first is the floor of the others.
pub const WAKERS: [&str; 5] = ["eventfd", "helix bell", "iceoryx2 event", "pipe", "unix datagram"];

type Lists = (Vec<Box<dyn Bursts>>, Vec<Box<dyn Waker>>);

/// Either side's ends, in the order of [`PROCESS_QUEUES`] and [`WAKERS`].
fn lists(shared: &Shared, iceoryx: &Iceoryx) -> Result<Lists, Failed> {
    let ends: Vec<Box<dyn Bursts>> = vec![
        Box::new(Ring::new(shared, 0)?),
        Box::new(Regions::new(shared, 2, false)?),
        Box::new(Regions::new(shared, 6, true)?),
        Box::new(iceoryx.samples()?),
        Box::new(Descriptors::pipes(shared)?),
        Box::new(Descriptors::datagrams(shared)?),
    ];
    let wakers: Vec<Box<dyn Waker>> = vec![
        Box::new(wakers::Descriptors::eventfds(shared)?),
        Box::new(Bell::new(shared)?),
        Box::new(iceoryx.events()?),
        Box::new(wakers::Descriptors::pipes(shared)?),
        Box::new(wakers::Descriptors::datagrams(shared)?),
    ];
    assert_eq!((ends.len(), wakers.len()), (PROCESS_QUEUES.len(), WAKERS.len()));
    Ok((ends, wakers))
}

/// What the child process does until its parent is done.
pub fn answer(run: &str, fds: &[i32]) -> Result<(), Failed> {
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    let shared = Shared::inherit(fds)?;
    let control = UnixStream::from(shared.control()?);
    let iceoryx = Iceoryx::new(run, Side::B)?;
    let (ends, wakers) = lists(&shared, &iceoryx)?;
    let taker = Some(Taker::other(&shared)?);
    Ok(Answers { words: shared.words.clone(), ends, wakers, taker }.serve(control)?)
}

/// What the files of this run are called.
pub fn run_name() -> String {
    format!("performance-comparison-{}", std::process::id())
}

/// All that is needed to measure.
pub struct Bench {
    words: Arc<Segment>,
    ends: Vec<Box<dyn Bursts>>,
    wakers: Vec<Box<dyn Waker>>,
    thread_ends: Vec<Box<dyn Bursts>>,
    publisher: Publisher,
    process: Peer,
    thread: Peer,
    cores: Vec<usize>,
    /// How many threads send at once in [`What::Crowd`].
    pub producers: usize,
    child: Child,
    iceoryx: Iceoryx,
}

impl Bench {
    /// Starts the other side, on the second of `cores`; we are on the first.
    pub fn new(cores: Vec<usize>) -> Result<Bench, Failed> {
        let run = run_name();
        let (shared, fds, control) = Shared::create()?;
        let iceoryx = Iceoryx::new(&run, Side::A)?;
        let (ends, wakers) = lists(&shared, &iceoryx)?;
        let publisher = Publisher::new(&shared)?;
        let fds: Vec<String> = fds.iter().map(i32::to_string).collect();
        let child = Command::new(std::env::current_exe()?).args(["--answer", &run, &fds.join(",")]).spawn()?;
        let words = shared.words.clone();
        // The child has its own copies; so its death closes the socket.
        drop(shared.close_control()?);
        let mut process = Peer::new(control.into());
        process.await_ready()?;
        let (thread_ends, mut thread) = start_thread(words.clone())?;
        thread.await_ready()?;
        pin(cores[0])?;
        let producers = (cores.len() - 1).clamp(2, 4);
        Ok(Bench { words, ends, wakers, thread_ends, publisher, process, thread, cores, producers, child, iceoryx })
    }

    /// One burst of `n` operations; nanoseconds an operation, and the time that the burst took.
    pub fn burst(&mut self, what: What, n: u64) -> io::Result<(f64, Duration)> {
        let other = self.cores[1];
        let whole = Instant::now();
        let ns = match what {
            What::Floor => {
                self.process.begin(Job::Floor, n, other)?;
                floor::ping::<true>(&self.words, n)
            }
            What::BusyFloor => {
                self.process.begin(Job::BusyFloor, n, other)?;
                floor::ping::<false>(&self.words, n)
            }
            What::TwoLines => {
                self.process.begin(Job::TwoLines, n, other)?;
                floor::ping_two_lines(&self.words, n)
            }
            What::OneWay(queue) => {
                let (peer, end, which) = self.queue(queue);
                peer.begin(Job::Echo(which), n, other)?;
                end.ping(n)
            }
            What::Rate(queue) => {
                let words = self.words.clone();
                let (peer, end, which) = self.queue(queue);
                peer.begin(Job::Consume(which), n, other)?;
                end.produce(n, &words)
            }
            What::Wake(which, sharing) => {
                let core = if sharing == Sharing::SameCore { self.cores[0] } else { other };
                self.process.begin(Job::Wake(which), n, core)?;
                self.wakers[which].ping(n)
            }
            What::Publish(consumes) => {
                if consumes == Consumes::Busy {
                    self.process.begin(Job::Take, n, other)?;
                }
                self.publisher.publish(n, consumes)
            }
            What::Flag(consumes) => {
                if consumes == Consumes::Busy {
                    self.process.begin(Job::Watch, n, other)?;
                }
                self.publisher.flag(n, consumes)
            }
            What::Crowd { ours } => {
                let each = n.div_ceil(self.producers as u64);
                let way = if ours { crowd::matrix } else { crowd::array };
                way(&self.cores[1..], self.producers, each)
            }
        };
        Ok((ns, whole.elapsed()))
    }

    fn queue(&mut self, queue: Queue) -> (&mut Peer, &mut dyn Bursts, usize) {
        match queue {
            Queue::Process(which) => (&mut self.process, &mut *self.ends[which], which),
            Queue::Thread(which) => (&mut self.thread, &mut *self.thread_ends[which], which),
        }
    }

    /// Ends the other side; it has cleaned up when this returns.
    pub fn finish(self) -> io::Result<()> {
        let Bench { process, mut child, ends, wakers, iceoryx, .. } = self;
        drop(process);
        let status = child.wait()?;
        drop((ends, wakers, iceoryx));
        Iceoryx::remove_leftovers(&run_name())?;
        if status.success() {
            Ok(())
        } else {
            Err(io::Error::other(format!("the other process ended with {status}")))
        }
    }
}

/// The answering side of the queues that know no processes.
fn start_thread(words: Arc<Segment>) -> io::Result<(Vec<Box<dyn Bursts>>, Peer)> {
    fn both<E: End + Send + 'static>((a, b): (E, E)) -> (Box<dyn Bursts>, Box<dyn Bursts + Send>) {
        (Box::new(a), Box::new(b))
    }
    let (ours, theirs): (Vec<_>, Vec<_>) = [both(Rtrb::pair()), both(Array::pair())].into_iter().unzip();
    let (control, other) = UnixStream::pair()?;
    thread::spawn(move || {
        let ends = theirs.into_iter().map(|end| end as Box<dyn Bursts>).collect();
        Answers { words, ends, wakers: Vec::new(), taker: None }.serve(other).expect("a socket that lives");
    });
    Ok((ours, Peer::new(OwnedFd::from(control).into())))
}
