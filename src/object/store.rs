//! Reading from stores.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::AmazonS3Builder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, RetryConfig,
};

use super::origin;

/// Requests of one object at a time.
const AT_ONCE: usize = 8;
/// A large range is fetched in pieces of this size, several at a time.
const PIECE: u64 = 4 << 20;

/// What an object was when it was indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Its bytes.
    pub len: u64,
    /// When it was last modified, nanoseconds since 1970; 0 if the store does not say.
    pub mtime_ns: i64,
}

impl From<&ObjectMeta> for Stamp {
    fn from(meta: &ObjectMeta) -> Stamp {
        Stamp { len: meta.size, mtime_ns: meta.last_modified.timestamp_nanos_opt().unwrap_or(0) }
    }
}

/// The stores that were spoken to, by origin. What S3 needs (endpoint, region, keys) is taken from the environment's
/// `AWS_…` variables.
#[derive(Default)]
pub struct Stores {
    known: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
}

impl Stores {
    fn of(&self, url: &str) -> Result<(Arc<dyn ObjectStore>, Path), String> {
        let origin = origin(url).ok_or_else(|| format!("{url}: not a URL of s3, http or https"))?;
        let path =
            Path::from_url_path(url[origin.len()..].trim_start_matches('/')).map_err(|e| format!("{url}: {e}"))?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = known.get(origin) {
            return Ok((Arc::clone(store), path));
        }
        let store = open(origin).map_err(|e| format!("{origin}: {e}"))?;
        known.insert(origin.to_owned(), Arc::clone(&store));
        Ok((store, path))
    }

    /// What an object is now.
    pub async fn stat(&self, url: &str) -> Result<Stamp, String> {
        let (store, path) = self.of(url)?;
        let meta = store.head(&path).await.map_err(|e| explain(url, &e))?;
        Ok(Stamp::from(&meta))
    }

    /// Ranges of an object, several in flight, in the order asked for. It must be what it was.
    pub async fn ranges(&self, url: &str, was: Stamp, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>, String> {
        let (store, path) = self.of(url)?;
        let piece = |range: Range<u64>| {
            let (store, path) = (&store, &path);
            async move {
                let wanted = range.end - range.start;
                let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
                let got = store.get_opts(path, options).await.map_err(|e| explain(url, &e))?;
                let now = Stamp::from(&got.meta);
                if now != was {
                    return Err(changed(url, was, now));
                }
                let bytes = got.bytes().await.map_err(|e| explain(url, &e))?;
                match bytes.len() as u64 == wanted {
                    true => Ok(bytes),
                    false => Err(format!("{url}: the store gave {} bytes of {wanted}", bytes.len())),
                }
            }
        };
        let pieces: Vec<(usize, Range<u64>)> = ranges.iter().enumerate().flat_map(|(i, r)| cut(i, r)).collect();
        let order: Vec<usize> = pieces.iter().map(|(i, _)| *i).collect();
        let got: Vec<_> =
            stream::iter(pieces.into_iter().map(|(_, r)| piece(r))).buffered(AT_ONCE).try_collect().await?;
        let mut out: Vec<Vec<u8>> = ranges.iter().map(|r| Vec::with_capacity((r.end - r.start) as usize)).collect();
        for (i, bytes) in order.into_iter().zip(got) {
            out[i].extend_from_slice(&bytes);
        }
        Ok(out)
    }

    /// URLs of the objects whose keys begin with a URL's, in order.
    async fn list(&self, url: &str) -> Result<Vec<String>, String> {
        let (store, prefix) = self.of(url)?;
        let origin = origin(url).unwrap_or_default();
        let found: Vec<ObjectMeta> = store.list(Some(&prefix)).try_collect().await.map_err(|e| explain(url, &e))?;
        let mut urls: Vec<String> = found.iter().map(|meta| format!("{origin}/{}", meta.location)).collect();
        urls.sort_unstable();
        Ok(urls)
    }
}

/// Pieces of a range, each with the number of the range.
fn cut(i: usize, range: &Range<u64>) -> Vec<(usize, Range<u64>)> {
    let end = range.end;
    (range.start..end).step_by(PIECE as usize).map(|at| (i, at..(at + PIECE).min(end))).collect()
}

fn open(origin: &str) -> object_store::Result<Arc<dyn ObjectStore>> {
    let backoff =
        BackoffConfig { init_backoff: Duration::from_millis(100), max_backoff: Duration::from_secs(5), base: 2.0 };
    let retry = RetryConfig { backoff, max_retries: 6, retry_timeout: Duration::from_secs(60) };
    if let Some(bucket) = origin.strip_prefix("s3://") {
        return Ok(Arc::new(AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry).build()?));
    }
    let client = ClientOptions::new().with_allow_http(true).with_timeout(Duration::from_secs(60));
    Ok(Arc::new(HttpBuilder::new().with_url(origin).with_retry(retry).with_client_options(client).build()?))
}

/// An error of a store with the object that it is about; the store's own text has the status.
fn explain(url: &str, error: &object_store::Error) -> String {
    let mut text = format!("{url}: {error}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

fn changed(url: &str, was: Stamp, now: Stamp) -> String {
    format!(
        "{url}: the object has changed since it was indexed (then {} bytes, modified at {} ns; now {} bytes, modified at \
         {} ns): run `helix index` again",
        was.len, was.mtime_ns, now.len, now.mtime_ns
    )
}

/// The stores of this process, and what runs their requests; for callers that wait.
fn ours() -> Result<&'static (tokio::runtime::Runtime, Stores), String> {
    static OURS: OnceLock<Result<(tokio::runtime::Runtime, Stores), String>> = OnceLock::new();
    let make = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Ok((runtime.map_err(|e| format!("threads for stores: {e}"))?, Stores::default()))
    };
    OURS.get_or_init(make).as_ref().map_err(Clone::clone)
}

/// As [`Stores::stat`], and waits.
pub fn stat(url: &str) -> Result<Stamp, String> {
    let (runtime, stores) = ours()?;
    runtime.block_on(stores.stat(url))
}

/// URLs of the objects whose keys begin with a URL's, in order.
pub fn list(url: &str) -> Result<Vec<String>, String> {
    let (runtime, stores) = ours()?;
    runtime.block_on(stores.list(url))
}

/// A copy of an object in a file without a name, in the folder for temporary files. An index is made of all of an
/// object's packets, so that all of it is read anyway.
pub fn download(url: &str, was: Stamp) -> Result<File, String> {
    let (runtime, stores) = ours()?;
    let folder = std::env::temp_dir();
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE);
    let mut file = options.open(&folder).map_err(|e| format!("a file in {}: {e}", folder.display()))?;
    let step = PIECE * AT_ONCE as u64;
    for at in (0..was.len).step_by(step as usize) {
        let range = at..(at + step).min(was.len);
        for bytes in runtime.block_on(stores.ranges(url, was, &[range]))? {
            file.write_all(&bytes).map_err(|e| format!("a copy in {}: {e}", folder.display()))?;
        }
    }
    Ok(file)
}
