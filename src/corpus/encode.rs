//! One clip: drawn, encoded, muxed, and moved into place when it is whole.

use std::path::{Path, PathBuf};

use ffmpeg::codec::{self, threading};
use ffmpeg::format::{self, Pixel};
use ffmpeg::{Dictionary, Packet, Rational, encoder, frame};
use ffmpeg_next as ffmpeg;

use super::CorpusError;
use super::draw::{Plane, Scene};

/// The encoders that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Encoder {
    /// H.264 by libx264.
    H264,
    /// HEVC by libx265.
    Hevc,
    /// VP9 by libvpx.
    Vp9,
}

impl Encoder {
    /// All of them.
    pub const ALL: [Encoder; 3] = [Encoder::H264, Encoder::Hevc, Encoder::Vp9];

    /// FFmpeg's name of the encoder.
    pub const fn name(self) -> &'static str {
        match self {
            Encoder::H264 => "libx264",
            Encoder::Hevc => "libx265",
            Encoder::Vp9 => "libvpx-vp9",
        }
    }

    /// FFmpeg's name of the codec.
    pub const fn codec(self) -> &'static str {
        match self {
            Encoder::H264 => "h264",
            Encoder::Hevc => "hevc",
            Encoder::Vp9 => "vp9",
        }
    }

    /// Whether this FFmpeg has it.
    pub fn is_available(self) -> bool {
        quiet();
        encoder::find_by_name(self.name()).is_some()
    }

    pub(super) fn names() -> String {
        Encoder::ALL.map(Encoder::name).join(", ")
    }

    /// Time that a pixel takes, relative to H.264's: the unit of progress.
    pub(super) const fn effort(self) -> u64 {
        match self {
            Encoder::H264 => 2,
            Encoder::Hevc => 7,
            Encoder::Vp9 => 3,
        }
    }

    /// Options that make it quick, single-threaded and strict about the distance of key frames.
    fn options(self, spec: &ClipSpec) -> Dictionary<'static> {
        let mut options = Dictionary::new();
        match self {
            Encoder::H264 => {
                options.set("preset", "superfast");
                options.set("crf", "26");
                options.set("x264-params", &format!("scenecut=0:keyint={0}:min-keyint={0}", spec.gop));
            }
            Encoder::Hevc => {
                options.set("preset", "ultrafast");
                options.set("crf", "30");
                let gop = format!("scenecut=0:keyint={0}:min-keyint={0}:open-gop=0", spec.gop);
                let calm = "log-level=none:pools=1:frame-threads=1:no-wpp=1";
                options.set("x265-params", &format!("{gop}:bframes={}:{calm}", spec.bframes));
            }
            Encoder::Vp9 => {
                options.set("deadline", "realtime");
                options.set("cpu-used", "8");
                options.set("crf", "38");
                options.set("b", "0");
                options.set("keyint_min", &spec.gop.to_string());
            }
        }
        options
    }
}

/// What a clip is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct ClipSpec {
    /// Encoder.
    pub encoder: Encoder,
    /// Width, pixels, even.
    pub width: u32,
    /// Height, pixels, even.
    pub height: u32,
    /// Frames.
    pub frames: u32,
    /// Frames a second, as a fraction.
    pub fps: (u32, u32),
    /// Distance of two key frames, frames.
    pub gop: u32,
    /// B-frames in a row (none with VP9).
    pub bframes: u32,
    /// Whether an MP4 has its index in front of the frames, so that a file cut short still opens.
    pub faststart: bool,
    /// Seeds the pictures.
    pub seed: u64,
}

impl Default for ClipSpec {
    fn default() -> Self {
        ClipSpec {
            encoder: Encoder::H264,
            width: 160,
            height: 120,
            frames: 50,
            fps: (25, 1),
            gop: 12,
            bframes: 2,
            faststart: false,
            seed: 0,
        }
    }
}

