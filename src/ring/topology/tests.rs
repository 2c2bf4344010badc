use super::*;
use crate::ring::fixture::tree;

const TWO: &[(&str, &str)] = &[
    ("sys/devices/system/cpu/online", "0-7\n"),
    ("sys/devices/system/node/possible", "0-1\n"),
    ("sys/devices/system/node/node0/cpulist", "0-3\n"),
    ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:  1000 kB\nNode 0 MemFree:  10 kB\n"),
    ("sys/devices/system/node/node0/distance", "10 21\n"),
    ("sys/devices/system/node/node1/cpulist", "4-7\n"),
    ("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:  2000 kB\n"),
    ("sys/devices/system/node/node1/distance", "21 10\n"),
];

/// Two sockets, a memory expander at the first (node 2), and a node 5 of cores alone at the second; cores 3 and 7 are
/// offline; the numbers have a gap.
const FOUR: &[(&str, &str)] = &[
    ("sys/devices/system/cpu/online", "0-2,4-6,8-9\n"),
    ("sys/devices/system/node/node0/cpulist", "0-3\n"),
    ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:  1000 kB\n"),
    ("sys/devices/system/node/node0/distance", "10 21 14 25\n"),
    ("sys/devices/system/node/node1/cpulist", "4-7\n"),
    ("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:  1000 kB\n"),
    ("sys/devices/system/node/node1/distance", "21 10 24 15\n"),
    ("sys/devices/system/node/node2/cpulist", "\n"),
    ("sys/devices/system/node/node2/meminfo", "Node 2 MemTotal:  9000 kB\n"),
    ("sys/devices/system/node/node2/distance", "14 24 10 28\n"),
    ("sys/devices/system/node/node5/cpulist", "8-9\n"),
    ("sys/devices/system/node/node5/meminfo", "Node 5 MemTotal:  0 kB\n"),
    ("sys/devices/system/node/node5/distance", "25 15 28 10\n"),
];

fn with(base: &[(&'static str, &'static str)], more: &[(&'static str, &'static str)]) -> tempfile::TempDir {
    tree(&[base, more].concat())
}

#[test]
fn two_nodes_are_read() {
    let topology = Topology::from_tree(tree(TWO).path());
    let node = |number, cores: [u32; 4], kib: u64, distance: [(u32, u32); 2]| Node {
        number,
        cores: cores.to_vec(),
        bytes: kib * 1024,
        distance: distance.to_vec(),
    };
    let wanted = [node(0, [0, 1, 2, 3], 1000, [(0, 10), (1, 21)]), node(1, [4, 5, 6, 7], 2000, [(0, 21), (1, 10)])];
    assert_eq!(topology.nodes, wanted);
    assert_eq!((topology.node_of(3), topology.node_of(4), topology.node_of(8)), (Some(0), Some(1), None));
}

#[test]
fn the_home_of_cores_of_one_node_is_that_node() {
    let topology = Topology::from_tree(tree(TWO).path());
    assert_eq!(topology.home(&[4, 6], None), Some(1));
    assert_eq!(topology.home(&[0], None), Some(0));
    assert_eq!(topology.home(&[3, 4], None), None, "cores of two nodes");
    assert_eq!(topology.home(&[4], Some(&[0])), None, "one node is all there is to choose from");
    assert_eq!(topology.home(&[], None), None);
    assert_eq!(topology.home(&[99], None), None);
}

#[test]
fn of_four_nodes_one_has_no_cores_one_no_memory_and_some_cores_are_offline() {
    let topology = Topology::from_tree(tree(FOUR).path());
    let shape: Vec<(u32, usize, u64)> =
        topology.nodes.iter().map(|n| (n.number, n.cores.len(), n.bytes >> 10)).collect();
    assert_eq!(shape, [(0, 3, 1000), (1, 3, 1000), (2, 0, 9000), (5, 2, 0)]);
    assert_eq!(topology.node_of(3), None, "offline");
    assert_eq!(topology.home(&[0, 1, 2], None), Some(0), "not the expander, however large");
    assert_eq!(topology.home(&[8, 9], None), Some(1), "the nearest that has memory");
    assert_eq!(topology.home(&[8, 9], Some(&[0, 2])), Some(0), "of those that we may use");
    assert_eq!(topology.home(&[4], Some(&[0, 2])), Some(0));
}

#[test]
fn a_machine_that_says_nothing_has_no_nodes() {
    let topology = Topology::from_tree(tree(&[]).path());
    assert_eq!((topology.nodes.len(), topology.home(&[0], None)), (0, None));
}

#[test]
fn a_cpuset_of_version_two_narrows_cores_and_memory() {
    let root = with(
        FOUR,
        &[
            ("proc/self/cgroup", "0::/job/rank\n"),
            ("sys/fs/cgroup/cpuset.cpus.effective", "0-2,4-6,8-9\n"),
            ("sys/fs/cgroup/cpuset.mems.effective", "0-2\n"),
            ("sys/fs/cgroup/job/cpuset.cpus.effective", "4-9\n"),
            ("sys/fs/cgroup/job/cpuset.mems.effective", "1-2\n"),
            ("sys/fs/cgroup/job/rank/cgroup.procs", "1\n"),
        ],
    );
    let allowed = Allowed::from_tree(root.path(), (0..10).collect());
    assert_eq!(allowed, Allowed { cores: vec![4, 5, 6, 8, 9], mems: Some(vec![1, 2]) });
}

#[test]
fn a_cpuset_of_version_one_narrows_them_too() {
    let base = [
        ("proc/self/cgroup", "3:cpuset:/docker/abc\n4:memory:/docker/abc\n"),
        ("sys/fs/cgroup/cpuset/cpuset.cpus", "0-7\n"),
        ("sys/fs/cgroup/cpuset/docker/abc/cpuset.cpus", "2-5\n"),
        ("sys/fs/cgroup/cpuset/docker/abc/cpuset.mems", "0\n"),
    ];
    let root = with(TWO, &base);
    let allowed = Allowed::from_tree(root.path(), (0..8).collect());
    assert_eq!(allowed, Allowed { cores: vec![2, 3, 4, 5], mems: Some(vec![0]) });
    let effective = [("sys/fs/cgroup/cpuset/docker/abc/cpuset.effective_cpus", "2-3\n")];
    let root = with(TWO, &[base.as_slice(), &effective].concat());
    assert_eq!(Allowed::from_tree(root.path(), (0..8).collect()).cores, [2, 3]);
}

#[test]
fn the_kernels_mask_stands_where_files_contradict_it_and_offline_cores_are_left_out() {
    let root = with(FOUR, &[]);
    assert_eq!(Allowed::from_tree(root.path(), vec![7, 6, 3, 0, 0]), Allowed { cores: vec![0, 6], mems: None });
    let root = with(TWO, &[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/cpuset.cpus.effective", "0-1\n")]);
    assert_eq!(Allowed::from_tree(root.path(), vec![6, 7]).cores, [6, 7]);
}

#[test]
fn this_machine_has_a_core_for_us() {
    let allowed = Allowed::to_this_thread();
    assert!(!allowed.cores.is_empty());
    // Whatever it is, it must be a node that is there.
    let topology = Topology::of_this_machine();
    assert!(home_node().is_none_or(|home| topology.nodes.iter().any(|node| node.number == home)));
}

#[test]
fn lists_of_the_kernel_are_parsed_and_nonsense_is_left_out() {
    assert_eq!(parse_list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
    assert_eq!(parse_list("\n"), [0; 0]);
    assert_eq!(parse_list("x,4,5-,-6,0-4294967295").len(), 1 + 4096);
}
