//! Samples in stores: indexed, and read by workers without a network, from a server on this machine.
#![cfg(all(feature = "object-store", not(feature = "loom")))]

mod common;

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use common::{Daemon, folder};
use helix_shm::manifest::Manifest;
use helix_shm::proto::options::OnError;
use helix_shm::proto::transform::{Resize, Transform};
use helix_shm::{Loader, Options};

const DATE: &str = "Tue, 01 Dec 2026 00:00:00 GMT";

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    /// Requests of a key that are still to fail, with this status.
    failing: HashMap<String, (u32, u16)>,
    /// Bytes of bodies, by key, and ranges asked for.
    served: HashMap<String, (u64, u64)>,
    /// Later than the date of the others.
    touched: Option<String>,
}

/// A store of a few objects: what S3 and HTTP clients ask, by path `/bucket/key`.
struct Store {
    address: String,
    state: Arc<Mutex<State>>,
}

impl Store {
    fn start() -> Store {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || while serve(&stream, &state).is_some() {});
            }
        });
        Store { address, state }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("nobody panicked")
    }

    fn put(&self, key: &str, bytes: Vec<u8>) {
        self.state().objects.insert(key.to_owned(), bytes);
    }

    fn add(&self, key: &str, name: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hard").join(name);
        self.put(key, std::fs::read(path).expect("a file of the collection"));
    }

    /// A program with what it needs to find the store.
    fn environment(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("AWS_ENDPOINT", format!("http://{}", self.address))
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_ACCESS_KEY_ID", "key")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .env("AWS_REGION", "us-east-1")
            .env("NO_PROXY", "127.0.0.1");
        command
    }

    fn index(&self, inputs: &[&str], output: &Path) -> Output {
        let mut command = self.environment(env!("CARGO_BIN_EXE_helix"));
        command.arg("index").args(inputs).arg("-o").arg(output).output().expect("helix runs")
    }

    fn daemon(&self, folder: &Path) -> Daemon {
        let socket = folder.join("d.sock");
        let mut command = self.environment(env!("CARGO_BIN_EXE_helix-shmd"));
        Daemon::start_as(command.arg("--socket").arg(&socket), &socket)
    }
}

/// One request of a connection; `None` at its end.
fn serve(stream: &TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&n| n > 0)?;
    let (method, target) = (line.split(' ').next()?.to_owned(), line.split(' ').nth(1)?.to_owned());
    let (mut range, mut length) = (None, 0);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok().filter(|&n| n > 0)?;
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("range: bytes=") {
            let (from, to) = value.split_once('-')?;
            range = Some((from.parse::<usize>().ok()?, to.parse::<usize>().ok()?));
        } else if let Some(value) = header.strip_prefix("content-length: ") {
            length = value.parse().ok()?;
        }
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink()).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let key = path.trim_start_matches('/').to_owned();
    let mut state = state.lock().ok()?;
    let (status, extra, body) = match state.failing.get_mut(&key) {
        Some((left @ 1.., status)) => {
            *left -= 1;
            (*status, String::new(), b"try again".to_vec())
        }
        _ if query.contains("list-type=2") => (200, String::new(), list(&state, &key, query)),
        _ => match (state.objects.get(&key), range) {
            (None, _) => (404, String::new(), b"no such key".to_vec()),
            (Some(bytes), None) => (200, String::new(), bytes.clone()),
            (Some(bytes), Some((from, to))) => {
                let to = to.min(bytes.len() - 1);
                let header = format!("Content-Range: bytes {from}-{to}/{}\r\n", bytes.len());
                (206, header, bytes[from..=to].to_vec())
            }
        },
    };
    let date = if state.touched.as_ref() == Some(&key) { DATE.replace("00:00:00", "00:00:07") } else { DATE.into() };
    if method == "GET" && status < 300 {
        let served = state.served.entry(key).or_default();
        *served = (served.0 + body.len() as u64, served.1 + 1);
    }
    drop(state);
    let mut out = format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nLast-Modified: {date}\r\nETag: \"e\"\r\n{extra}\r\n",
        body.len()
    )
    .into_bytes();
    if method != "HEAD" {
        out.extend_from_slice(&body);
    }
    let mut stream = stream;
    stream.write_all(&out).ok()
}

fn list(state: &State, bucket: &str, query: &str) -> Vec<u8> {
    let prefix = query.split('&').find_map(|q| q.strip_prefix("prefix=")).unwrap_or_default().replace("%2F", "/");
    let bucket = bucket.trim_end_matches('/');
    let entry = |(key, bytes): (&String, &Vec<u8>)| {
        let key = key.strip_prefix(&format!("{bucket}/")).filter(|key| key.starts_with(&prefix))?;
        let size = bytes.len();
        Some(format!(
            "<Contents><Key>{key}</Key><LastModified>2026-12-01T00:00:00.000Z</LastModified><ETag>e</ETag>\
             <Size>{size}</Size></Contents>"
        ))
    };
    let entries: String = state.objects.iter().filter_map(entry).collect();
    format!("<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>")
        .into()
}

