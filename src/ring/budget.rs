//! How much memory may still be had: by the machine's account and by every cgroup that we are in.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// What sets a limit, and how much it leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Available {
    /// Bytes.
    pub(super) bytes: u64,
    /// The file that says so.
    pub(super) by: PathBuf,
}

/// The least of what `/proc/meminfo` and the cgroups (v1 and v2, and all above them) leave us; `None` where none of
/// them can be read. `root` stands before every path: `/`, or a fixture.
pub(super) fn available(root: &Path) -> Option<Available> {
    let meminfo = root.join("proc/meminfo");
    let machine = fs::read_to_string(&meminfo).ok().and_then(|text| {
        let kib = field(&text, "MemAvailable:")?;
        Some(Available { bytes: kib.saturating_mul(1024), by: meminfo })
    });
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(|line| group_limits(root, line));
    machine.into_iter().chain(limits).min_by_key(|a| a.bytes)
}

/// The limits that one line of `/proc/self/cgroup` (`number:controllers:path`) subjects us to.
fn group_limits(root: &Path, line: &str) -> Vec<Available> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { return Vec::new() };
    let (mount, files): (&str, &Files) = match controllers {
        "" => ("sys/fs/cgroup", &V2),
        c if c.split(',').any(|c| c == "memory") => ("sys/fs/cgroup/memory", &V1),
        _ => return Vec::new(),
    };
    let mount = root.join(mount);
    // In a container the path is often the host's while the mount is our own group: what is absent sets no limit
    // here, and the mount itself is always looked at.
    let own = mount.join(path.trim_start_matches('/'));
    own.ancestors().take_while(|dir| dir.starts_with(&mount)).filter_map(|dir| files.available(dir)).collect()
}

/// File names of one cgroup version.
struct Files {
    limit: &'static str,
    usage: &'static str,
    /// In `memory.stat`: file pages that would be dropped first, so that they are as good as free.
    reclaimable: &'static str,
}

const V2: Files = Files { limit: "memory.max", usage: "memory.current", reclaimable: "inactive_file" };
const V1: Files =
    Files { limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", reclaimable: "total_inactive_file" };

impl Files {
    fn available(&self, dir: &Path) -> Option<Available> {
        let by = dir.join(self.limit);
        // "max" is no number, and means no limit; so does v1's largest multiple of a page.
        let limit: u64 = fs::read_to_string(&by).ok()?.trim().parse().ok().filter(|&l| l < 1 << 62)?;
        let usage: u64 = fs::read_to_string(dir.join(self.usage)).ok()?.trim().parse().ok()?;
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let used = usage.saturating_sub(field(&stat, self.reclaimable).unwrap_or(0));
        Some(Available { bytes: limit.saturating_sub(used), by })
    }
}

/// The number behind `name` at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut words =
        text.lines().map(str::split_whitespace).find_map(|mut w| (w.next() == Some(name)).then_some(w))?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  2048 kB\nMemAvailable:  1000 kB\n");

    #[test]
    fn without_a_group_the_machine_decides() {
        let root = tree(&[MEMINFO]);
        let found = available(root.path()).unwrap();
        assert_eq!((found.bytes, found.by), (1_024_000, root.path().join("proc/meminfo")));
        assert_eq!(available(tree(&[]).path()), None);
    }

    #[test]
    fn a_group_above_ours_limits_us_too() {
        let root = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/job/rank\n"),
            ("sys/fs/cgroup/job/rank/memory.max", "max\n"),
            ("sys/fs/cgroup/job/rank/memory.current", "10\n"),
            ("sys/fs/cgroup/job/memory.max", "5000\n"),
            ("sys/fs/cgroup/job/memory.current", "4000\n"),
            ("sys/fs/cgroup/job/memory.stat", "anon 1\nactive_file 7\ninactive_file 500\n"),
        ]);
        let found = available(root.path()).unwrap();
        assert_eq!((found.bytes, found.by), (1500, root.path().join("sys/fs/cgroup/job/memory.max")));
    }

    #[test]
    fn version_one_is_read_at_its_own_mount() {
        let root = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/docker/abc\nnonsense\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "9500\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 700\n"),
        ]);
        assert_eq!(available(root.path()).unwrap().bytes, 200);
        let unlimited = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n"),
        ]);
        assert_eq!(available(unlimited.path()).unwrap().bytes, 1_024_000);
    }
}
