#!/bin/sh
# Mutated media files (MEDIA_MUTANTS of them) through real daemons, workers and ranks, and memory over MEDIA_SAMPLES good
# ones. Writes target/results/media.json; what cost a worker its life, memory or time is kept in target/tmp/media-finds.
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
export MEDIA_MUTANTS="${MEDIA_MUTANTS:-20000}" MEDIA_SAMPLES="${MEDIA_SAMPLES:-100000}"
export MEDIA_RESULTS="${MEDIA_RESULTS:-$target/results/media.json}" HELIX_SHM_LOG="${HELIX_SHM_LOG:-error}"
cargo test --locked --quiet --release --test media -- --nocapture --test-threads=1
