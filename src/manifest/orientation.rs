//! How a picture is to be turned before it is shown: the EXIF orientation of JPEG, PNG, WebP and TIFF, and the transforms
//! of AVIF. FFmpeg leaves them to the player.

/// Turned clockwise, and then mirrored from left to right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Orientation {
    /// Degrees: 0, 90, 180 or 270.
    pub rotation: u16,
    /// Whether it is mirrored after that.
    pub mirrored: bool,
}

/// Chunks, segments or boxes that are looked at before a picture is taken for one that says nothing.
const PATIENCE: usize = 1000;
/// Entries of EXIF's first directory: cameras write some dozens.
const MOST_ENTRIES: u16 = 1000;
/// Tag of the orientation.
const TAG: u16 = 0x112;

/// Fills a buffer with the picture's bytes from a position on; how many there were.
type Read<'r> = dyn FnMut(u64, &mut [u8]) -> usize + 'r;

/// What a picture says of itself; nothing is no error, and neither is nonsense.
pub fn orientation(read: &mut Read<'_>) -> Orientation {
    let mut head = [0; 12];
    let known = read(0, &mut head);
    let found = match &head[..known] {
        [0xff, 0xd8, ..] => jpeg(read),
        [0x89, b'P', b'N', b'G', ..] => png(read),
        [b'R', b'I', b'F', b'F', .., b'W', b'E', b'B', b'P'] => webp(read),
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => exif(read, 0),
        [.., b'f', b't', b'y', b'p', b'a', b'v', b'i', b'f' | b's'] => avif(read),
        _ => None,
    };
    found.unwrap_or_default()
}

fn bytes<const N: usize>(read: &mut Read<'_>, at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    (read(at, &mut bytes) == N).then_some(bytes)
}

/// The APP1 segment that begins with `Exif`, before the picture itself.
fn jpeg(read: &mut Read<'_>) -> Option<Orientation> {
    let mut at = 2;
    for _ in 0..PATIENCE {
        let [mark, kind, high, low] = bytes(read, at)?;
        match (mark, kind) {
            (0xff, 0xff) => at += 1, // padding
            (0xff, 0xda | 0xd9) => return None,
            (0xff, 0xe1) if bytes(read, at + 4) == Some(*b"Exif\0\0") => return exif(read, at + 10),
            (0xff, _) => at += 2 + u64::from(u16::from_be_bytes([high, low])),
            _ => return None,
        }
    }
    None
}

fn png(read: &mut Read<'_>) -> Option<Orientation> {
    let mut at = 8;
    for _ in 0..PATIENCE {
        let [a, b, c, d, kind @ ..]: [u8; 8] = bytes(read, at)?;
        if kind == *b"eXIf" {
            return exif(read, at + 8);
        }
        at += 12 + u64::from(u32::from_be_bytes([a, b, c, d]));
    }
    None
}

fn webp(read: &mut Read<'_>) -> Option<Orientation> {
    let mut at = 12;
    for _ in 0..PATIENCE {
        let [kind @ .., a, b, c, d]: [u8; 8] = bytes(read, at)?;
        if kind == *b"EXIF" {
            // Some writers put JPEG's name before it.
            let named = bytes(read, at + 8) == Some(*b"Exif\0\0");
            return exif(read, at + if named { 14 } else { 8 });
        }
        at += 8 + u64::from(u32::from_le_bytes([a, b, c, d])).next_multiple_of(2);
    }
    None
}

/// The first directory of EXIF, which is TIFF.
fn exif(read: &mut Read<'_>, start: u64) -> Option<Orientation> {
    let [a, b, .., c, d, e, f] = bytes::<8>(read, start)?;
    let big = match [a, b] {
        [b'M', b'M'] => true,
        [b'I', b'I'] => false,
        _ => return None,
    };
    let short = |two: [u8; 2]| if big { u16::from_be_bytes(two) } else { u16::from_le_bytes(two) };
    let long = |four: [u8; 4]| if big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) };
    let at = start + u64::from(long([c, d, e, f]));
    let entries = short(bytes(read, at)?).min(MOST_ENTRIES);
    for entry in 0..u64::from(entries) {
        let entry: [u8; 12] = bytes(read, at + 2 + entry * 12)?;
        if short([entry[0], entry[1]]) == TAG {
            return of_exif(short([entry[8], entry[9]]));
        }
    }
    None
}

/// By the numbers of EXIF.
fn of_exif(number: u16) -> Option<Orientation> {
    let (rotation, mirrored) = match number {
        1 => (0, false),
        2 => (0, true),
        3 => (180, false),
        4 => (180, true),
        5 => (90, true),
        6 => (90, false),
        7 => (270, true),
        8 => (270, false),
        _ => return None,
    };
    Some(Orientation { rotation, mirrored })
}

