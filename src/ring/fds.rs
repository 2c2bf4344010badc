//! One packet with its file descriptors over a `SOCK_SEQPACKET` socket.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

/// The most descriptors that Linux passes in one packet.
const SCM_MAX_FD: usize = 253;

/// Room for the control data of that many descriptors, aligned as its headers must be.
#[repr(C, align(8))]
struct Control([u8; 1040]);

// SAFETY: plain arithmetic on a length.
const _: () =
    assert!(size_of::<Control>() >= unsafe { libc::CMSG_SPACE((SCM_MAX_FD * size_of::<RawFd>()) as u32) } as usize);

fn refused(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Sends one packet. It arrives whole or not at all; `WouldBlock` and `BrokenPipe` are the socket's.
pub fn send_packet(sock: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.is_empty() || fds.len() > SCM_MAX_FD {
        let what = format!(
            "a packet of {} bytes with {} descriptors; wanted 1 or more, and at most 253",
            bytes.len(),
            fds.len()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 1040]);
    // SAFETY: all zeros is a message header with nothing in it.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    if !fds.is_empty() {
        let len = size_of_val(fds) as u32;
        msg.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: `control` has room for SCM_MAX_FD descriptors, so the first header and its data are inside it;
        // a `BorrowedFd` is a `RawFd` in memory.
        unsafe {
            msg.msg_controllen = libc::CMSG_SPACE(len) as _;
            let header = libc::CMSG_FIRSTHDR(&msg);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(len) as _;
            ptr::copy_nonoverlapping(fds.as_ptr().cast(), libc::CMSG_DATA(header), len as usize);
        }
    }
    loop {
        // SAFETY: every pointer in `msg` is to memory of ours that lives through the call.
        let sent = unsafe { libc::sendmsg(sock.as_raw_fd(), &msg, libc::MSG_NOSIGNAL) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Receives one packet of at most `max` bytes with at most `max_fds` descriptors, all closed on exec: its bytes are
/// the start of `buf`, their number and the descriptors are returned. `None` is the end of file; `WouldBlock` is
/// the socket's. A packet that is longer, has more descriptors or lost some is an error, and all that came with it
/// are closed.
pub fn recv_packet(
    sock: BorrowedFd<'_>,
    buf: &mut Vec<u8>,
    max: usize,
    max_fds: usize,
) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    buf.resize(max, 0);
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: max };
    let mut control = Control([0; 1040]);
    // SAFETY: all zeros is a message header with nothing in it.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.0.as_mut_ptr().cast();
    msg.msg_controllen = control.0.len() as _;
    let len = loop {
        // SAFETY: every pointer in `msg` is to memory of ours that lives through the call.
        let len = unsafe { libc::recvmsg(sock.as_raw_fd(), &mut msg, libc::MSG_CMSG_CLOEXEC) };
        if len >= 0 {
            break len as usize;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    // Owned before anything is judged, so that every way out closes them.
    let fds = received_fds(&msg);
    if msg.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(refused(format!("a packet longer than {max} bytes")));
    }
    if msg.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(refused("a packet lost descriptors on its way; is the limit of open files too low?".to_owned()));
    }
    if fds.len() > max_fds {
        return Err(refused(format!("a packet with {} descriptors; wanted at most {max_fds}", fds.len())));
    }
    match len {
        0 if fds.is_empty() => Ok(None),
        0 => Err(refused(format!("{} descriptors without a packet", fds.len()))),
        _ => Ok(Some((len, fds))),
    }
}

fn received_fds(msg: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the control data that `msg` points to and set its length; the macros stay inside.
    // Each descriptor in an SCM_RIGHTS header was made for us by this receive and belongs to nobody else.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(msg);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                fds.extend(
                    (0..bytes / size_of::<RawFd>()).map(|i| OwnedFd::from_raw_fd(data.add(i).read_unaligned())),
                );
            }
            header = libc::CMSG_NXTHDR(msg, header);
        }
    }
    fds
}

#[cfg(test)]
mod tests;
