//! Named points at which a process can be made to die, so that a test can have it die exactly there.
//!
//! Without the feature `crash-points` a point is nothing. With it, `HELIX_CRASH` is a list of `role:point:nth`,
//! separated by commas: each entry kills one process of that role, by SIGKILL, when it passes the point for the nth
//! time. Processes know which entries are spent by the file `HELIX_CRASH_LOG`, where each death is a line; of
//! entries with one role and point the first is spent first. This module knows nothing of ours.

#[cfg(feature = "crash-points")]
pub use armed::{arm, point};

/// Says what this process is; the first to say so is right.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub const fn arm(_role: &'static str) {}

/// A point at which the process may be made to die.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub const fn point(_name: &str) {}

#[cfg(feature = "crash-points")]
mod armed {
    use std::fs::{File, OpenOptions};
    use std::io::{Read, Write};
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    /// The entries of one point.
    struct Trap {
        point: String,
        /// On which pass each of them strikes.
        nths: Vec<u64>,
        passes: AtomicU64,
        /// How many are known to be spent.
        spent: AtomicUsize,
    }

    /// What waits for this process.
    struct Traps {
        role: &'static str,
        list: Vec<Trap>,
        log: PathBuf,
    }

    static TRAPS: OnceLock<Option<Traps>> = OnceLock::new();

    /// Says what this process is; the first to say so is right.
    ///
    /// # Panics
    /// If `HELIX_CRASH` cannot be understood, or `HELIX_CRASH_LOG` is missing.
    pub fn arm(role: &'static str) {
        TRAPS.get_or_init(|| Traps::from_env(role));
    }

    /// A point at which the process may be made to die.
    pub fn point(name: &str) {
        if let Some(Some(traps)) = TRAPS.get()
            && let Some(trap) = traps.list.iter().find(|trap| trap.point == name)
        {
            let pass = trap.passes.fetch_add(1, Ordering::Relaxed) + 1;
            let due = |spent| trap.nths.get(spent).is_some_and(|&nth| nth <= pass);
            if due(trap.spent.load(Ordering::Relaxed)) {
                traps.strike(trap, due).unwrap_or_else(|e| panic!("HELIX_CRASH_LOG: {e}"));
            }
        }
    }

    impl Traps {
        fn from_env(role: &'static str) -> Option<Traps> {
            let text = std::env::var("HELIX_CRASH").ok().filter(|text| !text.is_empty())?;
            let log = std::env::var_os("HELIX_CRASH_LOG").expect("HELIX_CRASH needs HELIX_CRASH_LOG").into();
            let mut list: Vec<Trap> = Vec::new();
            for entry in text.split(',') {
                let Some((point, nth)) = parse(entry, role) else { continue };
                match list.iter_mut().find(|trap| trap.point == point) {
                    Some(trap) => trap.nths.push(nth),
                    None => list.push(Trap {
                        point: point.into(),
                        nths: vec![nth],
                        passes: AtomicU64::new(0),
                        spent: AtomicUsize::new(0),
                    }),
                }
            }
            Some(Traps { role, list, log })
        }

        /// Dies, if the entry is still there to be spent.
        fn strike(&self, trap: &Trap, due: impl Fn(usize) -> bool) -> std::io::Result<()> {
            let mut log: File = OpenOptions::new().create(true).append(true).read(true).open(&self.log)?;
            // Held until death, or until the end of this function.
            log.lock()?;
            let mut text = String::new();
            log.read_to_string(&mut text)?;
            let name = format!("{}:{}", self.role, trap.point);
            let spent = text.lines().filter(|line| line.split(' ').next() == Some(&name)).count();
            trap.spent.store(spent, Ordering::Relaxed);
            if !due(spent) {
                return Ok(());
            }
            log.write_all(format!("{name} {}\n", std::process::id()).as_bytes())?;
            nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL)?;
            loop {
                std::thread::park();
            }
        }
    }

    /// Point and pass of an entry, if it is for this role.
    fn parse<'a>(entry: &'a str, role: &str) -> Option<(&'a str, u64)> {
        let understood = entry.split_once(':').and_then(|(whose, rest)| {
            let (point, nth) = rest.rsplit_once(':')?;
            Some((whose, point, nth.parse().ok()?))
        });
        let Some((whose, point, nth)) = understood else {
            panic!("HELIX_CRASH has `{entry}`; wanted role:point:nth");
        };
        (whose == role).then_some((point, nth))
    }
}
