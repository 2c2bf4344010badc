//! Attempts to get out of the sandbox. Each runs in a process of its own, since the sandbox never opens again.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Cage, Roots, close};

/// Names the folder of the attempts' files to a process that makes them.
const VARIABLE: &str = "HELIX_TEST_SANDBOX";

/// Whether this kernel has Landlock; then files outside the roots must be out of reach.
fn has_landlock() -> bool {
    // SAFETY: a question for a version; no memory is referred to.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, 1) > 0 }
}

/// Runs the attempts in a child, and answers what it said of each.
fn attempts(folder: &Path) -> String {
    std::fs::create_dir(folder.join("data")).unwrap();
    std::fs::write(folder.join("data/clip.mp4"), b"inside").unwrap();
    std::fs::write(folder.join("secret"), b"outside").unwrap();
    std::os::unix::fs::symlink(folder.join("secret"), folder.join("data/link.mp4")).unwrap();
    let test = concat!(module_path!(), "::nothing_but_reading_media_is_left");
    let test = test.split_once("::").unwrap().1;
    let mut child = Command::new(std::env::current_exe().unwrap());
    let out = child.args([test, "--exact", "--nocapture"]).env(VARIABLE, folder).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{:?}\n{said}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    said
}

#[test]
fn nothing_but_reading_media_is_left() {
    if let Some(folder) = std::env::var_os(VARIABLE) {
        escape(&PathBuf::from(folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let said = attempts(folder.path());
    let got = |what: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("attempt {what}: ")));
        line.unwrap_or_else(|| panic!("no word of `{what}` in\n{said}")).to_owned()
    };
    for what in ["read inside", "read open file", "write to a pipe", "memory", "time", "panic"] {
        assert_eq!(got(what), "ok", "{what}");
    }
    for what in [
        "socket",
        "socketpair",
        "open for writing",
        "create",
        "append",
        "unlink",
        "rename",
        "mkdir",
        "memfd",
        "execve",
        "fork",
        "thread",
        "kill another",
        "ptrace",
        "io_uring",
        "executable memory",
        "mount",
        "open tree",
        "more rights",
    ] {
        assert_eq!(got(what), "refused", "{what}");
    }
    assert_eq!(got("too much memory"), "none left");
    assert!(!folder.path().join("data/new").exists());
    if has_landlock() {
        for what in ["read outside", "read by a link", "list outside"] {
            assert_eq!(got(what), "refused", "{what}");
        }
        assert_eq!(got("gaps"), "0");
    } else {
        assert_eq!(got("gaps"), "1", "a kernel without Landlock is told of");
    }
}

fn say(what: &str, result: &str) {
    println!("attempt {what}: {result}");
}

fn refused<T>(what: &str, result: io::Result<T>) {
    match result {
        Ok(_) => say(what, "it was let through"),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => say(what, "refused"),
        Err(e) => say(what, &format!("{e}")),
    }
}

/// The result of a system call.
fn call(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// In the child: closes the sandbox, tries everything, says what came of it, and ends.
fn escape(folder: &Path) -> ! {
    use std::fs::{self, File, OpenOptions};
    let data = folder.join("data");
    let open = File::open(folder.join("secret")).unwrap();
    let (_reader, writer) = nix::unistd::pipe().unwrap();
    let parent = std::os::unix::process::parent_id();
    let roots: Roots = [&data].into_iter().collect();
    let gaps = close(&Cage { roots: &roots, memory: 64 << 20, files: 32 });
    say("gaps", &gaps.len().to_string());
    gaps.iter().for_each(|gap| println!("{gap}"));

    let fine = |what: &str, good: bool| say(what, if good { "ok" } else { "failed" });
    fine("read inside", fs::read(data.join("clip.mp4")).is_ok_and(|bytes| bytes == b"inside"));
    fine("read open file", std::os::unix::fs::FileExt::read_at(&open, &mut [0; 4], 0).is_ok());
    fine("write to a pipe", nix::unistd::write(&writer, b"x").is_ok());
    fine("memory", vec![1u8; 16 << 20].iter().all(|&b| b == 1));
    std::thread::sleep(std::time::Duration::from_millis(1));
    fine("time", std::time::Instant::now().elapsed().as_secs() < 60);
    fine("panic", std::panic::catch_unwind(|| panic!("caught")).is_err());

    refused("read outside", fs::read(folder.join("secret")));
    refused("read by a link", fs::read(data.join("link.mp4")));
    refused("list outside", fs::read_dir("/etc"));
    refused("open for writing", OpenOptions::new().write(true).open(data.join("clip.mp4")));
    refused("append", OpenOptions::new().append(true).open(data.join("clip.mp4")));
    refused("create", File::create(data.join("new")));
    refused("unlink", fs::remove_file(data.join("clip.mp4")));
    refused("rename", fs::rename(data.join("clip.mp4"), data.join("new")));
    refused("mkdir", fs::create_dir(data.join("new")));
    refused("execve", Err::<(), _>(std::os::unix::process::CommandExt::exec(&mut Command::new("/bin/true"))));
    refused("fork", Command::new("/bin/true").spawn());
    refused("thread", std::thread::Builder::new().spawn(|| ()));
    let null = std::ptr::null::<u8>();
    // SAFETY: system calls with plain numbers, null pointers and zero-terminated paths; none is let through.
    unsafe {
        refused("socket", call(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0).into()));
        let mut pair = [0; 2];
        refused("socketpair", call(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()).into()));
        refused("memfd", call(libc::memfd_create(c"x".as_ptr(), 0).into()));
        refused("kill another", call(libc::kill(parent as i32, 0).into()));
        refused("ptrace", call(libc::ptrace(libc::PTRACE_ATTACH, parent as i32, 0, 0)));
        refused("io_uring", call(libc::syscall(libc::SYS_io_uring_setup, 4, null)));
        let exec = libc::PROT_READ | libc::PROT_EXEC;
        let mapped = libc::mmap(std::ptr::null_mut(), 4096, exec, libc::MAP_PRIVATE, open.as_raw_fd(), 0);
        refused("executable memory", if mapped == libc::MAP_FAILED { call(-1) } else { Ok(0) });
        refused("mount", call(libc::mount(null.cast(), c"/".as_ptr(), null.cast(), 0, null.cast()).into()));
        refused("open tree", call(libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, c"/".as_ptr(), 0)));
        refused("more rights", call(libc::setuid(0).into()));
        let much = libc::malloc(256 << 20);
        say("too much memory", if much.is_null() { "none left" } else { "it was let through" });
        libc::free(much);
    }
    std::process::exit(0);
}
