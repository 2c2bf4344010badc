//! Both ways of reading give the same bytes, whatever is refused, cancelled or dropped.

use std::io::Write;
use std::path::PathBuf;

use super::*;
use crate::decode::key::{Draws, Purpose, SampleKey};

/// A file of pseudo-random bytes, and what to say of it.
struct Sample {
    _folder: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
    mtime_ns: i64,
}

impl Sample {
    fn new(len: usize, seed: u64) -> Sample {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sample");
        let mut state = seed | 1;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .take(len)
        .collect();
        File::create(&path).unwrap().write_all(&bytes).unwrap();
        let mtime_ns = mtime(&path);
        Sample { _folder: folder, path, bytes, mtime_ns }
    }

    fn source(&self) -> Source<'_> {
        let len = self.bytes.len() as u64;
        Source { path: &self.path, file_len: len, offset: 0, len, mtime_ns: self.mtime_ns }
    }
}

fn mtime(path: &Path) -> i64 {
    let found = std::fs::metadata(path).unwrap();
    found.mtime() * 1_000_000_000 + found.mtime_nsec()
}

/// Ascending ranges apart from each other in `0..len`.
fn random_ranges(draws: &mut Draws, len: u64) -> Vec<Range<u64>> {
    let count = 1 + draws.below(6);
    let mut cuts: Vec<u64> = (0..2 * count).map(|_| draws.below(len + 1)).collect();
    cuts.sort_unstable();
    cuts.as_chunks::<2>().0.iter().map(|&[a, b]| a..b).filter(|r| !r.is_empty()).collect()
}

fn parts(input: &Input) -> Vec<(u64, &[u8])> {
    input.parts.iter().map(|p| (p.start, &p.buffer[..p.len])).collect()
}

/// The ring, where this machine has it: some containers refuse it, and then there is nothing to test.
fn ring() -> Option<Reader> {
    let reader = Reader::new(Mode::Auto);
    if let Some(notice) = reader.notice() {
        eprintln!("skipped: {notice}");
        return None;
    }
    Some(reader)
}

#[test]
fn the_ring_and_pread_read_the_same() {
    let samples: Vec<Sample> = (0..4).map(|i| Sample::new(3_000_000 + i * 777_777, i as u64)).collect();
    let mut draws = SampleKey::new(1, 2, 3).draws(Purpose::Sampling);
    let mut readers = vec![Reader::new(Mode::Pread)];
    readers.extend(ring());
    for round in 0..40 {
        let sample = &samples[round % samples.len()];
        let ranges = random_ranges(&mut draws, sample.bytes.len() as u64);
        for reader in &mut readers {
            let id = reader.submit(&sample.source(), &ranges).unwrap();
            let input = reader.finish(id).unwrap();
            let wanted: Vec<(u64, &[u8])> =
                ranges.iter().map(|r| (r.start, &sample.bytes[r.start as usize..r.end as usize])).collect();
            assert!(parts(&input) == wanted, "round {round}, ring: {}", reader.uses_ring());
            assert_eq!(input.bytes_read(), ranges.iter().map(|r| r.end - r.start).sum::<u64>());
            reader.recycle(input);
        }
    }
}

#[test]
fn more_operations_than_the_queue_holds() {
    let Some(mut reader) = ring() else { return };
    // 30 samples of 5 operations each, all under way at once and finished in another order.
    let samples: Vec<Sample> = (0..30).map(|i| Sample::new(4_500_000 + i, i as u64)).collect();
    let mut ids: Vec<(usize, ReadId)> = Vec::new();
    for (i, sample) in samples.iter().enumerate() {
        let range = 0..sample.bytes.len() as u64;
        ids.push((i, reader.submit(&sample.source(), std::slice::from_ref(&range)).unwrap()));
    }
    for &(i, id) in ids.iter().rev() {
        let input = reader.finish(id).unwrap();
        assert!(parts(&input)[0].1 == samples[i].bytes, "sample {i}");
        reader.recycle(input);
    }
}

