//! How many tokens a model makes of a sample: the formulas of the built-in [`Model`]s.
//!
//! Each formula is a function of frames, height and width as its authors publish it; [`tokens`] applies it to a
//! clip, cut and scaled to what that model is trained on. The scaling is exact arithmetic on the descriptor, so
//! that a deal made from tokens is the same everywhere.

use crate::proto::fit::smart as smart_resize;
use crate::proto::options::{Formula, Model};
use crate::proto::transform::{Facts, Transform};

/// Text tokens that CogVideoX puts before each video.
const COG_TEXT: u64 = 226;

/// HunyuanVideo: an autoencoder of 4×8×8 and patches of 1×2×2 (`hyvideo/inference.py`). Without text tokens.
pub fn hunyuan_video(frames: u64, height: u64, width: u64) -> u64 {
    latent(frames, 4) * height.div_ceil(16) * width.div_ceil(16)
}

/// Wan2.1: an autoencoder of 4×8×8 and patches of 1×2×2 (`wan/text2video.py`).
pub fn wan21(frames: u64, height: u64, width: u64) -> u64 {
    latent(frames, 4) * (height / 8 / 2) * (width / 8 / 2)
}

/// Open-Sora 2.0: latent sides rounded up, patches of 2×2 (`opensora/utils/sampling.py`).
pub fn open_sora2(frames: u64, height: u64, width: u64) -> u64 {
    latent(frames, 4) * height.div_ceil(8) * width.div_ceil(8) / 4
}

/// CogVideoX 1.0, its 226 text tokens included (diffusers `cogvideox_transformer_3d.py`).
pub fn cog_video_x(frames: u64, height: u64, width: u64) -> u64 {
    (height / 16) * (width / 16) * latent(frames, 4) + COG_TEXT
}

/// LTX-Video: an autoencoder of 8×32×32, no patches (`ltx_video/pipelines/pipeline_ltx_video.py`).
pub fn ltx_video(frames: u64, height: u64, width: u64) -> u64 {
    (height / 32) * (width / 32) * (frames / 8 + 1)
}

/// Qwen2-VL and Qwen2.5-VL at two frames a second: sides rounded to 28 within a budget of pixels
/// (`qwen_vl_utils/vision_process.py`).
pub fn qwen_vl(duration_ms: u64, height: u64, width: u64) -> u64 {
    const SIDE: u64 = 28;
    // Frames in pairs, 4 to 768; a frame may take 128 to 768 tokens, and all frames 24576·2 in pairs.
    let frames = (duration_ms * 2 / 1000).clamp(4, 768) / 2 * 2;
    let most = (24_576 * 2 / frames).clamp(134, 768); // 134: 1.05 × the least, as published
    let (h, w) = smart_resize(height.max(1), width.max(1), SIDE, 128 * SIDE * SIDE, most * SIDE * SIDE);
    frames / 2 * (h / SIDE) * (w / SIDE)
}

/// LLaVA-Video: 14² tokens a frame and a newline a row (`llava/model/llava_arch.py`).
pub fn llava_video(frames: u64) -> u64 {
    frames * 14 * 15
}

/// InternVL: 256 tokens a tile, one tile a frame (`internvl/train/dataset.py`).
pub fn intern_vl(frames: u64) -> u64 {
    frames * 256
}

/// VideoMAE: tubelets of 2×16×16 (`modeling_finetune.py`).
pub fn video_mae(frames: u64, height: u64, width: u64) -> u64 {
    (frames / 2) * (height / 16) * (width / 16)
}

/// ViViT-B: tubelets of 2×16×16 and a class token (`projects/vivit`).
pub fn vivit(frames: u64, height: u64, width: u64) -> u64 {
    video_mae(frames, height, width) + 1
}

/// TimeSformer: 14² tokens a frame of 224² and a class token (`timesformer/models/vit.py`).
pub fn time_sformer(frames: u64) -> u64 {
    frames * 196 + 1
}

