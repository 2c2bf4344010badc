//! Sound of the collection's files, to the sample.

use crate::decode::Decoders;
use crate::decode::testing::{EMPTY, hard};
use crate::decode::{Decoder, Input, Request, SampleError, SampleKey};
use crate::manifest::descriptor::Descriptor;
use crate::manifest::probe::probe;
use crate::proto::fields::{Audio, MissingSound, SOUND_MISSING, SoundHead, SoundNumber};
use crate::proto::transform::{Layout, Resize, Sampling, Span, Transform};

const MOV: &str = "mov,mp4,m4a,3gp,3g2,mj2";

fn audio(rate: u32, channels: u8) -> Audio {
    Audio { rate, channels, number: SoundNumber::F32, max_ms: 10_000, missing: MissingSound::Error }
}

/// A sample's sound: its head and its channels.
struct Made {
    head: SoundHead,
    channels: Vec<Vec<f32>>,
}

fn made(d: &Descriptor<'_>, bytes: Vec<u8>, t: &Transform, key: u64) -> Result<Made, SampleError> {
    let audio = t.audio.as_ref().expect("sound is asked for");
    let mut out = vec![0xa5; t.max_bytes(&d.facts()) as usize];
    let request = Request::whole(*d, t, SampleKey::new(0, 0, key));
    let outcome = Decoders::new().decode(&Input::from_bytes(bytes), &request, &mut out)?;
    assert_eq!(outcome.written as usize, out.len());
    let sound = &out[out.len() - audio.bytes() as usize..];
    let head = SoundHead::read(sound, audio);
    let plane = audio.capacity() as usize * audio.number.size();
    let numbers = &sound[size_of::<SoundHead>()..][..plane * usize::from(audio.channels)];
    let channels = numbers.chunks(plane).map(|plane| match audio.number {
        SoundNumber::F32 => plane.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)).collect::<Vec<_>>(),
        SoundNumber::I16 => {
            plane.as_chunks::<2>().0.iter().map(|b| f32::from(i16::from_ne_bytes(*b)) / 32768.0).collect()
        }
    });
    let channels: Vec<Vec<f32>> = channels.collect();
    let behind = channels.iter().flat_map(|c| &c[head.samples as usize..]).all(|&n| n == 0.0);
    assert!(behind, "what is behind the sound is silence");
    let channels = channels.iter().map(|c| c[..head.samples as usize].to_vec()).collect();
    Ok(Made { head, channels })
}

/// All of a file's sound, as of an audio file.
fn all(name: &str, container: &str, audio: Audio) -> Result<Made, SampleError> {
    let bytes = std::fs::read(hard(name)).expect("a file of the collection");
    let d = Descriptor { container, len: bytes.len() as u64, ..EMPTY };
    made(&d, bytes, &Transform { frames: 1, layout: Layout::Sound, audio: Some(audio), ..Transform::default() }, 0)
}

/// The sound of a clip's window.
fn clip(name: &str, t: &Transform, key: u64) -> Result<Made, SampleError> {
    let record = probe(&hard(name)).expect("a clip of the collection");
    made(&record.descriptor(0), std::fs::read(hard(name)).expect("it is there"), t, key)
}

fn video(frames: u16, sampling: Sampling, audio: Audio) -> Transform {
    let resize = Resize::Exact { width: 8, height: 8 };
    Transform { frames, sampling, resize, audio: Some(audio), ..Transform::default() }
}

fn counts(made: &Made) -> (u32, u32, u32) {
    (made.head.samples, made.head.sounded, made.head.cut)
}

fn loudest(samples: &[f32]) -> f32 {
    samples.iter().fold(0.0, |most, n| most.max(n.abs()))
}

#[test]
fn aac_priming_and_padding_are_no_sound() {
    let sound = all("aac_priming.m4a", MOV, audio(44_100, 1)).expect("sound");
    assert_eq!(counts(&sound), (44_100, 44_100, 0));
    assert!(loudest(&sound.channels[0]) > 0.05);
    let at_16k = all("aac_priming.m4a", MOV, audio(16_000, 1)).expect("sound");
    assert_eq!(counts(&at_16k), (16_000, 16_000, 0));
}

#[test]
fn lame_delay_and_padding_are_no_sound() {
    let sound = all("mp3_gapless.mp3", "mp3", audio(44_100, 1)).expect("sound");
    assert_eq!(counts(&sound), (44_100, 44_100, 0));
    assert!(loudest(&sound.channels[0]) > 0.05);
}

