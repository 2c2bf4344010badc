//! Reads through io_uring. The kernel writes into a buffer at any moment from submission to completion, so the ring
//! owns each buffer for that time and hands it out only when no operation on it is left.
//!
//! A seccomp filter does not see what goes through a ring, so the ring is restricted for ever when it is made: it
//! reads files that are registered with it, and gives up such reads, and can do nothing else.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, cqueue, opcode, register::Restriction, squeue, types};

use super::Part;

/// Operations in flight at once; the completion queue has twice the room and cannot overflow.
const DEPTH: u32 = 64;

/// Largest single operation: large reads are split so that storage works on several parts at once.
const CHUNK: usize = 1 << 20;

/// Files that can be registered at once: a worker has two samples in hand, and given up reads of a few more.
const FILES: usize = 16;

/// `IORING_REGISTER_FILES_UPDATE`, which the crate has no name for.
const FILES_UPDATE: u8 = 6;

/// `user_data` of operations that stand for no read.
const NO_READ: u64 = u64::MAX;

/// The reads of one sample.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) file: Arc<File>,
    /// Where the sample starts in the file.
    pub(super) base: u64,
    pub(super) parts: Vec<Part>,
    pub(super) error: Option<io::Error>,
    /// Operations that are queued or in flight.
    left: usize,
    cancelled: bool,
    /// Where the file is registered, while operations are left.
    place: Option<u32>,
}

impl Job {
    pub(super) fn new(file: Arc<File>, base: u64, parts: Vec<Part>) -> Job {
        Job { file, base, parts, error: None, left: 0, cancelled: false, place: None }
    }
}

/// One read of a piece of a part.
#[derive(Debug, Clone, Copy)]
struct Op {
    job: u64,
    file: types::Fixed,
    /// Position in the file.
    at: u64,
    /// Into a buffer of the job, which the ring owns and does not touch while the job has operations left.
    to: *mut u8,
    len: usize,
}

/// One worker's io_uring.
pub(super) struct Ring {
    ring: IoUring,
    jobs: HashMap<u64, Job>,
    ops: Vec<Option<Op>>,
    free: Vec<usize>,
    queue: VecDeque<usize>,
    in_flight: u32,
    returned: Vec<Vec<u8>>,
    /// Places of the table of registered files that no job has.
    places: Vec<u32>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("jobs", &self.jobs.len()).field("in_flight", &self.in_flight).finish()
    }
}

/// The error of a file that is shorter than it was when it was indexed.
pub(super) fn ended(at: u64) -> io::Error {
    let text = format!("the file ends at byte {at} and was longer when it was indexed: run `helix index` again");
    io::Error::new(io::ErrorKind::UnexpectedEof, text)
}

impl Ring {
    /// A ring that has proven to work: a filter may allow the set-up and refuse the rest.
    pub(super) fn new() -> io::Result<Ring> {
        let mut ring = IoUring::builder().setup_r_disabled().build(DEPTH)?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::AsyncCancel::CODE) {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        ring.submitter().register_files(&[-1; FILES])?;
        ring.submitter().register_restrictions(&mut [
            Restriction::register_op(FILES_UPDATE),
            Restriction::sqe_op(opcode::Read::CODE),
            Restriction::sqe_op(opcode::AsyncCancel::CODE),
            Restriction::sqe_op(opcode::Nop::CODE),
            Restriction::sqe_flags_required(squeue::Flags::FIXED_FILE.bits()),
        ])?;
        ring.submitter().register_enable_rings()?;
        let nothing = opcode::Nop::new().build().flags(squeue::Flags::FIXED_FILE).user_data(NO_READ);
        // SAFETY: a no-op refers to no memory.
        unsafe { ring.submission().push(&nothing) }.expect("an empty queue has room");
        while ring.completion().is_empty() {
            match ring.submit_and_wait(1) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
        }
        let refused = ring.completion().map(|entry: cqueue::Entry| entry.result()).filter(|&result| result < 0).min();
        if let Some(error) = refused {
            return Err(io::Error::from_raw_os_error(-error));
        }
        Ok(Ring {
            ring,
            jobs: HashMap::new(),
            ops: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            in_flight: 0,
            returned: Vec::new(),
            places: (0..FILES as u32).collect(),
        })
    }

