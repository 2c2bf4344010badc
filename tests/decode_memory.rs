//! A worker's memory is flat over many samples.
#![cfg(feature = "decode")]

use std::path::Path;

use helix_shm::decode::{Decoder, Mode, Reader, Request, SampleKey, Source, VideoDecoder, plan};
use helix_shm::manifest::probe::probe;
use helix_shm::proto::transform::Transform;

/// Resident memory of this process, bytes.
fn resident() -> i64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: i64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn five_hundred_samples_cost_no_more_memory_than_fifty() {
    let hard = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hard");
    // Also the paths that fail and that fall back.
    let names = ["base.mp4", "open_gop_hevc.mp4", "odd_101x67.webm", "av1_film_grain.mp4", "corrupt_middle.mp4"];
    let records = names.map(|name| probe(&hard.join(name)).unwrap());
    let transform = Transform::default();
    let mut out = vec![0; 16 * 3 * 224 * 224];
    let mut reader = Reader::new(Mode::Auto);
    let mut decoder = VideoDecoder::new();
    let mut failed = 0;
    let mut after_warm_up = 0;
    for sample in 0..550u64 {
        if sample == 50 {
            after_warm_up = resident();
        }
        let descriptor = records[(sample % 5) as usize].descriptor(sample);
        let key = SampleKey::new(0, 0, sample);
        let ranges = plan::ranges(&descriptor, &transform, &key);
        let id = reader.submit(&Source::from(&descriptor), &ranges).unwrap();
        let input = reader.finish(id).unwrap();
        let request = Request::whole(descriptor, &transform, key);
        failed += u32::from(decoder.decode(&input, &request, &mut out).is_err());
        assert_eq!(input.bytes_read(), descriptor.len, "a small file is read once, whole");
        reader.recycle(input);
    }
    assert_eq!(failed, 110, "the damaged clip and no other");
    let grown = resident() - after_warm_up;
    assert!(grown < 20 << 20, "{grown} bytes more after 500 samples");
}
