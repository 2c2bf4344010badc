//! How long something takes, over many times: counts by size, eight to a doubling, so that a quantile read from
//! them is at most an eighth too large.

use serde::ser::{Serialize, Serializer};

/// Counts of microseconds. Serialised as pairs of a bucket's largest number and its count, in ascending order.
#[derive(Debug, Clone, Default)]
pub struct Histogram {
    counts: Vec<u64>,
}

impl Histogram {
    /// Counts one more.
    pub fn note(&mut self, us: u64) {
        let bucket = bucket(us);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
    }
}

/// Numbers below 16 have a bucket each; from there on each doubling has eight.
fn bucket(us: u64) -> usize {
    let shift = us.max(8).ilog2() - 3;
    8 * shift as usize + (us >> shift) as usize
}

fn largest(bucket: usize) -> u64 {
    let shift = (bucket / 8).saturating_sub(1);
    let first = (bucket - 8 * shift) as u64;
    (first << shift) + (1 << shift) - 1
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        serializer.collect_seq(filled.map(|(at, count)| (largest(at), count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_in_a_bucket_whose_largest_is_at_most_an_eighth_above() {
        let mut before = 0;
        for us in (0..5000).chain((12..40).map(|n| (1 << n) + 7)) {
            let (at, most) = (bucket(us), largest(bucket(us)));
            assert!(us <= most && most <= us + us / 8, "{us} in a bucket up to {most}");
            assert!(at >= before && largest(at.saturating_sub(1)) <= us);
            before = at;
        }
    }

    #[test]
    fn it_is_said_as_pairs() {
        let mut histogram = Histogram::default();
        [3, 100, 100, 4000].into_iter().for_each(|us| histogram.note(us));
        assert_eq!(serde_json::to_string(&histogram).unwrap(), "[[3,1],[103,2],[4095,1]]");
    }
}
