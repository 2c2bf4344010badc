#!/bin/sh
# The code is formatted.
set -eu
cargo fmt --all -- --check
