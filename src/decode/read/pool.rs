//! Read buffers that are used again: a fresh one of megabytes would be faulted in page by page for each sample.

use super::MAX_PREFETCH;

/// Most bytes that wait for another use: what a worker's two samples need.
const POOL: usize = 2 * MAX_PREFETCH as usize;

/// Most buffers that wait: a sparse read has one a group, and small ones are cheap to make.
const BUFFERS: usize = 64;

/// Buffers are made in steps of this size, so that samples of like sizes can share them.
const STEP: usize = 64 << 10;

/// Buffers that wait for another use.
#[derive(Debug, Default)]
pub(super) struct Pool {
    waiting: Vec<Vec<u8>>,
    bytes: usize,
}

impl Pool {
    /// A buffer of at least `len` bytes: the smallest that fits. Its contents have no meaning.
    pub(super) fn take(&mut self, len: usize) -> Vec<u8> {
        let fits = (0..self.waiting.len()).filter(|&i| self.waiting[i].len() >= len);
        match fits.min_by_key(|&i| self.waiting[i].len()) {
            Some(i) => {
                let buffer = self.waiting.swap_remove(i);
                self.bytes -= buffer.len();
                buffer
            }
            None => vec![0; len.next_multiple_of(STEP)],
        }
    }

    /// Takes a buffer back, or frees it when enough wait; the smallest go first, since they serve least.
    pub(super) fn give(&mut self, buffer: Vec<u8>) {
        self.bytes += buffer.len();
        self.waiting.push(buffer);
        while self.bytes > POOL || self.waiting.len() > BUFFERS {
            let smallest = (0..self.waiting.len()).min_by_key(|&i| self.waiting[i].len()).expect("not empty");
            self.bytes -= self.waiting.swap_remove(smallest).len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_never_pile_up() {
        let mut pool = Pool::default();
        let first = pool.take(100_000);
        let address = first.as_ptr();
        pool.give(first);
        let second = pool.take(90_000);
        assert_eq!(second.as_ptr(), address);
        for round in 0..1000 {
            let buffers: Vec<_> = (0..10).map(|i| pool.take((round * 7919 + i * 104_729) % 4_000_000)).collect();
            buffers.into_iter().for_each(|b| pool.give(b));
            assert!(pool.bytes <= POOL && pool.waiting.len() <= BUFFERS);
            assert_eq!(pool.bytes, pool.waiting.iter().map(Vec::len).sum::<usize>());
        }
    }
}
