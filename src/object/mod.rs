//! Objects in S3-like stores and behind HTTP: a row of a manifest may name a URL in the place of a path.
//!
//! `store` speaks to the stores, with several ranges in flight, retries and a bounded backoff. `helix index` uses it
//! directly. A worker has no network: `helper` is a process beside it that fetches what the worker asks for
//! (`client`) and nothing outside the stores that its manifests name. Without the feature `object-store` this room
//! only knows a URL when it sees one. It knows the manifest, and must not know who decodes.

#[cfg(feature = "object-store")]
pub mod client;
#[cfg(feature = "object-store")]
pub mod helper;
#[cfg(feature = "object-store")]
pub mod store;

use std::collections::BTreeSet;
use std::path::Path;

use crate::manifest::Manifest;

/// What builds without the feature say of a URL.
pub const MISSING: &str =
    "it is an object in a store, and this build cannot read those: build with --features object-store";

/// Whether a path is a URL that a store answers to.
pub fn is_url(path: &Path) -> bool {
    path.to_str().is_some_and(|path| origin(path).is_some())
}

/// The store of a URL: its scheme, and its host or bucket.
pub fn origin(url: &str) -> Option<&str> {
    let scheme = ["s3://", "http://", "https://"].into_iter().find(|scheme| url.starts_with(scheme))?;
    let rest = &url[scheme.len()..];
    let host = rest.split('/').next().filter(|host| !host.is_empty())?;
    Some(&url[..scheme.len() + host.len()])
}

/// The stores that a manifest's good rows are in.
pub fn origins(manifest: &Manifest) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut last = String::new();
    for i in 0..manifest.good() {
        let Some(origin) = origin(manifest.descriptor(manifest.good_row(i)).path).filter(|o| *o != last) else {
            continue;
        };
        origin.clone_into(&mut last);
        found.insert(last.clone());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_known_by_its_scheme_and_its_store() {
        assert_eq!(origin("s3://bucket/a/b.mp4"), Some("s3://bucket"));
        assert_eq!(origin("http://host:8080/a.mp4"), Some("http://host:8080"));
        for path in ["/data/s3://a/b", "s3://", "ftp://host/a", "https:///a", "data/a.mp4"] {
            assert_eq!(origin(path), None, "{path}");
        }
        assert!(is_url(Path::new("https://host/ü.mp4")) && !is_url(Path::new("/https://host/a")));
    }
}
