//! A scripted daemon: the other end of the rank's protocol, written from `docs/protocol.md` alone. Each test says
//! what it does, message by message.
#![allow(dead_code, missing_docs, reason = "each test file uses its part")]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Zeroable;
use helix_shm::manifest::{Manifest, Record, Writer};
use helix_shm::proto::VERSION;
use helix_shm::proto::message::{Batch, Body, Entry, Feedback, Head, Ready, Words, kind};
use helix_shm::proto::session::{FromRank, Join, MAX_FDS, MAX_PACKET, Opened, ToRank};
use helix_shm::proto::transform::{Resize, Transform};
use helix_shm::ring::bell::{EventFd, RELOOK, Ringer, Sleeper, eventfd, hints_bytes};
use helix_shm::ring::fds::{recv_packet, send_packet};
use helix_shm::ring::segment::Segment;
use helix_shm::ring::slab::Slab;
use helix_shm::ring::spsc::{Consumer, Producer, ring_bytes};
use helix_shm::{Loader, Options};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, listen, socket};

pub const SESSION: u16 = 5;
pub const SHAPE: [u16; 4] = [1, 3, 4, 4];
pub const BYTES: u64 = 48;
pub const ROWS: u32 = 1000;
pub const BATCH: u16 = 4;
const BLOCK: u64 = 4096;
const LANES: u16 = 3;
const CAPACITY: u32 = 64;
const BELL: u16 = 1;
/// Nothing here takes long; a test that waits for more has failed.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Fake {
    pub folder: tempfile::TempDir,
    pub path: PathBuf,
    pub manifest: PathBuf,
    listener: OwnedFd,
}

impl Fake {
    pub fn new() -> Fake {
        let folder = tempfile::tempdir().unwrap();
        let (path, manifest) = (folder.path().join("d.sock"), folder.path().join("data.arrow"));
        let mut writer = Writer::new(File::create(&manifest).unwrap(), "{}").unwrap();
        for i in 0..ROWS {
            let record = Record {
                path: format!("/clips/{i}.mp4"),
                len: 100,
                container: "mov".into(),
                codec: "h264".into(),
                coded_width: 320,
                coded_height: 240,
                time_base: (1, 30),
                duration: 30,
                frames: 30,
                ..Record::default()
            };
            writer.push(&record.descriptor(i.into())).unwrap();
        }
        writer.finish().unwrap();
        let listener = listen_at(&path);
        Fake { folder, path, manifest, listener }
    }

    /// What the tests' loaders want: batches of four tiny clips.
    pub fn options(&self) -> Options {
        let transform =
            Transform { frames: 1, resize: Resize::Exact { width: 4, height: 4 }, ..Transform::default() };
        Options::default()
            .manifest(&self.manifest)
            .socket(&self.path)
            .spawn(false)
            .job("test")
            .rank(1)
            .world(2)
            .batch_size(BATCH.into())
            .slab_bytes(64 * BLOCK)
            .transform(transform)
    }

    /// Accepts a connection and reads its Join.
    pub fn accept(&self) -> Joined {
        let sock = accept4(&self.listener, SockFlag::SOCK_CLOEXEC).unwrap();
        let guest = Guest { sock };
        let (packet, mut fds) = guest.recv();
        let FromRank::Join(join) = packet else { panic!("{packet:?}") };
        assert_eq!(fds.len(), 2);
        let manifest = Manifest::from_fd(fds.pop().unwrap(), join.manifest.as_ref()).unwrap();
        assert_eq!(manifest.fingerprint(), join.fingerprint);
        let slab = Slab::open(fds.pop().unwrap(), join.slab_bytes as usize).unwrap();
        Joined { guest, join: *join, slab }
    }

    /// Whether anyone wants to connect within a while.
    pub fn is_called(&self, within: Duration) -> bool {
        let mut fds = [PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::try_from(within).unwrap()).unwrap() > 0
    }

    /// A loader that has joined, and its daemon.
    pub fn connect(&self, options: Options) -> (Loader, Peer) {
        let connecting = std::thread::spawn(|| Loader::connect(options));
        let peer = self.accept().open();
        (connecting.join().unwrap().unwrap(), peer)
    }

    pub fn pair(&self) -> (Loader, Peer) {
        self.connect(self.options())
    }
}

