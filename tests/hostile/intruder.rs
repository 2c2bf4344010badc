//! A rank that keeps to the protocol until it is in, and has every segment and descriptor of a rank in its hands.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use helix_shm::manifest::Manifest;
use helix_shm::proto::VERSION;
use helix_shm::proto::message::{Batch, Body, Feedback, Head, kind};
use helix_shm::proto::options::{OnError, RunOptions, StreamOptions};
use helix_shm::proto::session::{FromRank, Join, MAX_FDS, MAX_PACKET, Opened, ToRank};
use helix_shm::proto::transform::{Resize, Transform};
use helix_shm::ring::bell::{EventFd, Ringer, hints_bytes};
use helix_shm::ring::fds::{recv_packet, send_packet};
use helix_shm::ring::segment::Segment;
use helix_shm::ring::slab::{Slab, SlabOptions};
use helix_shm::ring::spsc::{Consumer, Producer, ring_bytes};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

pub const SLAB: usize = 1 << 20;
/// Entries of a hints segment.
const HINTS: usize = 961;
/// The daemon's lanes of sessions.
const SESSION_LANES: usize = 256;

/// A connection to the daemon.
pub fn dial(path: &Path) -> io::Result<OwnedFd> {
    let sock = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    // What floods must not wait for a daemon that is busy with others.
    setsockopt(&sock, sockopt::SendTimeout, &TimeVal::milliseconds(200))?;
    connect(sock.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(sock)
}

pub fn say(sock: BorrowedFd<'_>, packet: &FromRank, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_packet(sock, &serde_json::to_vec(packet).unwrap(), fds)
}

/// The next packet; `None` at the end, or when none comes within ten seconds.
pub fn hear(sock: BorrowedFd<'_>) -> Option<(ToRank, Vec<OwnedFd>)> {
    let mut buf = Vec::new();
    if poll(&mut [PollFd::new(sock, PollFlags::POLLIN)], PollTimeout::from(10_000u16)) != Ok(1) {
        return None;
    }
    let (len, fds) = recv_packet(sock, &mut buf, MAX_PACKET, MAX_FDS).ok()??;
    Some((serde_json::from_slice(&buf[..len]).unwrap(), fds))
}

/// A join that is right in everything.
pub fn honest_join(manifest: &Manifest) -> Join {
    Join {
        version: VERSION,
        job: "hostile".into(),
        loader: "train".into(),
        rank: 0,
        slab_bytes: SLAB as u64,
        manifest: manifest.path().display().to_string(),
        fingerprint: manifest.fingerprint().into(),
        stream: StreamOptions {
            world: 1,
            batch_size: 3,
            seed: 1,
            shuffle: true,
            drop_last: true,
            balance: Default::default(),
            profile: Default::default(),
            on_error: OnError::Skip,
            transform: Transform {
                frames: 4,
                resize: Resize::Exact { width: 48, height: 48 },
                ..Transform::default()
            },
            micro_batch: 1,
            regroup: 1,
            weigh: Default::default(),
            mix: Vec::new(),
            rebalance: Default::default(),
        },
        run: RunOptions { workers: 2, pin: false, ..RunOptions::default() },
        lent: Vec::new(),
        dealt: false,
        held: Vec::new(),
        rejoin: false,
        node: None,
        cores: Vec::new(),
    }
}

pub fn slab() -> Slab {
    Slab::create("hostile-slab", SLAB, SlabOptions { prefault: true, huge: false, node: None }).unwrap()
}

/// A rank that is in.
pub struct Intruder {
    pub sock: OwnedFd,
    pub opened: Opened,
    pub slab: Slab,
    pub inbox: Arc<Segment>,
    pub hints: Arc<Segment>,
    /// Its own bell and the daemon's.
    pub bells: [OwnedFd; 2],
    /// The same memory as `inbox` and `hints`, as files.
    pub files: [OwnedFd; 2],
    lane: Consumer,
    feedback: Producer,
    ringer: Ringer,
}

impl Intruder {
    /// `None` when the daemon does not let it in: it has been thrown out moments ago, or is turned away for good.
    pub fn join(daemon: &Path, manifest: &Path) -> Option<Intruder> {
        let manifest = Manifest::open(manifest).ok()?;
        let (sock, slab) = (dial(daemon).ok()?, slab());
        let fd = manifest.try_clone_fd().ok()?;
        say(sock.as_fd(), &FromRank::Join(Box::new(honest_join(&manifest))), &[slab.fd()?, fd.as_fd()]).ok()?;
        let (ToRank::Opened(opened), fds) = hear(sock.as_fd())? else { return None };
        let [inbox, hints, own, daemons, _lifeline] = <[OwnedFd; 5]>::try_from(fds).ok()?;
        let lanes = usize::from(opened.lanes) * ring_bytes(opened.lane_capacity);
        let files = [inbox.try_clone().ok()?, hints.try_clone().ok()?];
        let inbox = Arc::new(Segment::open(inbox, lanes + ring_bytes(opened.feedback_capacity)).ok()?);
        let hints = Arc::new(Segment::open(hints, hints_bytes(HINTS)).ok()?);
        let bells = [own.try_clone().ok()?, daemons.try_clone().ok()?];
        Some(Intruder {
            lane: Consumer::new(inbox.clone(), 0, opened.lane_capacity).ok()?,
            feedback: Producer::fresh(inbox.clone(), lanes, opened.feedback_capacity).ok()?,
            ringer: Ringer::new(hints.clone(), 0, EventFd::from(daemons)).ok()?,
            sock,
            opened,
            slab,
            inbox,
            hints,
            bells,
            files,
        })
    }

    /// Has work done: otherwise the workers would have nothing to be disturbed in.
    pub fn start(&self, iter: u32) -> bool {
        say(self.sock.as_fd(), &FromRank::Start { iter, epoch: 0, step: 0, given: None }, &[]).is_ok()
    }

    /// The next grant that the daemon announces, if one does within a second.
    pub fn grant(&mut self) -> Option<Batch> {
        for _ in 0..1000 {
            while let Ok(Some(words)) = self.lane.pop() {
                if let Ok(batch) = Batch::parse(&words)
                    && batch.head.kind == kind::BATCH
                {
                    return Some(batch);
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// Publishes feedback, whatever it says. `false` when the ring has no room.
    pub fn feed(&mut self, kind: u16, change: impl FnOnce(&mut Feedback)) -> bool {
        let head = Head { kind, session: self.opened.session, attempt: 0, slot: 0 };
        let mut feedback = Feedback { head, ..bytemuck::Zeroable::zeroed() };
        change(&mut feedback);
        let pushed = self.feedback.push(&feedback.words()).is_ok();
        self.ringer.ring(SESSION_LANES + usize::from(self.opened.session));
        pushed
    }

    /// Whether the daemon has ended the session, within ten seconds.
    pub fn is_thrown_out(&self) -> bool {
        loop {
            match hear(self.sock.as_fd()) {
                None => {
                    // The end, or silence.
                    let end = recv_packet(self.sock.as_fd(), &mut Vec::new(), MAX_PACKET, MAX_FDS);
                    return !matches!(end, Err(e) if e.kind() == io::ErrorKind::WouldBlock);
                }
                Some((ToRank::Failed { .. }, _)) => return true,
                Some(_) => {}
            }
        }
    }
}

/// Copies a manifest to where it can be spoilt.
pub fn copy(manifest: &Path, folder: &Path) -> PathBuf {
    let copy = folder.join("copy.arrow");
    std::fs::copy(manifest, &copy).unwrap();
    copy
}

/// The slab as a file, to be written to without anybody's leave.
pub fn file(fd: BorrowedFd<'_>) -> File {
    fd.try_clone_to_owned().unwrap().into()
}
