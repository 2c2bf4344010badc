//! A manifest as the scheduler sees it: its good rows, by number.

use super::event::Catalog;
use crate::manifest::Manifest;
use crate::proto::transform::Facts;

impl Catalog for Manifest {
    fn len(&self) -> u64 {
        self.good()
    }

    fn row(&self, i: u64) -> u64 {
        self.good_row(i)
    }

    fn facts(&self, i: u64) -> Facts {
        Manifest::facts(self, self.good_row(i))
    }
}
