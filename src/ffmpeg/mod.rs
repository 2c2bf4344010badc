//! What all who call FFmpeg share, because FFmpeg has one of it for the whole process.
//!
//! Only [`log`]: whoever probes and whoever decodes hear FFmpeg's complaints through the same callback. The room knows
//! nothing of ours and must not; each user keeps its own safe types.

pub(crate) mod log;
