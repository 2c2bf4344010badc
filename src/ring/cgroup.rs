//! The control groups that we are in, of either version, with those above: every limit of any of them is ours.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Which files a group has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// A hierarchy for each controller.
    V1,
    /// One for all.
    V2,
}

/// The folders of the groups by which `controller` limits us, ours first. `root` stands before every path: `/`, or a
/// fixture.
///
/// In a container the path is often the host's while the mount is our own group: folders that are absent limit
/// nothing, and the mount itself is always among those named.
pub(crate) fn groups(root: &Path, controller: &str) -> Vec<(Version, PathBuf)> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    own.lines().flat_map(|line| of_line(root, line, controller)).collect()
}

/// A line is `number:controllers:path`; version 2's names no controllers.
fn of_line(root: &Path, line: &str, controller: &str) -> Vec<(Version, PathBuf)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { return Vec::new() };
    let (version, mount) = match controllers {
        "" => (Version::V2, root.join("sys/fs/cgroup")),
        c if c.split(',').any(|c| c == controller) => (Version::V1, root.join("sys/fs/cgroup").join(controller)),
        _ => return Vec::new(),
    };
    let own = mount.join(path.trim_start_matches('/'));
    let up = own.ancestors().take_while(|dir| dir.starts_with(&mount));
    up.map(|dir| (version, dir.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::fixture::tree;

    #[test]
    fn ours_comes_first_and_the_mount_last() {
        let root = tree(&[("proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/a/b\nnonsense\n0::/pod\n")]);
        let found = |controller| -> Vec<(Version, String)> {
            let relative = |dir: PathBuf| dir.strip_prefix(root.path()).unwrap().display().to_string();
            groups(root.path(), controller).into_iter().map(|(v, dir)| (v, relative(dir))).collect()
        };
        let unified = [(Version::V2, "sys/fs/cgroup/pod".to_owned()), (Version::V2, "sys/fs/cgroup".to_owned())];
        let v1 = ["sys/fs/cgroup/memory/a/b", "sys/fs/cgroup/memory/a", "sys/fs/cgroup/memory"];
        let v1: Vec<_> = v1.into_iter().map(|dir| (Version::V1, dir.to_owned())).collect();
        assert_eq!(found("memory"), [v1, unified.to_vec()].concat());
        assert_eq!(found("cpuset"), unified);
    }

    #[test]
    fn without_groups_nothing_limits_us() {
        assert_eq!(groups(tree(&[]).path(), "memory"), []);
    }
}
