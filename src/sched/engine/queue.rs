//! Samples that wait for a worker, in the order in which they are to be taken.

use std::collections::BTreeMap;

use crate::sched::cost::Work;

/// Place in the queue; the least goes first. Unique within a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// False when the rank stands still for want of this batch: those go before any lookahead.
    pub ahead: bool,
    /// False when a dead worker had it already.
    pub fresh: bool,
    /// When it has to be begun at the latest, on the stream's timeline; 0 where the order is by step alone.
    pub start: u64,
    /// Epoch and step, as one number.
    pub place: u64,
    /// The rank.
    pub rank: u32,
    /// Which piece of the batch.
    pub piece: u32,
}

/// Epoch and step as one ascending number.
pub(super) const fn place(epoch: u32, step: u32) -> u64 {
    (epoch as u64) << 32 | step as u64
}

/// Bytes of what is made: megapixels of three bytes.
pub(super) fn bytes_of(work: &Work) -> u64 {
    (3e6 * work.output).max(0.0) as u64
}

/// What the key does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Item {
    /// The step.
    pub step: u32,
    /// Expected nanoseconds on the mean server.
    pub expected: u64,
    /// Nanoseconds that it will hardly exceed.
    pub safe: u64,
    /// Bytes of what is made of it.
    pub bytes: u64,
}

/// A queue, and the work in it.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    items: BTreeMap<Key, Item>,
    work: u64,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn push(&mut self, key: Key, item: Item) {
        if self.items.insert(key, item).is_none() {
            self.work = self.work.saturating_add(item.expected);
        }
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Item> {
        let item = self.items.remove(key)?;
        self.work = self.work.saturating_sub(item.expected);
        Some(item)
    }

    pub(super) fn first(&self) -> Option<(Key, Item)> {
        self.items.first_key_value().map(|(k, i)| (*k, *i))
    }

    /// All that waits, the first first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, Item)> {
        self.items.iter().map(|(k, i)| (*k, *i))
    }

    /// Expected nanoseconds of all that waits.
    pub(super) fn work(&self) -> u64 {
        self.work
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(ahead: bool, start: u64, step: u32, piece: u32) -> Key {
        Key { ahead, fresh: true, start, place: place(0, step), rank: 0, piece }
    }

    #[test]
    fn what_is_waited_for_then_what_was_lost_then_what_has_to_begin_first() {
        let mut queue = Backlog::default();
        let item = |step| Item { step, expected: 10, safe: 20, bytes: 1 };
        queue.push(key(true, 20, 0, 0), item(0));
        queue.push(key(true, 10, 1, 1), item(1));
        queue.push(key(true, 10, 0, 2), item(0));
        queue.push(Key { fresh: false, ..key(true, 90, 0, 3) }, item(0));
        queue.push(key(false, 50, 2, 4), item(2));
        assert_eq!(queue.work(), 50);
        let mut pieces = Vec::new();
        while let Some((key, _)) = queue.first() {
            pieces.push(key.piece);
            queue.remove(&key);
        }
        assert_eq!(pieces, [4, 3, 2, 1, 0]);
        assert!(queue.is_empty() && queue.work() == 0);
    }
}
