//! Gathering, and tars with all that tars can have.

use std::io::Write;
use std::sync::atomic::AtomicBool;

use super::*;

/// A tar of the members, as GNU tar and Python write them.
fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, data) in members {
        add(&mut builder, name, data);
    }
    builder.into_inner().unwrap()
}

fn add(builder: &mut tar::Builder<Vec<u8>>, name: &str, data: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(data.len() as u64);
    header.set_mode(0o644);
    builder.append_data(&mut header, name, data).unwrap();
}

/// What is made of a tar: items, members that are of no sample, notes.
struct Read {
    bytes: Vec<u8>,
    found: Found,
    _folder: tempfile::TempDir,
}

impl Read {
    fn new(bytes: Vec<u8>) -> Read {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard.tar");
        std::fs::write(&path, &bytes).unwrap();
        let found = gather(&[path], None, &AtomicBool::new(false)).unwrap();
        Read { bytes, found, _folder: folder }
    }

    /// Each good item's name, the bytes that it claims, and its text.
    fn good(&self) -> Vec<(String, &[u8], String)> {
        let good = self.found.items.iter().filter(|i| i.fault.is_none());
        good.map(|i| {
            let Place::Member { name, offset, len } = &i.place else { panic!("{i:?}") };
            let text = match &i.text {
                Text::Member(caption) => caption.read(&i.path).unwrap(),
                Text::None => String::new(),
                Text::Given(_) => panic!("{i:?}"),
            };
            (name.to_string(), &self.bytes[*offset as usize..][..*len as usize], text)
        })
        .collect()
    }

    fn faults(&self) -> Vec<String> {
        self.found.items.iter().filter_map(|i| Some(i.explain(i.fault.as_ref()?))).collect()
    }

    fn notes(&self) -> Vec<&str> {
        self.found.notes.iter().map(|n| n.1.as_str()).collect()
    }
}

#[test]
fn one_key_is_one_sample_wherever_its_members_are() {
    let read = Read::new(tar(&[
        ("b.txt", b" of b\n"),
        ("dir/a.mp4", b"video a"),
        ("dir/a.jpg", b"picture of a"),
        ("dir/a.json", b"{\"caption\": \"of a\"}"),
        ("b.mp4", b"video b"),
        ("b.json", b"{\"text\": \"worse\"}"),
        ("c.left.MP4", b"left"),
        ("c.right.mp4", b"right"),
        ("a.png", b"another key"),
        ("d.cls", b"7"),
        ("._a.mp4", b"of a finder"),
        ("__meta__.json", b"{}"),
        ("e.wav", b"sound"),
    ]));
    let good = read.good();
    let wanted: [(&str, &[u8], &str); 5] = [
        ("b.mp4", b"video b", "of b"),
        ("dir/a.mp4", b"video a", "of a"),
        ("c.left.MP4", b"left", ""),
        ("a.png", b"another key", ""),
        ("e.wav", b"sound", ""),
    ];
    assert_eq!(good.iter().map(|(n, d, t)| (n.as_str(), *d, t.as_str())).collect::<Vec<_>>(), wanted);
    // a.jpg, b.json, c.right, d.cls, ._a, __meta__.
    assert_eq!((read.found.others, read.faults().len()), (6, 0));
    assert_eq!(read.notes().len(), 1);
    assert!(read.notes()[0].contains("c.left.MP4, c.right.mp4"), "{:?}", read.notes());
    let lacks: Vec<bool> = read.found.items.iter().map(Item::may_lack_video).collect();
    assert_eq!(lacks, [false, false, false, false, true]);
}

#[test]
fn a_member_that_is_there_twice_replaces_itself() {
    let read = Read::new(tar(&[("a.mp4", b"old"), ("b.mp4", b"b"), ("a.mp4", b"newer")]));
    let good = read.good();
    assert_eq!((good[0].1, good[1].1, good.len()), (&b"newer"[..], &b"b"[..], 2));
}

#[test]
fn long_names_are_whole() {
    let long = format!("{}/{}.mp4", "folder".repeat(40), "n".repeat(200));
    let mut builder = tar::Builder::new(Vec::new());
    add(&mut builder, &long, b"by GNU");
    let pax = format!("p{long}");
    builder.append_pax_extensions([("path", pax.as_bytes()), ("mtime", b"1.5")]).unwrap();
    add(&mut builder, "short.mp4", b"by pax");
    let read = Read::new(builder.into_inner().unwrap());
    let good = read.good();
    assert_eq!((good[0].0.as_str(), good[0].1), (long.as_str(), &b"by GNU"[..]));
    assert_eq!((good[1].0.as_str(), good[1].1), (pax.as_str(), &b"by pax"[..]));
}

