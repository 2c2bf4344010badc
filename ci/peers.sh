#!/bin/sh
# Our loader in the feed benchmark whose folder is in PEERS, in release; arguments go to python/benchmarks/peers.py.
set -eu
cd "$(dirname "$0")/.."
: "${PEERS:?say where the feed benchmark is: PEERS=folder with e2e.py}"
target=$PWD/${CARGO_TARGET_DIR:-target}
sh ci/python.sh --collect-only >/dev/null # the environment with torch
CARGO_TARGET_DIR=$target/python cargo build --release --locked --manifest-path python/Cargo.toml
for program in helix helix-shmd; do
    ln -sf "$target/release/$program" "python/helix_shm/bin/$program"
done
ln -sf "$target/python/release/lib_native.so" python/helix_shm/_native.abi3.so
export PEERS
PYTHONPATH=python exec "$target/python/venv/bin/python" python/benchmarks/peers.py "$@"
