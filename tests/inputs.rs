//! Tars and lists as inputs of `helix index`, down to the pixels of their samples.
#![cfg(feature = "decode")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::AtomicBool;

use helix_shm::corpus::{ClipSpec, clip};
use helix_shm::decode::{Decoder, Decoders, Mode, Reader, Request, SampleKey, Source, VideoDecoder, plan};
use helix_shm::manifest::build::{Build, Drift, Summary, check};
use helix_shm::manifest::descriptor::Descriptor;
use helix_shm::manifest::{Manifest, Record};
use helix_shm::proto::transform::{Sampling, Transform};

fn hard(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hard").join(name)
}

/// A tar of files under the names given.
fn tar(path: &Path, members: &[(&str, PathBuf)]) {
    let mut builder = tar::Builder::new(File::create(path).unwrap());
    for (name, file) in members {
        builder.append_path_with_name(file, name).unwrap();
    }
    builder.finish().unwrap();
}

/// Adds a text to a folder and names it as a member.
fn text<'a>(folder: &Path, name: &'a str, content: &str) -> (&'a str, PathBuf) {
    let path = folder.join(name.replace('/', "_"));
    std::fs::write(&path, content).unwrap();
    (name, path)
}

fn index(paths: &[PathBuf], output: &Path) -> (Summary, Manifest) {
    let build =
        Build { paths: paths.to_vec(), root: None, output: output.to_owned(), jobs: 2, reuse: true, sound: false };
    let summary = build.run(&AtomicBool::new(false), |_| ()).unwrap();
    (summary, Manifest::open(output).unwrap())
}

fn helix(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_helix")).arg("index").args(args).current_dir(folder).output().unwrap()
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The pixels of a sample, or why there are none, and the bytes that were read for them.
fn pixels(d: &Descriptor<'_>, transform: &Transform, mode: Mode) -> (Result<Vec<u8>, String>, u64) {
    let key = SampleKey::new(1, 2, 3);
    let mut reader = Reader::new(mode);
    let id = reader.submit(&Source::from(d), &plan::ranges(d, transform, &key)).unwrap();
    let input = reader.finish(id).unwrap();
    let mut out = vec![0; transform.max_bytes(&d.facts()) as usize];
    let made = Decoders::new().decode(&input, &Request::whole(*d, transform, key), &mut out);
    (made.map(|_| out).map_err(|e| e.to_string()), input.bytes_read())
}

/// Every good file of the collection, and a clip that is long enough for sparse reads, in one tar: what is known of a
/// member, and its pixels, are those of the file.
#[test]
fn a_member_is_the_same_sample_as_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (name, faststart) in [("long.mp4", true), ("tail.mp4", false), ("long.mkv", false)] {
        let spec = ClipSpec { width: 320, height: 240, frames: 300, gop: 12, faststart, ..ClipSpec::default() };
        clip(&at(name), &spec).unwrap();
    }
    let mut files: Vec<PathBuf> = std::fs::read_dir(hard("")).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e != "tsv"));
    files.extend(["long.mp4", "tail.mp4", "long.mkv"].map(at));
    files.sort();
    let names: Vec<String> = (0..files.len())
        .map(|i| format!("{i:03}.{}", files[i].extension().unwrap().to_str().unwrap().replace("ts", "m2ts")))
        .collect();
    let members: Vec<_> = names.iter().map(String::as_str).zip(files.iter().cloned()).collect();
    tar(&at("all.tar"), &members);
    let (whole, of_files) = index(&files, &at("files.arrow"));
    let (packed, of_tar) = index(&[at("all.tar")], &at("tar.arrow"));
    of_tar.verify().unwrap();
    assert_eq!((whole.good, packed.good), (43, 43));
    // Sound is a fault where it was named, and no sample in a tar; other faults are the same.
    assert_eq!(packed.no_video, 4);
    let named: Vec<&str> = whole.bad.iter().map(|b| b.1.as_str()).collect();
    for (_, found) in &packed.bad {
        let (_, found) = found.strip_prefix("member ").unwrap().split_once(' ').unwrap();
        assert!(named.contains(&found), "{found}: {named:?}");
    }
    assert_eq!(packed.bad.len(), 5);

    let transforms = [
        Transform { frames: 2, ..Transform::default() },
        Transform { frames: 5, sampling: Sampling::RandomWindow { stride: 2 }, ..Transform::default() },
    ];
    let mut sparse = 0;
    for i in 0..43 {
        let file = of_files.descriptor(of_files.good_row(i));
        let member = of_tar.descriptor(of_tar.good_row(i));
        assert_eq!(member.path, at("all.tar").to_str().unwrap());
        let base = member.offset as i64;
        let expected = Record {
            path: member.path.to_owned(),
            file_len: std::fs::metadata(at("all.tar")).unwrap().len(),
            offset: member.offset,
            mtime_ns: member.mtime_ns,
            key_offsets: file.key_offsets.iter().map(|&k| if k < 0 { k } else { k + base }).collect(),
            ..Record::from(&file)
        };
        assert_eq!(Record::from(&member), expected, "{}", file.path);
        for transform in &transforms {
            let (wanted, _) = pixels(&file, transform, Mode::Pread);
            for mode in [Mode::Auto, Mode::Pread] {
                let (got, read) = pixels(&member, transform, mode);
                assert!(got == wanted, "{}: {:?}", file.path, got.err());
                assert!(read <= member.len, "{}: {read} of {} bytes", file.path, member.len);
                sparse += u32::from(read < member.len / 2);
            }
        }
    }
    assert!(sparse >= 6, "only {sparse} reads were sparse");
}