#[test]
fn links_and_sparse_files_say_why_they_are_no_samples() {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, name) in [(tar::EntryType::Symlink, "s.mp4"), (tar::EntryType::Link, "h.mp4")] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(0);
        builder.append_link(&mut header, name, "else/where.mp4").unwrap();
    }
    builder.append_pax_extensions([("GNU.sparse.major", &b"1"[..]), ("GNU.sparse.minor", b"0")]).unwrap();
    add(&mut builder, "pax.mp4", b"map and data");
    builder.append_pax_extensions([("GNU.sparse.major", &b"1"[..]), ("GNU.sparse.name", b"true.mp4")]).unwrap();
    add(&mut builder, "GNUSparseFile.7/x.mp4", b"map and data");
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNUSparse);
    header.set_path("gnu.mp4").unwrap();
    header.set_size(0);
    // An old sparse header of no pieces: the real size is in the bytes 483 to 495.
    header.as_mut_bytes()[483..495].copy_from_slice(b"00000000000\0");
    header.set_cksum();
    builder.append(&header, &b""[..]).unwrap();
    add(&mut builder, "good.mp4", b"good");
    let read = Read::new(builder.into_inner().unwrap());
    let faults = read.faults();
    for (fault, words) in faults.iter().zip([
        "member s.mp4 is a link to else/where.mp4",
        "member h.mp4 is a link to else/where.mp4",
        "member pax.mp4 is stored as a sparse file",
        "member true.mp4 is stored as a sparse file",
        "member gnu.mp4 is stored as a sparse file",
    ]) {
        assert!(fault.starts_with(words), "{fault}");
    }
    assert_eq!((faults.len(), read.good().len()), (5, 1));
}

/// Wherever a tar is cut, the members before stay and something is said.
#[test]
fn a_cut_tar_keeps_what_is_whole_and_says_so() {
    let video = vec![7; 1300];
    let whole = tar(&[("a.mp4", &video), ("b.mp4", &video), ("c.mp4", &video)]);
    assert!(Read::new(whole.clone()).notes().is_empty());
    // Each member has a block of header and three of data.
    for cut in (0..3 * 4 * 512 + 512).step_by(128).chain([1, 511, 513, 2047, 2049]) {
        let read = Read::new(whole[..cut].to_vec());
        let good = (0..3).filter(|i| i * 2048 + 512 + 1300 <= cut).count();
        assert_eq!(read.good().len(), good, "cut at {cut}");
        assert!(read.good().iter().all(|g| g.1 == video));
        let said = read.faults().len() + read.notes().len();
        assert_eq!(said, 1, "cut at {cut}: {:?} {:?}", read.faults(), read.notes());
    }
    let read = Read::new(whole[..3000].to_vec());
    assert!(
        read.faults()[0].contains("member b.mp4 is cut short: its tar has 3000 bytes of 3860"),
        "{:?}",
        read.faults()
    );
}

#[test]
fn what_is_no_tar_says_what_it_is() {
    let fault = |bytes: &[u8]| Read::new(bytes.to_vec()).faults().remove(0);
    assert_eq!(fault(b""), "is empty (0 bytes)");
    assert!(fault(b"\x1f\x8b\x08\0 and so on").contains("is compressed (gzip)"));
    assert!(fault(&[7; 2000]).starts_with("is not a tar ("));
    let mut damaged = tar(&[("a.mp4", b"a"), ("b.mp4", b"b")]);
    damaged[1024 + 3] ^= 1;
    let read = Read::new(damaged);
    assert_eq!(read.good().len(), 1);
    assert!(read.faults()[0].contains("is damaged behind byte 513"), "{:?}", read.faults());
}

/// Sizes that eight octal digits cannot hold, as GNU writes them and as pax does; what comes behind is found.
#[test]
fn members_may_be_larger_than_8_gib() {
    const BIG: u64 = 9 << 30;
    let folder = tempfile::tempdir().unwrap();
    for pax in [false, true] {
        let path = folder.path().join(format!("{pax}.tar"));
        let mut builder = tar::Builder::new(Vec::new());
        if pax {
            builder.append_pax_extensions([("size", BIG.to_string().as_bytes())]).unwrap();
        }
        let mut header = tar::Header::new_gnu();
        header.set_path("big.mp4").unwrap();
        header.set_size(if pax { 0 } else { BIG });
        header.set_cksum();
        // Without the end marker that finishing adds.
        let mut head = builder.get_ref().clone();
        head.extend_from_slice(header.as_bytes());
        std::fs::write(&path, &head).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &tar(&[("b.mp4", b"b")]), head.len() as u64 + BIG).unwrap();
        let found = gather(&[path], None, &AtomicBool::new(false)).unwrap();
        let places: Vec<_> = found.items.iter().map(Item::range).collect();
        let at = head.len() as u64;
        assert_eq!(places, [(at, Some(BIG)), (at + BIG + 512, Some(1))], "{:?}", found.items);
    }
}

/// A name of many GB, as a hostile header claims it, is not read.
#[test]
fn names_are_bounded() {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNULongName);
    header.set_path("././@LongLink").unwrap();
    header.set_size(1 << 40);
    header.set_cksum();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.tar");
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(1 << 40).unwrap();
    let found = gather(&[path], None, &AtomicBool::new(false)).unwrap();
    let fault = found.items[0].fault.as_ref().unwrap();
    assert!(fault.contains("headers of more than 1048576 bytes"), "{fault}");
}

