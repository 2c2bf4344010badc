//! How much memory may still be had: by the machine's account and by every cgroup that we are in.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::cgroup::{Version, groups};

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
    let groups = groups(root, "memory");
    let limits = groups.iter().flat_map(|(version, dir)| match version {
        Version::V1 => V1.available(dir),
        Version::V2 => V2.available(dir),
    });
    machine.into_iter().chain(limits).min_by_key(|a| a.bytes)
}

/// File names of one cgroup version.
struct Files {
    /// Hard limits, and those above which the kernel slows us down: memory that is shared cannot be given back.
    limits: &'static [&'static str],
    usage: &'static str,
    /// In `memory.stat`: file pages that would be dropped first, so that they are as good as free.
    reclaimable: &'static str,
}

const V2: Files =
    Files { limits: &["memory.max", "memory.high"], usage: "memory.current", reclaimable: "inactive_file" };
const V1: Files =
    Files { limits: &["memory.limit_in_bytes"], usage: "memory.usage_in_bytes", reclaimable: "total_inactive_file" };

impl Files {
    fn available(&self, dir: &Path) -> Vec<Available> {
        let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
        let Some(usage) = read(self.usage).and_then(|text| text.trim().parse::<u64>().ok()) else {
            return Vec::new();
        };
        let stat = read("memory.stat").unwrap_or_default();
        let used = usage.saturating_sub(field(&stat, self.reclaimable).unwrap_or(0));
        // "max" is no number, and means no limit; so does v1's largest multiple of a page.
        let limit = |name: &&str| read(name)?.trim().parse().ok().filter(|&limit: &u64| limit < 1 << 62);
        let left = |name: &&str| Some(Available { bytes: limit(name)?.saturating_sub(used), by: dir.join(name) });
        self.limits.iter().filter_map(left).collect()
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
    use crate::ring::fixture::tree;

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

    #[test]
    fn what_slows_us_down_is_a_limit_as_well() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/job\n"),
            ("sys/fs/cgroup/job/memory.max", "9000\n"),
            ("sys/fs/cgroup/job/memory.high", "6000\n"),
            ("sys/fs/cgroup/job/memory.current", "1000\n"),
        ];
        let root = tree(&files);
        let found = available(root.path()).unwrap();
        assert_eq!((found.bytes, found.by), (5000, root.path().join("sys/fs/cgroup/job/memory.high")));
    }

    #[test]
    fn the_groups_above_limit_us_in_version_one_too() {
        let root = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "4:memory:/kubepods/pod7/box\n"),
            ("sys/fs/cgroup/memory/kubepods/pod7/box/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/kubepods/pod7/box/memory.usage_in_bytes", "100\n"),
            ("sys/fs/cgroup/memory/kubepods/pod7/memory.limit_in_bytes", "4000\n"),
            ("sys/fs/cgroup/memory/kubepods/pod7/memory.usage_in_bytes", "300\n"),
            ("sys/fs/cgroup/memory/kubepods/memory.limit_in_bytes", "8000\n"),
            ("sys/fs/cgroup/memory/kubepods/memory.usage_in_bytes", "7900\n"),
        ]);
        let found = available(root.path()).unwrap();
        let by = root.path().join("sys/fs/cgroup/memory/kubepods/memory.limit_in_bytes");
        assert_eq!((found.bytes, found.by), (100, by));
    }

    #[test]
    fn in_a_container_the_mount_is_our_group_whatever_the_path_says() {
        let root = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/system.slice/docker-abc.scope\n"),
            ("sys/fs/cgroup/memory.max", "700\n"),
            ("sys/fs/cgroup/memory.current", "800\n"),
        ]);
        assert_eq!(available(root.path()).unwrap().bytes, 0, "more is used than allowed: nothing is left");
    }
}