fn options(daemon: &Daemon, manifest: &Path) -> Options {
    let resize = Resize::Exact { width: 24, height: 16 };
    Options::default()
        .socket(&daemon.socket)
        .job("objects")
        .spawn(false)
        .manifest(manifest)
        .rank(0)
        .world(1)
        .batch_size(1)
        .shuffle(false)
        .workers(2)
        .pin(false)
        .transform(Transform { frames: 4, resize, ..Transform::default() })
}

/// The bytes of each sample, by its file's name.
fn samples(options: Options) -> BTreeMap<String, Vec<u8>> {
    let loader = Loader::connect(options).expect("a loader");
    let manifest = Arc::clone(loader.manifest());
    let name = |row| manifest.descriptor(row).path.rsplit('/').next().unwrap_or_default().to_owned();
    let batches = loader.map(|batch| batch.expect("a good batch"));
    batches.map(|b| (name(b.ids()[0]), b.sample(0, "video").expect("frames").to_vec())).collect()
}

const NAMES: [&str; 3] = ["base.mp4", "moov_at_end.mp4", "webm_renamed.mp4"];

#[test]
fn objects_give_the_bits_of_files() {
    let (home, store) = (folder(), Store::start());
    for name in NAMES {
        store.add(&format!("bucket/clips/{name}"), name);
    }
    store.put("bucket/clips/notes.txt", b"no medium".to_vec());
    store.put("bucket/other/base.mp4", b"not below the prefix".to_vec());
    let by_prefix = home.path().join("s3.arrow");
    let said = store.index(&["s3://bucket/clips/"], &by_prefix);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let manifest = Manifest::open(&by_prefix).expect("it opens");
    assert_eq!((manifest.len(), manifest.descriptor(0).path), (3, "s3://bucket/clips/base.mp4"));

    // The same objects by a list of URLs.
    let urls: Vec<String> =
        NAMES.iter().map(|n| format!("{{\"path\": \"http://{}/bucket/clips/{n}\"}}\n", store.address)).collect();
    let listed = home.path().join("list.jsonl");
    std::fs::write(&listed, urls.concat()).expect("a list");
    let by_list = home.path().join("http.arrow");
    let said = store.index(&[listed.to_str().expect("UTF-8")], &by_list);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));

    let files: Vec<PathBuf> =
        NAMES.iter().map(|n| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hard").join(n)).collect();
    let local = home.path().join("local.arrow");
    common::index(&files, &local);
    let daemon = store.daemon(home.path());
    let wanted = samples(options(&daemon, &local).loader("files"));
    assert_eq!(wanted.len(), 3);
    assert!(samples(options(&daemon, &by_prefix).loader("s3")) == wanted);
    assert!(samples(options(&daemon, &by_list).loader("http")) == wanted);
}

#[test]
fn a_store_that_fails_for_a_while_is_asked_again() {
    let (home, store) = (folder(), Store::start());
    store.add("bucket/base.mp4", "base.mp4");
    let manifest = home.path().join("data.arrow");
    store.state().failing.insert("bucket/base.mp4".into(), (2, 503));
    let said = store.index(&["s3://bucket/base.mp4"], &manifest);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    store.state().failing.insert("bucket/base.mp4".into(), (2, 500));
    let daemon = store.daemon(home.path());
    assert_eq!(samples(options(&daemon, &manifest)).len(), 1);
    assert_eq!(store.state().failing["bucket/base.mp4"].0, 0);
}

#[test]
fn what_is_gone_or_changed_is_a_bad_sample_with_key_and_status() {
    let (home, store) = (folder(), Store::start());
    for name in NAMES {
        store.add(&format!("bucket/{name}"), name);
    }
    let manifest = home.path().join("data.arrow");
    assert!(store.index(&["s3://bucket/"], &manifest).status.success());
    store.state().objects.remove("bucket/base.mp4");
    store.state().touched = Some("bucket/moov_at_end.mp4".into());
    let daemon = store.daemon(home.path());
    let mut loader = Loader::connect(options(&daemon, &manifest).on_error(OnError::Skip)).expect("a loader");
    assert_eq!(loader.by_ref().map(|b| b.expect("a batch").len()).sum::<usize>(), 1);
    let bad = loader.stats().bad_samples;
    let reason =
        |part: &str| bad.iter().find(|b| b.path.contains(part)).map(|b| b.reason.clone()).unwrap_or_default();
    let gone = reason("base.mp4");
    assert!(gone.contains("s3://bucket/base.mp4") && (gone.contains("404") || gone.contains("not found")), "{gone}");
    assert!(reason("moov_at_end.mp4").contains("has changed since it was indexed"), "{bad:?}");

    let mut check = store.environment(env!("CARGO_BIN_EXE_helix"));
    let said = check.args(["index", "--check"]).arg(&manifest).output().expect("helix runs");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("1 files missing, 1 changed"), "{said}");
}