#[test]
fn inputs_keep_their_order_and_files_come_once() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("d")).unwrap();
    std::fs::write(at("d/x.mp4"), b"x").unwrap();
    std::fs::write(at("d/s.tar"), tar(&[("k.mp4", b"k")])).unwrap();
    std::fs::write(at("l.jsonl"), b"{\"path\": \"d/x.mp4\"}\n{\"path\": \"d/x.mp4\", \"text\": \"again\"}\n")
        .unwrap();
    std::fs::write(at("o.csv"), b"video,caption\nd/x.mp4,c\n").unwrap();
    let paths = ["d/x.mp4", "l.jsonl", "d", "o.csv", "d/s.tar"].map(at);
    let found = gather(&paths, None, &AtomicBool::new(false)).unwrap();
    let names: Vec<_> =
        found.items.iter().map(|i| (i.path.file_name().unwrap().to_str().unwrap(), &i.text)).collect();
    let (none, given) = (Text::None, |t: &str| Text::Given(t.into()));
    let (again, c) = (given("again"), given("c"));
    assert_eq!(names, [("x.mp4", &none), ("x.mp4", &none), ("x.mp4", &again), ("s.tar", &none), ("x.mp4", &c)]);
    let root = gather(&[at("o.csv")], Some(&at("d")), &AtomicBool::new(false)).unwrap();
    assert!(root.items[0].fault.is_some() && root.items[0].path.ends_with("d/d/x.mp4"), "{:?}", root.items);
    let said = gather(&[at("o.csv")], Some(&at("none")), &AtomicBool::new(false)).unwrap_err().to_string();
    assert!(said.contains("none"), "{said}");
    std::fs::write(at("x.tar.gz"), b"").unwrap();
    let said = gather(&[at("x.tar.gz")], None, &AtomicBool::new(false)).unwrap_err().to_string();
    assert!(said.contains("unpack it"), "{said}");
}

struct Random(u64);

impl Random {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Flipped, cut, doubled or filled somewhere.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        let (at, len) = (self.below(bytes.len()), 1 + self.below(40));
        let end = (at + len).min(bytes.len());
        match self.below(6) {
            0 => bytes.truncate(at),
            1 => bytes[at..end].fill([0, b'"', b'\n', b'7', 0xff][self.next() as usize % 5]),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let copy = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, copy));
            }
            _ => (0..1 + self.below(4)).for_each(|_| {
                let at = self.below(bytes.len());
                bytes[at] = self.next() as u8;
            }),
        }
    }
}

/// Damaged lists and tars end in items, each within its file or with a fault, or in an error; never in a panic.
#[test]
fn damaged_inputs_end_in_values() {
    let mut builder = tar::Builder::new(Vec::new());
    add(&mut builder, &format!("{}.mp4", "n".repeat(150)), &[1; 700]);
    builder.append_pax_extensions([("path", &b"p.mp4"[..]), ("size", b"700")]).unwrap();
    add(&mut builder, "x.mp4", &[2; 700]);
    add(&mut builder, "p.json", b"{\"caption\": \"c\"}");
    let tar = builder.into_inner().unwrap();
    let csv =
        b"label,youtube_id,time_start,time_end,split\na b,id1,1,11,train\n\"a, c\",id2,2,12,val\nx,id3,3,13,val\n";
    let jsonl = b"{\"path\": \"a.mp4\", \"text\": \"t\"}\n{\"video\": \"b.mp4\", \"offset\": 1, \"len\": 2}\n{\"path\": \"c\"}\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("id1_000001_000011.mp4"), b"x").unwrap();
    let mut random = Random(5);
    for (name, whole) in [("a.tar", tar), ("a.csv", csv.to_vec()), ("a.jsonl", jsonl.to_vec())] {
        let path = folder.path().join(name);
        let (mut good, mut told) = (0, 0);
        for round in 0..1500 {
            let mut bytes = whole.clone();
            random.damage(&mut bytes);
            if round % 3 == 0 && !bytes.is_empty() {
                random.damage(&mut bytes);
            }
            if round % 2 == 0 && name == "a.tar" {
                mend_sums(&mut bytes);
            }
            std::fs::write(&path, &bytes).unwrap();
            let Ok(found) = gather(std::slice::from_ref(&path), None, &AtomicBool::new(false)) else {
                told += 1;
                continue;
            };
            told += found.notes.len();
            for item in found.items {
                match (&item.fault, &item.place) {
                    (Some(fault), _) => told += usize::from(!fault.is_empty()),
                    (None, Place::Member { offset, len, .. }) => {
                        assert!(offset.checked_add(*len).is_some_and(|end| end <= bytes.len() as u64), "{item:?}");
                        good += 1;
                        if let Text::Member(caption) = &item.text {
                            let _ = caption.read(&item.path);
                        }
                    }
                    (None, _) => good += 1,
                }
            }
        }
        assert!(good > 100 && told > 100, "{name}: {good} good, {told} told: the damage misses its aim");
    }
}

/// Makes the checksums of damaged headers right, so that what is behind them is reached.
fn mend_sums(bytes: &mut [u8]) {
    for block in bytes.as_chunks_mut::<512>().0 {
        if block[257..262] == *b"ustar" {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}
