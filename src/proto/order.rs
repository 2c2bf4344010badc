//! An epoch's order by a sampler of the user's own: which samples make up each micro-batch, in turn.
//!
//! It travels in a memory file with the packet that begins the iteration, as little-endian words of 32 bits: the
//! number of micro-batches, the length of each, the samples of all.

use std::io::{Read, Write};

/// Most words of an order: that of a sampler that gives each sample the scheduler can number, in ones.
const MAX_WORDS: u64 = 1 << 30;

/// What is wrong with an order.
#[derive(Debug, thiserror::Error)]
pub enum BadOrder {
    /// It cannot be read or written.
    #[error("the sampler's order cannot be passed on: {0}")]
    Io(#[from] std::io::Error),
    /// It is not one.
    #[error("the sampler's order does not fit: {0}")]
    Shape(String),
}

/// See the head of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    lens: Vec<u32>,
    samples: Vec<u32>,
}

impl Order {
    /// An order of micro-batches of these lengths, over samples numbered among those that can be delivered.
    pub fn new(lens: Vec<u32>, samples: Vec<u32>) -> Result<Order, BadOrder> {
        let sum: u64 = lens.iter().map(|&n| u64::from(n)).sum();
        if sum != samples.len() as u64 {
            return Err(BadOrder::Shape(format!(
                "micro-batches of {sum} samples in all, and {} samples",
                samples.len()
            )));
        }
        if lens.contains(&0) {
            return Err(BadOrder::Shape("a micro-batch without samples; leave it out".into()));
        }
        let order = Order { lens, samples };
        if order.words() > MAX_WORDS {
            return Err(BadOrder::Shape(format!("{} words; at most {MAX_WORDS} do", order.words())));
        }
        Ok(order)
    }

    /// Micro-batches.
    pub fn len(&self) -> usize {
        self.lens.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// The micro-batches, in turn.
    pub fn batches(&self) -> impl Iterator<Item = &[u32]> {
        let mut rest = &self.samples[..];
        self.lens.iter().map(move |&len| {
            let (batch, behind) = rest.split_at(len as usize);
            rest = behind;
            batch
        })
    }

    /// Refuses what a stream of so many samples, in micro-batches of at most `largest`, cannot serve.
    pub fn check(&self, samples: u64, largest: u32) -> Result<(), BadOrder> {
        if let Some(sample) = self.samples.iter().find(|&&sample| u64::from(sample) >= samples) {
            return Err(BadOrder::Shape(format!("sample {sample} of {samples}")));
        }
        if let Some(len) = self.lens.iter().find(|&&len| len > largest) {
            return Err(BadOrder::Shape(format!("a micro-batch of {len} samples; {largest} are the most")));
        }
        Ok(())
    }

    fn words(&self) -> u64 {
        1 + self.lens.len() as u64 + self.samples.len() as u64
    }

    /// Writes it out.
    pub fn write(&self, out: &mut impl Write) -> Result<(), BadOrder> {
        let count = u32::try_from(self.lens.len()).map_err(|e| BadOrder::Shape(e.to_string()))?;
        let words = std::iter::once(count).chain(self.lens.iter().copied()).chain(self.samples.iter().copied());
        let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        Ok(out.write_all(&bytes)?)
    }

    /// Reads one that is `bytes` long.
    pub fn read(from: &mut impl Read, bytes: u64) -> Result<Order, BadOrder> {
        if !bytes.is_multiple_of(4) || bytes / 4 > MAX_WORDS {
            return Err(BadOrder::Shape(format!("{bytes} bytes")));
        }
        let mut raw = Vec::new();
        from.take(bytes).read_to_end(&mut raw)?;
        let mut words = raw.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let count = words.next().ok_or_else(|| BadOrder::Shape("nothing in it".into()))?;
        let lens: Vec<u32> = words.by_ref().take(count as usize).collect();
        if lens.len() != count as usize {
            return Err(BadOrder::Shape(format!("{} lengths of {count}", lens.len())));
        }
        Order::new(lens, words.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_survives_the_journey() {
        let order = Order::new(vec![2, 1, 2], vec![4, 0, 7, 1, 1]).unwrap();
        let mut bytes = Vec::new();
        order.write(&mut bytes).unwrap();
        assert_eq!(bytes.len(), 4 * 9);
        assert_eq!(Order::read(&mut &bytes[..], 36).unwrap(), order);
        assert_eq!(order.batches().collect::<Vec<_>>(), [&[4, 0][..], &[7], &[1, 1]]);
        assert!(order.check(8, 2).is_ok());
        assert!(order.check(7, 2).is_err());
        assert!(order.check(8, 1).is_err());
    }

    #[test]
    fn what_is_no_order_is_refused() {
        for words in [&[][..], &[2, 1], &[1, 3, 0, 0], &[1, 0], &[u32::MAX, 1, 1]] {
            let bytes: Vec<u8> = words.iter().flat_map(|w: &u32| w.to_le_bytes()).collect();
            assert!(Order::read(&mut &bytes[..], bytes.len() as u64).is_err(), "{words:?}");
        }
        assert!(Order::read(&mut &[0; 5][..], 5).is_err());
        assert!(Order::new(vec![1], vec![]).is_err());
    }
}
