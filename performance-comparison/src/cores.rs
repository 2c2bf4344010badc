//! The cores that we may use, and staying on one.

use std::fs;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Keeps this thread on `core`.
pub fn pin(core: usize) -> nix::Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

/// The cores that we may use, one thread of each.
pub fn allowed() -> nix::Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    let allowed = (0..CpuSet::count()).filter(|&core| set.is_set(core) == Ok(true));
    Ok(allowed.filter(|&core| first_thread(core)).collect())
}

/// Whether no lower number is a thread of the same physical core.
fn first_thread(core: usize) -> bool {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let first = fs::read_to_string(path).ok().and_then(|list| list.split(['-', ',']).next()?.trim().parse().ok());
    first.is_none_or(|first: usize| first == core)
}

/// Tasks that want a core at this moment, as the kernel averages them over a minute.
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}