/// The boxes `irot` and `imir` among the properties of a picture: turned first, mirrored then.
fn avif(read: &mut Read<'_>) -> Option<Orientation> {
    let (meta, end) = find(read, 0, u64::MAX, b"meta")?;
    let (properties, end) = find(read, meta + 4, end, b"iprp")?;
    let (properties, end) = find(read, properties, end, b"ipco")?;
    let mut turned = Orientation::default();
    if let Some([quarters]) = find(read, properties, end, b"irot").and_then(|(at, _)| bytes(read, at)) {
        // Quarters counter-clockwise.
        turned.rotation = (360 - 90 * u16::from(quarters & 3)) % 360;
    }
    if let Some([axis]) = find(read, properties, end, b"imir").and_then(|(at, _)| bytes(read, at)) {
        // Upside down is half a turn and left to right.
        turned.mirrored = true;
        turned.rotation = (turned.rotation + if axis & 1 == 0 { 180 } else { 0 }) % 360;
    }
    Some(turned)
}

/// Where the content of a box among others begins and ends.
fn find(read: &mut Read<'_>, from: u64, end: u64, wanted: &[u8; 4]) -> Option<(u64, u64)> {
    let mut at = from;
    for _ in 0..PATIENCE {
        if at >= end {
            return None;
        }
        let [a, b, c, d, kind @ ..]: [u8; 8] = bytes(read, at)?;
        let (head, len) = match u32::from_be_bytes([a, b, c, d]) {
            1 => (16, u64::from_be_bytes(bytes(read, at + 8)?)),
            len => (8, len.into()),
        };
        let next = at.checked_add(len).filter(|_| len >= head)?;
        if kind == *wanted {
            return Some((at + head, next.min(end)));
        }
        at = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(data: &[u8]) -> Orientation {
        orientation(&mut |at, out| {
            let rest = usize::try_from(at).ok().and_then(|at| data.get(at..)).unwrap_or_default();
            let len = out.len().min(rest.len());
            out[..len].copy_from_slice(&rest[..len]);
            len
        })
    }

    fn tiff(big: bool, number: u16) -> Vec<u8> {
        let mut data = if big { b"MM\0*\0\0\0\x08".to_vec() } else { b"II*\0\x08\0\0\0".to_vec() };
        for word in [2, 0x100, 3, 0, 1, 64, 0, TAG, 3, 0, 1, number, 0] {
            data.extend(if big { word.to_be_bytes() } else { u16::to_le_bytes(word) });
        }
        if !big {
            // The counts are long numbers.
            data[14..18].copy_from_slice(&1u32.to_le_bytes());
        }
        data
    }

    #[test]
    fn every_number_of_exif_in_either_byte_order() {
        let all =
            [(0, false), (0, true), (180, false), (180, true), (90, true), (90, false), (270, true), (270, false)];
        for (number, (rotation, mirrored)) in (1..).zip(all) {
            for big in [true, false] {
                assert_eq!(of(&tiff(big, number)), Orientation { rotation, mirrored }, "{number}");
            }
        }
        assert_eq!(of(&tiff(true, 9)), Orientation::default());
        assert_eq!(of(&tiff(true, 0)), Orientation::default());
    }

    #[test]
    fn transforms_of_avif_are_turned_and_then_mirrored() {
        let with = |boxes: &[&[u8]]| {
            let wrap = |kind: &[u8; 4], content: &[u8]| {
                [&(content.len() as u32 + 8).to_be_bytes()[..], kind, content].concat()
            };
            let ipco = wrap(b"ipco", &boxes.concat());
            let meta = [&[0; 4][..], &wrap(b"hdlr", &[0; 20]), &wrap(b"iprp", &ipco)].concat();
            of(&[wrap(b"ftyp", b"avif\0\0\0\0"), wrap(b"meta", &meta)].concat())
        };
        let (irot, imir): (&[u8], [&[u8]; 2]) = (b"\0\0\0\x09irot\x01", [b"\0\0\0\x09imir\0", b"\0\0\0\x09imir\x01"]);
        assert_eq!(with(&[]), Orientation::default());
        assert_eq!(with(&[irot]), Orientation { rotation: 270, mirrored: false });
        assert_eq!(with(&[imir[1]]), Orientation { rotation: 0, mirrored: true });
        assert_eq!(with(&[imir[0], irot]), Orientation { rotation: 90, mirrored: true });
    }

    proptest! {
        #[test]
        fn nonsense_says_nothing_and_ends(kind in 0usize..6, rest in proptest::collection::vec(any::<u8>(), 0..300)) {
            let starts: [&[u8]; 6] =
                [b"\xff\xd8\xff\xe1\0\x40Exif\0\0", b"\x89PNG\r\n\x1a\n", b"RIFF\x40\0\0\0WEBP", b"II*\0", b"MM\0*", b"\0\0\0\x0cftypavif"];
            of(&[starts[kind], &rest].concat());
        }
    }
}
