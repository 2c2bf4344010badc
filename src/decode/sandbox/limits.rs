//! Limits of resources. All are inherited by nobody, since the filter lets no process be made.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Rules out that an exec'd program has more rights than this one. Landlock and the filter want it too.
pub(super) fn no_new_privileges() -> Result<(), String> {
    nix::sys::prctl::set_no_new_privs().map_err(|e| e.to_string())
}

/// Private memory up to `memory` bytes more than now, `files` descriptors, no file ever longer than it is, no core file.
///
/// Memory is counted by `RLIMIT_DATA`: private writable mappings. Slabs and manifests are shared ones, and an address
/// space has to hold them whatever their size, so `RLIMIT_AS` would bound the wrong thing. A decoder that asks for
/// more is told that there is none, which is an error of its sample.
pub(super) fn set(memory: u64, files: u64) -> Result<(), String> {
    let limit = |what, name: &str, most: u64| setrlimit(what, most, most).map_err(|e| format!("{name}: {e}"));
    limit(Resource::RLIMIT_DATA, "RLIMIT_DATA", private_bytes().saturating_add(memory))?;
    // What others have set lower stays.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|e| format!("RLIMIT_NOFILE: {e}"))?;
    limit(Resource::RLIMIT_NOFILE, "RLIMIT_NOFILE", files.min(most))?;
    limit(Resource::RLIMIT_CORE, "RLIMIT_CORE", 0)?;
    if !log_is_a_file() {
        limit(Resource::RLIMIT_FSIZE, "RLIMIT_FSIZE", 0)?;
    }
    Ok(())
}

/// Bytes of private writable mappings, and of the stack, now.
fn private_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(5).and_then(|n| n.trim().parse().ok()).unwrap_or(0);
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096);
    pages * page as u64
}

/// Whether standard error goes into a file, which then must be able to grow. No other file is open for writing, and
/// the filter lets none be opened.
fn log_is_a_file() -> bool {
    use nix::sys::stat::{SFlag, fstat};
    fstat(std::io::stderr()).is_ok_and(|about| about.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits())
}
