//! Memory that was promised to a slab and is not there yet.
//!
//! Eight ranks that start at once see the same free memory, and each would take it for its own. So whoever is about
//! to fill memory says so on a board that all processes of the user share, and counts as taken what others have said
//! and not yet filled. Where that leaves too little one waits for the others to be done, and then sees the truth:
//! nobody is refused for memory that somebody else may have in another cgroup.
//!
//! What is filled already is in the kernel's own account; a process that dies takes its word with it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::board::{Board, BoardError, Layout, Slot, Turn};
use super::budget::{self, Available};

const LAYOUT: Layout = Layout { version: 1, slots: 256, record_bytes: 8 };
/// How often one that waits looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How long the others may fill nothing at all until they are taken for stopped.
const PATIENCE: Duration = Duration::from_secs(30);

/// There is not enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Short {
    /// Bytes that there are.
    pub(super) available: u64,
    /// The file that says so.
    pub(super) by: PathBuf,
}

/// Bytes that are about to be filled; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    bytes: u64,
    slot: Option<Slot>,
}

impl Reservation {
    /// Nothing: for memory that is set aside otherwise.
    pub(super) fn none() -> Reservation {
        Reservation { bytes: 0, slot: None }
    }

    /// Reserves memory of the machine, or of the fixture below `root`.
    pub(super) fn take(root: &Path, bytes: u64) -> Result<Reservation, Short> {
        let uid = nix::unistd::geteuid();
        let mut name = format!("/helix-shm-memory-{uid}");
        if root != Path::new("/") {
            name += &format!("-{:016x}", xxhash_rust::xxh3::xxh3_64(root.as_os_str().as_encoded_bytes()));
        }
        Reservation::on(&name, bytes, PATIENCE, || budget::available(root))
    }

    /// Reserves memory on the board of this name, as far as `available` says that there is some.
    fn on(
        name: &str,
        bytes: u64,
        patience: Duration,
        available: impl Fn() -> Option<Available>,
    ) -> Result<Reservation, Short> {
        let board = Board::open(name, LAYOUT);
        let unshared = |e: &BoardError| {
            tracing::warn!(
                "ranks that start at the same time do not see each other's memory, so all may pass a check that only some should: {e}"
            );
        };
        let board = board.inspect_err(unshared).ok();
        let (mut before, mut moved) = (0, Instant::now());
        loop {
            let turn: Option<Turn<'_>> = board.as_ref().and_then(|board| board.turn().inspect_err(unshared).ok());
            let pending = board.as_ref().map_or(0, pending);
            let Some(found) = available() else { return Ok(Reservation::none()) };
            let short = |available| Short { available, by: found.by.clone() };
            if found.bytes < bytes {
                return Err(short(found.bytes));
            }
            if found.bytes - bytes >= pending {
                let slot = board.as_ref().and_then(|board| board.claim().inspect_err(unshared).ok());
                let mut reservation = Reservation { bytes, slot };
                reservation.reached(0);
                return Ok(reservation);
            }
            drop(turn);
            if pending != before {
                (before, moved) = (pending, Instant::now());
            } else if moved.elapsed() > patience {
                return Err(short(found.bytes.saturating_sub(pending)));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// So many bytes are filled by now.
    pub(super) fn reached(&mut self, done: u64) {
        let rest = self.bytes.saturating_sub(done);
        if let Some(slot) = &mut self.slot
            && let Err(e) = slot.write(&rest.to_ne_bytes())
        {
            tracing::warn!("other ranks do not see how much memory this one is about to fill: {e}");
            self.slot = None;
        }
    }
}

/// What others are about to fill.
fn pending(board: &Board) -> u64 {
    let seen = board.read().unwrap_or_default();
    let said = seen.into_iter().filter(|seen| seen.alive).filter_map(|seen| seen.record);
    said.filter_map(|record| record.try_into().ok().map(u64::from_ne_bytes)).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn name(test: &str) -> String {
        format!("/helix-test-memory-{test}-{}", std::process::id())
    }

    fn left(bytes: u64) -> Option<Available> {
        Some(Available { bytes, by: "meminfo".into() })
    }

    #[test]
    fn ranks_that_start_at_once_never_take_more_than_there_is() {
        const ALL: u64 = 1000;
        let (name, used) = (name("ranks"), AtomicU64::new(0));
        let rank = || {
            let available = || left(ALL - used.load(Ordering::SeqCst));
            let mut reservation = Reservation::on(&name, 300, PATIENCE, available).ok()?;
            for done in (0..300).step_by(100) {
                // Others look now: what is reserved and not yet filled has to count.
                std::thread::yield_now();
                let before = used.fetch_add(100, Ordering::SeqCst);
                assert!(before + 100 <= ALL, "{before} and 100 more of {ALL}");
                reservation.reached(done + 100);
            }
            Some(reservation)
        };
        let made = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..8).map(|_| scope.spawn(rank)).collect();
            ranks.into_iter().filter_map(|rank| rank.join().unwrap()).count()
        });
        assert_eq!(made, 3);
    }

    #[test]
    fn one_that_is_about_to_fill_memory_is_waited_for_and_then_the_truth_counts() {
        let name = name("wait");
        let free = AtomicU64::new(1000);
        let available = || left(free.load(Ordering::SeqCst));
        let mut first = Reservation::on(&name, 600, PATIENCE, available).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| Reservation::on(&name, 600, PATIENCE, available));
            free.store(400, Ordering::SeqCst);
            first.reached(600);
            let short = second.join().unwrap().unwrap_err();
            assert_eq!(short, Short { available: 400, by: "meminfo".into() });
        });
        // It ends without having filled anything, or it filled what another cgroup pays for.
        free.store(1000, Ordering::SeqCst);
        let third = Reservation::on(&name, 600, PATIENCE, available).unwrap();
        std::thread::scope(|scope| {
            let fourth = scope.spawn(|| Reservation::on(&name, 600, PATIENCE, available).map(drop));
            drop(third);
            assert_eq!(fourth.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn one_that_never_goes_on_is_not_waited_for_without_end() {
        let name = name("stuck");
        let _first = Reservation::on(&name, 600, PATIENCE, || left(1000)).unwrap();
        let short = Reservation::on(&name, 600, Duration::ZERO, || left(1000)).unwrap_err();
        assert_eq!(short.available, 400);
        assert!(Reservation::on(&name, 400, PATIENCE, || left(1000)).is_ok(), "there is room for both");
        assert!(Reservation::on(&name, u64::MAX, PATIENCE, || None).is_ok(), "no limit is known");
    }
}
