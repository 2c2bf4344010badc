//! CSV as the data sets come with them: Kinetics, OpenVid and WebVid, told apart by their columns.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use csv::ByteRecord;
use rayon::prelude::*;

use super::caption::short;
use super::{Found, InputError, Item, Place, Text};

/// A data set's way to name a clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Kinetics,
    WebVid,
    OpenVid,
}

/// The formats, the columns that they are known by, and those that their files have.
const FORMATS: [(Format, &[&str], &str); 3] = [
    (
        Format::Kinetics,
        &["youtube_id", "time_start", "time_end"],
        "Kinetics (label,youtube_id,time_start,time_end,split[,is_cc])",
    ),
    (Format::WebVid, &["videoid", "page_dir", "name"], "WebVid (videoid,contentUrl,duration,page_dir,name)"),
    (Format::OpenVid, &["video", "caption"], "OpenVid (video,caption,...)"),
];

/// A row: where its file may be, the likeliest first, and what is said of it.
struct Row {
    line: u64,
    names: Vec<PathBuf>,
    text: String,
}

/// Adds an item for each row of the CSV at `path`, shown as `shown`.
pub(super) fn read(shown: &Path, path: &Path, root: Option<&Path>, found: &mut Found) -> Result<(), InputError> {
    let folder = match root {
        Some(root) => std::path::absolute(root).map_err(|e| InputError::path(root, e))?,
        None => path.parent().unwrap_or(Path::new("/")).to_owned(),
    };
    if !folder.is_dir() {
        return Err(InputError::path(&folder, std::io::Error::from(std::io::ErrorKind::NotADirectory)));
    }
    let refuse = |reason| InputError::List { path: shown.to_owned(), reason };
    let mut reader = csv::Reader::from_path(path).map_err(|e| refuse(e.to_string()))?;
    let header = reader.byte_headers().map_err(|e| refuse(e.to_string()))?.clone();
    let columns = Columns::of(&header).map_err(refuse)?;
    let list: Arc<Path> = path.into();
    let mut rows = Vec::new();
    let mut record = ByteRecord::new();
    loop {
        match reader.read_byte_record(&mut record) {
            Ok(false) => break,
            Ok(true) => {
                let line = record.position().map_or(0, csv::Position::line);
                rows.push(columns.row(&record, line).map_err(|e| format!("line {line}: {e}")));
            }
            Err(e) => match e.kind() {
                csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
                    let line = pos.as_ref().map_or(0, csv::Position::line);
                    rows.push(Err(format!("line {line}: {len} columns; wanted {expected_len}")));
                }
                // Reading does not go on after it.
                _ => return Err(refuse(e.to_string())),
            },
        }
    }
    // Looking for a million files takes long where storage answers slowly.
    let items = rows.into_par_iter().map(|row| match row {
        Ok(row) => row.locate(&folder, shown),
        Err(fault) => Item::bad(&list, fault),
    });
    found.items.par_extend(items);
    Ok(())
}

/// Which column is where.
struct Columns {
    format: Format,
    at: HashMap<String, usize>,
}

impl Columns {
    fn of(header: &ByteRecord) -> Result<Columns, String> {
        let name = |field: &[u8]| {
            let text = String::from_utf8_lossy(field);
            text.trim_start_matches('\u{feff}').trim().to_ascii_lowercase()
        };
        let names: Vec<String> = header.iter().map(name).collect();
        let known = FORMATS.iter().find(|(_, needs, _)| needs.iter().all(|n| names.iter().any(|have| have == n)));
        let Some(&(format, ..)) = known else {
            let wanted: Vec<&str> = FORMATS.iter().map(|f| f.2).collect();
            let have = short(&names.join(","));
            return Err(format!("its columns are [{have}]; wanted those of {}", wanted.join(", ")));
        };
        let mut at = HashMap::new();
        for (i, name) in names.into_iter().enumerate() {
            at.entry(name).or_insert(i);
        }
        Ok(Columns { format, at })
    }

