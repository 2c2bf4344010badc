//! Cost profiles by name.

use clap::ValueEnum;
use helix_shm::proto::options::{Model, Profile};

/// A cost profile by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Named {
    Equal,
    Decode,
    QwenVl,
    Wan21,
    HunyuanVideo,
    OpenSora2,
    CogVideoX,
    LtxVideo,
    LlavaVideo,
    InternVl,
    VideoMae,
    Vivit,
    TimeSformer,
    SlowFast,
}

impl Named {
    pub(super) const fn profile(self, quadratic: f64) -> Profile {
        let model = match self {
            Named::Equal => return Profile::Equal,
            Named::Decode => return Profile::Decode,
            Named::QwenVl => Model::QwenVl,
            Named::Wan21 => Model::Wan21,
            Named::HunyuanVideo => Model::HunyuanVideo,
            Named::OpenSora2 => Model::OpenSora2,
            Named::CogVideoX => Model::CogVideoX,
            Named::LtxVideo => Model::LtxVideo,
            Named::LlavaVideo => Model::LlavaVideo,
            Named::InternVl => Model::InternVl,
            Named::VideoMae => Model::VideoMae,
            Named::Vivit => Model::Vivit,
            Named::TimeSformer => Model::TimeSformer,
            Named::SlowFast => Model::SlowFast,
        };
        Profile::Tokens { model, quadratic }
    }
}
