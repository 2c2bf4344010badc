//! Tars as WebDataset makes them: the members `<key>.<extension>` of one key are one sample. Only headers are read here;
//! the media stay where they are, and a sample is a range of the tar's bytes.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use tar::EntryType;

use super::caption::{Caption, short};
use super::walk::{Medium, medium};
use super::{Item, Kind, Place, Text};

/// Most bytes of headers and long names before one member: a name is a few KiB at most, and a hostile one of many GB
/// would be read into memory.
const HEADER_BYTES: u64 = 1 << 20;

const BLOCK: u64 = 512;

/// Puts the samples of each tar in its place, several tars at a time.
pub(super) fn open_all(
    items: Vec<Item>,
    stop: &AtomicBool,
    others: &mut u64,
    notes: &mut Vec<(PathBuf, String)>,
) -> Vec<Item> {
    let is_tar = |i: &Item| matches!(i.place, Place::Named | Place::Walked) && Kind::of(&i.path) == Kind::Tar;
    let tars: Vec<Arc<Path>> = items.iter().filter(|i| is_tar(i)).map(|i| i.path.clone()).collect();
    let mut shards: std::vec::IntoIter<Shard> =
        tars.par_iter().map(|path| Shard::read(path, stop)).collect::<Vec<_>>().into_iter();
    let mut out = Vec::with_capacity(items.len());
    for item in items {
        if !is_tar(&item) {
            out.push(item);
        } else if let Some(shard) = shards.next() {
            *others += shard.others;
            notes.extend(shard.notes.into_iter().map(|note| (item.path.to_path_buf(), note)));
            out.extend(shard.items);
        }
    }
    out
}

/// What is in a tar.
#[derive(Debug, Default)]
struct Shard {
    items: Vec<Item>,
    others: u64,
    notes: Vec<String>,
}

/// A file in a tar.
#[derive(Debug)]
struct Member {
    name: String,
    offset: u64,
    len: u64,
    fault: Option<String>,
}

impl Shard {
    fn read(path: &Arc<Path>, stop: &AtomicBool) -> Shard {
        let mut shard = Shard::default();
        let mut members = Vec::new();
        let listed = open(path).and_then(|file| list(&file, stop, &mut members));
        match listed {
            Ok(note) => shard.notes.extend(note),
            Err(fault) => shard.items.push(Item::bad(path, fault)),
        }
        let fault = shard.items.pop();
        shard.group(path, members);
        // What is wrong with the tar comes after what could be read of it.
        shard.items.extend(fault);
        shard
    }

    /// One sample a key, in the order in which the keys come.
    fn group(&mut self, path: &Arc<Path>, members: Vec<Member>) {
        let mut samples: Vec<Sample> = Vec::new();
        let mut keys: HashMap<String, usize> = HashMap::new();
        let mut said = false;
        for member in members {
            let Some((key, role)) = role(&member.name) else {
                self.others += 1;
                continue;
            };
            let at = *keys.entry(key.to_owned()).or_insert_with(|| {
                samples.push(Sample::default());
                samples.len() - 1
            });
            let place = match role {
                Role::Media(_) => &mut samples[at].media,
                Role::Caption { .. } => &mut samples[at].caption,
            };
            let left = match place {
                // A member that is there twice replaces itself, as when a tar is unpacked.
                Some((_, former)) if former.name == member.name => place.replace((role, member)),
                Some((best, former)) if *best <= role => {
                    if *best == role && !said {
                        said = true;
                        let (one, other) = (short(&former.name), short(&member.name));
                        self.notes
                            .push(format!("has several of a kind for one key ({one}, {other}): the first is taken"));
                    }
                    Some((role, member))
                }
                _ => place.replace((role, member)),
            };
            self.others += u64::from(left.is_some());
        }
        for sample in samples {
            match sample.media {
                Some((_, media)) => self.items.push(item(path, media, sample.caption)),
                None => self.others += u64::from(sample.caption.is_some()),
            }
        }
    }
}

/// What a member is to its sample; the lowest is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Media(Medium),
    Caption { is_json: bool },
}

#[derive(Debug, Default)]
struct Sample {
    media: Option<(Role, Member)>,
    caption: Option<(Role, Member)>,
}

/// The key, which ends at the first dot of the name, and what the member is to it. `None` for what belongs to no sample.
fn role(name: &str) -> Option<(&str, Role)> {
    let base = name.rfind('/').map_or(0, |i| i + 1);
    let dot = name[base..].find('.').filter(|&dot| dot > 0)?;
    let key = &name[..base + dot];
    // Names such as `__key__` are WebDataset's own.
    if key[base..].starts_with("__") && key[base..].ends_with("__") {
        return None;
    }
    let extension = name.rsplit('.').next().unwrap_or_default();
    let role = match extension {
        e if e.eq_ignore_ascii_case("txt") => Role::Caption { is_json: false },
        e if e.eq_ignore_ascii_case("json") => Role::Caption { is_json: true },
        _ => Role::Media(medium(Path::new(name))?),
    };
    Some((key, role))
}

