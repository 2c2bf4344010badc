//! Folders: which files in them are to be probed, in an order that is the same on every run.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use walkdir::WalkDir;

use super::{Found, Item, Kind, Place};

/// Extensions that are taken for media without a look inside, so that a broken file is named and not passed over:
/// first those that promise video. `.ts` is not among them: most such files are TypeScript.
const VIDEO: [&str; 34] = [
    "mp4", "m4v", "mov", "qt", "3gp", "3g2", "mkv", "webm", "avi", "divx", "flv", "f4v", "wmv", "asf", "mpg", "mpeg",
    "m2v", "vob", "m2ts", "mts", "ogv", "ogm", "mxf", "nut", "rm", "rmvb", "dv", "y4m", "ivf", "obu", "h264", "264",
    "hevc", "265",
];
const PICTURE: [&str; 11] = ["gif", "apng", "png", "jpg", "jpeg", "webp", "bmp", "avif", "heic", "tif", "tiff"];
const SOUND: [&str; 9] = ["mp3", "m4a", "wav", "flac", "opus", "ogg", "oga", "aac", "wma"];

/// Extensions that are never media, so that a million captions beside the clips are not opened one by one.
const OTHER: [&str; 33] = [
    "txt",
    "csv",
    "tsv",
    "json",
    "jsonl",
    "ndjson",
    "md",
    "rst",
    "xml",
    "yaml",
    "yml",
    "toml",
    "ini",
    "log",
    "html",
    "htm",
    "pdf",
    "py",
    "sh",
    "srt",
    "vtt",
    "ass",
    "npy",
    "npz",
    "pt",
    "pth",
    "pkl",
    "safetensors",
    "parquet",
    "arrow",
    "zip",
    "gz",
    "zst",
];

/// Adds what is in a folder, in the order of names, links followed.
pub(super) fn walk(folder: &Path, found: &mut Found) {
    for entry in WalkDir::new(folder).follow_links(true).sort_by_file_name() {
        match entry {
            Ok(e) if e.file_type().is_file() => match is_input(e.path()) {
                Ok(false) => found.others += 1,
                // A file that cannot be read is named by the probe, in its place.
                Ok(true) | Err(_) => found.items.push(Item::file(e.into_path(), Place::Walked)),
            },
            Ok(e) if e.file_type().is_dir() => {}
            Ok(_) => found.others += 1,
            Err(e) => {
                let at = e.path().unwrap_or(folder).to_owned();
                found.unreadable.push((at, reason(&e)));
            }
        }
    }
}

/// What a name promises, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Medium {
    Video,
    Picture,
    Sound,
}

/// What a file of the name holds, if it is one of media.
pub(super) fn medium(path: &Path) -> Option<Medium> {
    let extension = path.extension().and_then(OsStr::to_str)?.to_ascii_lowercase();
    let extension = extension.as_str();
    if VIDEO.contains(&extension) {
        Some(Medium::Video)
    } else if PICTURE.contains(&extension) {
        Some(Medium::Picture)
    } else {
        SOUND.contains(&extension).then_some(Medium::Sound)
    }
}

/// Whether a file of the name must have video to be whole.
pub(super) fn promises_video(path: &Path) -> bool {
    matches!(medium(path), Some(Medium::Video | Medium::Picture))
}

fn reason(e: &walkdir::Error) -> String {
    match (e.loop_ancestor(), e.io_error()) {
        (Some(above), _) => format!("is a link back to {}", above.display()),
        (_, Some(e)) => format!("cannot be read: {e}"),
        _ => e.to_string(),
    }
}

/// Media and tars; lists of files are taken only when they are named, since what they list is mostly walked too.
fn is_input(path: &Path) -> io::Result<bool> {
    if medium(path).is_some() || Kind::of(path) == Kind::Tar {
        return Ok(true);
    }
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default().to_ascii_lowercase();
    if OTHER.contains(&extension.as_str()) {
        return Ok(false);
    }
    let mut head = Vec::with_capacity(512);
    File::open(path)?.take(512).read_to_end(&mut head)?;
    Ok(looks_like_media(&head))
}

/// By the first bytes, for files of unknown extension.
fn looks_like_media(head: &[u8]) -> bool {
    let at = |i: usize, magic: &[u8]| head.get(i..i + magic.len()) == Some(magic);
    let stream = |first: usize, step: usize| (0..2).all(|i| head.get(first + i * step) == Some(&0x47));
    let boxes: [&[u8]; 5] = [b"ftyp", b"moov", b"mdat", b"wide", b"free"];
    let starts: [&[u8]; 9] = [
        b"\x1a\x45\xdf\xa3",
        b"FLV\x01",
        b"\x30\x26\xb2\x75\x8e\x66\xcf\x11",
        b"OggS",
        b"\x00\x00\x01\xba",
        b"GIF8",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"DKIF",
    ];
    boxes.iter().any(|m| at(4, m))
        || starts.iter().any(|m| at(0, m))
        || at(0, b"RIFF") && (at(8, b"AVI ") || at(8, b"WEBP") || at(8, b"WAVE"))
        || stream(0, 188)
        || stream(4, 192)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_in_order_once_and_only_media() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir(root.join("b")).unwrap();
        for name in ["z.mp4", "a.MP4", "b/клип.webm", "b/readme.txt", "b/notes", "data.arrow", "s.tar"] {
            std::fs::write(root.join(name), b"x").unwrap();
        }
        std::fs::write(root.join("b/unnamed"), b"\x00\x00\x00\x20ftypisom").unwrap();
        std::fs::write(root.join("b/code.ts"), b"export const x = 1;").unwrap();
        std::os::unix::fs::symlink(root, root.join("b/up")).unwrap();
        let mut found = Found::default();
        walk(root, &mut found);
        let names: Vec<_> =
            found.items.iter().map(|i| i.path.strip_prefix(root).unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a.MP4", "b/unnamed", "b/клип.webm", "s.tar", "z.mp4"]);
        assert_eq!(found.others, 4);
        assert_eq!(found.unreadable.len(), 1, "the loop is told");
        assert!(found.unreadable[0].1.contains("link back"), "{:?}", found.unreadable);
    }

    #[test]
    fn the_hard_files_are_media_by_their_content() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hard");
        for name in ["base.mp4", "webm_renamed.mp4", "ts_start_1_4.ts", "variable_delay.gif", "cmyk.jpg", "anim.webp"]
        {
            assert!(looks_like_media(&std::fs::read(folder.join(name)).unwrap()), "{name}");
        }
        assert!(!looks_like_media(b"hello"));
        assert!(!looks_like_media(b""));
    }
}
