use super::*;

fn job(vars: &[(&str, &str)]) -> String {
    default_job(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
}

#[test]
fn ranks_of_one_launch_share_a_job_and_others_do_not() {
    assert_eq!(job(&[("TORCHELASTIC_RUN_ID", "abc"), ("MASTER_ADDR", "h"), ("MASTER_PORT", "1")]), "abc");
    // torchrun's own default, the same for everyone
    assert_eq!(job(&[("TORCHELASTIC_RUN_ID", "none"), ("MASTER_ADDR", "h"), ("MASTER_PORT", "1")]), "h-1");
    assert_eq!(job(&[("MASTER_ADDR", "h")]), format!("parent-{}", std::os::unix::process::parent_id()));
}

#[test]
fn a_job_with_an_odd_name_has_a_plain_file() {
    assert_eq!(file_name("run-7.b"), "run-7.b");
    for odd in ["", "../../etc/x", ".hidden", "a b", &"x".repeat(100)] {
        let name = file_name(odd);
        assert!(name.starts_with("job-") && name.len() == 20, "{odd} → {name}");
    }
    assert_ne!(file_name("a b"), file_name("a  b"));
}

#[test]
fn a_folder_that_others_can_enter_is_refused() {
    let uid = nix::unistd::geteuid().as_raw();
    let root = tempfile::tempdir().unwrap();
    let made = root.path().join("made");
    make_private(&made, uid).unwrap();
    make_private(&made, uid).unwrap();
    assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o770)).unwrap();
    assert!(private(&made, uid).unwrap_err().contains("770"));
    assert!(private(root.path(), uid + 1).unwrap_err().contains("belongs to user"));
    let link = root.path().join("link");
    std::os::unix::fs::symlink(root.path(), &link).unwrap();
    assert!(private(&link, uid).unwrap_err().contains("not a folder"));
}

#[test]
fn one_at_a_time_is_elected_and_no_lock_stays() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("x.sock");
    let first = Elected::try_new(&socket).unwrap().unwrap();
    assert!(Elected::try_new(&socket).unwrap().is_none());
    drop(first);
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    // The daemon removed it, and the next one is elected already: its lock is not ours to remove.
    let first = Elected::try_new(&socket).unwrap().unwrap();
    std::fs::remove_file(root.path().join("x.sock.lock")).unwrap();
    let second = Elected::try_new(&socket).unwrap().unwrap();
    drop(first);
    assert!(Elected::try_new(&socket).unwrap().is_none());
    drop(second);
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    // Left behind by a process that was killed: no hindrance.
    std::fs::write(root.path().join("x.sock.lock"), "").unwrap();
    assert!(Elected::try_new(&socket).unwrap().is_some());
}

#[test]
fn without_a_daemon_and_leave_to_start_one_the_wait_ends() {
    let root = tempfile::tempdir().unwrap();
    let cancelled = std::sync::atomic::AtomicU32::new(0);
    let soon = || cancelled.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 2;
    assert!(matches!(dial(&root.path().join("x.sock"), false, None, &soon), Err(DialError::Cancelled)));
    let long = root.path().join("x".repeat(200));
    assert!(matches!(dial(&long, false, None, &|| false), Err(DialError::Path { .. })));
}

#[test]
fn a_daemon_that_fails_is_quoted() {
    let null = || File::open("/dev/null").unwrap();
    let root = tempfile::tempdir().unwrap();
    let program = root.path().join("helix-shmd");
    std::fs::write(&program, "#!/bin/sh\nfor i in $(seq 30); do echo line $i; done >&2\nexit 3\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let (mut child, log) = spawn_daemon(&program, &root.path().join("x.sock"), null()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let words = last_lines(&log);
    assert!(words.starts_with("line 11\n") && words.ends_with("line 30"), "{words}");
    let none = root.path().join("none");
    assert!(matches!(spawn_daemon(&none, &program, null()), Err(DialError::Spawn { .. })));
}