impl ClipSpec {
    /// Duration, seconds.
    pub fn seconds(&self) -> f64 {
        f64::from(self.frames) * f64::from(self.fps.1) / f64::from(self.fps.0)
    }

    pub(super) fn effort(&self) -> u64 {
        u64::from(self.width * self.height) * u64::from(self.frames) * self.encoder.effort()
    }
}

/// Makes one clip at `path`; the container follows from the extension (`mp4`, `mkv`, `webm`, `ts`, …).
///
/// The file appears whole or not at all.
pub fn clip(path: &Path, spec: &ClipSpec) -> Result<(), CorpusError> {
    clip_with(path, spec, &|_| true)
}

/// As [`clip`]; `on_frame` hears of the effort spent on each frame and says whether to go on.
pub(super) fn clip_with(path: &Path, spec: &ClipSpec, on_frame: &dyn Fn(u64) -> bool) -> Result<(), CorpusError> {
    let part = Part::new(path);
    write(&part.path, path, spec, on_frame)?;
    part.finish(path)
}

/// FFmpeg's libraries speak on stderr unless told not to; its errors come back as values anyway.
pub(super) fn quiet() {
    ffmpeg::log::set_level(ffmpeg::log::Level::Fatal);
}

/// A file under way. It vanishes unless it is finished.
pub(super) struct Part {
    pub(super) path: PathBuf,
}

/// Extension of files under way.
pub(super) const PART: &str = "part";

impl Part {
    pub(super) fn new(path: &Path) -> Part {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.{PART}", std::process::id()));
        Part { path: path.with_file_name(name) }
    }