/// SlowFast has no tokens: pixels of the fast pathway and of the slow one, which sees every fourth frame
/// (`configs/Kinetics/SLOWFAST_8x8_R50.yaml`).
pub fn slow_fast(frames: u64, height: u64, width: u64) -> u64 {
    (frames + frames / 4) * height * width
}

/// A formula of the user's.
pub fn own(formula: &Formula, facts: &Facts) -> u64 {
    let seconds = f64::from(facts.duration_ms) / 1e3;
    let frames = if formula.fps > 0.0 { (seconds * formula.fps) as u64 } else { u64::from(facts.frames) };
    let frames = frames.clamp(1, u64::from(formula.most_frames.max(1)));
    let (height, width) = within(facts.height.into(), facts.width.into(), formula.most_pixels.into());
    let patches = |side: u64| side.div_ceil(formula.patch.max(1).into());
    let grid = if formula.patch == 0 { 0 } else { patches(height) * patches(width) };
    let tokens = latent(frames, formula.stride.max(1).into()) * (u64::from(formula.each) + grid);
    (tokens + u64::from(formula.text)).max(1)
}

/// Latent frames of a causal autoencoder that keeps the first frame and packs the rest.
const fn latent(frames: u64, stride: u64) -> u64 {
    frames.saturating_sub(1) / stride + 1
}

/// Tokens that `model` makes of a clip.
///
/// Generative models take the clip from its start up to the most frames they are trained on, scaled down to their
/// largest area. LLaVA-Video and InternVL take a frame a second, at most 64 and from 8 to 32. VideoMAE, ViViT,
/// TimeSformer and SlowFast take what `transform` keeps.
pub fn tokens(model: Model, facts: &Facts, transform: &Transform) -> u64 {
    let clip = |frames: u64, pixels: u64| {
        let (height, width) = within(u64::from(facts.height), u64::from(facts.width), pixels);
        (u64::from(facts.frames).clamp(1, frames), height, width)
    };
    let seconds = u64::from(facts.duration_ms) / 1000;
    let on = |formula: fn(u64, u64, u64) -> u64, (frames, height, width)| formula(frames, height, width);
    let tokens = match model {
        Model::QwenVl => qwen_vl(facts.duration_ms.into(), facts.height.into(), facts.width.into()),
        Model::Wan21 => on(wan21, clip(81, 720 * 1280)),
        Model::HunyuanVideo => on(hunyuan_video, clip(129, 720 * 1280)),
        Model::OpenSora2 => on(open_sora2, clip(129, 768 * 768)),
        Model::CogVideoX => on(cog_video_x, clip(49, 480 * 720)),
        Model::LtxVideo => on(ltx_video, clip(257, 704 * 1216)),
        Model::LlavaVideo => llava_video(seconds.clamp(1, 64)),
        Model::InternVl => intern_vl(seconds.clamp(8, 32)),
        Model::VideoMae => on(video_mae, kept(facts, transform)),
        Model::Vivit => on(vivit, kept(facts, transform)),
        Model::TimeSformer => time_sformer(kept(facts, transform).0),
        Model::SlowFast => on(slow_fast, kept(facts, transform)),
    };
    tokens.max(1)
}

/// Frames, height and width that a transform keeps of a clip.
fn kept(facts: &Facts, transform: &Transform) -> (u64, u64, u64) {
    transform.extent(facts).map(u64::from).into()
}

