use std::os::fd::AsFd;

use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt},
    unistd::{pipe, read},
};

use super::*;

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap()
}

/// Whether every copy of a pipe's writing end is closed.
fn all_closed(reader: &OwnedFd) -> bool {
    fcntl(reader, FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    read(reader, &mut [0]) == Ok(0)
}

#[test]
fn packets_keep_their_borders_and_their_descriptors() {
    let (ours, theirs) = pair();
    let (reader, writer) = pipe().unwrap();
    send_packet(ours.as_fd(), b"first", &[writer.as_fd(), reader.as_fd()]).unwrap();
    send_packet(ours.as_fd(), b"second packet", &[]).unwrap();
    let mut buf = Vec::new();
    let (len, fds) = recv_packet(theirs.as_fd(), &mut buf, 100, 2).unwrap().unwrap();
    assert_eq!((&buf[..len], fds.len()), (&b"first"[..], 2));
    for fd in &fds {
        assert_eq!(fcntl(fd, FcntlArg::F_GETFD), Ok(FdFlag::FD_CLOEXEC.bits()));
    }
    nix::unistd::write(&fds[0], b"x").unwrap();
    assert_eq!(read(&fds[1], &mut [0; 9]), Ok(1));
    let (len, fds) = recv_packet(theirs.as_fd(), &mut buf, 100, 2).unwrap().unwrap();
    assert_eq!((&buf[..len], fds.len()), (&b"second packet"[..], 0));
    let nothing = recv_packet(theirs.as_fd(), &mut buf, 100, 2).unwrap_err();
    assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    drop(ours);
    assert!(recv_packet(theirs.as_fd(), &mut buf, 100, 2).unwrap().is_none());
}

#[test]
fn a_packet_that_is_too_long_or_has_too_many_descriptors_leaves_none_open() {
    let (ours, theirs) = pair();
    let mut buf = Vec::new();
    for (bytes, copies) in [(&[1u8; 11][..], 1), (&[1; 10], 3), (&[1; 10], 253)] {
        let (reader, writer) = pipe().unwrap();
        send_packet(ours.as_fd(), bytes, &vec![writer.as_fd(); copies]).unwrap();
        drop(writer);
        let refused = recv_packet(theirs.as_fd(), &mut buf, 10, 2).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        assert!(all_closed(&reader), "{} bytes, {copies} copies", bytes.len());
    }
}

#[test]
fn control_data_that_is_no_descriptor_is_passed_over() {
    let (ours, theirs) = pair();
    setsockopt(&theirs, sockopt::PassCred, &true).unwrap();
    let (_reader, writer) = pipe().unwrap();
    send_packet(ours.as_fd(), b"who am I", &[writer.as_fd()]).unwrap();
    let (len, fds) = recv_packet(theirs.as_fd(), &mut Vec::new(), 100, 2).unwrap().unwrap();
    assert_eq!((len, fds.len()), (8, 1));
}

#[test]
fn what_cannot_be_a_packet_is_not_sent() {
    let (ours, theirs) = pair();
    assert_eq!(send_packet(ours.as_fd(), b"", &[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    drop(theirs);
    assert_eq!(send_packet(ours.as_fd(), b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}
