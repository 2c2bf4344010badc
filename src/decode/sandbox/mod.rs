//! The cage that a worker closes around itself before it touches the first byte of any medium.
//!
//! Media are hostile and decoders are large: a worker that has been taken over must not reach anything but the pixels
//! of its own job. [`close`] takes away, for ever: new privileges, files other than those below the manifest's folders
//! (`files`, Landlock), writing, sockets, processes, threads, signals and every system call that decoding does not
//! need (`filter`, seccomp), and memory beyond a limit (`limits`). The io_uring was restricted when it was made
//! (`read::uring`). What the kernel lacks is said, once a job. It knows nothing of tickets or ranks.

mod files;
mod filter;
mod limits;
mod roots;
#[cfg(test)]
mod tests;

pub use roots::Roots;

/// What stays open.
#[derive(Debug, Clone, Copy)]
pub struct Cage<'a> {
    /// Folders and files that may be read.
    pub roots: &'a Roots,
    /// Private memory that may be taken on top of what is in use now, bytes.
    pub memory: u64,
    /// Descriptors that may be open.
    pub files: u64,
}

/// Closes the cage around this process. Each line of the answer is a wall that could not be raised, and why.
///
/// To be called once everything but media is open, while the process has one thread: a second one keeps its view of
/// the file system.
#[must_use]
pub fn close(cage: &Cage<'_>) -> Vec<String> {
    let walls: [(&str, Result<(), String>); 4] = [
        ("new privileges are not ruled out", limits::no_new_privileges()),
        ("a worker may read any file of this user", files::restrict(cage.roots)),
        ("a worker's memory and files have no limit", limits::set(cage.memory, cage.files)),
        // Last: the calls that raise the other walls are not among those that it lets through.
        ("a worker may make any system call", filter::install()),
    ];
    let missing = walls.into_iter().filter_map(|(what, raised)| raised.err().map(|why| format!("{what}: {why}")));
    missing.map(|line| format!("the workers' sandbox has a gap: {line}")).collect()
}