    /// Starts the reads of a job. What goes wrong with a read comes out of [`Ring::wait`]; an error here means that
    /// the ring is broken, and the job comes back.
    pub(super) fn start(&mut self, id: u64, mut job: Job) -> Result<(), (Job, io::Error)> {
        let file = match self.register(&job.file) {
            Ok(place) => place,
            Err(e) => return Err((job, e)),
        };
        job.place = Some(file);
        let file = types::Fixed(file);
        for part in &mut job.parts {
            let to = part.buffer[..part.len].as_mut_ptr();
            for start in (0..part.len).step_by(CHUNK) {
                let at = job.base + part.start + start as u64;
                // SAFETY: `start` lies in the part's buffer.
                let to = unsafe { to.add(start) };
                self.add(Op { job: id, file, at, to, len: CHUNK.min(part.len - start) });
                job.left += 1;
            }
        }
        if job.left == 0 {
            self.places.extend(job.place.take());
        }
        self.jobs.insert(id, job);
        // An error shows again when the job is waited for.
        let _ = self.push().and_then(|()| self.enter(0));
        self.reap();
        Ok(())
    }

    /// A place of the table with this file in it. What was there before is let go of with that.
    fn register(&mut self, file: &File) -> io::Result<u32> {
        if self.places.is_empty() {
            self.settle(|ring| !ring.places.is_empty())?;
        }
        let place = self.places.pop().ok_or(io::ErrorKind::QuotaExceeded)?;
        match self.ring.submitter().register_files_update(place, &[file.as_raw_fd()]) {
            Ok(_) => Ok(place),
            Err(e) => {
                self.places.push(place);
                Err(e)
            }
        }
    }

    /// Waits until a job has no operation left. An error means that the ring itself is broken.
    pub(super) fn wait(&mut self, id: u64) -> io::Result<()> {
        self.settle(|ring| ring.jobs.get(&id).is_none_or(|job| job.left == 0))
    }

    /// Gives out a job that has no operation left.
    pub(super) fn take(&mut self, id: u64) -> Option<Job> {
        if self.jobs.get(&id)?.left > 0 { None } else { self.jobs.remove(&id) }
    }

    /// The jobs under way, to be done again in buffers of their own.
    pub(super) fn copies(&self) -> Vec<(u64, Job)> {
        let part = |p: &Part| Part { start: p.start, buffer: vec![0; p.buffer.len()], len: p.len };
        let copy = |job: &Job| Job::new(job.file.clone(), job.base, job.parts.iter().map(part).collect());
        self.jobs.iter().map(|(&id, job)| (id, copy(job))).collect()
    }

    /// Gives up a job. Its buffers come out of [`Ring::cancelled`] when the kernel has let go of them.
    pub(super) fn cancel(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.cancelled = true;
        self.drop_queued(id);
        self.cancel_in_flight(Some(id));
        self.reap();
        self.collect(id);
    }

    /// Buffers of cancelled jobs.
    pub(super) fn cancelled(&mut self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.reap();
        self.returned.drain(..)
    }