#[test]
fn six_channels_of_24_bits_are_mixed_down() {
    let sound = all("wav_extensible_5_1_24bit.wav", "wav", audio(96_000, 2)).expect("sound");
    assert_eq!((counts(&sound), sound.channels.len()), ((48_000, 48_000, 0), 2));
    assert!(sound.channels.iter().all(|c| loudest(c) <= 1.0));
    let small = all("wav_extensible_5_1_24bit.wav", "wav", audio(16_000, 1)).expect("sound");
    assert_eq!(counts(&small), (8000, 8000, 0));
}

#[test]
fn a_file_of_sound_alone_has_all_of_it() {
    let sound = all("audio_only.mp4", MOV, audio(44_100, 1)).expect("sound");
    assert_eq!(counts(&sound), (44_100, 44_100, 0));
}

#[test]
fn a_cover_picture_is_no_obstacle() {
    let sound = all("coverart.mp3", "mp3", audio(44_100, 2)).expect("sound");
    assert!(sound.head.samples > 0 && sound.head.samples == sound.head.sounded);
    assert_eq!(sound.channels[0].len(), sound.channels[1].len());
}

#[test]
fn sound_goes_no_further_than_the_frames() {
    let sound =
        clip("audio_longer_than_video.mp4", &video(4, Sampling::Uniform, audio(16_000, 1)), 0).expect("sound");
    assert_eq!(counts(&sound), (48_000, 48_000, 0));
    assert_eq!(sound.head.start_us, 0);
}

#[test]
fn what_has_no_room_is_counted() {
    let short = Audio { max_ms: 500, ..audio(16_000, 1) };
    let all_of = video(4, Sampling::Uniform, short);
    let sound = clip("audio_longer_than_video.mp4", &all_of, 0).expect("sound");
    assert_eq!(counts(&sound), (8000, 8000, 40_000));
}

#[test]
fn a_window_has_the_sound_that_the_whole_has_at_its_time() {
    for number in [SoundNumber::F32, SoundNumber::I16] {
        let audio = Audio { number, ..audio(16_000, 2) };
        let whole =
            clip("audio_longer_than_video.mp4", &video(4, Sampling::Uniform, audio.clone()), 0).expect("sound");
        let window = video(3, Sampling::RandomWindow { stride: 2 }, audio);
        for key in 0..12 {
            let part = clip("audio_longer_than_video.mp4", &window, key).expect("sound");
            let from = (part.head.start_us * 16_000 / 1_000_000) as usize;
            let there = &whole.channels[0][from..][..part.channels[0].len()];
            let most = there.iter().zip(&part.channels[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(most < 2e-3, "{most} at {from}");
        }
    }
}

#[test]
fn a_file_without_sound_is_an_error_or_silent_as_asked() {
    let error = clip("base.mp4", &video(4, Sampling::Uniform, audio(16_000, 1)), 0).err().expect("it has none");
    assert!(error.reason.contains("no sound"), "{error}");
    let silent = Audio { missing: MissingSound::Silence, ..audio(16_000, 1) };
    let made = clip("base.mp4", &video(4, Sampling::Uniform, silent), 0).expect("silence");
    assert_eq!((counts(&made), made.head.flags), ((48_000, 0, 0), SOUND_MISSING));
}

#[test]
fn the_last_part_of_a_sample_has_the_sound_of_the_whole() {
    let t = video(4, Sampling::Uniform, audio(16_000, 1));
    let name = "audio_longer_than_video.mp4";
    let record = probe(&hard(name)).expect("a clip");
    let (d, bytes) = (record.descriptor(0), std::fs::read(hard(name)).expect("it is there"));
    let mut whole = vec![0; t.max_bytes(&d.facts()) as usize];
    let (mut parts, key) = (whole.clone(), SampleKey::new(0, 0, 0));
    let input = Input::from_bytes(bytes);
    Decoders::new().decode(&input, &Request::whole(d, &t, key), &mut whole).expect("the whole");
    for (first, frames) in [(0, 3), (3, 1)] {
        let span = Span { first, frames };
        let (at, len) = t.place(&d.facts(), span).expect("a part");
        let request = Request { span, ..Request::whole(d, &t, key) };
        let place = &mut parts[at as usize..][..len as usize];
        let outcome = Decoders::new().decode(&input, &request, place).expect("the part");
        assert_eq!(outcome.written, len);
    }
    assert!(whole == parts);
}
