//! A process that cannot be mistaken for another: readable when it is dead, and then only.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A pidfd.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the process with this number: one that this process has started and not yet reaped, or one that the
    /// caller knows to be alive.
    pub fn open(pid: u32) -> io::Result<PidFd> {
        // SAFETY: pidfd_open takes two integers and touches no memory of ours.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        PidFd::own(fd)
    }

    /// Opens the process at the other end of a Unix socket. Kernels before 6.5 do not know it by its socket; then it
    /// is opened by number, which is safe as long as that process has not closed the socket.
    pub fn of_peer(sock: BorrowedFd<'_>, pid: u32) -> io::Result<PidFd> {
        const SO_PEERPIDFD: libc::c_int = 77;
        let mut fd: libc::c_int = -1;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `fd`, which lives on this stack frame.
        let rc = unsafe {
            libc::getsockopt(sock.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut fd).cast(), &raw mut len)
        };
        if rc == 0 { PidFd::own(fd.into()) } else { PidFd::open(pid) }
    }

    fn own(fd: libc::c_long) -> io::Result<PidFd> {
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor and nobody else owns it.
        Ok(PidFd(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Sends SIGKILL to this process and no other, however old its number is.
    pub fn kill(&self) {
        // SAFETY: integers and a null siginfo; the descriptor is ours.
        unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), libc::SIGKILL, std::ptr::null::<u8>(), 0)
        };
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn an_unreaped_child_is_dead_to_its_pidfd() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pidfd = PidFd::open(child.id()).unwrap();
        let dead = |timeout| {
            let mut fds = [nix::poll::PollFd::new(pidfd.as_fd(), nix::poll::PollFlags::POLLIN)];
            nix::poll::poll(&mut fds, timeout).unwrap() == 1
        };
        assert!(!dead(nix::poll::PollTimeout::ZERO));
        pidfd.kill();
        assert!(dead(nix::poll::PollTimeout::NONE));
        child.wait().unwrap();
    }
}
