#!/bin/sh
# The documentation builds without a warning and its examples run.
set -eu
RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items
cargo test --locked --doc
