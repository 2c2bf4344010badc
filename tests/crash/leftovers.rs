//! What a round may leave behind: nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Processes that carry `tag` in their environment: those of one round.
pub fn processes(tag: &str) -> Vec<(i32, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|b| *b == 0).any(|var| var == tag.as_bytes()) {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            found.push((pid, line));
        }
    }
    found
}

/// Open descriptors of a process, as they are called.
pub fn descriptors(pid: i32) -> Vec<String> {
    let Ok(list) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let names = list.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
    names.map(|name| name.to_string_lossy().into_owned()).collect()
}

/// Files in a folder.
pub fn files(folder: &Path) -> Vec<String> {
    let list = std::fs::read_dir(folder).unwrap().flatten();
    list.map(|f| f.file_name().to_string_lossy().into_owned()).collect()
}

/// Names of ours in the folders where shared memory and temporary files go; those of other tests that may run beside
/// this one are left out.
pub fn shared_names() -> BTreeSet<PathBuf> {
    let folders = ["/dev/shm", "/tmp"].map(Path::new);
    let names = folders.into_iter().flat_map(|folder| files(folder).into_iter().map(|name| folder.join(name)));
    let ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("helix-shm") || (path.starts_with("/dev/shm") && name.contains("helix"))
    };
    names.filter(ours).collect()
}