    fn row(&self, record: &ByteRecord, line: u64) -> Result<Row, String> {
        let field = |name: &str| match self.at.get(name).and_then(|&i| record.get(i)) {
            Some(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(text.trim()),
                Err(_) => Err(format!("`{name}` is not UTF-8")),
            },
            None => Ok(""),
        };
        let (names, text) = match self.format {
            Format::Kinetics => {
                let label = field("label")?;
                let (start, end) =
                    (seconds("time_start", field("time_start")?)?, seconds("time_end", field("time_end")?)?);
                let id = plain("youtube_id", field("youtube_id")?)?;
                (kinetics(&format!("{id}_{start:06}_{end:06}.mp4"), label, field("split")?), label)
            }
            Format::WebVid => {
                let file = format!("{}.mp4", plain("videoid", field("videoid")?)?);
                let page = field("page_dir")?;
                let in_page = relative("page_dir", page)?.join(&file);
                (if page.is_empty() { vec![file.into()] } else { vec![in_page, file.into()] }, field("name")?)
            }
            Format::OpenVid => match field("video")? {
                "" => return Err("`video` is empty; wanted the name of a file".into()),
                video => (vec![relative("video", video)?], field("caption")?),
            },
        };
        Ok(Row { line, names, text: text.to_owned() })
    }
}

