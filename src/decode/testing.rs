//! What the tests of this room share: the difficult files, and descriptors made by one pass over the packets.

use std::path::{Path, PathBuf};

use super::{Decoder, Decoders, Input, Outcome, Request, SampleError, SampleKey};
use crate::manifest::Record;
use crate::manifest::descriptor::Descriptor;
use crate::manifest::probe::probe;
use crate::proto::transform::{Layout, Resize, Sampling, Transform};

pub(crate) const EMPTY: Descriptor<'static> = Descriptor {
    row: 0,
    path: "",
    file_len: 0,
    offset: 0,
    len: 0,
    mtime_ns: 0,
    container: "",
    codec: "",
    pix_fmt: "",
    stream: 0,
    coded_width: 0,
    coded_height: 0,
    rotation: 0,
    sar: (1, 1),
    fps: (0, 1),
    time_base: (1, 1),
    duration: 0,
    pts: &[],
    frames: 0,
    key_frames: &[],
    key_offsets: &[],
    seekable: false,
    text: "",
    sound: None,
};

/// A file of the collection.
pub(crate) fn hard(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hard").join(name)
}

/// A picture of the collection.
pub(crate) fn picture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pictures").join(name)
}

/// A file's bytes and what its index says of it.
pub(crate) struct Clip {
    pub(crate) bytes: Vec<u8>,
    pub(crate) record: Record,
}

impl Clip {
    /// The default video stream of a file.
    pub(crate) fn open(name: &str) -> Clip {
        Clip::at(&hard(name))
    }

    /// As [`open`](Self::open), of any file.
    pub(crate) fn at(path: &Path) -> Clip {
        let record = probe(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Clip { bytes: std::fs::read(&record.path).unwrap(), record }
    }

    /// A file with what another's index says of it.
    pub(crate) fn with(name: &str, record: Record) -> Clip {
        let bytes = std::fs::read(hard(name)).unwrap();
        let record = Record { path: name.to_owned(), len: bytes.len() as u64, ..record };
        Clip { bytes, record }
    }

    pub(crate) fn descriptor(&self) -> Descriptor<'_> {
        self.record.descriptor(0)
    }

    pub(crate) fn input(&self) -> Input {
        Input::from_bytes(self.bytes.clone())
    }

    /// The whole clip at its own size, `THWC`, decoded from the start.
    pub(crate) fn all(&self) -> Result<Frames, SampleError> {
        self.all_of(self.record.frames, false)
    }

    pub(crate) fn all_of(&self, frames: u32, seekable: bool) -> Result<Frames, SampleError> {
        let (width, height) = self.descriptor().shown();
        let t = Transform {
            frames: frames as u16,
            resize: Resize::Exact { width, height },
            layout: Layout::Thwc,
            ..Transform::default()
        };
        let d = Descriptor { seekable, frames, ..self.descriptor() };
        decode(&self.input(), &d, &t, SampleKey::new(0, 0, 0))
    }

    /// Frame `index` alone, by the index where there is one.
    pub(crate) fn one(&self, index: u32) -> Result<Frames, SampleError> {
        let (width, height) = self.descriptor().shown();
        let t = Transform {
            frames: 1,
            sampling: Sampling::Indices { at: vec![index] },
            resize: Resize::Exact { width, height },
            layout: Layout::Thwc,
            ..Transform::default()
        };
        decode(&self.input(), &self.descriptor(), &t, SampleKey::new(0, 0, 0))
    }
}

/// Decoded frames.
#[derive(Debug)]
pub(crate) struct Frames {
    pub(crate) bytes: Vec<u8>,
    pub(crate) outcome: Outcome,
}

impl Frames {
    pub(crate) fn frame(&self, index: usize) -> &[u8] {
        let size = self.bytes.len() / usize::from(self.outcome.shape[0]);
        &self.bytes[index * size..][..size]
    }

    /// Mean of each channel of a frame, for `THWC` bytes.
    pub(crate) fn mean(&self, index: usize) -> [f64; 3] {
        let pixels = self.frame(index).as_chunks::<3>().0;
        std::array::from_fn(|c| pixels.iter().map(|p| f64::from(p[c])).sum::<f64>() / pixels.len() as f64)
    }

    /// The pixel at (x, y) of a frame, for `THWC` bytes.
    pub(crate) fn pixel(&self, index: usize, x: usize, y: usize) -> [u8; 3] {
        let at = (y * usize::from(self.outcome.shape[2]) + x) * 3;
        self.frame(index)[at..at + 3].try_into().unwrap()
    }
}

/// Decodes into a place with a guard behind it.
pub(crate) fn decode(
    input: &Input,
    descriptor: &Descriptor<'_>,
    transform: &Transform,
    key: SampleKey,
) -> Result<Frames, SampleError> {
    const GUARD: usize = 4096;
    let size = transform.max_bytes(&descriptor.facts()) as usize;
    let mut bytes = vec![0xa5; size + GUARD];
    let request = Request::whole(*descriptor, transform, key);
    let outcome = Decoders::new().decode(input, &request, &mut bytes)?;
    assert_eq!(outcome.written as usize, size);
    assert!(bytes[size..].iter().all(|&b| b == 0xa5), "written past the output");
    bytes.truncate(size);
    Ok(Frames { bytes, outcome })
}