fn item(path: &Arc<Path>, media: Member, caption: Option<(Role, Member)>) -> Item {
    let of_text = |c: &Member| c.fault.as_ref().map(|f| format!("has a bad text: {} {f}", c.name));
    let fault = media.fault.or_else(|| caption.as_ref().and_then(|(_, c)| of_text(c)));
    let text = caption.map_or(Text::None, |(role, c)| {
        let is_json = role == Role::Caption { is_json: true };
        Text::Member(Box::new(Caption { name: c.name.into(), offset: c.offset, len: c.len, is_json }))
    });
    let place = Place::Member { name: media.name.into(), offset: media.offset, len: media.len };
    Item { path: path.clone(), place, text, fault: fault.map(Into::into) }
}

fn open(path: &Path) -> Result<File, String> {
    // Opening a pipe without this waits for its other end.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(|e| format!("cannot be read: {e}"))?;
    match file.metadata() {
        Ok(about) if about.is_file() => Ok(file),
        Ok(_) => Err("is not a regular file".into()),
        Err(e) => Err(format!("cannot be read: {e}")),
    }
}

/// Lists the files of a tar; `Ok` with what is to be said of it, or what is wrong with it behind the members listed.
fn list(file: &File, stop: &AtomicBool, members: &mut Vec<Member>) -> Result<Option<String>, String> {
    let size = file.metadata().map_err(|e| format!("cannot be read: {e}"))?.len();
    if size == 0 {
        return Err("is empty (0 bytes)".into());
    }
    let left = Cell::new(HEADER_BYTES);
    let mut archive = tar::Archive::new(Headers { file, left: &left });
    let entries = archive.entries_with_seek().map_err(|e| format!("cannot be read: {e}"))?;
    let mut end = 0;
    for entry in entries {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        left.set(HEADER_BYTES);
        let mut entry = entry.map_err(|e| damage(file, end, &e))?;
        let (offset, len) = (entry.raw_file_position(), entry.size());
        let mut name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let kind = entry.header().entry_type();
        let fault = match kind {
            _ if kind.is_file() || kind == EntryType::Continuous => sparse(&mut entry, &name)?.map(|true_name| {
                name = true_name;
                SPARSE.to_owned()
            }),
            EntryType::GNUSparse => Some(SPARSE.to_owned()),
            EntryType::Link | EntryType::Symlink => {
                let to = entry.link_name_bytes().map(|b| String::from_utf8_lossy(&b).into_owned());
                Some(format!("is a link to {}: put the file itself into the tar", short(&to.unwrap_or_default())))
            }
            // Folders, devices and the like.
            _ => continue,
        };
        let is_data = fault.is_none();
        end = if is_data { offset.saturating_add(len) } else { offset };
        let cut = is_data && end > size;
        let fault = match cut {
            true => {
                Some(format!("is cut short: its tar has {size} bytes of {end} or more; copy or download it again"))
            }
            false => fault,
        };
        members.push(Member { name, offset, len, fault });
        if cut {
            return Ok(None);
        }
    }
    let marker = end.div_ceil(BLOCK) * BLOCK + BLOCK;
    Ok((size < marker)
        .then(|| "has no end marker: members may be missing, if it was cut between two of them".to_owned()))
}

const SPARSE: &str =
    "is stored as a sparse file, so that its bytes are not side by side: make the tar without --sparse";

/// The true name of a file that is stored in the newer way for sparse files, which is made to look like a plain one.
fn sparse(entry: &mut tar::Entry<'_, Headers<'_>>, name: &str) -> Result<Option<String>, String> {
    let Some(pax) = entry.pax_extensions().map_err(|e| format!("cannot be read: {e}"))? else { return Ok(None) };
    let mut found = None;
    for field in pax.filter_map(Result::ok).filter(|x| x.key_bytes().starts_with(b"GNU.sparse.")) {
        let found = found.get_or_insert_with(|| name.to_owned());
        if field.key_bytes() == b"GNU.sparse.name" {
            *found = String::from_utf8_lossy(field.value_bytes()).into_owned();
        }
    }
    Ok(found)
}

/// Why the headers end at a byte.
fn damage(file: &File, at: u64, e: &io::Error) -> String {
    const PACKERS: [(&[u8], &str); 5] = [
        (b"\x1f\x8b", "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\xfd7zXZ", "xz"),
        (b"BZh", "bzip2"),
        (b"PK\x03\x04", "zip"),
    ];
    if at > 0 {
        return format!("is damaged behind byte {at} ({e}): no member from there on is taken");
    }
    let mut head = [0; 6];
    let packed = file.read_exact_at(&mut head, 0).ok().and_then(|()| PACKERS.iter().find(|p| head.starts_with(p.0)));
    match packed {
        Some((_, by)) => format!("is compressed ({by}): samples are read in place, so unpack it"),
        None => format!("is not a tar ({e})"),
    }
}

/// The tar as the reader of headers sees it.
struct Headers<'a> {
    file: &'a File,
    /// Bytes that it may still read before the next member.
    left: &'a Cell<u64>,
}

impl Read for Headers<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let Some(room) = usize::try_from(self.left.get()).ok().filter(|&n| n > 0) else {
            return Err(io::Error::other(format!("headers of more than {HEADER_BYTES} bytes before one member")));
        };
        let most = out.len().min(room);
        let n = self.file.read(&mut out[..most])?;
        self.left.set(self.left.get() - n as u64);
        Ok(n)
    }
}

impl Seek for Headers<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}
