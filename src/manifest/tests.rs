//! Round trips, and what is refused.

use super::testing::{clip, write};
use super::{Manifest, Record, Writer};

#[test]
fn what_was_written_is_read() {
    let records: Vec<Record> = (0..100).map(clip).collect();
    let (manifest, written) = write(&records, |i| i % 10 == 3);
    assert_eq!((manifest.len(), manifest.good()), (100, 90));
    assert_eq!((written.rows, written.good), (100, 90));
    assert_eq!(manifest.fingerprint(), written.fingerprint);
    for (i, record) in records.iter().enumerate() {
        let row = i as u64;
        if i % 10 == 3 {
            assert_eq!(manifest.error(row), Some("broken"));
            assert_eq!(manifest.descriptor(row).path, record.path);
            continue;
        }
        assert_eq!(manifest.error(row), None);
        assert_eq!(manifest.descriptor(row), record.descriptor(row));
        assert_eq!(manifest.facts(row), record.descriptor(row).facts());
    }
    let good: Vec<u64> = (0..manifest.good()).map(|i| manifest.good_row(i)).collect();
    let wanted: Vec<u64> = (0..100).filter(|i| i % 10 != 3).collect();
    assert_eq!(good, wanted);
    manifest.verify().unwrap();
}

#[test]
fn rows_are_found_over_many_batches() {
    let records: Vec<Record> = (0..40_000).map(clip).collect();
    let (manifest, _) = write(&records, |_| false);
    for row in [0, 1, 16_383, 16_384, 32_767, 32_768, 39_999] {
        assert_eq!(manifest.descriptor(row), records[row as usize].descriptor(row));
    }
    assert_eq!(manifest.good_row(39_999), 39_999);
}

#[test]
fn all_rows_may_be_bad_or_none_be_there() {
    let records: Vec<Record> = (0..9).map(clip).collect();
    let (manifest, _) = write(&records, |_| true);
    assert_eq!((manifest.len(), manifest.good(), manifest.bad_rows().len()), (9, 0, 9));
    assert_eq!(manifest.error(8), Some("broken"));
    let (manifest, _) = write(&[], |_| true);
    assert!(manifest.is_empty());
    manifest.verify().unwrap();
}

#[test]
fn the_fingerprint_sees_every_field() {
    let base = clip(7);
    let of = |record: &Record| write(std::slice::from_ref(record), |_| false).1.fingerprint;
    let mut variants = vec![base.clone(); 21];
    variants[0].path.push('x');
    variants[1].offset += 1;
    variants[2].len += 1;
    variants[3].mtime_ns += 1;
    variants[4].container.push('x');
    variants[5].codec.push('x');
    variants[6].pix_fmt.push('x');
    variants[7].stream += 1;
    variants[8].coded_width += 1;
    variants[9].coded_height += 1;
    variants[10].rotation = 90;
    variants[11].sar = (4, 3);
    variants[12].fps = (25, 1);
    variants[13].time_base = (1, 25);
    variants[14].duration += 1;
    variants[15].pts[1] += 1;
    (variants[16].frames, variants[16].pts) = (base.frames + 1, Vec::new());
    variants[17].key_frames[1] += 1;
    variants[18].key_offsets[1] += 1;
    variants[19].seekable = !base.seekable;
    variants[20].file_len += 1;
    let mut all: Vec<String> = variants.iter().map(of).collect();
    all.push(of(&base));
    all.push(of(&Record { text: "a dog".into(), ..base.clone() }));
    all.push(write(&[base.clone(), base.clone()], |_| false).1.fingerprint);
    all.push(write(&[base.clone(), base.clone()], |i| i == 0).1.fingerprint);
    let distinct: std::collections::HashSet<&String> = all.iter().collect();
    assert_eq!(distinct.len(), all.len());
    assert_eq!(of(&base), of(&base.clone()));
}

