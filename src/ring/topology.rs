//! Where cores and memory are: the NUMA nodes of the machine, and what of it this process may use.
//!
//! Read from sysfs and from our control groups. Some nodes have memory alone (memory expanders, devices), some have
//! cores alone; a core may be offline; a container may see a part of either. What cannot be read limits nothing.

use std::{
    fs,
    path::{Path, PathBuf},
};

use nix::{
    sched::{CpuSet, sched_getaffinity},
    unistd::Pid,
};

use super::cgroup::{Version, groups};

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// Its cores that are online, ascending; none in a node of memory alone.
    pub cores: Vec<u32>,
    /// Bytes of its memory; 0 in a node of cores alone.
    pub bytes: u64,
    /// How far each node that is there is from it, in the machine's own unit (10: itself), by node number.
    pub distance: Vec<(u32, u32)>,
}

/// The machine's nodes, by number; empty where the system does not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    /// The nodes.
    pub nodes: Vec<Node>,
}

impl Topology {
    /// Of this machine.
    pub fn of_this_machine() -> Topology {
        Topology::from_tree(Path::new("/"))
    }

    /// The same from a file tree, for fixtures.
    pub fn from_tree(root: &Path) -> Topology {
        let folder = root.join("sys/devices/system/node");
        let online = online(root);
        let mut numbers: Vec<u32> = fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("node")?.parse().ok())
            .collect();
        numbers.sort_unstable();
        let node =
            |&number: &u32| Node::read(&folder.join(format!("node{number}")), number, &numbers, online.as_deref());
        Topology { nodes: numbers.iter().map(node).collect() }
    }

    /// The node of a core; `None` where the system does not say, or the core is offline.
    pub fn node_of(&self, core: u32) -> Option<u32> {
        self.nodes.iter().find(|node| node.cores.contains(&core)).map(|node| node.number)
    }

    /// The node whose memory is nearest to all of `cores`, among the nodes `mems` where some are given. `None` where
    /// there is nothing to choose: one node with memory, or cores of several nodes.
    pub fn home(&self, cores: &[u32], mems: Option<&[u32]>) -> Option<u32> {
        let usable = |number: u32| mems.is_none_or(|mems| mems.contains(&number));
        let memory: Vec<u32> =
            self.nodes.iter().filter(|node| node.bytes > 0 && usable(node.number)).map(|node| node.number).collect();
        let own = self.node_of(*cores.first()?)?;
        if memory.len() < 2 || cores.iter().any(|&core| self.node_of(core) != Some(own)) {
            return None;
        }
        let node = self.nodes.iter().find(|node| node.number == own)?;
        // Itself is the nearest, if it has memory; of two as near the lower number.
        let far = |number: u32| node.distance.iter().find(|d| d.0 == number).map_or(u32::MAX, |d| d.1);
        memory.into_iter().min_by_key(|&number| (number != own, far(number), number))
    }
}

impl Node {
    fn read(folder: &Path, number: u32, numbers: &[u32], online: Option<&[u32]>) -> Node {
        let text = |name| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let mut cores = parse_list(&text("cpulist"));
        cores.retain(|core| online.is_none_or(|online| online.contains(core)));
        // `Node 0 MemTotal: 1234 kB`
        let total = text("meminfo").lines().find_map(|line| {
            let mut words = line.split_whitespace().skip_while(|&word| word != "MemTotal:").skip(1);
            words.next()?.parse::<u64>().ok()
        });
        // One column for each node that is there, in the order of their numbers.
        let distance = text("distance").split_whitespace().map_while(|word| word.parse().ok()).collect::<Vec<u32>>();
        let distance = numbers.iter().copied().zip(distance).collect();
        Node { number, cores, bytes: total.unwrap_or(0).saturating_mul(1024), distance }
    }
}

/// Cores that are online, if the system says so.
fn online(root: &Path) -> Option<Vec<u32>> {
    let text = fs::read_to_string(root.join("sys/devices/system/cpu/online")).ok()?;
    Some(parse_list(&text)).filter(|cores| !cores.is_empty())
}

/// What of the machine this process may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// Cores, ascending: those of the affinity mask that are online and in every cpuset that we are in.
    pub cores: Vec<u32>,
    /// Nodes that memory may come from; `None` where no cpuset says so.
    pub mems: Option<Vec<u32>>,
}

impl Allowed {
    /// To this thread.
    pub fn to_this_thread() -> Allowed {
        let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_else(|_| CpuSet::new());
        let mask = (0..CpuSet::count()).filter(|&core| set.is_set(core) == Ok(true)).map(|core| core as u32);
        Allowed::from_tree(Path::new("/"), mask.collect())
    }

    /// The same from a file tree, for fixtures: `mask` is the affinity mask.
    pub fn from_tree(root: &Path, mut mask: Vec<u32>) -> Allowed {
        mask.sort_unstable();
        mask.dedup();
        let sets = groups(root, "cpuset");
        let cpus = lists(&sets, ["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"]);
        let mut cores = mask.clone();
        for list in online(root).into_iter().chain(cpus) {
            cores.retain(|core| list.contains(core));
        }
        if cores.is_empty() {
            // They contradict the kernel's own mask, so they are another view's: a container's, say.
            cores = mask;
        }
        let mems = lists(&sets, ["cpuset.mems.effective", "cpuset.effective_mems", "cpuset.mems"]);
        let mems = mems.reduce(|a, b| a.into_iter().filter(|node| b.contains(node)).collect());
        Allowed { cores, mems: mems.filter(|mems| !mems.is_empty()) }
    }
}

/// What each cpuset allows: the file of version 2, or of version 1 the effective one, or the one that was set.
fn lists(sets: &[(Version, PathBuf)], [v2, v1_effective, v1]: [&'static str; 3]) -> impl Iterator<Item = Vec<u32>> {
    let read = move |(version, dir): &(Version, PathBuf)| {
        let list = |name| Some(parse_list(&fs::read_to_string(dir.join(name)).ok()?)).filter(|list| !list.is_empty());
        match version {
            Version::V2 => list(v2),
            Version::V1 => list(v1_effective).or_else(|| list(v1)),
        }
    };
    sets.iter().filter_map(read).collect::<Vec<_>>().into_iter()
}

/// The node that this thread's memory should come from: see [`Topology::home`].
pub fn home_node() -> Option<u32> {
    let allowed = Allowed::to_this_thread();
    Topology::of_this_machine().home(&allowed.cores, allowed.mems.as_deref())
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
mod tests;
