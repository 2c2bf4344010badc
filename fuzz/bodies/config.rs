//! Any bytes as a configuration: one that can be used, or an error that names the file.

use std::path::Path;

use helix_shm::daemon::config::Config;

/// One input.
pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(error) = Config::parse(text, Path::new("fuzz.toml")) {
        assert!(error.to_string().contains("fuzz.toml"), "{error}");
    }
}
