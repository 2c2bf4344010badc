#!/bin/sh
# The Python package's own costs, in release: the extension and the daemon built so, a manifest as argument, or one of
# the clips that the tests use. Writes target/results/python.json.
set -eu
cd "$(dirname "$0")/.."
. ci/python-release.sh
manifest=${1:-}
if [ -z "$manifest" ]; then
    manifest=$target/python/bench.arrow
    "$target/release/helix" index tests/data/hard -o "$manifest" >/dev/null 2>&1 || [ -e "$manifest" ]
fi
PYTHONPATH=python "$target/python/venv/bin/python" python/benchmarks/next_ready.py "$manifest"