#[test]
fn cancelled_reads_give_their_buffers_back() {
    let mut readers = vec![Reader::new(Mode::Pread)];
    readers.extend(ring());
    let sample = Sample::new(8_000_000, 5);
    let all = 0..sample.bytes.len() as u64;
    for reader in &mut readers {
        for _ in 0..50 {
            let gone = reader.submit(&sample.source(), std::slice::from_ref(&all)).unwrap();
            let kept = reader.submit(&sample.source(), std::slice::from_ref(&all)).unwrap();
            reader.cancel(gone);
            let input = reader.finish(kept).unwrap();
            assert!(parts(&input)[0].1 == sample.bytes);
            reader.recycle(input);
            assert_eq!(reader.finish(gone).unwrap_err().stage, Stage::Read);
        }
    }
}

#[test]
fn a_reader_may_be_dropped_with_reads_in_flight() {
    let sample = Sample::new(20_000_000, 6);
    let all = 0..sample.bytes.len() as u64;
    for _ in 0..10 {
        let Some(mut reader) = ring() else { return };
        reader.submit(&sample.source(), std::slice::from_ref(&all)).unwrap();
        reader.submit(&sample.source(), std::slice::from_ref(&all)).unwrap();
        drop(reader);
    }
}

#[test]
fn a_member_inside_a_file_is_a_sample_of_its_own() {
    let sample = Sample::new(100_000, 7);
    let source = Source { offset: 40_000, len: 30_000, ..sample.source() };
    for mode in [Mode::Auto, Mode::Pread] {
        let mut reader = Reader::new(mode);
        let id = reader.submit(&source, &[50_000..60_000]).unwrap();
        let input = reader.finish(id).unwrap();
        assert_eq!(input.len(), 30_000);
        let tail = input.with_bytes(20_000, 99_999, <[u8]>::to_vec).unwrap();
        assert_eq!(tail, &sample.bytes[60_000..70_000]);
        assert_eq!((parts(&input)[0].0, input.demand_reads()), (10_000, 1));
        assert_eq!(reader.submit(&source, &[39_999..50_000]).unwrap_err().stage, Stage::Open);
        assert_eq!(reader.submit(&source, &[60_000..70_001]).unwrap_err().stage, Stage::Open);
        assert_eq!(reader.submit(&source, &[50_000..60_000, 59_999..60_001]).unwrap_err().stage, Stage::Open);
    }
}

#[test]
fn what_is_not_the_indexed_file_is_refused() {
    let sample = Sample::new(1000, 8);
    let mut reader = Reader::new(Mode::Auto);
    let mut refused = |source: Source<'_>| {
        let error = reader.submit(&source, &[]).unwrap_err();
        assert_eq!(error.stage, Stage::Open);
        error.reason
    };
    let changed = refused(Source { mtime_ns: sample.mtime_ns - 1, ..sample.source() });
    assert!(changed.contains("has changed since it was indexed") && changed.contains("helix index"), "{changed}");
    let cut = Source { file_len: 999, len: 999, ..sample.source() };
    assert!(refused(cut).contains("then 999 bytes"));
    let grown = Source { file_len: 1001, ..sample.source() };
    assert!(refused(grown).contains("now 1000 bytes"));
    assert!(refused(Source { len: 1001, ..sample.source() }).contains("beyond the file"));
    refused(Source { path: Path::new("/nowhere/at/all"), ..sample.source() });
    refused(Source { offset: u64::MAX, ..sample.source() });
    let folder = sample.path.parent().unwrap();
    assert!(refused(Source { path: folder, ..sample.source() }).contains("not a regular file"));
    let pipe = folder.join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(refused(Source { path: &pipe, ..sample.source() }).contains("not a regular file"));
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_an_error() {
    for mode in [Mode::Auto, Mode::Pread] {
        let sample = Sample::new(1_000_000, 9);
        let mut reader = Reader::new(mode);
        let source = sample.source();
        let open = open(&source).unwrap();
        File::options().write(true).open(&sample.path).unwrap().set_len(1000).unwrap();
        // As `submit` does it, but after the check.
        let part = Part { start: 0, buffer: reader.pool.take(1_000_000), len: 1_000_000 };
        let job = Job::new(Arc::new(open), 0, vec![part]);
        let id = ReadId(77);
        reader.extents.push((id, 0..1_000_000));
        match &mut reader.ring {
            Some(ring) => assert!(ring.start(77, job).is_ok()),
            None => reader.later.push((id, job)),
        }
        let error = reader.finish(id).unwrap_err();
        assert_eq!(error.stage, Stage::Read);
        assert!(error.reason.contains("ends at byte 1000"), "{error}");
    }
}

