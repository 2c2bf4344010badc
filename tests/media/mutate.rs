//! Seeded mutations of files: those that hardware makes, and those that an attacker would.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Fields whose size or contents decide how far a parser reads: boxes of MP4, and IDs of EBML as they stand in a file.
const NAMES: &[&[u8]] = &[
    b"moov",
    b"trak",
    b"mdia",
    b"minf",
    b"stbl",
    b"stsd",
    b"stsz",
    b"stts",
    b"stsc",
    b"stco",
    b"co64",
    b"ctts",
    b"stss",
    b"mvhd",
    b"tkhd",
    b"mdhd",
    b"hdlr",
    b"elst",
    b"edts",
    b"avcC",
    b"hvcC",
    b"vpcC",
    b"av1C",
    b"esds",
    b"colr",
    b"pasp",
    b"moof",
    b"traf",
    b"trun",
    b"tfhd",
    b"tfdt",
    b"sidx",
    b"mdat",
    b"ftyp",
    &[0x1a, 0x45, 0xdf, 0xa3],
    &[0x18, 0x53, 0x80, 0x67],
    &[0x16, 0x54, 0xae, 0x6b],
    &[0x1f, 0x43, 0xb6, 0x75],
    &[0x1c, 0x53, 0xbb, 0x6b],
    &[0x63, 0xa2],
    &[0x53, 0x6e],
];

/// Numbers at which arithmetic goes wrong.
const EDGES: &[u32] =
    &[0, 1, 7, 8, 0x7f, 0xff, 0x100, 0x7fff, 0xffff, 0x1_0000, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff];

/// A source of choices.
pub struct Dice(ChaCha8Rng);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number below `n`, which is at least 1.
    pub fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n.max(1) as u64) as usize
    }

    fn edge(&mut self) -> u32 {
        match self.below(3) {
            0 => self.0.next_u32(),
            _ => EDGES[self.below(EDGES.len())],
        }
    }

    /// A span of a file, mostly a short one.
    fn span(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.below(len);
        let most = [16, 256, 4096, len][self.below(4)].min(len - start);
        start..start + 1 + self.below(most)
    }
}

/// A file with one to four things wrong with it; `other` is what it may be spliced with.
pub fn mutant(bytes: &[u8], other: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..1 + dice.below(4) {
        once(&mut out, other, dice);
    }
    out
}

fn once(out: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    if out.len() < 16 {
        return out.extend_from_slice(&other[..other.len().min(64)]);
    }
    match dice.below(10) {
        0 => {
            for _ in 0..1 + dice.below(32) {
                let at = dice.below(out.len());
                out[at] ^= 1 << dice.below(8);
            }
        }
        1 => {
            let span = dice.span(out.len());
            out[span].fill([0, 0xff, 0x41][dice.below(3)]);
        }
        2 => {
            for at in dice.span(out.len()) {
                out[at] = dice.below(256) as u8;
            }
        }
        3 => out.truncate(1 + dice.below(out.len())),
        4 | 5 => field(out, dice),
        6 => {
            // Two chunks change places.
            let (a, b) = (dice.span(out.len()), dice.below(out.len()));
            let len = a.len().min(out.len() - b);
            (0..len).for_each(|i| out.swap(a.start + i, b + i));
        }
        7 => {
            let span = dice.span(out.len());
            let (chunk, at) = (out[span].to_vec(), dice.below(out.len()));
            drop(out.splice(at..at, chunk));
        }
        8 => drop(out.drain(dice.span(out.len()))),
        _ => {
            let (at, from) = (dice.below(out.len()), dice.below(other.len()));
            out.truncate(at);
            out.extend_from_slice(&other[from..]);
        }
    }
}

/// The size of a box, or a number in it, becomes one that its parser did not expect.
fn field(out: &mut [u8], dice: &mut Dice) {
    let name = NAMES[dice.below(NAMES.len())];
    let found: Vec<usize> = (4..out.len() - 4).filter(|&at| out[at..].starts_with(name)).collect();
    let at = match found.len() {
        0 => dice.below(out.len() - 4),
        n => {
            let at = found[dice.below(n)];
            [at - 4, at + name.len() + 4 * dice.below(8)][dice.below(2)]
        }
    };
    let edge = dice.edge().to_be_bytes();
    out.iter_mut().skip(at).zip(edge).for_each(|(to, from)| *to = from);
}
