//! The kernel's own queues, polled: a pipe and a pair of Unix datagram sockets.

use std::os::fd::OwnedFd;

use helix_shm::ring::spsc::Words;
use nix::errno::Errno;
use nix::unistd;

use super::End;
use crate::shared::Shared;

/// Two descriptors, to write and to read; one socket is both. Each message is written and read whole: a pipe's writes
/// of less than a page are atomic, and all are of one size.
pub struct Descriptors {
    to: OwnedFd,
    from: OwnedFd,
}

impl Descriptors {
    /// A pipe in each direction.
    pub fn pipes(shared: &Shared) -> std::io::Result<Descriptors> {
        let (to, from) = shared.poll_pipe()?;
        Ok(Descriptors { to, from })
    }

    /// A pair of datagram sockets.
    pub fn datagrams(shared: &Shared) -> std::io::Result<Descriptors> {
        Ok(Descriptors { to: shared.poll_datagram()?, from: shared.poll_datagram()? })
    }
}

const BYTES: usize = size_of::<Words>();

impl End for Descriptors {
    #[inline(always)]
    fn send(&mut self, message: &Words) -> bool {
        let mut bytes = [0; BYTES];
        for (to, from) in bytes.chunks_exact_mut(8).zip(message) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        match unistd::write(&self.to, &bytes) {
            Ok(BYTES) => true,
            Err(Errno::EAGAIN | Errno::EINTR) => false,
            other => panic!("wrote a part of a message: {other:?}"),
        }
    }

    #[inline(always)]
    fn recv(&mut self) -> Option<Words> {
        let mut bytes = [0; BYTES];
        match unistd::read(&self.from, &mut bytes) {
            Ok(BYTES) => {}
            Err(Errno::EAGAIN | Errno::EINTR) => return None,
            other => panic!("read a part of a message: {other:?}"),
        }
        let mut message = Words::default();
        for (to, from) in message.iter_mut().zip(bytes.chunks_exact(8)) {
            *to = u64::from_ne_bytes(from.try_into().expect("eight bytes"));
        }
        Some(message)
    }
}
