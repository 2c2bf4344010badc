//! What the tests of this room share: the difficult files, and descriptors made by one pass over the packets.

use std::path::{Path, PathBuf};

use ffmpeg_next as ff;

use super::{Decoder, Input, Outcome, Request, SampleError, SampleKey, VideoDecoder};
use crate::manifest::descriptor::Descriptor;
use crate::proto::transform::{Layout, Resize, Sampling, Transform};

pub(crate) const EMPTY: Descriptor<'static> = Descriptor {
    row: 0,
    path: "",
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
};

/// Whether an edit list hides the packet's frame; the safe wrapper knows no such flag.
fn is_discarded(packet: &ff::Packet) -> bool {
    use ff::packet::Ref;
    // SAFETY: the packet is alive.
    unsafe { (*packet.as_ptr()).flags & ff::ffi::AV_PKT_FLAG_DISCARD != 0 }
}

/// A file of the collection.
pub(crate) fn hard(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hard").join(name)
}

/// A file's bytes and what its packets tell of it.
pub(crate) struct Clip {
    pub(crate) bytes: Vec<u8>,
    pub(crate) path: String,
    container: String,
    codec: String,
    pub(crate) stream: u32,
    pub(crate) size: (u16, u16),
    pub(crate) rotation: u16,
    time_base: (u32, u32),
    pub(crate) pts: Vec<i64>,
    pub(crate) frames: u32,
    pub(crate) keys: Vec<u32>,
    pub(crate) offsets: Vec<i64>,
    pub(crate) seekable: bool,
    mtime_ns: i64,
}

impl Clip {
    /// The default video stream of a file.
    pub(crate) fn open(name: &str) -> Clip {
        let path = hard(name);
        ff::init().unwrap();
        let mut input = ff::format::input(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        let container = input.format().name().to_owned();
        let stream = input.streams().find(|s| s.parameters().medium() == ff::media::Type::Video).unwrap();
        let (index, time_base) = (stream.index(), stream.time_base());
        let codec = ff::codec::context::Context::from_parameters(stream.parameters()).unwrap();
        let decoder = codec.decoder().video().unwrap();
        let mut packets: Vec<(Option<i64>, bool, i64)> = input
            .packets()
            .filter(|(s, p)| s.index() == index && !is_discarded(p))
            .map(|(_, p)| (p.pts(), p.is_key(), p.position() as i64))
            .collect();
        let timed = packets.iter().all(|p| p.0.is_some());
        packets.sort_by_key(|p| p.0);
        let strict = timed && packets.windows(2).all(|w| w[0].0 < w[1].0);
        let keys: Vec<u32> = (0..packets.len()).filter(|&i| packets[i].1).map(|i| i as u32).collect();
        let (bytes, meta) = (std::fs::read(&path).unwrap(), std::fs::metadata(&path).unwrap());
        use std::os::unix::fs::MetadataExt;
        Clip {
            bytes,
            path: path.to_str().unwrap().to_owned(),
            codec: decoder.id().name().to_owned(),
            stream: index as u32,
            size: (decoder.width() as u16, decoder.height() as u16),
            rotation: 0,
            time_base: (time_base.numerator() as u32, time_base.denominator() as u32),
            frames: packets.len() as u32,
            offsets: keys.iter().map(|&k| packets[k as usize].2).collect(),
            seekable: strict && container != "mpegts" && !keys.is_empty(),
            pts: if timed { packets.iter().map(|p| p.0.unwrap()).collect() } else { Vec::new() },
            keys,
            container,
            mtime_ns: meta.mtime() * 1_000_000_000 + meta.mtime_nsec(),
        }
    }

    pub(crate) fn descriptor(&self) -> Descriptor<'_> {
        Descriptor {
            path: &self.path,
            len: self.bytes.len() as u64,
            mtime_ns: self.mtime_ns,
            container: &self.container,
            codec: &self.codec,
            stream: self.stream,
            coded_width: self.size.0,
            coded_height: self.size.1,
            rotation: self.rotation,
            time_base: self.time_base,
            pts: &self.pts,
            frames: self.frames,
            key_frames: &self.keys,
            key_offsets: &self.offsets,
            seekable: self.seekable,
            ..EMPTY
        }
    }

    pub(crate) fn input(&self) -> Input {
        Input::from_bytes(self.bytes.clone())
    }

    /// The whole clip at its own size, `THWC`, decoded from the start.
    pub(crate) fn all(&self) -> Result<Frames, SampleError> {
        self.all_of(self.frames, false)
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
            sampling: Sampling::RandomWindow { stride: 1 },
            resize: Resize::Exact { width, height },
            layout: Layout::Thwc,
            ..Transform::default()
        };
        let key = (0..)
            .map(|s| SampleKey::new(0, 0, s))
            .find(|key| super::sampling::indices(t.sampling, self.frames, 1, key)[0] == index);
        decode(&self.input(), &self.descriptor(), &t, key.unwrap())
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
    let request = Request { descriptor: *descriptor, transform, key };
    let outcome = VideoDecoder::new().decode(input, &request, &mut bytes)?;
    assert_eq!(outcome.written as usize, size);
    assert!(bytes[size..].iter().all(|&b| b == 0xa5), "written past the output");
    bytes.truncate(size);
    Ok(Frames { bytes, outcome })
}