#[test]
fn memory_does_not_grow_with_the_samples() {
    for mode in [Mode::Auto, Mode::Pread] {
        let mut reader = Reader::new(mode);
        let sample = Sample::new(2_000_000, 10);
        let mut addresses = std::collections::HashSet::new();
        for len in (1..300u64).map(|i| 1_000_000 + i * 3000) {
            let id = reader.submit(&sample.source(), std::slice::from_ref(&(0..len))).unwrap();
            let input = reader.finish(id).unwrap();
            addresses.insert(input.parts[0].buffer.as_ptr());
            reader.recycle(input);
        }
        assert!(addresses.len() < 40, "{} buffers for one sample at a time", addresses.len());
    }
}

/// Makes this thread's calls of `call` fail with `errno`, as a container's seccomp profile does.
fn refuse(call: libc::c_long, errno: i32) {
    let rule = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut rules = [
        rule(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        rule(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        rule(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        rule(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: rules.len() as u16, filter: rules.as_mut_ptr() };
    // SAFETY: both act on this thread alone, which ends with its test; the program is valid while it is copied.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn a_refused_ring_is_told_once_and_reading_goes_on() {
    for (call, errno) in [
        (libc::SYS_io_uring_setup, libc::EPERM),
        (libc::SYS_io_uring_setup, libc::ENOSYS),
        (libc::SYS_io_uring_setup, libc::EINVAL),
        (libc::SYS_io_uring_enter, libc::EPERM),
        (libc::SYS_io_uring_register, libc::EPERM),
    ] {
        let test = move || {
            refuse(call, errno);
            let mut reader = Reader::new(Mode::Auto);
            assert!(!reader.uses_ring());
            let notice = reader.notice().unwrap();
            assert!(notice.contains("pread") && !notice.contains('\n'), "{notice}");
            if errno == libc::EPERM {
                assert!(notice.contains("seccomp"), "{notice}");
            }
            let sample = Sample::new(500_000, 11);
            let id = reader.submit(&sample.source(), &[100..400_000]).unwrap();
            let input = reader.finish(id).unwrap();
            assert!(parts(&input) == [(100, &sample.bytes[100..400_000])]);
        };
        std::thread::spawn(test).join().unwrap();
    }
}

#[test]
fn a_ring_that_breaks_midway_is_replaced_and_loses_nothing() {
    // The ring is made before the filter: a sandbox that closed too much.
    let rejects = || {
        let Some(mut reader) = ring() else { return };
        let sample = Sample::new(500_000, 12);
        refuse(libc::SYS_io_uring_enter, libc::EPERM);
        let all = std::slice::from_ref(&(0..500_000));
        let ids = [(); 2].map(|()| reader.submit(&sample.source(), all).unwrap());
        for id in ids {
            assert!(parts(&reader.finish(id).unwrap()) == [(0, sample.bytes.as_slice())]);
        }
        assert!(reader.notice().unwrap().contains("seccomp"));
        let id = reader.submit(&sample.source(), all).unwrap();
        assert!(parts(&reader.finish(id).unwrap()) == [(0, sample.bytes.as_slice())]);
    };
    std::thread::spawn(rejects).join().unwrap();
}