#[test]
fn a_row_that_contradicts_itself_is_not_written() {
    let mut writer = Writer::new(Vec::new(), "").unwrap();
    for broken in [
        Record { frames: 0, pts: vec![], ..clip(1) },
        Record { frames: 3, ..clip(1) },
        Record { rotation: 45, ..clip(1) },
        Record { time_base: (1, 0), ..clip(1) },
        Record { key_frames: vec![0, 0], key_offsets: vec![0, 0], ..clip(1) },
        Record { key_frames: vec![0, 9_999], key_offsets: vec![0, 0], ..clip(1) },
        Record { key_offsets: vec![], ..clip(1) },
        Record { path: String::new(), ..clip(1) },
    ] {
        assert!(writer.push(&broken.descriptor(0)).is_err(), "{broken:?}");
    }
}

#[test]
fn what_is_not_a_manifest_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.arrow");
    let error = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Manifest::open(&path).unwrap_err().to_string()
    };
    assert!(error(b"").contains("it is empty"));
    assert!(error(b"ARROW1").contains("at least 18"));
    assert!(error(&[b'x'; 100]).contains("no Arrow IPC file"));
    assert!(error(&[b"ARROW1".as_slice(), &[0; 100]].concat()).contains("cut short"));
    let none = Manifest::open(&folder.path().join("none.arrow")).unwrap_err().to_string();
    assert!(none.contains("none.arrow") && none.contains("No such file"), "{none}");
    let dir = Manifest::open(folder.path()).unwrap_err().to_string();
    assert!(dir.contains("not a regular file"), "{dir}");
}

#[test]
fn a_manifest_of_the_version_without_sound_is_read() {
    use arrow_ipc::reader::FileReader;
    use arrow_ipc::writer::FileWriter;
    use std::fs::File;
    use std::sync::Arc;

    let folder = tempfile::tempdir().unwrap();
    let (new, old) = (folder.path().join("new.arrow"), folder.path().join("old.arrow"));
    let sound = Some(super::descriptor::Sound { rate: 48_000, channels: 2, duration_ms: 1500 });
    let records: Vec<Record> = (0..5).map(|i| Record { sound, ..clip(i) }).collect();
    let mut writer = Writer::new(File::create(&new).unwrap(), "{}").unwrap();
    records.iter().for_each(|r| writer.push(&r.descriptor(0)).unwrap());
    writer.finish().unwrap();

    let reader = FileReader::try_new(File::open(&new).unwrap(), None).unwrap();
    let columns: Vec<usize> = (0..reader.schema().fields().len() - 3).collect();
    let schema = reader.schema().project(&columns).unwrap();
    let mut metadata = schema.metadata().clone();
    metadata.insert(super::schema::KEY_FORMAT.to_owned(), super::schema::WITHOUT_SOUND.to_owned());
    let schema = Arc::new(schema.with_metadata(metadata));
    let mut writer = FileWriter::try_new(File::create(&old).unwrap(), &schema).unwrap();
    for batch in reader {
        let batch = batch.unwrap().project(&columns).unwrap();
        let batch = arrow_array::RecordBatch::try_new(Arc::clone(&schema), batch.columns().to_vec()).unwrap();
        writer.write(&batch).unwrap();
    }
    writer.finish().unwrap();

    let (new, old) = (Manifest::open(&new).unwrap(), Manifest::open(&old).unwrap());
    assert_eq!(old.fingerprint(), new.fingerprint(), "what is known of sound does not change the stream");
    assert_eq!((old.descriptor(3).sound, new.descriptor(3).sound), (None, sound));
    assert_eq!(old.descriptor(3).path, records[3].path);
}

#[test]
fn a_row_of_sound_needs_no_frames() {
    let sound = super::descriptor::Sound { rate: 48_000, channels: 2, duration_ms: 1500 };
    let song =
        Record { path: "/data/a.flac".into(), container: "flac".into(), sound: Some(sound), ..Record::default() };
    let (manifest, _) = write(std::slice::from_ref(&song), |_| false);
    let d = manifest.descriptor(0);
    assert_eq!((d.sound, d.is_sound(), d.facts().frames), (Some(sound), true, 0));
    let none = Record { sound: None, ..song };
    assert!(Writer::new(Vec::new(), "{}").unwrap().push(&none.descriptor(0)).is_err());
}
