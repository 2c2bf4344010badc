//! Which files there are to probe, in an order that is the same on every run.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

/// Extensions that are taken for media without a look inside, so that a broken file is named and not passed over.
/// `.ts` is not among them: most such files are TypeScript.
const MEDIA: [&str; 50] = [
    "mp4", "m4v", "mov", "qt", "3gp", "3g2", "mkv", "webm", "avi", "divx", "flv", "f4v", "wmv", "asf", "mpg", "mpeg",
    "m2v", "vob", "m2ts", "mts", "ogv", "ogm", "mxf", "nut", "rm", "rmvb", "dv", "y4m", "ivf", "obu", "h264", "264",
    "hevc", "265", "gif", "apng", "png", "jpg", "jpeg", "webp", "bmp", "avif", "heic", "tif", "tiff", "mp3", "m4a",
    "wav", "flac", "opus",
];

/// Extensions that are never media, so that a million captions beside the clips are not opened one by one.
const OTHER: [&str; 34] = [
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
    "tar",
];

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Files to probe, absolute, each once.
    pub(super) files: Vec<PathBuf>,
    /// Files that are no media.
    pub(super) others: u64,
    /// Folders and entries that could not be read, with the reason.
    pub(super) unreadable: Vec<(PathBuf, String)>,
}

/// Walks folders in the order of names, links followed; a file that is named itself is always one to probe.
pub(super) fn walk(paths: &[PathBuf]) -> io::Result<Found> {
    let mut found = Found::default();
    let mut seen = HashSet::new();
    for path in paths {
        let absolute = std::path::absolute(path)?;
        let kind = std::fs::metadata(&absolute)
            .map_err(|e| io::Error::new(e.kind(), format!("cannot read {}: {e}", path.display())))?;
        if !kind.is_dir() {
            found.add(absolute, &mut seen);
            continue;
        }
        for entry in WalkDir::new(&absolute).follow_links(true).sort_by_file_name() {
            match entry {
                Ok(e) if e.file_type().is_file() => match is_media(e.path()) {
                    Ok(true) => found.add(e.into_path(), &mut seen),
                    Ok(false) => found.others += 1,
                    // A file that cannot be read is named by the probe, in its place.
                    Err(_) => found.add(e.into_path(), &mut seen),
                },
                Ok(e) if e.file_type().is_dir() => {}
                Ok(_) => found.others += 1,
                Err(e) => {
                    let at = e.path().unwrap_or(&absolute).to_owned();
                    found.unreadable.push((at, reason(&e)));
                }
            }
        }
    }
    Ok(found)
}

impl Found {
    fn add(&mut self, file: PathBuf, seen: &mut HashSet<PathBuf>) {
        if seen.insert(file.clone()) {
            self.files.push(file);
        }
    }
}

fn reason(e: &walkdir::Error) -> String {
    match (e.loop_ancestor(), e.io_error()) {
        (Some(above), _) => format!("is a link back to {}", above.display()),
        (_, Some(e)) => format!("cannot be read: {e}"),
        _ => e.to_string(),
    }
}

fn is_media(path: &Path) -> io::Result<bool> {
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default().to_ascii_lowercase();
    if MEDIA.contains(&extension.as_str()) {
        return Ok(true);
    }
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
        for name in ["z.mp4", "a.MP4", "b/клип.webm", "b/readme.txt", "b/notes", "data.arrow"] {
            std::fs::write(root.join(name), b"x").unwrap();
        }
        std::fs::write(root.join("b/unnamed"), b"\x00\x00\x00\x20ftypisom").unwrap();
        std::fs::write(root.join("b/code.ts"), b"export const x = 1;").unwrap();
        std::os::unix::fs::symlink(root, root.join("b/up")).unwrap();
        let found = walk(&[root.join("z.mp4"), root.to_owned()]).unwrap();
        let names: Vec<_> = found.files.iter().map(|f| f.strip_prefix(root).unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["z.mp4", "a.MP4", "b/unnamed", "b/клип.webm"]);
        assert_eq!(found.others, 4);
        assert_eq!(found.unreadable.len(), 1, "the loop is told");
        assert!(found.unreadable[0].1.contains("link back"), "{:?}", found.unreadable);
        let missing = walk(&[root.join("nowhere")]).unwrap_err().to_string();
        assert!(missing.contains("nowhere"), "{missing}");
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
