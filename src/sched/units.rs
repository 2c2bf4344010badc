//! What is dealt to the ranks: an epoch's samples in its order, in micro-batches that stay together.
//!
//! Where all samples are alike a micro-batch is the next few of the order. Where they have shapes, and only those of
//! one shape fit into a tensor, each shape fills its own micro-batches, of its own size, in the epoch's order; then
//! the micro-batches are shuffled, or the rarer shapes would gather at the end. What does not fill a micro-batch
//! waits for the next epoch.

use std::sync::Arc;

use super::event::Catalog;
use super::order::{self, Permutation};
use crate::proto::options::StreamOptions;
use crate::proto::order::Order as Given;

/// One epoch's micro-batches. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Units {
    order: Permutation,
    grouping: Grouping,
}

#[derive(Debug, Clone)]
enum Grouping {
    /// So many consecutive positions each.
    Even(u32),
    /// Samples of one shape each.
    Shaped(Arc<[Box<[u32]>]>),
}

impl Units {
    /// The micro-batches of an epoch that goes through the catalog in this order.
    pub fn new(options: &StreamOptions, catalog: &dyn Catalog, order: Permutation, epoch: u32) -> Units {
        let shapes = catalog.shapes();
        if shapes.is_empty() {
            return Units { order, grouping: Grouping::Even(options.micro_batch.max(1)) };
        }
        let mut full: Vec<Box<[u32]>> = Vec::new();
        let mut open: Vec<Vec<u32>> = vec![Vec::new(); shapes.len()];
        for position in 0..u64::from(order.len()) {
            let sample = order.at(position);
            let Some(shape) = catalog.shape(sample.into()).filter(|s| *s < shapes.len()) else { continue };
            open[shape].push(sample);
            if open[shape].len() >= shapes[shape] as usize {
                full.push(std::mem::take(&mut open[shape]).into());
            }
        }
        if options.shuffle {
            order::shuffle(&mut full, options.seed, epoch, b"units", 0);
        }
        Units { order, grouping: Grouping::Shaped(full.into()) }
    }

    /// The micro-batches that a sampler of the user's own has made.
    pub fn given(given: &Given) -> Units {
        let units = given.batches().map(Box::from).collect();
        Units { order: Permutation::identity(0), grouping: Grouping::Shaped(units) }
    }

    /// Steps of the epoch.
    pub fn steps(&self, options: &StreamOptions) -> u32 {
        let Grouping::Shaped(units) = &self.grouping else { return options.steps(self.order.len().into()) };
        let global = u64::from(options.world) * u64::from(options.units());
        let count = units.len() as u64;
        let steps = if options.drop_last { count / global.max(1) } else { count.div_ceil(global.max(1)) };
        u32::try_from(steps).unwrap_or(u32::MAX)
    }

    /// The samples of the `n`-th micro-batch; past the end they start again, which pads the last step.
    ///
    /// # Panics
    /// When there is none.
    pub fn unit(&self, n: u64) -> impl Iterator<Item = u32> + '_ {
        let (positions, shaped) = match &self.grouping {
            Grouping::Even(size) => (n * u64::from(*size)..(n + 1) * u64::from(*size), None),
            Grouping::Shaped(units) => {
                let unit = &units[(n % units.len() as u64) as usize];
                (0..unit.len() as u64, Some(unit))
            }
        };
        positions.map(move |p| shaped.map_or_else(|| self.order.at(p), |unit| unit[p as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::options::{Balance, OnError, Profile};
    use crate::proto::transform::{Facts, Transform};

    /// Samples whose shape is their number modulo 3; those of shape 2 fit nowhere.
    struct Shaped(u64);

    impl Catalog for Shaped {
        fn len(&self) -> u64 {
            self.0
        }
        fn row(&self, i: u64) -> u64 {
            i
        }
        fn facts(&self, _: u64) -> Facts {
            Facts::default()
        }
        fn shapes(&self) -> &[u32] {
            &[4, 2]
        }
        fn shape(&self, i: u64) -> Option<usize> {
            Some(i as usize % 3).filter(|s| *s < 2)
        }
    }

    fn options() -> StreamOptions {
        StreamOptions {
            world: 2,
            batch_size: 4,
            seed: 5,
            shuffle: true,
            drop_last: true,
            balance: Balance::None,
            profile: Profile::Equal,
            on_error: OnError::Raise,
            transform: Transform::default(),
            micro_batch: 4,
            regroup: 1,
            weigh: Default::default(),
            mix: Vec::new(),
            rebalance: Default::default(),
        }
    }

    #[test]
    fn a_samplers_order_is_dealt_as_it_is() {
        let options = StreamOptions { world: 1, drop_last: false, ..options() };
        let order = Given::new(vec![3, 1, 4], vec![5, 5, 2, 9, 0, 1, 2, 3]).unwrap();
        let units = Units::given(&order);
        assert_eq!(units.steps(&options), 3);
        let dealt: Vec<Vec<u32>> = (0..3).map(|n| units.unit(n).collect()).collect();
        assert_eq!(dealt, [vec![5, 5, 2], vec![9], vec![0, 1, 2, 3]]);
        assert_eq!(Units::given(&Given::new(vec![], vec![]).unwrap()).steps(&options), 0);
    }

    #[test]
    fn a_micro_batch_is_of_one_shape_and_full_and_every_sample_comes_once() {
        let (options, catalog) = (options(), Shaped(100));
        let units = |epoch| Units::new(&options, &catalog, Permutation::shuffled(100, 5, epoch), epoch);
        // 34 of shape 0 in fours, 33 of shape 1 in twos.
        let count = 34 / 4 + 33 / 2;
        let first = units(0);
        assert_eq!(first.steps(&options), count / 2);
        let mut all = Vec::new();
        for n in 0..u64::from(count) {
            let unit: Vec<u32> = first.unit(n).collect();
            assert_eq!(unit.len(), [4, 2][unit[0] as usize % 3]);
            assert!(unit.iter().all(|s| s % 3 == unit[0] % 3));
            all.extend(unit);
        }
        all.sort_unstable();
        let found = all.len();
        all.dedup();
        assert_eq!((all.len(), found), (32 + 32, 32 + 32));
        let listed =
            |u: &Units| (0..u64::from(count)).flat_map(|n| u.unit(n).collect::<Vec<_>>()).collect::<Vec<_>>();
        assert_eq!(listed(&first), listed(&units(0)));
        assert_ne!(listed(&first), listed(&units(1)));
        assert_eq!(first.unit(count.into()).collect::<Vec<_>>(), first.unit(0).collect::<Vec<_>>());
    }
}