#[test]
fn shards_are_indexed_in_order_with_their_texts() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let (base, vfr) = (hard("base.mp4"), hard("vfr_timestamps.mp4"));
    let one = [
        ("a/1.mp4", base.clone()),
        text(root, "a/1.txt", "one dog\n"),
        ("2.mp4", vfr.clone()),
        text(root, "2.json", r#"{"caption": "zwei Hunde", "id": 2}"#),
        ("3.mp4", hard("zero_byte.mp4")),
        text(root, "4.cls", "7"),
    ];
    let two = [("1.mp4", vfr), text(root, "1.txt", "\u{1f415}"), ("5.mp4", base), text(root, "5.json", "{")];
    tar(&root.join("shard-0.tar"), &one);
    tar(&root.join("shard-1.tar"), &two);
    let run = helix(root, &["shard-0.tar", "shard-1.tar"]);
    let out = said(&run.stdout);
    assert!(out.contains("3 of 5 media files are good (2 bad, 1 not media)"), "{out} {}", said(&run.stderr));
    assert!(out.contains("shard-0.tar member 3.mp4 is empty (0 bytes)"), "{out}");
    assert!(out.contains("shard-1.tar member 5.mp4 has a bad text: 5.json is not JSON"), "{out}");
    let manifest = Manifest::open(&root.join("data.arrow")).unwrap();
    let rows: Vec<_> = (0..manifest.len()).map(|row| manifest.descriptor(row)).collect();
    let texts: Vec<(u32, &str)> = rows.iter().map(|d| (d.frames, d.text)).collect();
    assert_eq!(texts, [(30, "one dog"), (12, "zwei Hunde"), (0, ""), (12, "\u{1f415}"), (0, "")]);
    // A folder of shards is the same thing.
    std::fs::create_dir(root.join("shards")).unwrap();
    for name in ["shard-0.tar", "shard-1.tar"] {
        std::fs::rename(root.join(name), root.join("shards").join(name)).unwrap();
    }
    let (summary, walked) = index(&[root.join("shards")], &root.join("walked.arrow"));
    assert_eq!((summary.files, summary.good), (5, 3));
    assert_eq!(walked.descriptor(3).text, "\u{1f415}");
}

#[test]
fn a_tar_that_has_not_changed_is_not_looked_into_again() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let shard = root.join("s.tar");
    let members = [("1.mp4", hard("base.mp4")), ("2.mp4", hard("vfr_timestamps.mp4")), text(root, "2.txt", "two")];
    tar(&shard, &members);
    let output = root.join("data.arrow");
    let (first, _) = index(std::slice::from_ref(&shard), &output);
    let (again, manifest) = index(std::slice::from_ref(&shard), &output);
    assert_eq!((first.reused, again.reused, first.fingerprint), (0, 2, again.fingerprint));
    assert_eq!(manifest.descriptor(1).text, "two");
    let drifts = |manifest: &Manifest| {
        let mut all = Vec::new();
        check(manifest, |row, _, drift| all.push((row, drift)));
        all
    };
    assert_eq!(drifts(&manifest), []);

    // Longer at the same time, as when a copy was completed that keeps times.
    let modified = std::fs::metadata(&shard).unwrap().modified().unwrap();
    let len = std::fs::metadata(&shard).unwrap().len();
    let file = File::options().write(true).open(&shard).unwrap();
    file.set_len(len + 10240).unwrap();
    file.set_modified(modified).unwrap();
    let [(0, Drift::Changed(reason))] = &drifts(&manifest)[..] else { panic!("{:?}", drifts(&manifest)) };
    assert!(reason.contains(&format!("{} bytes; {len} when indexed", len + 10240)), "{reason}");
    let (longer, manifest) = index(std::slice::from_ref(&shard), &output);
    assert_eq!((longer.reused, longer.good), (0, 2));

    // Another time, the same length.
    file.set_modified(modified + std::time::Duration::from_secs(1)).unwrap();
    assert!(matches!(&drifts(&manifest)[..], [(0, Drift::Changed(_))]));
    let (touched, manifest) = index(std::slice::from_ref(&shard), &output);
    assert_eq!(touched.reused, 0);
    let run = helix(root, &["--check", "data.arrow"]);
    assert!(run.status.success(), "{}", said(&run.stdout));
    std::fs::remove_file(&shard).unwrap();
    assert!(matches!(&drifts(&manifest)[..], [(0, Drift::Missing(_))]), "a tar is named once");
    let run = helix(root, &["--check", "data.arrow"]);
    assert!(said(&run.stdout).contains("1 files missing, 0 changed"), "{}", said(&run.stdout));
}

