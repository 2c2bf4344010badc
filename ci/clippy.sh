#!/bin/sh
# No warning anywhere, with and without what needs FFmpeg.
set -eu
cargo clippy --locked --all-targets --features tokio -- -D warnings
cargo clippy --locked --no-default-features --lib -- -D warnings