fn listen_at(path: &std::path::Path) -> OwnedFd {
    let sock = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(sock.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    listen(&sock, Backlog::new(16).unwrap()).unwrap();
    sock
}

/// A connection.
pub struct Guest {
    sock: OwnedFd,
}

impl Guest {
    pub fn recv(&self) -> (FromRank, Vec<OwnedFd>) {
        let mut bytes = Vec::new();
        let (len, fds) = recv_packet(self.sock.as_fd(), &mut bytes, MAX_PACKET, MAX_FDS).unwrap().expect("a packet");
        (serde_json::from_slice(&bytes[..len]).unwrap(), fds)
    }

    /// Whether the rank closed its side.
    pub fn ended(&self) -> bool {
        // A reset, when it left something unread.
        !matches!(recv_packet(self.sock.as_fd(), &mut Vec::new(), MAX_PACKET, MAX_FDS), Ok(Some(_)))
    }

    pub fn send(&self, packet: &ToRank, fds: &[BorrowedFd<'_>]) {
        self.send_bytes(&serde_json::to_vec(packet).unwrap(), fds);
    }

    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        send_packet(self.sock.as_fd(), bytes, fds).unwrap();
    }
}

/// A rank that waits for the answer to its Join.
pub struct Joined {
    pub guest: Guest,
    pub join: Join,
    pub slab: Slab,
}

impl Joined {
    pub fn opened(&self) -> Opened {
        Opened {
            version: VERSION,
            session: SESSION,
            lanes: LANES,
            lane_capacity: CAPACITY,
            feedback_capacity: CAPACITY,
            bell: BELL,
            steps: 100,
            samples: ROWS.into(),
            daemon_pid: 4242,
        }
    }

    pub fn open(self) -> Peer {
        let opened = self.opened();
        self.open_as(opened)
    }

    pub fn open_as(self, opened: Opened) -> Peer {
        let feedback_at = usize::from(LANES) * ring_bytes(CAPACITY);
        let inbox = Arc::new(Segment::create("inbox", feedback_at + ring_bytes(CAPACITY)).unwrap());
        let hints = Arc::new(Segment::create("hints", hints_bytes(2)).unwrap());
        let (own, rank): (EventFd, EventFd) = (eventfd().unwrap(), eventfd().unwrap());
        let (lifeline, lifeline_end) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
        let fds = [inbox.fd().unwrap(), hints.fd().unwrap(), rank.fd(), own.fd(), lifeline.as_fd()];
        self.guest.send(&ToRank::Opened(opened), &fds);
        let lane = |i: usize| Producer::fresh(inbox.clone(), i * ring_bytes(CAPACITY), CAPACITY).unwrap();
        Peer {
            lanes: (0..usize::from(LANES)).map(lane).collect(),
            feedback: Consumer::new(inbox.clone(), feedback_at, CAPACITY).unwrap(),
            sleeper: Sleeper::new(hints.clone(), 0, own).unwrap(),
            ringer: Ringer::new(hints, BELL.into(), rank).unwrap(),
            _lifeline: lifeline_end,
            inbox,
            step_ends: Vec::new(),
            guest: self.guest,
            join: self.join,
            slab: self.slab,
        }
    }
}

/// A session, from the daemon's side and its two workers'.
pub struct Peer {
    pub guest: Guest,
    pub join: Join,
    pub slab: Slab,
    pub inbox: Arc<Segment>,
    /// Step ends that came between releases.
    pub step_ends: Vec<Feedback>,
    lanes: Vec<Producer>,
    feedback: Consumer,
    sleeper: Sleeper,
    ringer: Ringer,
    _lifeline: OwnedFd,
}

/// A batch that was announced.
#[derive(Clone)]
pub struct Plan {
    pub batch: Batch,
    pub entries: Vec<Entry>,
}

pub fn head(kind: u16, slot: u16) -> Head {
    Head { kind, session: SESSION, attempt: 0, slot }
}

/// A batch of four in a block of its own; sample ids count through the grants.
pub fn plan(grant: u32, iter: u32, epoch: u32, step: u32) -> Plan {
    let offset = u64::from(grant % 64) * BLOCK;
    let head_of_batch = head(kind::BATCH, BATCH);
    let batch = Batch {
        head: head_of_batch,
        offset,
        len: BLOCK,
        grant,
        iter,
        epoch,
        step,
        global: 2 * u32::from(BATCH),
        ..Batch::zeroed()
    };
    let entries = (0..BATCH).map(|slot| Entry {
        head: head(kind::ENTRY, slot),
        sample: (u64::from(grant) * u64::from(BATCH) + u64::from(slot)) % u64::from(ROWS),
        offset: offset + u64::from(slot) * BYTES,
        len: BYTES,
        grant,
        home_rank: u32::from(slot % 2),
        home_share: 8,
        tokens: 10.0,
    });
    Plan { batch, entries: entries.collect() }
}

impl Plan {
    pub fn ready(&self, slot: u16) -> Ready {
        let Entry { sample, offset, grant, .. } = self.entries[usize::from(slot)];
        let head = Head { attempt: 1, ..head(kind::READY, slot) };
        let step = self.batch.step;
        let frames = SHAPE[0];
        Ready { head, sample, offset, written: BYTES, shape: SHAPE, grant, step, first: 0, frames, reserved: 0 }
    }

    pub fn skip(&self, slot: u16) -> Ready {
        Ready { head: head(kind::SKIP, slot), offset: 0, written: 0, shape: [0; 4], ..self.ready(slot) }
    }

    /// The byte that fills a sample.
    pub fn pixel(&self, slot: u16) -> u8 {
        self.entries[usize::from(slot)].sample as u8
    }
}

impl Peer {
    pub fn lane(&mut self, lane: usize, words: &Words) {
        self.lanes[lane].push(words).unwrap();
        self.ringer.ring(lane);
    }

    pub fn tell(&mut self, body: &impl Body) {
        self.lane(0, &body.words());
    }

    /// Announces a batch.
    pub fn grant(&mut self, grant: u32, iter: u32, epoch: u32, step: u32) -> Plan {
        let plan = plan(grant, iter, epoch, step);
        self.tell(&plan.batch);
        for entry in &plan.entries {
            self.tell(entry);
        }
        plan
    }

    /// Makes a sample, as a worker does: pixels, then Ready on its own lane.
    pub fn make(&mut self, plan: &Plan, slot: u16) {
        let offset = plan.entries[usize::from(slot)].offset as usize;
        // SAFETY: the rank does not look at a region before its Ready.
        unsafe { self.slab.slice_mut(offset, BYTES as usize) }.fill(plan.pixel(slot));
        self.lane(1 + usize::from(slot % 2), &plan.ready(slot).words());
    }

    pub fn make_all(&mut self, plan: &Plan) {
        (0..BATCH).for_each(|slot| self.make(plan, slot));
    }

    /// A batch, announced and made.
    pub fn serve(&mut self, grant: u32, iter: u32, epoch: u32, step: u32) -> Plan {
        let plan = self.grant(grant, iter, epoch, step);
        self.make_all(&plan);
        plan
    }

    pub fn end(&mut self, iter: u32, step: u32) {
        self.tell(&Batch { head: head(kind::END, 0), iter, step, ..Batch::zeroed() });
    }

    /// The next Start: (iter, epoch, step).
    pub fn started(&self) -> (u32, u32, u32) {
        match self.guest.recv() {
            (FromRank::Start { iter, epoch, step, .. }, _) => (iter, epoch, step),
            (other, _) => panic!("{other:?}"),
        }
    }

    /// The next message of the feedback ring.
    pub fn feedback(&mut self) -> Feedback {
        let begun = Instant::now();
        loop {
            if let Some(words) = self.feedback.pop().unwrap() {
                let feedback = Feedback::parse(&words).unwrap();
                assert_eq!(feedback.head.session, SESSION);
                return feedback;
            }
            assert!(begun.elapsed() < PATIENCE, "no feedback");
            self.sleeper.take(|lane| assert_eq!(lane, 256 + usize::from(SESSION)));
            self.sleeper.wait(RELOOK, Duration::ZERO);
        }
    }

    /// The next Release.
    pub fn released(&mut self) -> Feedback {
        loop {
            let feedback = self.feedback();
            if feedback.head.kind == kind::RELEASE {
                return feedback;
            }
            self.step_ends.push(feedback);
        }
    }

    pub fn has_feedback(&self) -> bool {
        !self.feedback.is_empty()
    }

    /// The daemon dies. Its workers, which hold the lifeline, go on until this is dropped.
    pub fn die(&self) {
        nix::sys::socket::shutdown(self.guest.sock.as_raw_fd(), nix::sys::socket::Shutdown::Both).unwrap();
    }
}
