//! The frames of an animated WebP, by its chunks alone. FFmpeg does not read these files; `decode` has a decoder of its
//! own for them.

/// Container of such rows.
pub const CONTAINER: &str = "webp_anim";

/// What a file says of its animation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Animation {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// How long each frame is shown, milliseconds.
    pub delays: Vec<u32>,
    /// Whether the file ends where it says that it does.
    pub whole: bool,
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |n, &byte| n << 8 | u32::from(byte))
}

impl Animation {
    /// Looks at a file of `len` bytes; `None` if it is no animated WebP. `read` fills a buffer from a position on and
    /// says how much there was. No more than `most` frames are counted.
    pub fn read(len: u64, most: usize, read: &mut dyn FnMut(u64, &mut [u8]) -> usize) -> Option<Animation> {
        let mut head = [0; 30];
        let known = read(0, &mut head) == head.len();
        // Bit 1 of the flags says that there are frames.
        if !known || head[..4] != *b"RIFF" || head[8..16] != *b"WEBPVP8X" || head[20] & 2 == 0 {
            return None;
        }
        let end = 8 + u64::from(number(&head[4..8]));
        let (width, height) = (1 + number(&head[24..27]), 1 + number(&head[27..30]));
        let mut found = Animation { width, height, delays: Vec::new(), whole: end <= len };
        let mut at = 12;
        while at < end.min(len) && found.delays.len() <= most {
            let mut chunk = [0; 24];
            let have = read(at, &mut chunk);
            if have < 8 {
                found.whole = false;
                break;
            }
            let size = u64::from(number(&chunk[4..8]));
            if chunk[..4] == *b"ANMF" && have == chunk.len() {
                found.delays.push(number(&chunk[20..23]));
            }
            at += 8 + size.next_multiple_of(2);
        }
        found.whole &= at <= len;
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(data: &[u8]) -> Option<Animation> {
        Animation::read(data.len() as u64, 10, &mut |at, out| {
            let rest = data.get(at as usize..).unwrap_or_default();
            let len = out.len().min(rest.len());
            out[..len].copy_from_slice(&rest[..len]);
            len
        })
    }

    #[test]
    fn frames_and_delays_are_those_of_the_file() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/pictures/");
        let data = std::fs::read(format!("{path}moving.webp")).unwrap();
        let found = of(&data).unwrap();
        assert_eq!((found.width, found.height, found.whole), (64, 48, true));
        assert_eq!(found.delays, [40, 200, 60, 500]);
        for cut in [data.len() - 1, data.len() / 2, 31] {
            assert!(of(&data[..cut]).is_some_and(|cut| !cut.whole), "{cut}");
        }
        assert_eq!(of(&std::fs::read(format!("{path}lossy.webp")).unwrap()), None);
        assert_eq!(of(b"RIFF"), None);
    }
}
