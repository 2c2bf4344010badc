//! Texts in members of a tar.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Longest text that is taken: far beyond any caption, and little beside the rows that are waiting to be written.
const LONGEST: u64 = 1 << 20;

/// A member that says something of its sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::manifest) struct Caption {
    pub(super) name: Box<str>,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Whether it is JSON with a field `caption` or `text`, and not the text itself.
    pub(super) is_json: bool,
}

impl Caption {
    /// Reads it; on failure a reason that continues "it ...".
    pub(in crate::manifest) fn read(&self, tar: &Path) -> Result<String, String> {
        let fail = |reason: String| format!("has a bad text: {} {reason}", self.name);
        if self.len > LONGEST {
            return Err(fail(format!("has {} bytes; at most {LONGEST} are taken", self.len)));
        }
        let mut bytes = vec![0; self.len as usize];
        let read = File::open(tar).and_then(|file| file.read_exact_at(&mut bytes, self.offset));
        read.map_err(|e| fail(format!("cannot be read: {e}")))?;
        let text = String::from_utf8(bytes).map_err(|_| fail("is not UTF-8".into()))?;
        let text = text.trim_start_matches('\u{feff}');
        if self.is_json { from_json(text).map_err(fail) } else { Ok(text.trim().to_owned()) }
    }
}

/// The field `caption` or `text`. Neither is no fault: JSON beside a clip often has other things to say.
fn from_json(text: &str) -> Result<String, String> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|e| format!("is not JSON: {e}"))?;
    match value.get("caption").or_else(|| value.get("text")) {
        Some(serde_json::Value::String(text)) => Ok(text.trim().to_owned()),
        None | Some(serde_json::Value::Null) => Ok(String::new()),
        Some(other) => Err(format!("has a caption that is no string: {}", short(&other.to_string()))),
    }
}

/// The start of something that may be long.
pub(super) fn short(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caption_is_a_string_or_nothing() {
        assert_eq!(from_json(r#"{"caption": " a dog ", "text": "x"}"#).unwrap(), "a dog");
        assert_eq!(from_json(r#"{"text": "a cat"}"#).unwrap(), "a cat");
        assert_eq!(from_json(r#"{"url": "x"}"#).unwrap(), "");
        assert_eq!(from_json("[1]").unwrap(), "");
        assert!(from_json(r#"{"caption": ["a", "b"]}"#).unwrap_err().contains("no string"));
        assert!(from_json("{").unwrap_err().contains("not JSON"));
    }

    #[test]
    fn what_cannot_be_read_is_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let tar = folder.path().join("x.tar");
        std::fs::write(&tar, b"..caption\xff").unwrap();
        let caption = |offset, len| Caption { name: "a.txt".into(), offset, len, is_json: false };
        assert_eq!(caption(2, 7).read(&tar).unwrap(), "caption");
        assert!(caption(2, 8).read(&tar).unwrap_err().contains("a.txt is not UTF-8"));
        assert!(caption(2, 80).read(&tar).unwrap_err().contains("cannot be read"));
        assert!(caption(2, 1 << 40).read(&tar).unwrap_err().contains("at most"));
    }
}
