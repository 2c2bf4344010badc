//! Descriptors and the manifest that holds them.

pub mod descriptor;
