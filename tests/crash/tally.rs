//! What was counted over rounds.

use std::collections::BTreeMap;

/// Sums of one round or many.
#[derive(Debug, Default)]
pub struct Tally {
    pub rounds: u64,
    /// Deaths by point.
    pub hits: BTreeMap<String, u64>,
    /// Deaths at random instants, by role.
    pub random: BTreeMap<&'static str, u64>,
    /// Batches that were not delivered, or not as without a death.
    pub lost: u64,
    /// Batches that were delivered twice to one life of a rank.
    pub repeated: u64,
    pub leaked_regions: u64,
    pub leaked_fds: u64,
    pub left_files: u64,
    pub left_processes: u64,
    pub hangs: u64,
    /// Batches delivered and compared.
    pub batches: u64,
    /// Microseconds from the end of a worker to its ticket being with another that was idle: up to so many, how
    /// often.
    pub reissued: Times,
    /// The same where none was idle.
    pub queued: Times,
    /// What went wrong, in words.
    pub failures: Vec<String>,
}

impl Tally {
    pub fn kills(&self) -> u64 {
        self.hits.values().sum::<u64>() + self.random.values().sum::<u64>()
    }

    pub fn hit(&self, point: &str) -> u64 {
        self.hits.get(point).copied().unwrap_or(0)
    }

    pub fn add(&mut self, other: Tally) {
        self.rounds += other.rounds;
        for (point, n) in other.hits {
            *self.hits.entry(point).or_default() += n;
        }
        for (role, n) in other.random {
            *self.random.entry(role).or_default() += n;
        }
        self.reissued.add(other.reissued.0);
        self.queued.add(other.queued.0);
        self.lost += other.lost;
        self.repeated += other.repeated;
        self.leaked_regions += other.leaked_regions;
        self.leaked_fds += other.leaked_fds;
        self.left_files += other.left_files;
        self.left_processes += other.left_processes;
        self.hangs += other.hangs;
        self.batches += other.batches;
        self.failures.extend(other.failures);
    }
}

/// How often something took up to so many microseconds.
#[derive(Debug, Default)]
pub struct Times(BTreeMap<u64, u64>);

impl Times {
    pub fn add(&mut self, pairs: impl IntoIterator<Item = (u64, u64)>) {
        for (us, n) in pairs {
            *self.0.entry(us).or_default() += n;
        }
    }

    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// The time that this share does not exceed, milliseconds.
    pub fn quantile_ms(&self, share: f64) -> f64 {
        let (total, mut seen) = (self.count() as f64, 0);
        for (us, n) in &self.0 {
            seen += n;
            if seen as f64 >= share * total {
                return *us as f64 / 1000.0;
            }
        }
        0.0
    }
}
