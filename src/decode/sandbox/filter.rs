//! The seccomp filter: the system calls that reading and decoding need, and no other.
//!
//! What is not on the list fails with EPERM, so that a decoder that tries its luck fails with its sample and the
//! worker lives. Sockets that are open stay usable, none can be made; files can be opened for reading; memory can be
//! had, but none that is executable; no process and no thread can be started, and nobody be signalled.

use std::collections::BTreeMap;

use libc::{O_ACCMODE, O_APPEND, O_CREAT, O_TRUNC, PROT_EXEC};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter_all_threads,
};

/// Calls that are let through whatever their arguments are.
const PLAIN: &[i64] = &[
    // Reading, and writing to what is open: sockets, eventfds, the log.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_io_uring_enter,
    // The daemon's socket.
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_ppoll,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Time and waiting.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    // About oneself.
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    // Handlers: the one for SIGBUS, and what a panic or an abort does.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Calls of this architecture alone, which newer ones have replaced.
#[cfg(target_arch = "x86_64")]
const OLD: &[i64] =
    &[libc::SYS_poll, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[i64] = &[];

/// The one operation on an io_uring's registrations that the reader needs: a new file into a place of the table.
const IORING_REGISTER_FILES_UPDATE: u64 = 6;

/// What of a descriptor may be looked at or set.
const FCNTL: [libc::c_int; 6] =
    [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD_CLOEXEC, libc::F_GET_SEALS];

pub(super) fn install() -> Result<(), String> {
    let program = program().map_err(|e| e.to_string())?;
    apply_filter_all_threads(&program).map_err(|e| e.to_string())
}

fn program() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    rules.extend(PLAIN.iter().chain(OLD).map(|&call| (call, Vec::new())));
    let writing = (O_ACCMODE | O_CREAT | O_TRUNC | O_APPEND) as u64;
    rules.insert(libc::SYS_openat, vec![without(2, writing)?]);
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_open, vec![without(1, writing)?]);
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![without(2, PROT_EXEC as u64)?]);
    }
    rules.insert(libc::SYS_io_uring_register, vec![equal(1, IORING_REGISTER_FILES_UPDATE)?]);
    rules.insert(libc::SYS_fcntl, FCNTL.iter().map(|&what| equal(1, what as u64)).collect::<Result<_, _>>()?);
    // abort() signals its own thread.
    rules.insert(libc::SYS_tgkill, vec![equal(0, std::process::id().into())?]);
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?;
    filter.try_into()
}

/// An argument none of whose bits of a mask is set.
fn without(argument: u8, mask: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    condition(argument, SeccompCmpOp::MaskedEq(mask), 0)
}

/// An argument that is a number.
fn equal(argument: u8, number: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    condition(argument, SeccompCmpOp::Eq, number)
}

/// All of these arguments are `int`s, of which the kernel looks at the lower half.
fn condition(argument: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value)?;
    SeccompRule::new(vec![condition])
}
