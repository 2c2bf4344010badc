#!/bin/sh
# The Python package's own costs, in release: the extension and the daemon built so, a manifest as argument, or one of
# the clips that the tests use. Writes target/results/python.json.
set -eu
cd "$(dirname "$0")/.."
target=$PWD/${CARGO_TARGET_DIR:-target}
sh ci/python.sh --collect-only >/dev/null # the environment with torch
CARGO_TARGET_DIR=$target/python cargo build --release --locked --manifest-path python/Cargo.toml
for program in helix helix-shmd; do
    ln -sf "$target/release/$program" "python/helix_shm/bin/$program"
done
ln -sf "$target/python/release/lib_native.so" python/helix_shm/_native.abi3.so
manifest=${1:-}
if [ -z "$manifest" ]; then
    manifest=$target/python/bench.arrow
    "$target/release/helix" index tests/data/hard -o "$manifest" >/dev/null 2>&1 || [ -e "$manifest" ]
fi
PYTHONPATH=python "$target/python/venv/bin/python" python/benchmarks/next_ready.py "$manifest"
