//! `helix index` as a user meets it, and the library behind it.
#![cfg(feature = "decode")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use helix_shm::manifest::Manifest;
use helix_shm::manifest::build::{Build, BuildError};

fn hard() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hard")
}

fn helix(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_helix"));
    command.arg("index").args(args).current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder with `copies` of a clip.
fn clips(copies: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for i in 0..copies {
        std::fs::copy(hard().join("vfr_timestamps.mp4"), folder.path().join(format!("clip {i:03}.mp4"))).unwrap();
    }
    folder
}

fn build(folder: &Path, jobs: usize) -> Build {
    Build {
        paths: vec![folder.to_owned()],
        root: None,
        output: folder.join("data.arrow"),
        jobs,
        reuse: true,
        sound: false,
    }
}

#[test]
fn good_and_bad_files_are_told_apart_and_none_vanishes() {
    let out = tempfile::tempdir().unwrap();
    let run = helix(out.path(), &[hard().to_str().unwrap(), "-o", "data.arrow", "--jobs", "2"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let said = text(&run.stdout);
    assert!(said.contains("40 of 45 media files are good (5 bad, 4 not video, 1 not media)"), "{said}");
    assert!(said.contains("zero_byte.mp4 is empty (0 bytes)"), "{said}");
    assert!(run.stderr.is_empty(), "FFmpeg's lines stay off the terminal: {}", text(&run.stderr));
    let manifest = Manifest::open(&out.path().join("data.arrow")).unwrap();
    assert_eq!((manifest.len(), manifest.good()), (45, 40));
    assert!(said.contains(manifest.fingerprint()), "{said}");
    manifest.verify().unwrap();
    for &row in manifest.bad_rows() {
        assert!(manifest.error(row).is_some_and(|e| !e.is_empty()));
    }
    let paths: Vec<&str> = (0..manifest.len()).map(|row| manifest.descriptor(row).path).collect();
    assert!(paths.is_sorted() && paths.iter().any(|p| p.contains("你好")));
}

/// Sound that is come upon is no fault; where it was asked for, or the name promises video, it is.
#[test]
fn sound_is_counted_where_it_was_not_asked_for() {
    let folder = clips(1);
    let at = folder.path();
    std::fs::create_dir(at.join("sound")).unwrap();
    for name in ["mp3_gapless.mp3", "aac_priming.m4a"] {
        std::fs::copy(hard().join(name), at.join("sound").join(name)).unwrap();
    }
    let run = helix(at, &["."]);
    assert!(text(&run.stdout).contains("1 of 1 media files are good (2 not video"), "{}", text(&run.stdout));
    let run = helix(at, &[".", "sound/mp3_gapless.mp3", "--fresh"]);
    assert!(text(&run.stdout).contains("1 of 2 media files are good (1 bad, 1 not video"), "{}", text(&run.stdout));
    assert!(text(&run.stdout).contains("mp3_gapless.mp3 has no video: only audio (mp3)"), "{}", text(&run.stdout));
    let run = helix(at, &["sound", "-o", "sound.arrow"]);
    assert!(text(&run.stderr).contains("no media file in sound (2 other files)"), "{}", text(&run.stderr));
    std::fs::copy(hard().join("audio_only.mp4"), at.join("video.mp4")).unwrap();
    let run = helix(at, &["."]);
    assert!(text(&run.stdout).contains("video.mp4 has no video: only audio (aac)"), "{}", text(&run.stdout));
}

#[test]
fn what_cannot_be_done_is_one_clear_line() {
    let folder = clips(1);
    let at = folder.path();
    std::fs::write(at.join("empty.mp4"), b"").unwrap();
    std::fs::create_dir(at.join("none")).unwrap();
    std::fs::write(at.join("x.csv"), b"id,url\n1,2\n").unwrap();
    std::fs::write(at.join("empty.tar"), [0; 10240]).unwrap();
    for (args, words) in [
        (vec!["nowhere"], "cannot read nowhere: No such file"),
        (vec![".", "-o", "missing/data.arrow"], "there is no such folder"),
        (vec![".", "-o", "none"], "it is a folder"),
        (vec!["none"], "no media file in none"),
        (vec!["empty.tar"], "no media file in empty.tar"),
        (vec!["x.csv"], "cannot take x.csv: its columns are [id,url]; wanted those of Kinetics (label,"),
        (vec!["--check", "nope.arrow"], "cannot open manifest nope.arrow"),
        (vec!["--check", "empty.mp4"], "it is empty"),
    ] {
        let run = helix(at, &args);
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(1), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        assert!(said.starts_with("helix index: ") && said.contains(words), "{args:?}: {said}");
    }
    assert_eq!(helix(at, &[]).status.code(), Some(2));
    assert_eq!(helix(at, &[".", "--jobs", "0"]).status.code(), Some(2));
}

#[test]
fn a_former_manifest_stays_when_no_file_is_good() {
    let folder = clips(1);
    let at = folder.path();
    assert!(helix(at, &[".", "-q"]).status.success());
    let before = std::fs::read(at.join("data.arrow")).unwrap();
    std::fs::write(at.join("clip 000.mp4"), b"no more").unwrap();
    let run = helix(at, &["."]);
    assert_eq!(run.status.code(), Some(1));
    let said = text(&run.stderr);
    assert!(said.contains("bad: ") && said.contains("none of 1 media files is good"), "{said}");
    assert_eq!(std::fs::read(at.join("data.arrow")).unwrap(), before);
    let left: Vec<_> = std::fs::read_dir(at).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn any_number_of_jobs_gives_the_same_manifest() {
    let folder = clips(20);
    std::fs::write(folder.path().join("clip 007.mp4"), b"broken").unwrap();
    let output = folder.path().join("data.arrow");
    let never = AtomicBool::new(false);
    let mut files = Vec::new();
    for jobs in [1, 4, 64] {
        let fresh = Build { reuse: false, ..build(folder.path(), jobs) };
        let summary = fresh.run(&never, |_| {}).unwrap();
        assert_eq!((summary.good, summary.bad.len(), summary.reused), (19, 1, 0));
        files.push(std::fs::read(&output).unwrap());
    }
    assert!(files.iter().all(|f| f == &files[0]));
}

#[test]
fn unchanged_files_are_not_looked_into_again() {
    let folder = clips(10);
    let never = AtomicBool::new(false);
    let first = build(folder.path(), 2).run(&never, |_| {}).unwrap();
    let again = build(folder.path(), 2).run(&never, |_| {}).unwrap();
    assert_eq!((first.reused, again.reused), (0, 10));
    assert_eq!(first.fingerprint, again.fingerprint);
    // A changed file and a new one are looked into, a lost one is gone.
    std::fs::copy(hard().join("base.mp4"), folder.path().join("clip 004.mp4")).unwrap();
    std::fs::copy(hard().join("base.mp4"), folder.path().join("new.mp4")).unwrap();
    std::fs::remove_file(folder.path().join("clip 009.mp4")).unwrap();
    let third = build(folder.path(), 2).run(&never, |_| {}).unwrap();
    assert_eq!((third.files, third.reused), (10, 8));
    let manifest = Manifest::open(&folder.path().join("data.arrow")).unwrap();
    assert_eq!(manifest.descriptor(4).frames, 30);
}

#[test]
fn a_stopped_run_is_resumed() {
    let folder = clips(30);
    let whole = build(folder.path(), 2).run(&AtomicBool::new(false), |_| {}).unwrap();
    std::fs::remove_file(folder.path().join("data.arrow")).unwrap();

    let stop = AtomicBool::new(false);
    let stopped = build(folder.path(), 2).run(&stop, |p| stop.store(p.done >= 5, Ordering::Relaxed));
    let Err(BuildError::Stopped { done, total: 30, partial }) = stopped else { panic!("{stopped:?}") };
    assert!((5..30).contains(&done) && partial.exists());
    assert!(!folder.path().join("data.arrow").exists());

    let rest = build(folder.path(), 2).run(&AtomicBool::new(false), |_| {}).unwrap();
    assert_eq!((rest.reused, rest.fingerprint), (done, whole.fingerprint));
    assert!(!partial.exists());
}

#[test]
fn missing_and_changed_files_are_named() {
    let folder = clips(3);
    let at = folder.path();
    assert!(helix(at, &[".", "-q"]).status.success());
    let run = helix(at, &["--check", "data.arrow"]);
    assert!(run.status.success(), "{}", text(&run.stdout));
    std::fs::remove_file(at.join("clip 000.mp4")).unwrap();
    std::fs::write(at.join("clip 002.mp4"), b"other").unwrap();
    let run = helix(at, &["--check", "data.arrow"]);
    let said = text(&run.stdout);
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert!(said.contains("missing: row 0: ") && said.contains("changed: row 2: "), "{said}");
    assert!(said.contains("1 files missing, 1 changed"), "{said}");
}

#[test]
fn a_path_of_strange_bytes_is_a_bad_file() {
    use std::os::unix::ffi::OsStrExt;
    let folder = clips(1);
    let odd = folder.path().join(std::ffi::OsStr::from_bytes(b"odd\xff.mp4"));
    std::fs::copy(hard().join("base.mp4"), odd).unwrap();
    let summary = build(folder.path(), 1).run(&AtomicBool::new(false), |_| {}).unwrap();
    assert_eq!(summary.good, 1);
    assert!(summary.bad[0].1.contains("not UTF-8"), "{:?}", summary.bad);
}

#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let folder = clips(0);
    let pipe = folder.path().join("pipe.mp4");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let run = helix(folder.path(), &["pipe.mp4"]);
    assert!(text(&run.stderr).contains("not a regular file"), "{}", text(&run.stderr));
}
