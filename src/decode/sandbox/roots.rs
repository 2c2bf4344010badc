//! The folders that a manifest's files are in: what a worker has to be able to read.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use crate::manifest::Manifest;

/// Most folders that are let in one by one. Of more, the deepest are replaced by what holds them: a rule costs the
/// kernel memory, and each open is checked against the chain of folders above the file.
const MOST: usize = 256;

/// Folders whose first file is looked at to see whether it is a link, as in caches of downloads, where all are.
const LOOKED_AT: usize = 1024;

/// Folders and files that may be read, with everything below them. None is below another one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roots(BTreeSet<PathBuf>);

impl Roots {
    /// The folders of a manifest's good rows, where links lead.
    pub fn of(manifest: &Manifest) -> Roots {
        let mut folders: HashSet<&Path> = HashSet::new();
        let mut found = BTreeSet::new();
        // A million rows of few folders come in runs: most are told by the one before.
        let mut last = Path::new("");
        for i in 0..manifest.good() {
            let path = Path::new(manifest.descriptor(manifest.good_row(i)).path);
            let Some(folder) = path.parent().filter(|&folder| folder != last) else { continue };
            last = folder;
            if folders.insert(folder) && folders.len() <= LOOKED_AT && path.is_symlink() {
                let target = path.canonicalize().ok();
                found.extend(target.and_then(|path| path.parent().map(Path::to_owned)));
            }
        }
        found.extend(folders.into_iter().map(Path::to_owned));
        let real = reduce(found).into_iter().map(|folder| folder.canonicalize().unwrap_or(folder));
        Roots(reduce(real.collect()))
    }

    /// Whether everything that `other` lets in is let in.
    pub fn cover(&self, other: &Roots) -> bool {
        other.0.iter().all(|path| self.hold(path))
    }

    /// Whether a path without links is let in.
    pub fn hold(&self, path: &Path) -> bool {
        path.ancestors().any(|above| self.0.contains(above))
    }

    /// Lets in what `other` does.
    pub fn add(&mut self, other: Roots) {
        self.0.extend(other.0);
        self.0 = reduce(std::mem::take(&mut self.0));
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(PathBuf::as_path)
    }
}

impl<P: Into<PathBuf>> FromIterator<P> for Roots {
    fn from_iter<I: IntoIterator<Item = P>>(paths: I) -> Roots {
        Roots(reduce(paths.into_iter().map(Into::into).collect()))
    }
}

/// At most [`MOST`] folders that hold the same and as little else as can be; none below another.
fn reduce(mut folders: BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let depth = |path: &PathBuf| path.components().count();
    while folders.len() > MOST {
        let deepest = folders.iter().map(depth).max().unwrap_or(0);
        let (deep, mut rest): (BTreeSet<_>, BTreeSet<_>) = folders.into_iter().partition(|f| depth(f) == deepest);
        rest.extend(deep.iter().map(|folder| folder.parent().unwrap_or(folder).to_owned()));
        folders = rest;
        if deepest <= 1 {
            break;
        }
    }
    let inner = |folder: &PathBuf| folder.ancestors().skip(1).any(|above| folders.contains(above));
    folders.iter().filter(|folder| !inner(folder)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_below_others_are_not_named_again() {
        let roots: Roots = ["/data/a", "/data/a/b/c", "/data/ab", "/other/x"].into_iter().collect();
        assert_eq!(
            roots.iter().collect::<Vec<_>>(),
            [Path::new("/data/a"), "/data/ab".as_ref(), "/other/x".as_ref()]
        );
        assert!(roots.hold(Path::new("/data/a/b/clip.mp4")) && !roots.hold(Path::new("/data/abc")));
        assert!(roots.cover(&["/data/a/z", "/other/x"].into_iter().collect()));
        assert!(!roots.cover(&["/data"].into_iter().collect()));
    }

    #[test]
    fn of_many_folders_the_deepest_go_into_what_holds_them() {
        let many = (0..1000).map(|i| format!("/data/{}/{i}", i % 10)).chain(["/other".to_owned()]);
        let roots: Roots = many.collect();
        assert_eq!(roots.iter().count(), 11);
        assert!(roots.hold(Path::new("/data/3/13/a.mp4")) && !roots.hold(Path::new("/data/a.mp4")));
    }
}
