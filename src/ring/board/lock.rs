//! Locks of open file descriptions on single bytes: they end with the last descriptor of their holder, also when it
//! is killed, and hold against other descriptions of the same process.

use std::fs::File;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

fn on(kind: libc::c_int, at: i64, len: i64) -> libc::flock {
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: at, l_len: len, l_pid: 0 }
}

/// Takes the byte for this file alone. `false` if another one has it.
pub(super) fn claim(file: &File, at: i64) -> nix::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&on(libc::F_WRLCK, at, 1))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Takes the byte together with all others that share it.
pub(super) fn share(file: &File, at: i64) -> nix::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&on(libc::F_RDLCK, at, 1))).map(drop)
}

/// Lets go of the byte.
pub(super) fn release(file: &File, at: i64) {
    // Cannot fail for a byte of an open file; at worst it ends with the file.
    let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&on(libc::F_UNLCK, at, 1)));
}

/// Whether another file has a lock on one of these bytes.
pub(super) fn is_held(file: &File, at: i64, len: i64) -> nix::Result<bool> {
    let mut lock = on(libc::F_WRLCK, at, len);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}
