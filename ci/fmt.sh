#!/bin/sh
# The code is formatted.
set -eu
cargo fmt --all -- --check
cargo fmt --manifest-path performance-comparison/Cargo.toml -- --check
cargo fmt --manifest-path python/Cargo.toml -- --check