    fn add(&mut self, op: Op) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.ops.push(None);
            self.ops.len() - 1
        });
        self.ops[slot] = Some(op);
        self.queue.push_back(slot);
    }

    /// Moves queued operations to the kernel's queue as far as there is room.
    fn push(&mut self) -> io::Result<()> {
        while self.in_flight < DEPTH
            && let Some(slot) = self.queue.pop_front()
        {
            let op = self.ops[slot].expect("queued operations exist");
            let entry = opcode::Read::new(op.file, op.to, op.len as u32).offset(op.at).build().user_data(slot as u64);
            if let Err(e) = self.push_entry(&entry) {
                self.queue.push_front(slot);
                return Err(e);
            }
            self.in_flight += 1;
        }
        Ok(())
    }

    fn push_entry(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: a read's buffer and file belong to a job in `jobs`, which keeps both until the operation is
        // completed; other operations refer to no memory.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.enter(0)?;
        }
        Ok(())
    }

    /// Lets the kernel take what is queued, and waits for `wait` completions.
    fn enter(&mut self, wait: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(wait) {
            Ok(_) => Ok(()),
            // Interrupted, or short of memory or of room for completions: reap, then try again.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {
                self.reap();
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// Works until a condition holds.
    fn settle(&mut self, done: impl Fn(&Ring) -> bool) -> io::Result<()> {
        self.reap();
        while !done(self) {
            self.push()?;
            self.enter(1)?;
            self.reap();
        }
        // What the completions made room for goes on while the caller works.
        self.push()?;
        if !self.ring.submission().is_empty() { self.enter(0) } else { Ok(()) }
    }

    fn reap(&mut self) {
        loop {
            let Some(entry) = self.ring.completion().next() else { break };
            if entry.user_data() != NO_READ {
                self.in_flight -= 1;
                self.complete(entry.user_data() as usize, entry.result());
            }
        }
    }

    fn complete(&mut self, slot: usize, result: i32) {
        let mut op = self.ops[slot].expect("completed operations exist");
        let job = self.jobs.get_mut(&op.job).expect("a job outlives its operations");
        let again = job.error.is_none() && !job.cancelled;
        match usize::try_from(result) {
            Ok(n) if n == op.len => {}
            Ok(0) => job.error = job.error.take().or_else(|| Some(ended(op.at))),
            Ok(n) if again => {
                op.at += n as u64;
                op.len -= n;
                // SAFETY: the kernel wrote `n` bytes, fewer than the operation's length.
                op.to = unsafe { op.to.add(n) };
                self.ops[slot] = Some(op);
                return self.queue.push_back(slot);
            }
            Ok(_) => {}
            // Cancelled by mistake: a late request to cancel names operations by slot, and slots are used again.
            Err(_) if again && matches!(-result, libc::EINTR | libc::EAGAIN | libc::ECANCELED) => {
                return self.queue.push_back(slot);
            }
            Err(_) => job.error = job.error.take().or_else(|| Some(io::Error::from_raw_os_error(-result))),
        }
        job.left -= 1;
        if job.left == 0 {
            self.places.extend(job.place.take());
        }
        self.ops[slot] = None;
        self.free.push(slot);
        if job.cancelled {
            self.collect(op.job);
        }
    }

    /// Forgets operations of a job that the kernel has not seen.
    fn drop_queued(&mut self, id: u64) {
        let Ring { queue, ops, free, jobs, places, .. } = self;
        queue.retain(|&slot| {
            let keep = ops[slot].is_none_or(|op| op.job != id);
            if !keep {
                ops[slot] = None;
                free.push(slot);
                let job = jobs.get_mut(&id).expect("a job outlives its operations");
                job.left -= 1;
                if job.left == 0 {
                    places.extend(job.place.take());
                }
            }
            keep
        });
    }

    /// Asks the kernel to end operations: those of one job, or all.
    fn cancel_in_flight(&mut self, id: Option<u64>) {
        for slot in 0..self.ops.len() {
            let Some(op) = self.ops[slot] else { continue };
            if id.is_none_or(|id| id == op.job) {
                let entry = opcode::AsyncCancel::new(slot as u64).build();
                let entry = entry.flags(squeue::Flags::FIXED_FILE).user_data(NO_READ);
                // If it fails the read just ends by itself.
                let _ = self.push_entry(&entry);
            }
        }
        let _ = self.enter(0);
    }

    /// Takes the buffers of a cancelled job that has no operation left.
    fn collect(&mut self, id: u64) {
        if self.jobs.get(&id).is_some_and(|job| job.cancelled && job.left == 0) {
            let job = self.jobs.remove(&id).expect("found above");
            self.returned.extend(job.parts.into_iter().map(|p| p.buffer));
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let ids: Vec<u64> = self.jobs.keys().copied().collect();
        ids.into_iter().for_each(|id| self.drop_queued(id));
        self.jobs.values_mut().for_each(|job| job.cancelled = true);
        if self.in_flight > 0 {
            self.cancel_in_flight(None);
        }
        while self.in_flight > 0 {
            if let Err(e) = self.enter(1) {
                // The kernel may still write: better to lose the memory than to hand it out again.
                tracing::warn!("io_uring cannot be waited for ({e}); {} reads keep their buffers", self.in_flight);
                std::mem::forget(std::mem::take(&mut self.jobs));
                return;
            }
            self.reap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_does_nothing_but_read_registered_files() {
        // Where the system refuses rings there is none to be restricted.
        let Ok(mut ring) = Ring::new() else { return };
        let file = File::open("/proc/self/exe").unwrap();
        let place = types::Fixed(ring.register(&file).unwrap());
        let mut buffer = [0u8; 4];
        let (to, name) = (buffer.as_mut_ptr(), c"/etc/hostname");
        let asked = [
            opcode::Read::new(place, to, 4).build(),
            opcode::Read::new(types::Fd(file.as_raw_fd()), to, 4).build(),
            opcode::Write::new(place, to, 4).build(),
            opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), name.as_ptr()).build(),
            opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(),
            opcode::Connect::new(place, std::ptr::null(), 0).build(),
            opcode::Close::new(types::Fd(file.as_raw_fd())).build(),
        ];
        let results: Vec<i32> = asked
            .into_iter()
            .map(|entry| {
                // SAFETY: the buffer and the name outlive the operation, which is waited for.
                unsafe { ring.ring.submission().push(&entry.user_data(NO_READ)) }.unwrap();
                let _ = ring.ring.submit_and_wait(1).unwrap();
                ring.ring.completion().next().unwrap().result()
            })
            .collect();
        assert_eq!(results[0], 4);
        assert_eq!(&buffer, b"\x7fELF");
        assert!(results[1..].iter().all(|&result| result == -libc::EACCES), "{results:?}");
        assert!(ring.ring.submitter().unregister_files().is_err(), "the table of files is not to be replaced");
    }
}
