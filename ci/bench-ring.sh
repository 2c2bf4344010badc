#!/bin/sh
# The ring beside its peers, in a crate of its own so that they are no dependencies of ours; writes
# target/results/ring.json and client.json. Arguments go to the comparison, e.g. `--seconds 30`.
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --release --locked --manifest-path performance-comparison/Cargo.toml \
    --target-dir "$target/performance-comparison"
"$target/performance-comparison/release/performance-comparison" "$@"
# What a rank pays for a batch that is ready, from the benchmark that measures nothing but that.
cargo bench --quiet --locked --no-default-features --bench client -- "ready batch"
