//! Which cores the job may use, and on which NUMA nodes they are: from affinity, cgroup and sysfs, not from the host.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::ring::cgroup::{Version, groups};
use crate::ring::topology::{Allowed, Topology};

/// The cores granted to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores {
    /// Core numbers of the affinity mask, ascending; never empty.
    pub allowed: Vec<u32>,
    /// How many of them the cgroup's CPU quota pays for; at least 1.
    pub quota: u32,
    /// NUMA node of each allowed core; 0 where the system does not say.
    pub node: BTreeMap<u32, u32>,
}

impl Cores {
    /// Reads affinity, cpusets, `cpu.max` (or the quota of cgroup v1) and sysfs.
    pub fn of_this_process() -> Cores {
        Cores::new(Path::new("/"), Allowed::to_this_thread())
    }

    /// The same from a file tree, for fixtures: `mask` is the affinity mask.
    pub fn from_tree(root: &Path, mask: Vec<u32>) -> Cores {
        Cores::new(root, Allowed::from_tree(root, mask))
    }

    fn new(root: &Path, allowed: Allowed) -> Cores {
        let mut allowed = allowed.cores;
        if allowed.is_empty() {
            allowed.push(0);
        }
        let quota = cgroup_quota(root).unwrap_or(f64::INFINITY).min(allowed.len() as f64);
        let topology = Topology::from_tree(root);
        let node = allowed.iter().map(|&core| (core, topology.node_of(core).unwrap_or(0))).collect();
        Cores { allowed, quota: (quota.ceil() as u32).max(1), node }
    }

    /// The same with more cores allowed: those of the ranks, which may be bound to others than the daemon.
    pub fn with(&self, more: &[u32]) -> Cores {
        let mut allowed: Vec<u32> = self.allowed.iter().chain(more).copied().collect();
        allowed.sort_unstable();
        allowed.dedup();
        if allowed == self.allowed { self.clone() } else { Cores::from_tree(Path::new("/"), allowed) }
    }

    /// Workers that the job gets when the user names no number: one a core that is paid for.
    pub fn default_workers(&self) -> u32 {
        self.quota
    }

    /// The core of worker `slot`: round robin over the nodes, so that few workers use all memory channels.
    pub fn core_of(&self, slot: u16) -> u32 {
        let mut by_node: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for &core in &self.allowed {
            by_node.entry(self.node[&core]).or_default().push(core);
        }
        let deepest = by_node.values().map(Vec::len).max().unwrap_or(1);
        let order: Vec<u32> =
            (0..deepest).flat_map(|i| by_node.values().filter_map(move |c| c.get(i))).copied().collect();
        order[usize::from(slot) % order.len()]
    }
}

/// Cores that the CPU quota pays for; `None` when there is no limit.
fn cgroup_quota(root: &Path) -> Option<f64> {
    let quota = |(version, dir): &(Version, PathBuf)| match version {
        Version::V1 => quota_v1(dir),
        Version::V2 => quota_v2(dir),
    };
    groups(root, "cpu").iter().filter_map(quota).filter(|cores| *cores > 0.0).reduce(f64::min)
}

fn quota_v2(dir: &Path) -> Option<f64> {
    let text = fs::read_to_string(dir.join("cpu.max")).ok()?;
    let mut parts = text.split_whitespace();
    let quota: f64 = parts.next()?.parse().ok()?;
    let period: f64 = parts.next()?.parse().ok()?;
    Some(quota / period)
}

fn quota_v1(dir: &Path) -> Option<f64> {
    let read = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<f64>().ok();
    Some(read("cpu.cfs_quota_us").filter(|q| *q > 0.0)? / read("cpu.cfs_period_us")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::fixture::tree;

    #[test]
    fn the_quota_of_any_ancestor_counts_not_the_hosts_cores() {
        let dir = tree(&[
            ("proc/self/cgroup", "0::/pod/box\n"),
            ("sys/fs/cgroup/pod/cpu.max", "250000 100000\n"),
            ("sys/fs/cgroup/pod/box/cpu.max", "max 100000\n"),
        ]);
        let cores = Cores::from_tree(dir.path(), (0..64).collect());
        assert_eq!(cores.default_workers(), 3);
    }

    #[test]
    fn cgroup_v1_quota_is_read() {
        let dir = tree(&[
            ("proc/self/cgroup", "4:cpu,cpuacct:/job\n"),
            ("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "400000\n"),
            ("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(Cores::from_tree(dir.path(), (0..8).collect()).default_workers(), 4);
    }

    #[test]
    fn workers_alternate_between_nodes_and_skip_cores_that_are_not_theirs() {
        let dir = tree(&[
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
            ("sys/devices/system/node/node1/cpulist", "4-7\n"),
            ("sys/devices/system/node/node2/cpulist", "\n"),
        ]);
        let cores = Cores::from_tree(dir.path(), vec![1, 2, 4, 6, 7]);
        assert_eq!((0..6).map(|w| cores.core_of(w)).collect::<Vec<_>>(), [1, 4, 2, 6, 7, 1]);
        assert_eq!(cores.node[&6], 1);
    }

    #[test]
    fn without_any_file_the_mask_is_all_there_is() {
        let dir = tree(&[]);
        let cores = Cores::from_tree(dir.path(), vec![]);
        assert_eq!((cores.allowed.as_slice(), cores.default_workers(), cores.core_of(9)), (&[0][..], 1, 0));
    }

    #[test]
    fn a_cpuset_of_a_group_above_narrows_the_cores() {
        let dir = tree(&[
            ("proc/self/cgroup", "0::/pod/box\n"),
            ("sys/fs/cgroup/pod/cpuset.cpus.effective", "2-3,6\n"),
            ("sys/devices/system/cpu/online", "0-5\n"),
        ]);
        let cores = Cores::from_tree(dir.path(), (0..8).collect());
        assert_eq!((cores.allowed.as_slice(), cores.default_workers()), (&[2, 3][..], 2));
    }
}
