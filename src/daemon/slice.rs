//! A short time slice for the thread that everybody waits for.
//!
//! The daemon works for microseconds at a time, beside workers that would compute for ever. Under Linux's EEVDF a task
//! with a shorter slice has an earlier deadline, so that it gets its core back sooner after a wake-up or a preemption;
//! its share stays the same, so nobody needs a right for it (Linux 6.12, `sched_setattr(2)`).

use std::io;

/// The shortest that the kernel grants.
const SLICE_NS: u64 = 100_000;

/// The kernel's `struct sched_attr`, as of its first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Shortens this thread's slice. An older kernel ignores it; a thread of another policy is left alone.
pub(super) fn shorten() -> io::Result<()> {
    let mut attributes = Attributes { size: size_of::<Attributes>() as u32, ..Attributes::default() };
    // SAFETY: the kernel writes at most as many bytes as it is told that there are.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size_of::<Attributes>(), 0) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    if attributes.policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    attributes.runtime = SLICE_NS;
    // SAFETY: the kernel reads as many bytes as `size`, its first field, says.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_shorten_its_slice_as_often_as_it_likes_and_keeps_its_niceness() {
        let nice = || {
            std::fs::read_to_string("/proc/thread-self/stat")
                .unwrap()
                .rsplit(')')
                .next()
                .map(|rest| rest.split_whitespace().nth(16).unwrap().to_owned())
        };
        let before = nice();
        shorten().unwrap();
        shorten().unwrap();
        assert_eq!(nice(), before);
    }
}
