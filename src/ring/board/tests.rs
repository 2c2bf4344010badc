use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;

const LAYOUT: Layout = Layout { version: 1, slots: 4, record_bytes: 10_000 };

/// A name of this test alone, removed at its end.
struct Name(String);

impl Name {
    fn new(test: &str) -> Name {
        Name(format!("/helix-test-{test}-{}", std::process::id()))
    }

    fn board(&self) -> Board {
        Board::open(&self.0, LAYOUT).unwrap()
    }

    fn read(&self) -> Vec<Seen> {
        self.reader().read().unwrap()
    }

    fn reader(&self) -> Reader {
        Reader::open(&self.0, LAYOUT, nix::unistd::geteuid().as_raw()).unwrap().unwrap()
    }

    fn file(&self) -> File {
        File::from(open(&self.0, OFlag::O_RDWR).unwrap())
    }

    fn exists(&self) -> bool {
        open(&self.0, OFlag::O_RDONLY).is_ok()
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = shm_unlink(self.0.as_str());
    }
}

fn seen(slot: u32, alive: bool, record: &[u8]) -> Seen {
    Seen { slot, alive, record: Some(record.to_vec()) }
}

#[test]
fn each_holder_has_a_slot_and_the_name_goes_with_the_last() {
    let name = Name::new("slots");
    let (first, second) = (name.board(), name.board());
    let (mut a, mut b) = (first.claim().unwrap(), second.claim().unwrap());
    a.write(b"one").unwrap();
    b.write(b"two").unwrap();
    a.write(b"three").unwrap();
    assert_eq!(name.read(), [seen(0, true, b"three"), seen(1, true, b"two")]);
    assert_eq!(name.file().metadata().unwrap().mode() & 0o777, 0o600);
    drop((first, a));
    assert_eq!(name.read(), [seen(1, true, b"two")]);
    drop(second);
    assert!(name.exists(), "a slot holds the board");
    drop(b);
    assert!(!name.exists());
}

#[test]
fn more_holders_than_slots_are_told() {
    let name = Name::new("full");
    let board = name.board();
    let slots: Vec<_> = (0..4).map(|_| board.claim().unwrap()).collect();
    assert_eq!(slots.iter().map(Slot::number).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(matches!(board.claim(), Err(BoardError::Full { slots: 4, .. })));
    assert!(matches!(name.board().claim(), Err(BoardError::Full { .. })));
    drop(slots);
    assert!(board.claim().is_ok());
}

#[test]
fn a_record_that_is_half_written_is_never_read() {
    let name = Name::new("torn");
    let board = name.board();
    let mut slot = board.claim().unwrap();
    slot.write(&[1; 9000]).unwrap();
    slot.write(&[2; 9000]).unwrap();
    // As if the writer had been killed within the third, which lies where the first was.
    let third = Head::new(3, &[3; 9000]);
    let file = name.file();
    file.write_all_at(bytemuck::bytes_of(&third), LAYOUT.place(0, 1)).unwrap();
    file.write_all_at(&[3; 4000], LAYOUT.place(0, 1) + size_of::<Head>() as u64).unwrap();
    assert_eq!(name.read(), [seen(0, true, &[2; 9000])]);
    file.write_all_at(&[9], LAYOUT.place(0, 0) + 100).unwrap();
    assert_eq!(name.read(), [Seen { slot: 0, alive: true, record: None }]);
    slot.write(&[4; 10]).unwrap();
    slot.write(&[5; 10]).unwrap();
    assert_eq!(name.read(), [seen(0, true, &[5; 10])]);
}

#[test]
fn readers_beside_a_writer_see_whole_records_that_never_go_back() {
    let name = Name::new("race");
    let board = name.board();
    let mut slot = board.claim().unwrap();
    slot.write(&[0; 9000]).unwrap();
    let reader = name.reader();
    let mut last = 0;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 1..=2000u32 {
                slot.write(&n.to_le_bytes().repeat(2250)).unwrap();
            }
        });
        while !writer.is_finished() {
            let Some(record) = reader.read().unwrap().remove(0).record else { continue };
            let numbers = record.chunks(4).map(|n| u32::from_le_bytes(n.try_into().unwrap()));
            let first = numbers.clone().next().unwrap();
            assert!(numbers.clone().all(|n| n == first) && first >= last);
            last = first;
        }
    });
}

