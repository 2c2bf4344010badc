//! Samples that wait for a worker, in the order in which they are to be taken.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Place in the queue; the least goes first. Unique within a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// False when the rank stands still for want of this batch: those go before any lookahead.
    pub ahead: bool,
    /// Epoch and step, as one number.
    pub place: u64,
    /// False when a dead worker had it already.
    pub fresh: bool,
    /// Longest first: expected nanoseconds; 0 where the order is not by length.
    pub length: Reverse<u64>,
    /// The rank.
    pub rank: u32,
    /// Place in the batch.
    pub slot: u16,
}

/// Epoch and step as one ascending number.
pub(super) const fn place(epoch: u32, step: u32) -> u64 {
    (epoch as u64) << 32 | step as u64
}

/// What the key does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Item {
    /// The step.
    pub step: u32,
    /// Expected nanoseconds on the mean server.
    pub expected: u64,
}

/// A queue, with the work in it by step.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    items: BTreeMap<Key, Item>,
    work: BTreeMap<(bool, u64), u64>,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn push(&mut self, key: Key, item: Item) {
        if self.items.insert(key, item).is_none() {
            *self.work.entry((key.ahead, key.place)).or_default() += item.expected;
        }
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Item> {
        let item = self.items.remove(key)?;
        let group = (key.ahead, key.place);
        if let Some(work) = self.work.get_mut(&group) {
            *work = work.saturating_sub(item.expected);
        }
        // The next key of the group, if any, is beside the removed one.
        let least = Key { fresh: false, length: Reverse(u64::MAX), rank: 0, slot: 0, ..*key };
        let same = |k: &Key| (k.ahead, k.place) == group;
        if !self.items.range(least..).next().is_some_and(|(k, _)| same(k)) {
            self.work.remove(&group);
        }
        Some(item)
    }

    pub(super) fn first(&self) -> Option<(Key, Item)> {
        self.items.first_key_value().map(|(k, i)| (*k, *i))
    }

    /// Steps in the queue in order, each with its work, expected nanoseconds.
    pub(super) fn work(&self) -> impl Iterator<Item = (u32, u64)> {
        self.work.iter().map(|((_, place), work)| (*place as u32, *work))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(ahead: bool, step: u32, length: u64, slot: u16) -> Key {
        Key { ahead, place: place(0, step), fresh: true, length: Reverse(length), rank: 0, slot }
    }

    #[test]
    fn earliest_step_first_then_longest_and_retries_before_all() {
        let mut queue = Backlog::default();
        let item = |step, expected| Item { step, expected };
        queue.push(key(true, 1, 50, 0), item(1, 50));
        queue.push(key(true, 0, 10, 1), item(0, 10));
        queue.push(key(true, 0, 30, 2), item(0, 30));
        queue.push(Key { fresh: false, ..key(true, 0, 5, 3) }, item(0, 5));
        queue.push(key(false, 2, 1, 4), item(2, 1));
        assert!(queue.work().eq([(2, 1), (0, 45), (1, 50)]));
        let mut slots = Vec::new();
        while let Some((key, _)) = queue.first() {
            slots.push(key.slot);
            queue.remove(&key);
        }
        assert_eq!(slots, [4, 3, 2, 1, 0]);
        assert!(queue.is_empty() && queue.work.is_empty());
    }

    #[test]
    fn the_work_of_a_step_is_counted() {
        let mut queue = Backlog::default();
        let (a, b) = (key(true, 3, 7, 0), key(true, 3, 9, 1));
        queue.push(a, Item { step: 3, expected: 7 });
        queue.push(b, Item { step: 3, expected: 9 });
        assert!(queue.work().eq([(3, 16)]));
        queue.remove(&b);
        assert!(queue.work().eq([(3, 7)]));
        assert_eq!(queue.remove(&b), None);
        queue.remove(&a);
        assert_eq!(queue.work().next(), None);
    }
}
