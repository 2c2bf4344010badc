//! Samples that are objects in stores, read through the worker's helper.

use std::ops::Range;
use std::sync::Arc;

use super::{ReadId, Source};
use crate::decode::input::Part;
use crate::decode::{SampleError, Stage};
use crate::object::client::{Client, Fetch, Object};
use crate::object::store::Stamp;

/// The reads that are under way.
#[derive(Debug, Default)]
pub(super) struct Objects {
    client: Option<Arc<Client>>,
    fetches: Vec<(ReadId, Pending)>,
}

#[derive(Debug)]
struct Pending {
    fetch: Fetch,
    /// Where each range begins in the sample.
    starts: Vec<u64>,
}

impl Objects {
    pub(super) fn set(&mut self, client: Arc<Client>) {
        self.client = Some(client);
    }

    pub(super) fn fetch(
        &mut self,
        id: ReadId,
        source: &Source<'_>,
        ranges: &[Range<u64>],
    ) -> Result<(), SampleError> {
        let fail = |reason: String| SampleError::new(Stage::Open, reason);
        let client = self.client.as_ref().ok_or_else(|| fail("no helper fetches for this process".into()))?;
        let url = source.path.to_str().ok_or_else(|| fail("its URL is not UTF-8".into()))?;
        let object = client.object(url, Stamp { len: source.file_len, mtime_ns: source.mtime_ns });
        let fetch = object.fetch(ranges).map_err(|e| fail(format!("{url}: the helper that fetches: {e}")))?;
        let starts = ranges.iter().map(|r| r.start - source.offset).collect();
        self.fetches.push((id, Pending { fetch, starts }));
        Ok(())
    }

    /// The bytes of a read, waited for; `None` if it is not of an object.
    pub(super) fn finish(&mut self, id: ReadId) -> Option<Result<(Vec<Part>, Object), SampleError>> {
        let at = self.fetches.iter().position(|(known, _)| *known == id)?;
        let (_, Pending { fetch, starts }) = self.fetches.swap_remove(at);
        let object = fetch.object();
        let parts = |bytes: Vec<Vec<u8>>| {
            let part = |(start, buffer): (u64, Vec<u8>)| Part { start, len: buffer.len(), buffer };
            starts.into_iter().zip(bytes).map(part).collect()
        };
        Some(fetch.wait().map(|bytes| (parts(bytes), object)).map_err(|e| SampleError::new(Stage::Read, e)))
    }

    pub(super) fn cancel(&mut self, id: ReadId) {
        self.fetches.retain(|(known, _)| *known != id);
    }
}
