//! Any packet of the socket: one of the protocol or an error; options that pass their check can be calculated with.

use helix_shm::proto::options::StreamOptions;
use helix_shm::proto::session::{First, FromRank, FromTool, FromWorker, ToRank, ToTool, ToWorker};
use helix_shm::proto::transform::Facts;
use serde::{Serialize, de::DeserializeOwned};

fn parse<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let packet: T = serde_json::from_slice(bytes).ok()?;
    serde_json::to_vec(&packet).expect("what was parsed can be said again");
    Some(packet)
}

fn calculate(options: &StreamOptions) {
    if options.check().is_err() {
        return;
    }
    let sizes = [(0, 0), (1, u16::MAX), (u16::MAX, 1), (1920, 1080)];
    for (width, height) in sizes {
        let facts = Facts { width, height, frames: u32::MAX, ..Facts::default() };
        let bytes = options.transform.max_bytes(&facts);
        assert!(bytes > 0 && bytes.checked_mul(3 * u64::from(options.largest_batch())).is_some());
    }
    for samples in [0, 1, 1000, u64::MAX] {
        let _ = options.steps(samples);
    }
}

/// One input.
pub fn run(bytes: &[u8]) {
    if let Ok(First::Rank(FromRank::Join(join))) = serde_json::from_slice::<First>(bytes) {
        calculate(&join.stream);
    }
    parse::<FromRank>(bytes);
    parse::<FromWorker>(bytes);
    parse::<FromTool>(bytes);
    parse::<ToRank>(bytes);
    parse::<ToTool>(bytes);
    if let Some(ToWorker::Attach { stream, .. }) = parse(bytes) {
        calculate(&stream);
    }
}