#[test]
fn a_board_that_is_cut_or_scribbled_over_neither_kills_nor_lies() {
    let name = Name::new("cut");
    let board = name.board();
    let mut slot = board.claim().unwrap();
    slot.write(&[1; 5000]).unwrap();
    let (reader, file) = (name.reader(), name.file());
    file.set_len(4096 + 100).unwrap();
    assert_eq!(reader.read().unwrap(), [Seen { slot: 0, alive: true, record: None }]);
    slot.write(&[2; 5000]).unwrap();
    assert_eq!(reader.read().unwrap(), [seen(0, true, &[2; 5000])]);
    // A length without bounds.
    let huge = Head { number: 9, len: u64::MAX, sum: 1 };
    file.write_all_at(bytemuck::bytes_of(&huge), LAYOUT.place(0, 0)).unwrap();
    file.write_all_at(bytemuck::bytes_of(&huge), LAYOUT.place(3, 0)).unwrap();
    assert_eq!(
        reader.read().unwrap(),
        [Seen { slot: 0, alive: true, record: None }, Seen { slot: 3, alive: false, record: None }]
    );
    file.set_len(0).unwrap();
    slot.write(&[3; 50]).unwrap();
    assert!(Reader::open(&name.0, LAYOUT, nix::unistd::geteuid().as_raw()).unwrap().is_none(), "its header is gone");
}

#[test]
fn another_layout_is_neither_read_nor_disturbed() {
    let name = Name::new("layout");
    let old = name.board();
    let mut slot = old.claim().unwrap();
    slot.write(b"old").unwrap();
    let newer = Layout { version: 2, ..LAYOUT };
    let uid = nix::unistd::geteuid().as_raw();
    assert!(Reader::open(&name.0, newer, uid).unwrap().is_none());
    let before = name.reader();
    let new = Board::open(&name.0, newer).unwrap();
    assert!(Reader::open(&name.0, LAYOUT, uid).unwrap().is_none(), "the newest is the one that is found");
    slot.write(b"still").unwrap();
    assert_eq!(before.read().unwrap(), [seen(0, true, b"still")]);
    drop((old, slot));
    assert!(name.exists(), "the name is the new one's");
    drop(new);
    assert!(!name.exists());
}

#[test]
fn a_file_that_others_may_have_made_is_refused() {
    let name = Name::new("foreign");
    let board = name.board();
    assert!(matches!(Reader::open(&name.0, LAYOUT, 4242), Err(BoardError::Foreign { wanted: 4242, .. })));
    let file = name.file();
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let refused = Board::open(&name.0, LAYOUT).unwrap_err().to_string();
    assert!(refused.contains("mode 666"), "{refused}");
    drop(board);
}

const CHILD: &str = "HELIX_TEST_BOARD";

/// Another process: claims a slot, says so, and lives until it is killed.
#[test]
fn child() {
    let Ok(name) = std::env::var(CHILD) else { return };
    let board = Board::open(&name, LAYOUT).unwrap();
    let mut slot = board.claim().unwrap();
    slot.write(b"child").unwrap();
    println!("\nREADY");
    std::thread::sleep(Duration::from_secs(600));
}

fn start(name: &Name) -> std::process::Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["ring::board::tests::child", "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, &name.0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = io::BufRead::lines(io::BufReader::new(child.stdout.take().unwrap()));
    assert!(lines.any(|line| line.unwrap() == "READY"));
    child
}

#[test]
fn a_stopped_holder_is_read_a_killed_one_known_as_dead_and_its_slot_taken_over() {
    let name = Name::new("death");
    let mut child = start(&name);
    let pid = Pid::from_raw(child.id() as i32);
    kill(pid, Signal::SIGSTOP).unwrap();
    assert_eq!(name.read(), [seen(0, true, b"child")]);
    let board = name.board();
    let mut other = board.claim().unwrap();
    assert_eq!(other.number(), 1);
    other.write(b"other").unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(name.read(), [seen(0, false, b"child"), seen(1, true, b"other")]);
    sweep(&name.0);
    assert!(name.exists(), "somebody holds it");
    let third = name.board();
    assert_eq!(name.read(), [seen(1, true, b"other")], "what the dead left is cleared");
    assert_eq!(third.claim().unwrap().number(), 0);
}

#[test]
fn what_the_last_one_left_when_it_was_killed_is_taken_over_or_swept() {
    let name = Name::new("leftover");
    let mut child = start(&name);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(name.read(), [seen(0, false, b"child")]);
    let board = name.board();
    assert_eq!(name.read(), []);
    drop(board);
    let mut child = start(&name);
    child.kill().unwrap();
    child.wait().unwrap();
    sweep(&name.0);
    assert!(!name.exists());
}