#[test]
fn lists_name_files_and_say_what_they_show() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let clips = root.join("clips/riding a bike");
    std::fs::create_dir_all(&clips).unwrap();
    std::fs::copy(hard("base.mp4"), clips.join("abc_000001_000011.mp4")).unwrap();
    std::fs::copy(hard("mp3_gapless.mp3"), clips.join("snd_000001_000011.mp4")).unwrap();
    let kinetics = "label,youtube_id,time_start,time_end,split\nriding a bike,abc,1,11,train\n\
        riding a bike,gone,1,11,train\nriding a bike,snd,1,11,train\n";
    std::fs::write(root.join("k.csv"), kinetics).unwrap();
    let run = helix(root, &["k.csv", "--root", "clips"]);
    let out = said(&run.stdout);
    assert!(out.contains("1 of 3 media files are good (2 bad)"), "{out} {}", said(&run.stderr));
    assert!(out.contains("gone_000001_000011.mp4 is missing there, nor in 5 folders"), "{out}");
    assert!(out.contains("(line 3 of k.csv): download it, or name its folder with --root"), "{out}");
    assert!(out.contains("has no video: only audio (mp3)"), "listed sound is a fault: {out}");
    let manifest = Manifest::open(&root.join("data.arrow")).unwrap();
    let d = manifest.descriptor(0);
    assert_eq!(
        (d.text, d.frames, d.path),
        ("riding a bike", 30, clips.join("abc_000001_000011.mp4").to_str().unwrap())
    );

    // A new caption is taken up without a second look at the file.
    let line =
        |text: &str| format!("{{\"path\": \"clips/riding a bike/abc_000001_000011.mp4\", \"text\": \"{text}\"}}\n");
    for (text, reused) in [("a", 0), ("b", 1)] {
        std::fs::write(root.join("l.jsonl"), line(text)).unwrap();
        let (summary, manifest) = index(&[root.join("l.jsonl")], &root.join("l.arrow"));
        assert_eq!((summary.reused, manifest.descriptor(0).text), (reused, text));
    }
}

/// Ranges that a list gives: at the start of a file, at its end, and beyond it.
#[test]
fn parts_of_a_file_are_samples() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let (one, two) = (std::fs::read(hard("base.mp4")).unwrap(), std::fs::read(hard("odd_101x67.webm")).unwrap());
    std::fs::write(root.join("big.bin"), [&one[..], &two[..]].concat()).unwrap();
    let lines = format!(
        "{{\"path\": \"big.bin\", \"len\": {0}, \"text\": \"one\"}}\n{{\"path\": \"big.bin\", \"offset\": {0}}}\n\
         {{\"path\": \"big.bin\", \"offset\": {0}, \"len\": 999999}}\n{{\"path\": \"big.bin\", \"offset\": {1}, \"len\": {1}}}\n",
        one.len(),
        u64::MAX,
    );
    std::fs::write(root.join("parts.jsonl"), lines).unwrap();
    let (summary, manifest) = index(&[root.join("parts.jsonl")], &root.join("data.arrow"));
    assert_eq!((summary.good, summary.bad.len()), (2, 2));
    assert!(summary.bad.iter().all(|b| b.1.contains("lies beyond its file")), "{:?}", summary.bad);
    let transform = Transform { frames: 4, ..Transform::default() };
    for (row, name) in [(0, "base.mp4"), (1, "odd_101x67.webm")] {
        let record = helix_shm::manifest::probe::probe(&hard(name)).unwrap();
        let wanted = pixels(&record.descriptor(0), &transform, Mode::Auto).0.unwrap();
        assert!(pixels(&manifest.descriptor(row), &transform, Mode::Auto).0.unwrap() == wanted, "{name}");
    }
    let (again, _) = index(&[root.join("parts.jsonl")], &root.join("data.arrow"));
    assert_eq!(again.reused, 2);
}

/// A process that probes and decodes hears of both why they failed, in whichever order they began.
#[test]
fn probing_and_decoding_both_keep_the_cause() {
    let broken = std::fs::read(hard("moov_missing.mp4")).unwrap();
    let record = helix_shm::manifest::probe::probe(&hard("base.mp4")).unwrap();
    let transform = Transform::default();
    for _ in 0..2 {
        let mut decoder = VideoDecoder::new();
        let probed = helix_shm::manifest::probe::probe(&hard("moov_missing.mp4")).unwrap_err().to_string();
        assert!(probed.contains("moov atom not found"), "{probed}");
        assert!(!probed.contains('['), "{probed}");
        let input = helix_shm::decode::Input::from_bytes(broken.clone());
        let request = Request::whole(record.descriptor(0), &transform, SampleKey::new(0, 0, 0));
        let mut out = vec![0; transform.max_bytes(&record.descriptor(0).facts()) as usize];
        let decoded = decoder.decode(&input, &request, &mut out).unwrap_err().to_string();
        assert!(decoded.contains("moov atom not found"), "{decoded}");
    }
}
