//! `helix demo` as a user meets it: it feeds ranks, says in one line why it cannot, and leaves nothing behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use helix_shm::corpus::{ClipSpec, Encoder, clip};
use helix_shm::results;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A demo in a folder of its own, with a runtime folder of its own for sockets.
struct Demo {
    dir: tempfile::TempDir,
}

impl Demo {
    fn new() -> Demo {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        fs::set_permissions(dir.path().join("run"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::create_dir(dir.path().join("videos")).unwrap();
        Demo { dir }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn with_videos(self, n: u64) -> Demo {
        for seed in 0..n {
            let frames = 20 + 15 * seed as u32;
            let spec = ClipSpec { encoder: Encoder::H264, frames, seed, ..ClipSpec::default() };
            clip(&self.path(&format!("videos/{seed}.mp4")), &spec).unwrap();
        }
        self
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_helix"));
        command.current_dir(self.dir.path()).env("XDG_RUNTIME_DIR", self.path("run"));
        // Everything that descends from the demo has this in its environment.
        command.env("DEMO_OF_TEST", self.dir.path());
        command.args(["demo", "--work", "work", "--results", "rows.json"]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn row(&self, name: &str) -> f64 {
        let rows = results::read(self.dir.path()).unwrap();
        rows.iter().find(|r| r.name == name).unwrap_or_else(|| panic!("no row {name}")).value
    }

    /// Processes that descend from this demo.
    fn descendants(&self) -> Vec<(i32, String)> {
        let mark = format!("DEMO_OF_TEST={}", self.dir.path().display()).into_bytes();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
            let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
            if environ.split(|&b| b == 0).any(|var| var == mark) {
                let cmdline = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                found.push((pid, String::from_utf8_lossy(&cmdline).replace('\0', " ")));
            }
        }
        found
    }

    fn assert_nothing_is_left(&self) {
        let left = self.descendants();
        assert!(left.is_empty(), "processes are left: {left:?}");
        let files = files_below(&self.path("run"));
        assert!(files.is_empty(), "files are left: {files:?}");
        let parts: Vec<String> =
            files_below(self.dir.path()).into_iter().filter(|f| f.contains(".part") || f.contains("probe")).collect();
        assert!(parts.is_empty(), "half-written files are left: {parts:?}");
    }
}

fn files_below(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        if entry.path().is_dir() {
            found.extend(files_below(&entry.path()));
        } else {
            found.push(entry.path().display().to_string());
        }
    }
    found
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const SMALL: [&str; 8] = ["--videos", "videos", "--ranks", "2", "--batch-size", "2", "--lookahead", "2"];

#[test]
fn all_policies_deliver_the_same_stream_and_a_bad_file_stops_nothing() {
    let demo = Demo::new().with_videos(5);
    fs::write(demo.path("videos/bad.mp4"), "no video").unwrap();
    let output = demo.run(&[&SMALL[..], &["--steps", "4"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("bad.mp4"), "{}", stderr(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        table.contains("local, pool, helix: the same 16 samples with the same pixels in each of 4 steps"),
        "{table}"
    );
    assert!(table.contains("decoded without daemon, ring and worker: the same pixels"), "{table}");
    assert_eq!((demo.row("demo.stream_equal"), demo.row("demo.copied_bytes")), (1.0, 0.0));
    assert!(demo.row("demo.throughput.helix") > 0.0 && demo.row("demo.throughput.bound") > 0.0);
    demo.assert_nothing_is_left();
}

#[test]
fn rows_can_be_had_as_json_and_shown_again() {
    let demo = Demo::new().with_videos(4);
    let output = demo.run(&[&SMALL[..], &["--steps", "2", "--policies", "pool", "--json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let rows: Vec<results::Row> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows, results::read(demo.dir.path()).unwrap());
    let shown = Command::new(env!("CARGO_BIN_EXE_helix")).arg("results").arg(demo.dir.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&shown.stdout).contains("demo.throughput.pool"));
}

/// One clear line and exit code 1.
fn assert_refused(output: &Output, words: &[&str]) {
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(output);
    let line = text.lines().last().unwrap_or_default();
    assert!(line.starts_with("helix demo: "), "{text}");
    for word in words {
        assert!(line.contains(word), "`{word}` is not in: {line}");
    }
}

#[test]
fn what_cannot_be_is_said_in_a_line() {
    let demo = Demo::new().with_videos(1);
    assert_refused(&demo.run(&["--videos", "nowhere"]), &["nowhere"]);
    fs::create_dir(demo.path("texts")).unwrap();
    fs::write(demo.path("texts/a.txt"), "text").unwrap();
    assert_refused(&demo.run(&["--videos", "texts"]), &["no video in texts", "--videos"]);
    assert_refused(&demo.run(&SMALL), &["1 usable videos", "takes 4", "--ranks"]);
    fs::write(demo.path("file"), "").unwrap();
    let work = Command::new(env!("CARGO_BIN_EXE_helix"))
        .current_dir(demo.dir.path())
        .args(["demo", "--videos", "videos", "--work", "file/work"])
        .output()
        .unwrap();
    assert_refused(&work, &["cannot write into file/work", "--work"]);
    demo.assert_nothing_is_left();
}

/// Waits for something to be so; a minute is for a machine that is busy with other tests.
fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < limit, "gave up waiting until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn interrupt_when(demo: &Demo, child: &mut Child, so: impl Fn(&[(i32, String)]) -> bool) -> i32 {
    wait_until("the demo is that far", || {
        assert!(child.try_wait().unwrap().is_none(), "the demo ended too early");
        so(&demo.descendants())
    });
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    child.wait().unwrap().code().unwrap()
}

#[test]
fn ctrl_c_in_the_middle_ends_every_process_and_leaves_no_file() {
    let demo = Demo::new().with_videos(4);
    let args = [&SMALL[..], &["--steps", "100000", "--policies", "helix"]].concat();
    let mut child = demo.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let working = |all: &[(i32, String)]| {
        let count = |word: &str| all.iter().filter(|(_, cmdline)| cmdline.contains(word)).count();
        count("demo-rank") == 2 && count("--embedded") == 1 && count("worker") >= 1
    };
    assert_eq!(interrupt_when(&demo, &mut child, working), 130);
    wait_until("all processes have ended", || demo.descendants().is_empty());
    demo.assert_nothing_is_left();
}

#[test]
fn ctrl_c_while_clips_are_made_keeps_the_finished_ones_only() {
    let demo = Demo::new();
    let mut child = demo.command(&["--clips", "40"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let corpus_begun = |_: &[(i32, String)]| files_below(demo.dir.path()).iter().any(|f| f.contains(".part"));
    assert_eq!(interrupt_when(&demo, &mut child, corpus_begun), 130);
    demo.assert_nothing_is_left();
}

#[test]
fn a_demo_that_is_killed_takes_its_processes_along() {
    let demo = Demo::new().with_videos(4);
    let args = [&SMALL[..], &["--steps", "100000", "--policies", "pool"]].concat();
    let mut child = demo.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("workers are at work", || demo.descendants().iter().any(|(_, cmdline)| cmdline.contains("worker")));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("all processes have ended", || demo.descendants().is_empty());
    wait_until("the daemon's files are gone", || files_below(&demo.path("run")).is_empty());
}

#[test]
fn a_rank_that_is_killed_is_named() {
    let demo = Demo::new().with_videos(4);
    let args = [&SMALL[..], &["--steps", "100000", "--policies", "helix"]].concat();
    let child = demo.command(&args).spawn().unwrap();
    let mut rank = None;
    wait_until("ranks and workers are there", || {
        let all = demo.descendants();
        rank = all.iter().find(|(_, cmdline)| cmdline.contains("demo-rank")).map(|(pid, _)| *pid);
        all.iter().any(|(_, cmdline)| cmdline.contains("worker")) && rank.is_some()
    });
    kill(Pid::from_raw(rank.unwrap()), Signal::SIGKILL).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_refused(&output, &["rank", "was killed by signal 9"]);
    // If no rank had joined yet, nobody waited for the daemon, which then ends by itself.
    wait_until("all processes have ended", || demo.descendants().is_empty());
    demo.assert_nothing_is_left();
}
