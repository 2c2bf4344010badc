//! A decoder of one's own: clips that lie in NumPy files, `(frames, height, width, 3)` of `uint8`, which FFmpeg does not
//! read. All else is helix-shm's: only the frames that are wanted are read, and every transform is done to them.
//!
//! ```text
//! cargo build --example own_decoder
//! target/debug/examples/own_decoder index data.arrow clips/*.npy
//! ```
//!
//! and then, in the trainer, `Options::program(["target/debug/examples/own_decoder", "worker"])`.

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use helix_shm::decode::canvas::Easel;
use helix_shm::decode::{Decoder, Decoders, Input, Outcome, Request, SampleError, Stage, worker};
use helix_shm::manifest::{Record, Writer};

/// The name by which rows of the manifest find this decoder.
const CONTAINER: &str = "npy";

/// What the header of a NumPy file says.
struct Header {
    len: usize,
    frames: u32,
    height: u16,
    width: u16,
}

impl Header {
    /// Reads it from the first bytes of a file.
    fn parse(bytes: &[u8]) -> Result<Header, String> {
        let [b'\x93', b'N', b'U', b'M', b'P', b'Y', version, _, low, high, text @ ..] = bytes else {
            return Err("it is no NumPy file".into());
        };
        let len = usize::from(u16::from_le_bytes([*low, *high]));
        let text = (*version == 1).then(|| text.get(..len)).flatten().and_then(|text| std::str::from_utf8(text).ok());
        let text = text.ok_or("its header is not one of version 1")?;
        if !text.contains("'|u1'") || !text.contains("'fortran_order': False") {
            return Err(format!("it is {}; wanted uint8 in C order", text.trim_end()));
        }
        let shape = text.split_once('(').and_then(|(_, rest)| rest.split_once(')')).map_or("", |(shape, _)| shape);
        let sides: Vec<u32> = shape.split(',').filter_map(|side| side.trim().parse().ok()).collect();
        match sides[..] {
            [frames, height @ 1..=16384, width @ 1..=16384, 3] => {
                Ok(Header { len: 10 + len, frames, height: height as u16, width: width as u16 })
            }
            _ => Err(format!("its shape is ({shape}); wanted (frames, height, width, 3)")),
        }
    }

    fn frame_bytes(&self) -> usize {
        usize::from(self.height) * usize::from(self.width) * 3
    }

    /// Where a frame begins.
    fn offset(&self, frame: u32) -> u64 {
        self.len as u64 + u64::from(frame) * self.frame_bytes() as u64
    }
}

/// The decoder.
#[derive(Default)]
struct Npy {
    easel: Easel,
    frame: Vec<u8>,
}

impl Decoder for Npy {
    fn decode(&mut self, input: &Input, request: &Request<'_>, out: &mut [u8]) -> Result<Outcome, SampleError> {
        let read = |e: std::io::Error| SampleError::new(Stage::Read, e.to_string());
        let header = input.with_bytes(0, 1 << 12, Header::parse).map_err(read)?;
        let header = header.map_err(|e| SampleError::new(Stage::Demux, e))?;
        let mut canvas = self.easel.canvas(request, out)?;
        let wanted = canvas.wanted().to_vec();
        for &frame in &wanted {
            self.frame.resize(header.frame_bytes(), 0);
            input.read_exact(header.offset(frame), &mut self.frame).map_err(read)?;
            canvas.put(frame, &self.frame, header.width, header.height)?;
        }
        canvas.finish(wanted.len() as u32)
    }
}

/// The decoders of this program's workers.
pub fn decoders() -> Decoders {
    Decoders::new().with(CONTAINER, Npy::default())
}

/// A row of the manifest. Each frame is a key frame with a place of its own, so that a worker reads those that are wanted
/// and no others.
pub fn record(path: &Path) -> Result<Record, Box<dyn Error>> {
    let path = std::path::absolute(path)?;
    let mut file = File::open(&path)?;
    let about = file.metadata()?;
    let mut start = Vec::new();
    file.by_ref().take(1 << 12).read_to_end(&mut start)?;
    let header = Header::parse(&start)?;
    Ok(Record {
        path: path.to_str().ok_or("a path that is not UTF-8")?.into(),
        file_len: about.len(),
        len: about.len(),
        mtime_ns: about.mtime() * 1_000_000_000 + about.mtime_nsec(),
        container: CONTAINER.into(),
        codec: "rawvideo".into(),
        coded_width: header.width,
        coded_height: header.height,
        fps: (25, 1),
        time_base: (1, 25),
        duration: header.frames.into(),
        pts: (0..header.frames.into()).collect(),
        frames: header.frames,
        key_frames: (0..header.frames).collect(),
        key_offsets: (0..header.frames).map(|frame| header.offset(frame) as i64).collect(),
        seekable: true,
        ..Record::default()
    })
}

/// Writes a manifest of NumPy files.
pub fn index(output: &Path, files: impl Iterator<Item = impl AsRef<Path>>) -> Result<(), Box<dyn Error>> {
    let mut writer = Writer::new(File::create(output)?, "{}")?;
    for file in files {
        let file = file.as_ref();
        let record = record(file).map_err(|e| format!("{}: {e}", file.display()))?;
        writer.push(&record.descriptor(0))?;
    }
    writer.finish()?;
    Ok(())
}

#[allow(dead_code, reason = "a test takes the rest of this file into its own program")]
fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["worker", ..] => Ok(worker::serve(decoders)?),
        ["index", output, ref files @ ..] => index(output.as_ref(), files.iter()),
        _ => Err("usage: own_decoder index DATA.arrow CLIP.npy… (the daemon starts `own_decoder worker`)".into()),
    }
}