/// The places where the common download tools put a clip.
fn kinetics(file: &str, label: &str, split: &str) -> Vec<PathBuf> {
    let joined = label.replace(' ', "_");
    let mut names = vec![PathBuf::from(file)];
    for split in ["", split] {
        for label in ["", label, &joined] {
            let name = Path::new(split).join(label).join(file);
            let is_plain = [split, label].iter().all(|part| relative("", part).is_ok());
            if is_plain && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

/// Whole seconds, also where a tool has written them as `12.0`.
fn seconds(name: &str, text: &str) -> Result<u64, String> {
    let whole =
        text.split_once('.').filter(|(_, rest)| rest.bytes().all(|b| b == b'0')).map_or(text, |(whole, _)| whole);
    whole.parse().map_err(|_| format!("`{name}` is `{}`; wanted whole seconds", short(text)))
}

/// A part of a file's name.
fn plain<'a>(name: &str, text: &'a str) -> Result<&'a str, String> {
    match text.is_empty() || text.contains(['/', '\0']) {
        true => Err(format!("`{name}` is `{}`; wanted a part of a file's name", short(text))),
        false => Ok(text),
    }
}

/// A place below the folder that the files are in: a list that was downloaded must not lead elsewhere.
fn relative(name: &str, text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let stays = path.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
    match stays && !text.contains('\0') {
        true => Ok(path),
        false => Err(format!("`{name}` is `{}`; wanted a place below the folder of the files (--root)", short(text))),
    }
}

impl Row {
    fn locate(self, folder: &Path, list: &Path) -> Item {
        let places = self.names.iter().map(|name| folder.join(name));
        let found = places.clone().find(|place| place.exists());
        let fault = found.is_none().then(|| {
            let also = match self.names.len() {
                1 => String::new(),
                n => format!(", nor in {} folders of its label, split or page", n - 1),
            };
            let (line, list) = (self.line, list.display());
            format!("is missing there{also} (line {line} of {list}): download it, or name its folder with --root")
        });
        let path = found.unwrap_or_else(|| folder.join(self.names.first().map_or(Path::new(""), PathBuf::as_path)));
        let text = if self.text.is_empty() { Text::None } else { Text::Given(self.text.into()) };
        Item { path: path.into(), place: Place::Listed, text, fault: fault.map(Into::into) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(csv: &[u8], files: &[&str]) -> Result<Vec<(String, Text, Option<String>)>, String> {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"x").unwrap();
        }
        let list = folder.path().join("list.csv");
        std::fs::write(&list, csv).unwrap();
        let mut found = Found::default();
        read(&list, &list, None, &mut found).map_err(|e| e.to_string())?;
        let name = |i: &Item| i.path.strip_prefix(folder.path()).unwrap().to_str().unwrap().to_owned();
        Ok(found.items.iter().map(|i| (name(i), i.text.clone(), i.fault.as_deref().map(str::to_owned))).collect())
    }

    fn given(text: &str) -> Text {
        Text::Given(text.into())
    }

    #[test]
    fn kinetics_clips_are_found_in_the_folders_of_their_label_and_split() {
        let csv = b"\xef\xbb\xbflabel,youtube_id,time_start,time_end,split,is_cc\n\
            riding a bike,-abc,7,17,train,0\n\"a, b\",def_9,100.0,110,val,1\nriding a bike,ghi,0,10,train,0\n\
            zumba,jkl,0,10,val,0\nzumba,gone,0,10,val,0\nzumba,x,soon,10,val,0\nzumba,../x,0,10,val,0\nshort\n";
        let files = [
            "-abc_000007_000017.mp4",
            "a, b/def_9_000100_000110.mp4",
            "riding_a_bike/ghi_000000_000010.mp4",
            "val/zumba/jkl_000000_000010.mp4",
        ];
        let got = rows(csv, &files).unwrap();
        for (i, file) in files.iter().enumerate() {
            assert_eq!((got[i].0.as_str(), &got[i].2), (*file, &None));
        }
        assert_eq!((&got[0].1, &got[1].1), (&given("riding a bike"), &given("a, b")));
        let fault = |i: usize| (got[i].0.clone(), got[i].2.clone().unwrap());
        assert_eq!(fault(4).0, "gone_000000_000010.mp4");
        assert!(fault(4).1.contains("is missing") && fault(4).1.contains("line 6 of"), "{}", fault(4).1);
        assert!(fault(5).1.contains("line 7: `time_start` is `soon`; wanted whole seconds"), "{}", fault(5).1);
        assert!(fault(6).1.contains("line 8: `youtube_id` is `../x`"), "{}", fault(6).1);
        assert_eq!(fault(7), ("list.csv".to_owned(), "line 9: 1 columns; wanted 6".to_owned()));
        assert_eq!(got.len(), 8);
    }

    #[test]
    fn openvid_and_webvid_are_known_by_their_columns() {
        let openvid = b"video,caption,aesthetic score,motion score\na.mp4,\"A dog, \"\"Rex\"\"\",4.5,1\n\
            p/b.mp4,,4,1\n/etc/passwd,x,1,1\n../c.mp4,x,1,1\n,x,1,1\n\xff.mp4,x,1,1\n";
        let got = rows(openvid, &["a.mp4", "p/b.mp4"]).unwrap();
        assert_eq!(got[0], ("a.mp4".to_owned(), given("A dog, \"Rex\""), None));
        assert_eq!(got[1], ("p/b.mp4".to_owned(), Text::None, None));
        for (i, words) in [(2, "/etc/passwd"), (3, "below the folder"), (4, "`video` is empty"), (5, "not UTF-8")] {
            assert!(got[i].2.as_ref().unwrap().contains(words), "{:?}", got[i]);
        }
        let webvid = b"videoid,contentUrl,duration,page_dir,name\n12,http://x,PT00H00M10S,000001_000050,A cat\n\
            13,http://x,PT00H00M10S,,B\n";
        let got = rows(webvid, &["000001_000050/12.mp4", "13.mp4"]).unwrap();
        assert_eq!(got[0], ("000001_000050/12.mp4".to_owned(), given("A cat"), None));
        assert_eq!(got[1], ("13.mp4".to_owned(), given("B"), None));
    }

    #[test]
    fn other_columns_are_named_beside_those_wanted() {
        for csv in [&b"id,url\n1,x\n"[..], b"", b"\n\n", b"\xff\xfe\x00"] {
            let said = rows(csv, &[]).unwrap_err();
            for words in ["its columns are [", "Kinetics (label,youtube_id", "OpenVid (video,", "WebVid (videoid,"] {
                assert!(said.contains(words), "{said}");
            }
        }
        assert!(rows(b"id,url\n", &[]).unwrap_err().contains("[id,url]"));
    }
}
