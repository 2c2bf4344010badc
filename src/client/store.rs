//! The rank's slab: how large, and where from.

use std::sync::Arc;

use super::error::ConnectError;
use super::options::Options;
use crate::device::Registration;
use crate::manifest::Manifest;
use crate::proto::transform::Facts;
use crate::ring::slab::{Slab, SlabError, SlabOptions};
use crate::ring::topology;

/// Batches that a slab holds by default: the one in use, and enough ahead of it for the scheduler to spread the
/// long samples of several steps over all workers. Deeper gains little, and costs memory in every rank.
const DEPTH: u64 = 8;
/// Fewer do not work: one in use, one under way.
const LEAST_DEPTH: u64 = 2;
/// Blocks start on a page.
const PAGE: u64 = 4096;
/// Regions of differing sizes start on a cache line.
const LINE: u64 = 64;

/// The slab and its registration with the device; both live as long as any batch does.
pub(crate) struct Store {
    // In this order: the registration ends before the memory does.
    _registration: Option<Registration>,
    pub(crate) slab: Arc<Slab>,
    /// The NUMA node that its memory was asked from: the user's, else that of the rank's cores if they have one.
    pub(super) node: Option<u32>,
    /// The largest batches that fit into it at once.
    pub(super) depth: u32,
}

impl Store {
    /// Makes the slab, touches all of it, and registers it.
    pub(super) fn create(options: &Options, manifest: &Manifest) -> Result<Self, ConnectError> {
        let node = options.node.or_else(topology::home_node);
        let batch = largest_batch(options, manifest);
        let slab = Arc::new(slab(options, node, batch)?);
        let depth = (slab.len() as u64 / batch.max(1)).min(u32::MAX.into()) as u32;
        let registration = options.device.register(Arc::clone(&slab) as _)?;
        Ok(Store { _registration: Some(registration), slab, node, depth })
    }

    /// A slab that no device knows.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn bare(slab: Slab) -> Self {
        Store { _registration: None, slab: Arc::new(slab), node: None, depth: 0 }
    }
}

fn slab(options: &Options, node: Option<u32>, batch: u64) -> Result<Slab, ConnectError> {
    let name = format!("helix-slab-{}-{}", options.loader, options.rank);
    let how = SlabOptions { prefault: true, huge: true, node };
    let create = |bytes: u64| {
        let whole = bytes.next_multiple_of(PAGE);
        Slab::create(&name, usize::try_from(whole).unwrap_or(usize::MAX), how.clone())
    };
    if let Some(bytes) = options.slab_bytes {
        return Ok(create(bytes)?);
    }
    let wanted = if options.run.max_batches > 0 { u64::from(options.run.max_batches) } else { DEPTH };
    let mut depth = wanted.max(LEAST_DEPTH);
    loop {
        match create(batch.saturating_mul(depth)) {
            Err(SlabError::Budget { wanted, available, by }) if depth > LEAST_DEPTH => {
                let fewer = (depth / 2).max(LEAST_DEPTH);
                tracing::warn!(
                    "{depth} batches, {wanted} bytes, do not fit: {} leaves {available}; the slab is made for \
                     {fewer}. Set slab_bytes, or lower batch_size, to choose",
                    by.display()
                );
                depth = fewer;
            }
            made => return Ok(made?),
        }
    }
}

/// Bytes of the largest batch that can come.
fn largest_batch(options: &Options, manifest: &Manifest) -> u64 {
    let (transform, n) = (&options.stream.transform, u64::from(options.stream.largest_batch()));
    if transform.is_uniform() {
        return (n * transform.max_bytes(&Facts::default())).next_multiple_of(PAGE);
    }
    let rows = (0..manifest.good()).map(|i| manifest.good_row(i));
    let mut sizes: Vec<u64> =
        rows.map(|row| transform.max_bytes(&manifest.facts(row)).next_multiple_of(LINE)).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    // The last step may repeat samples, so that a short manifest can fill a batch with its largest.
    let largest = sizes.first().copied().unwrap_or(0);
    sizes.resize(n as usize, largest);
    sizes.iter().sum::<u64>().next_multiple_of(PAGE)
}
