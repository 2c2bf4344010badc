//! Which cores the job may use, and on which NUMA nodes they are: from affinity, cgroup and sysfs, not from the host.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

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
    /// Reads affinity, `cpu.max` (or the quota of cgroup v1) and sysfs.
    pub fn of_this_process() -> Cores {
        let allowed = core_affinity::get_core_ids().unwrap_or_default();
        let allowed = allowed.into_iter().map(|core| core.id as u32).collect();
        Cores::from_tree(Path::new("/"), allowed)
    }

    /// The same from a file tree, for fixtures: `allowed` is the affinity mask.
    pub fn from_tree(root: &Path, mut allowed: Vec<u32>) -> Cores {
        allowed.sort_unstable();
        if allowed.is_empty() {
            allowed.push(0);
        }
        let quota = cgroup_quota(root).unwrap_or(f64::INFINITY).min(allowed.len() as f64);
        let mut node: BTreeMap<u32, u32> = allowed.iter().map(|&core| (core, 0)).collect();
        for (number, cores) in nodes(root) {
            for core in cores {
                node.entry(core).and_modify(|n| *n = number);
            }
        }
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
    let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut least: Option<f64> = None;
    let mut note = |cores: Option<f64>| {
        if let Some(cores) = cores.filter(|c| *c > 0.0) {
            least = Some(least.map_or(cores, |l: f64| l.min(cores)));
        }
    };
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let v2 = controllers.is_empty();
        if !v2 && !controllers.split(',').any(|c| c == "cpu") {
            continue;
        }
        let base = root.join(if v2 { "sys/fs/cgroup" } else { "sys/fs/cgroup/cpu" });
        // A limit of any ancestor holds; inside a container the path may not exist, then the mount's own root counts.
        let mut dir = Path::new(path.trim_start_matches('/'));
        loop {
            note(if v2 { quota_v2(&base.join(dir)) } else { quota_v1(&base.join(dir)) });
            match dir.parent() {
                Some(parent) => dir = parent,
                None => break,
            }
        }
    }
    least
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

/// NUMA nodes and their cores.
fn nodes(root: &Path) -> Vec<(u32, Vec<u32>)> {
    let Ok(entries) = fs::read_dir(root.join("sys/devices/system/node")) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            Some((number, parse_list(&fs::read_to_string(entry.path().join("cpulist")).ok()?)))
        })
        .collect()
}

/// A kernel list such as `0-3,8,10-11`; what does not parse is left out.
fn parse_list(text: &str) -> Vec<u32> {
    let one = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.trim().parse().ok()?..=to.trim().parse().ok()?)
    };
    text.trim().split(',').filter_map(one).flat_map(|range| range.take(4096)).collect()
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
}
