//! Where a Matroska file says that it ends. FFmpeg takes a cut file for a short one.

/// Bytes of a file's head that [`declared_end`] has to see: the header and the segment's first bytes.
pub(super) const HEAD: usize = 4096;

const HEADER: u64 = 0x1a45_dfa3;
const SEGMENT: u64 = 0x1853_8067;

/// The end of the first segment, bytes from the file's start; `None` if this is not Matroska or the size is unknown,
/// as in a live recording.
pub(super) fn declared_end(head: &[u8]) -> Option<u64> {
    let mut at = 0;
    let (id, size) = element(head, &mut at)?;
    if id != HEADER {
        return None;
    }
    at = at.checked_add(usize::try_from(size?).ok()?)?;
    let (id, size) = element(head, &mut at)?;
    if id != SEGMENT {
        return None;
    }
    (at as u64).checked_add(size?)
}

/// An element's identifier and size, `None` for "unknown": RFC 8794, 5 and 6.
fn element(bytes: &[u8], at: &mut usize) -> Option<(u64, Option<u64>)> {
    let (id, _) = number(bytes, at, true)?;
    let (size, width) = number(bytes, at, false)?;
    let unknown = size == (1 << (7 * width)) - 1;
    Some((id, (!unknown).then_some(size)))
}

/// A number of 1 to 8 bytes, as many as the first byte has leading zeros and one; and its width.
fn number(bytes: &[u8], at: &mut usize, keep_marker: bool) -> Option<(u64, u32)> {
    let width = bytes.get(*at)?.leading_zeros() + 1;
    let all = bytes.get(*at..at.checked_add(width as usize)?).filter(|_| width <= 8)?;
    *at += width as usize;
    let value = all.iter().fold(0, |v: u64, &b| v << 8 | u64::from(b));
    Some((if keep_marker { value } else { value & ((1 << (7 * width)) - 1) }, width))
}

#[cfg(test)]
mod tests {
    use super::declared_end;

    #[test]
    fn the_end_of_the_segment_is_found() {
        let header = [0x1a, 0x45, 0xdf, 0xa3, 0x82, 1, 2];
        let with = |segment: &[u8]| declared_end(&[&header, segment].concat());
        assert_eq!(with(&[0x18, 0x53, 0x80, 0x67, 0x90]), Some(12 + 16));
        assert_eq!(with(&[0x18, 0x53, 0x80, 0x67, 0x01, 0, 0, 0, 0, 0, 1, 0]), Some(19 + 256));
        assert_eq!(with(&[0x18, 0x53, 0x80, 0x67, 0x01, 255, 255, 255, 255, 255, 255, 255]), None, "live");
        assert_eq!(with(&[0x18, 0x53, 0x80, 0x67, 0xff]), None, "live");
        assert_eq!(with(&[0x18, 0x53]), None);
        assert_eq!(declared_end(b"ftypisom"), None);
        assert_eq!(declared_end(&[0]), None);
        assert_eq!(declared_end(&[]), None);
    }
}
