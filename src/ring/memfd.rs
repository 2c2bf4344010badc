//! Sealed memory files: what we hand out, and what we accept.

use std::{
    ffi::CString,
    os::fd::{AsFd, OwnedFd},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        stat::{Mode, fchmod, fstat},
    },
    unistd::ftruncate,
};

/// Sealed so, a file keeps its size for ever: no peer can make our mapping fault by truncating it.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

/// What is wrong with a descriptor that a peer handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It is no memfd, so its size cannot be sealed.
    #[error("it is not a memfd; hand over one made by memfd_create with MFD_ALLOW_SEALING")]
    NoMemfd,
    /// It could still change its size.
    #[error("its seals are {found:#x}; wanted F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL ({wanted:#x})", wanted = SEALS.bits())]
    Unsealed {
        /// The seals found.
        found: i32,
    },
    /// It is too small.
    #[error("it has {found} bytes; wanted at least {wanted}")]
    Small {
        /// Bytes that were promised.
        wanted: usize,
        /// Bytes that it has.
        found: usize,
    },
}

/// A new sealed memfd of `bytes`, mode 0600, closed on exec. `extra` may ask for huge pages.
pub(super) fn create(name: &str, bytes: usize, extra: MFdFlags) -> nix::Result<OwnedFd> {
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    let fd = memfd_create(name.as_c_str(), MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING | extra)?;
    fchmod(fd.as_fd(), Mode::S_IRUSR | Mode::S_IWUSR)?;
    ftruncate(&fd, i64::try_from(bytes).map_err(|_| Errno::EFBIG)?)?;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(SEALS))?;
    Ok(fd)
}

/// The size of a memfd that a peer handed over, if it is sealed and holds at least `bytes`.
pub(super) fn check(fd: impl AsFd, bytes: usize) -> nix::Result<Result<usize, Unfit>> {
    let found = match fcntl(&fd, FcntlArg::F_GET_SEALS) {
        Ok(bits) => bits,
        Err(Errno::EINVAL) => return Ok(Err(Unfit::NoMemfd)),
        Err(errno) => return Err(errno),
    };
    if !SealFlag::from_bits_retain(found).contains(SEALS) {
        return Ok(Err(Unfit::Unsealed { found }));
    }
    let size = usize::try_from(fstat(&fd)?.st_size).unwrap_or(0);
    Ok(if size < bytes { Err(Unfit::Small { wanted: bytes, found: size }) } else { Ok(size) })
}
