//! Lists of files as JSON, one object a line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::caption::short;
use super::{Found, InputError, Item, Place, Text};

/// Longest line that is taken; a file without line breaks is not one of ours and must not fill the memory.
const LONGEST: u64 = 4 << 20;

/// Adds an item for each line of the list at `path`, shown as `shown`. Paths are relative to the list's folder.
pub(super) fn read(shown: &Path, path: &Path, found: &mut Found) -> Result<(), InputError> {
    let refuse = |e| InputError::path(shown, e);
    let list: Arc<Path> = path.into();
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut reader = BufReader::new(File::open(path).map_err(refuse)?);
    let mut bytes = Vec::new();
    for line in 1_u64.. {
        if !next_line(&mut reader, &mut bytes).map_err(refuse)? {
            break;
        }
        let fault = match bytes.len() as u64 > LONGEST {
            true => Err(format!("longer than the {LONGEST} bytes that are taken")),
            false => std::str::from_utf8(&bytes).map_err(|_| "not UTF-8".to_owned()),
        };
        let text = fault.as_ref().map_or("", |text| text.trim_start_matches('\u{feff}').trim());
        let item = match &fault {
            Ok(_) if text.is_empty() => continue,
            Ok(_) => item(folder, text),
            Err(fault) => Err(fault.clone()),
        };
        found.items.push(item.unwrap_or_else(|e| Item::bad(&list, format!("line {line}: {e}"))));
    }
    Ok(())
}

/// The next line, of which no more than a byte over the limit is kept; `false` at the end.
fn next_line(reader: &mut impl BufRead, bytes: &mut Vec<u8>) -> io::Result<bool> {
    bytes.clear();
    let got = reader.by_ref().take(LONGEST + 1).read_until(b'\n', bytes)?;
    if got as u64 > LONGEST && bytes.last() != Some(&b'\n') {
        reader.skip_until(b'\n')?;
    }
    Ok(got > 0)
}

fn item(folder: &Path, line: &str) -> Result<Item, String> {
    let value: Value = serde_json::from_str(line).map_err(|e| format!("not JSON: {e}"))?;
    let Value::Object(object) = value else {
        return Err(format!("`{}` is no object; wanted {{\"path\": ..., \"text\": ...}}", short(line)));
    };
    let path = string(&object, ["path", "video"])?.filter(|path| !path.is_empty() && !path.contains('\0'));
    let path = path.ok_or("no `path` or `video`")?;
    let text = string(&object, ["text", "caption"])?.map(str::trim).filter(|text| !text.is_empty());
    let place = match (number(&object, "offset")?, number(&object, "len")?) {
        (None, None) => Place::Listed,
        (offset, len) => Place::Range(offset.unwrap_or(0), len),
    };
    let text = text.map_or(Text::None, |text| Text::Given(text.into()));
    let path = if crate::object::is_url(Path::new(&path)) { PathBuf::from(path) } else { folder.join(path) };
    Ok(Item { path: path.into(), place, text, fault: None })
}

/// The first of two fields that is there.
fn string<'a>(object: &'a Map<String, Value>, names: [&str; 2]) -> Result<Option<&'a str>, String> {
    match names.into_iter().find_map(|name| Some((name, object.get(name)?))) {
        None | Some((_, Value::Null)) => Ok(None),
        Some((_, Value::String(text))) => Ok(Some(text)),
        Some((name, other)) => Err(format!("`{name}` is {}; wanted a string", short(&other.to_string()))),
    }
}

fn number(object: &Map<String, Value>, name: &str) -> Result<Option<u64>, String> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(n) => Ok(Some(n)),
            None => Err(format!("`{name}` is {}; wanted a number of bytes", short(&value.to_string()))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(jsonl: &[u8]) -> Vec<Item> {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("list.jsonl");
        std::fs::write(&list, jsonl).unwrap();
        let mut found = Found::default();
        read(&list, &list, &mut found).unwrap();
        for item in &mut found.items {
            item.path = item.path.strip_prefix(folder.path()).unwrap_or(&item.path).into();
        }
        found.items
    }

    #[test]
    fn a_line_is_a_sample_or_says_why_not() {
        let got = lines(
            b"\xef\xbb\xbf{\"path\": \"a.mp4\", \"text\": \"a dog\"}\r\n\n\
            {\"video\": \"b/c.mp4\", \"caption\": null, \"extra\": 1}\n{\"path\": \"/abs/d.mp4\", \"caption\": \"x\"}\n\
            {\"path\": \"big.bin\", \"offset\": 7, \"len\": 9}\n{\"path\": \"big.bin\", \"offset\": 5}\n\
            [1]\n{\"text\": \"no path\"}\n{\"path\": 1}\n{\"path\": \"a\", \"offset\": -1}\n{\"path\": \"a\", \"text\": [1]}\n{\n\xff\n{\"path\": \"last.mp4\"}",
        );
        let good = |i: usize, path: &str, place: Place, text: Text| {
            assert_eq!(got[i], Item { path: Path::new(path).into(), place, text, fault: None });
        };
        good(0, "a.mp4", Place::Listed, Text::Given("a dog".into()));
        good(1, "b/c.mp4", Place::Listed, Text::None);
        good(2, "/abs/d.mp4", Place::Listed, Text::Given("x".into()));
        good(3, "big.bin", Place::Range(7, Some(9)), Text::None);
        good(4, "big.bin", Place::Range(5, None), Text::None);
        let faults = [
            "line 7: `[1]` is no object",
            "line 8: no `path` or `video`",
            "line 9: `path` is 1; wanted a string",
            "line 10: `offset` is -1; wanted a number of bytes",
            "line 11: `text` is [1]; wanted a string",
            "line 12: not JSON",
            "line 13: not UTF-8",
        ];
        for (item, words) in got[5..].iter().zip(faults) {
            assert!(item.fault.as_ref().unwrap().contains(words), "{item:?}: {words}");
        }
        good(12, "last.mp4", Place::Listed, Text::None);
        assert_eq!(got.len(), 13);
    }

    #[test]
    fn a_line_without_end_is_passed_over_in_small_memory() {
        let mut jsonl = vec![b'x'; LONGEST as usize + 10];
        jsonl.extend_from_slice(b"\n{\"path\": \"a.mp4\"}\n");
        let got = lines(&jsonl);
        assert!(got[0].fault.as_ref().unwrap().contains("line 1: longer than"));
        assert_eq!((got.len(), got[1].path.to_str()), (2, Some("a.mp4")));
    }
}
