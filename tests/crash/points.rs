//! The points at which processes are made to die.

use std::collections::BTreeSet;
use std::path::Path;

/// Who dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Role {
    Worker,
    Rank,
    Daemon,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::Worker => "worker",
            Role::Rank => "rank",
            Role::Daemon => "daemon",
        }
    }
}

/// When a point is passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// In any round.
    Always,
    /// Where ranks start their daemon.
    Embedded,
    /// After a daemon's death.
    Rejoin,
    /// After a worker's death.
    Mourning,
    /// While a worker is stuck.
    Stuck,
    /// Where steps are balanced once more after decoding.
    Handed,
}

/// A named point.
#[derive(Debug)]
pub struct Point {
    pub role: Role,
    pub name: &'static str,
    /// The pass to die on is drawn from these.
    pub least: u64,
    pub most: u64,
    pub when: When,
}

impl Point {
    /// As it stands in the log.
    pub fn key(&self) -> String {
        format!("{}:{}", self.role.name(), self.name)
    }
}

const fn point(role: Role, name: &'static str, least: u64, most: u64, when: When) -> Point {
    Point { role, name, least, most, when }
}

use Role::{Daemon, Rank, Worker};
use When::{Always, Embedded, Handed, Mourning, Rejoin, Stuck};

/// All of them. Workers die late in their lives where tickets are concerned, since a sample that costs eight of them
/// would be taken for a bad one.
pub const POINTS: &[Point] = &[
    point(Worker, "welcomed", 1, 1, Always),
    point(Worker, "attached", 1, 2, Always),
    point(Worker, "ticket.taken", 3, 10, Always),
    point(Worker, "reads.submitted", 3, 10, Always),
    point(Worker, "decode.before", 3, 10, Always),
    point(Worker, "pixels.written", 3, 10, Always),
    point(Worker, "done.told", 3, 10, Always),
    point(Worker, "ready.told", 3, 10, Always),
    point(Worker, "complaint.said", 1, 1, Always),
    point(Worker, "detach.unsaid", 1, 1, Always),
    point(Worker, "detach.said", 1, 1, Always),
    point(Worker, "push.start", 5, 20, Always),
    point(Worker, "push.words", 5, 20, Always),
    point(Worker, "push.published", 5, 20, Always),
    point(Worker, "ring.start", 5, 20, Always),
    point(Worker, "ring.bit", 5, 20, Always),
    point(Worker, "ring.claimed", 2, 8, Always),
    point(Worker, "actual.told", 1, 3, Handed),
    point(Rank, "plan.heard", 1, 10, Handed),
    point(Rank, "handed.mapped", 1, 6, Handed),
    point(Rank, "return.unsaid", 1, 6, Handed),
    point(Rank, "return.said", 1, 6, Handed),
    point(Daemon, "plan.formed", 1, 8, Handed),
    point(Daemon, "slab.passed", 1, 2, Handed),
    point(Daemon, "plan.told", 1, 12, Handed),
    point(Daemon, "sample.lent", 1, 8, Handed),
    point(Daemon, "return.heard", 1, 8, Handed),
    point(Rank, "slab.made", 1, 1, Always),
    point(Rank, "joined", 1, 1, Always),
    point(Rank, "start.unsaid", 1, 2, Always),
    point(Rank, "assembled", 1, 12, Always),
    point(Rank, "leased", 1, 12, Always),
    point(Rank, "release.unsaid", 1, 12, Always),
    point(Rank, "release.said", 1, 12, Always),
    point(Rank, "leave.said", 1, 1, Always),
    point(Rank, "push.start", 1, 20, Always),
    point(Rank, "push.words", 1, 20, Always),
    point(Rank, "push.published", 1, 20, Always),
    point(Rank, "ring.start", 1, 20, Always),
    point(Rank, "ring.bit", 1, 20, Always),
    point(Rank, "ring.claimed", 1, 6, Always),
    point(Rank, "elected", 1, 1, Embedded),
    point(Rank, "daemon.spawned", 1, 1, Embedded),
    point(Rank, "rejoin.quiet", 1, 1, Rejoin),
    point(Rank, "rejoin.joined", 1, 1, Rejoin),
    point(Daemon, "listening", 1, 1, Embedded),
    point(Daemon, "rank.admitted", 1, 2, Embedded),
    point(Daemon, "stream.complete", 1, 1, Embedded),
    point(Daemon, "start.said", 1, 2, Embedded),
    point(Daemon, "block.taken", 1, 10, Embedded),
    point(Daemon, "batch.told", 1, 10, Embedded),
    point(Daemon, "entries.told", 1, 10, Embedded),
    point(Daemon, "ticket.assigned", 1, 40, Embedded),
    point(Daemon, "done.heard", 1, 40, Embedded),
    point(Daemon, "release.heard", 1, 10, Embedded),
    point(Daemon, "block.freed", 1, 10, Embedded),
    point(Daemon, "worker.started", 1, 3, Embedded),
    point(Daemon, "worker.introduced", 1, 3, Embedded),
    point(Daemon, "attach.sent", 1, 6, Embedded),
    point(Daemon, "mourning.drained", 1, 1, Mourning),
    point(Daemon, "mourning.tickets", 1, 1, Mourning),
    point(Daemon, "spare.told", 1, 1, Stuck),
    point(Daemon, "leave.heard", 1, 2, Embedded),
    point(Daemon, "bye.said", 1, 2, Embedded),
    point(Daemon, "closing", 1, 1, Embedded),
    point(Daemon, "socket.removed", 1, 1, Embedded),
    point(Daemon, "push.start", 1, 100, Embedded),
    point(Daemon, "push.words", 1, 100, Embedded),
    point(Daemon, "push.published", 1, 100, Embedded),
    point(Daemon, "ring.start", 1, 100, Embedded),
    point(Daemon, "ring.bit", 1, 100, Embedded),
    point(Daemon, "ring.claimed", 1, 30, Embedded),
];

/// Stops when the sources have a point that is not listed here, or the other way round.
pub fn compare_with_sources() {
    let mut found = BTreeSet::new();
    gather(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    let listed: BTreeSet<String> = POINTS.iter().map(|p| p.name.to_string()).collect();
    let differ: Vec<_> = found.symmetric_difference(&listed).collect();
    assert!(differ.is_empty(), "points that are only in the sources or only in {}: {differ:?}", file!());
}

fn gather(folder: &Path, names: &mut BTreeSet<String>) {
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            gather(&path, names);
            continue;
        }
        // The models have steps that no process can take.
        if path.ends_with("ring/sync/model.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        for call in ["crash::point(\"", " step(\""] {
            let rest = text.split(call).skip(1);
            names.extend(rest.filter_map(|after| Some(after.split_once('"')?.0.to_string())));
        }
    }
}
