//! What every test of whole processes needs: folders, manifests, a daemon, its state, and whether a process lives.
#![allow(dead_code, missing_docs, reason = "each test binary uses its part")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

use helix_shm::decode::emulated::CONTAINER;
use helix_shm::manifest::build::Build;
use helix_shm::manifest::{Record, Writer};
use helix_shm::proto::options::Formula;

/// No step of these tests takes longer, even on a loaded machine; past it something hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a manifest.
pub fn index(paths: &[PathBuf], output: &Path) {
    let build = Build {
        paths: paths.to_vec(),
        root: None,
        output: output.to_path_buf(),
        jobs: 0,
        reuse: false,
        sound: false,
    };
    build.run(&Default::default(), |_| ()).unwrap();
}

/// A row that only takes its time.
pub struct Slow {
    /// Milliseconds that the row says the clip lasts.
    pub said_ms: u64,
    /// What the worker is told: microseconds to take, and milliseconds that the clip really lasts if they are others.
    pub text: String,
}

/// Adds rows to a manifest whose decoding is emulated. All read one small file, which is made at `bytes`.
pub fn emulate(writer: &mut Writer<File>, bytes: &Path, rows: impl IntoIterator<Item = Slow>) {
    std::fs::write(bytes, [0; 64]).unwrap();
    let mtime = std::fs::metadata(bytes).unwrap().modified().unwrap().duration_since(UNIX_EPOCH).unwrap();
    for Slow { said_ms, text } in rows {
        let record = Record {
            path: bytes.display().to_string(),
            file_len: 64,
            len: 64,
            mtime_ns: mtime.as_nanos() as i64,
            container: CONTAINER.into(),
            codec: "h264".into(),
            coded_width: 64,
            coded_height: 48,
            frames: 10,
            time_base: (1, 1000),
            duration: said_ms as i64,
            text,
            ..Record::default()
        };
        writer.push(&record.descriptor(0)).unwrap();
    }
}

/// A token a millisecond of the clip.
pub const MILLISECONDS: Formula =
    Formula { text: 0, stride: 1, each: 1, patch: 0, most_frames: u32::MAX, most_pixels: 1, fps: 1000.0 };

/// A folder of its own for sockets, short enough for their addresses.
pub fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("helix-e2e-").tempdir_in("/tmp").unwrap()
}

/// A daemon started by hand.
pub struct Daemon {
    pub child: Child,
    pub socket: PathBuf,
}

impl Daemon {
    pub fn start(folder: &Path) -> Daemon {
        let socket = folder.join("d.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_helix-shmd"));
        command.arg("--socket").arg(&socket);
        Daemon::start_as(&mut command, &socket)
    }

    pub fn start_as(command: &mut Command, socket: &Path) -> Daemon {
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let daemon = Daemon { child, socket: socket.to_path_buf() };
        wait_for("the daemon to listen", || status(socket).is_some());
        daemon
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Killed, it left its page to the user's next daemon; there may be none.
        helix_shm::status::sweep();
    }
}

/// The daemon's state, if one answers.
pub fn status(socket: &Path) -> Option<serde_json::Value> {
    helix_shm::client::status(socket).ok()
}

/// Process ids of the workers that can take tickets.
pub fn workers(socket: &Path) -> Vec<i32> {
    let Some(status) = status(socket) else { return Vec::new() };
    let jobs = status["jobs"].as_array().cloned().unwrap_or_default();
    let workers = jobs.iter().flat_map(|job| job["workers"].as_array().cloned().unwrap_or_default());
    workers.filter(|w| w["up"] == true).filter_map(|w| w["pid"].as_i64()).map(|pid| pid as i32).collect()
}

/// Waits for something that other processes do, looking every few milliseconds.
pub fn wait_for(what: &str, mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn kill(pid: i32) {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
}

/// Whether a process is there (a zombie is not).
pub fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