    /// Gives the file its name.
    pub(super) fn finish(self, path: &Path) -> Result<(), CorpusError> {
        std::fs::rename(&self.path, path).map_err(CorpusError::folder(path))
        // Dropping it now finds nothing to remove.
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Encodes into `part` in the container that `path` names.
pub(super) fn write(
    part: &Path,
    path: &Path,
    spec: &ClipSpec,
    on_frame: &dyn Fn(u64) -> bool,
) -> Result<(), CorpusError> {
    let at = |doing| move |source| CorpusError::Encode { path: path.to_owned(), doing, source };
    quiet();
    let codec = encoder::find_by_name(spec.encoder.name()).ok_or(CorpusError::NoEncoder)?;
    let muxer = match path.extension().and_then(|e| e.to_str()) {
        Some("mkv") => "matroska",
        Some("ts") => "mpegts",
        Some(other) => other,
        None => "mp4",
    };
    let mut out = format::output_as(part, muxer).map_err(at("open"))?;
    let mut encoder = open(codec, spec, &out).map_err(at("start the encoder"))?;
    let time_base = Rational(spec.fps.1 as i32, spec.fps.0 as i32);
    let mut stream = out.add_stream(codec).map_err(at("add a stream"))?;
    stream.set_parameters(&encoder);
    stream.set_time_base(time_base);
    stream.set_avg_frame_rate(time_base.invert());
    let mut muxing = Dictionary::new();
    if spec.faststart {
        muxing.set("movflags", "+faststart");
    }
    out.write_header_with(muxing).map_err(at("write the header"))?;

    let scene = Scene::new(spec.width as usize, spec.height as usize, spec.seed);
    let effort = spec.effort() / u64::from(spec.frames.max(1));
    for n in 0..spec.frames {
        encoder.send_frame(&picture(&scene, spec, n)).map_err(at("encode"))?;
        drain(&mut encoder, &mut out, time_base).map_err(at("write a packet"))?;
        if !on_frame(effort) {
            return Err(CorpusError::Stopped);
        }
    }
    encoder.send_eof().map_err(at("encode"))?;
    drain(&mut encoder, &mut out, time_base).map_err(at("write a packet"))?;
    out.write_trailer().map_err(at("write the index"))
}

fn open(
    codec: ffmpeg::Codec,
    spec: &ClipSpec,
    out: &format::context::Output,
) -> Result<encoder::Video, ffmpeg::Error> {
    let mut context = codec::Context::new_with_codec(codec);
    context.set_threading(threading::Config::count(1));
    if out.format().flags().contains(format::Flags::GLOBAL_HEADER) {
        context.set_flags(codec::Flags::GLOBAL_HEADER);
    }
    let mut video = context.encoder().video()?;
    video.set_width(spec.width);
    video.set_height(spec.height);
    video.set_format(Pixel::YUV420P);
    video.set_time_base(Rational(spec.fps.1 as i32, spec.fps.0 as i32));
    video.set_frame_rate(Some(Rational(spec.fps.0 as i32, spec.fps.1 as i32)));
    video.set_gop(spec.gop);
    if spec.encoder != Encoder::Vp9 {
        video.set_max_b_frames(spec.bframes as usize);
    }
    video.open_with(spec.encoder.options(spec))
}

fn picture(scene: &Scene, spec: &ClipSpec, n: u32) -> frame::Video {
    let mut picture = frame::Video::new(Pixel::YUV420P, spec.width, spec.height);
    let seconds = f64::from(n) * f64::from(spec.fps.1) / f64::from(spec.fps.0);
    let strides = [0, 1, 2].map(|i| picture.stride(i));
    // The planes of a frame are borrowed one at a time, so each is drawn in a call of its own.
    for (i, stride) in strides.into_iter().enumerate() {
        scene.draw_plane(n, seconds, i, Plane { data: picture.data_mut(i), stride });
    }
    picture.set_pts(Some(i64::from(n)));
    picture
}

fn drain(
    encoder: &mut encoder::Video,
    out: &mut format::context::Output,
    time_base: Rational,
) -> Result<(), ffmpeg::Error> {
    let mut packet = Packet::empty();
    loop {
        match encoder.receive_packet(&mut packet) {
            Ok(()) => {}
            Err(ffmpeg::Error::Eof) => return Ok(()),
            Err(ffmpeg::Error::Other { errno: libc::EAGAIN }) => return Ok(()),
            Err(error) => return Err(error),
        }
        packet.set_stream(0);
        packet.set_duration(1);
        let stream_base = out.stream(0).map_or(time_base, |s| s.time_base());
        packet.rescale_ts(time_base, stream_base);
        packet.write_interleaved(out)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clip_is_the_same_for_a_seed_and_leaves_no_part() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a.mp4", "b.mp4"].map(|n| dir.path().join(n));
        for encoder in Encoder::ALL.into_iter().filter(|e| e.is_available()) {
            let spec = ClipSpec { encoder, frames: 9, ..ClipSpec::default() };
            clip(&a, &spec).unwrap();
            clip(&b, &spec).unwrap();
            assert_eq!(std::fs::read(&a).unwrap(), std::fs::read(&b).unwrap(), "{encoder:?}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn the_frames_and_key_frames_are_those_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        for encoder in Encoder::ALL.into_iter().filter(|e| e.is_available()) {
            let path = dir.path().join("c.mkv");
            clip(&path, &ClipSpec { encoder, frames: 25, gop: 10, ..ClipSpec::default() }).unwrap();
            let mut input = format::input(&path).unwrap();
            let keys: Vec<bool> = input.packets().map(|(_, p)| p.is_key()).collect();
            assert_eq!(keys.len(), 25, "{encoder:?}");
            let at: Vec<usize> = keys.iter().enumerate().filter_map(|(i, k)| k.then_some(i)).collect();
            assert_eq!(at.len(), 3, "{encoder:?}: key frames at packets {at:?}");
        }
    }

    #[test]
    fn a_clip_that_is_stopped_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let stopped = clip_with(&dir.path().join("a.mp4"), &ClipSpec::default(), &|_| false);
        assert!(matches!(stopped, Err(CorpusError::Stopped)));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