/// A size scaled down to at most `pixels` pixels, its aspect ratio kept.
fn within(height: u64, width: u64, pixels: u64) -> (u64, u64) {
    let area = height * width;
    if area <= pixels {
        return (height, width);
    }
    let shrink = (pixels as f64 / area as f64).sqrt();
    ((height as f64 * shrink).round() as u64, (width as f64 * shrink).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_token_counts() {
        assert_eq!(hunyuan_video(129, 720, 1280), 118_800);
        assert_eq!(wan21(81, 480, 832), 32_760);
        assert_eq!(open_sora2(33, 256, 256), 2_304);
        assert_eq!(open_sora2(129, 256, 256), 8_448);
        assert_eq!(cog_video_x(49, 480, 720), 17_550 + 226);
        assert_eq!(ltx_video(121, 480, 704), 16 * 15 * 22);
        assert_eq!(llava_video(1), 210);
        assert_eq!(intern_vl(8), 2_048);
        assert_eq!(video_mae(16, 224, 224), 1_568);
        assert_eq!(vivit(32, 224, 224), 3_136 + 1);
        assert_eq!(time_sformer(8), 8 * 196 + 1);
        assert_eq!(slow_fast(32, 224, 224), (32 + 8) * 224 * 224);
        // A pair of frames at 2 a second takes 128 to 768 tokens; sides are multiples of 28.
        assert_eq!(qwen_vl(10_000, 448, 448), 10 * 16 * 16);
    }

    #[test]
    fn a_users_formula_gives_what_the_built_in_ones_do() {
        let facts = Facts { frames: 129, duration_ms: 5_160, width: 1280, height: 720, ..Facts::default() };
        let t = Transform::default();
        let hunyuan =
            Formula { text: 0, stride: 4, each: 0, patch: 16, most_frames: 129, most_pixels: 720 * 1280, fps: 0.0 };
        assert_eq!(own(&hunyuan, &facts), 118_800);
        assert_eq!(own(&Formula { text: 256, ..hunyuan }, &facts), 118_800 + 256);
        let llava = Formula { stride: 1, each: 210, patch: 0, most_frames: 64, fps: 1.0, ..hunyuan };
        assert_eq!(own(&llava, &facts), tokens(Model::LlavaVideo, &facts, &t));
        assert_eq!(own(&llava, &Facts::default()), 210, "a frame at least");
    }

    #[test]
    fn qwen_stays_within_its_budget_a_frame_pair() {
        let pairs = |ms: u64| (ms * 2 / 1000).clamp(4, 768) / 2;
        for ms in [500, 4_000, 10_000, 33_000, 60_000, 900_000] {
            for (h, w) in [(240, 320), (480, 854), (720, 1280), (2160, 3840), (1280, 720)] {
                let each = qwen_vl(ms, h, w) / pairs(ms);
                assert!((120..=768).contains(&each), "{ms} ms {h}x{w}: {each} tokens a pair");
            }
        }
        // Large frames and a short clip use the whole of it, nearly.
        assert!(qwen_vl(4_000, 1080, 1920) / pairs(4_000) > 700);
        // A clip of five minutes has the least a frame.
        assert!(qwen_vl(300_000, 1080, 1920) / pairs(300_000) <= 163);
    }

    #[test]
    fn smart_resize_keeps_sides_that_fit() {
        assert_eq!(smart_resize(280, 560, 28, 1, 1_000_000), (280, 560));
        assert_eq!(smart_resize(287, 560, 28, 1, 1_000_000), (280, 560));
        let (h, w) = smart_resize(1080, 1920, 28, 128 * 784, 768 * 784);
        assert!(h * w <= 768 * 784 && h % 28 == 0 && w % 28 == 0);
        let (h, w) = smart_resize(64, 64, 28, 128 * 784, 768 * 784);
        assert!(h * w >= 128 * 784);
    }

    #[test]
    fn a_clip_is_cut_to_what_the_model_takes() {
        let facts = Facts { frames: 1800, duration_ms: 60_000, width: 3840, height: 2160, ..Facts::default() };
        let t = Transform::default();
        assert_eq!(tokens(Model::HunyuanVideo, &facts, &t), 118_800);
        assert_eq!(tokens(Model::LlavaVideo, &facts, &t), 60 * 210);
        assert_eq!(tokens(Model::InternVl, &facts, &t), 32 * 256);
        assert_eq!(tokens(Model::VideoMae, &facts, &t), 1_568);
        let short = Facts { frames: 17, ..facts };
        assert_eq!(tokens(Model::Wan21, &short, &t), 5 * 45 * 80);
        for model in [Model::QwenVl, Model::OpenSora2, Model::CogVideoX, Model::LtxVideo] {
            assert!(tokens(model, &Facts::default(), &t) >= 1);
            assert!(tokens(model, &facts, &t) >= tokens(model, &short, &t));
        }
    }
}
