#!/bin/sh
# Our loader in the feed benchmark whose folder is in PEERS, in release; arguments go to python/benchmarks/peers.py.
set -eu
cd "$(dirname "$0")/.."
: "${PEERS:?say where the feed benchmark is: PEERS=folder with e2e.py}"
. ci/python-release.sh
export PEERS
PYTHONPATH=python exec "$target/python/venv/bin/python" python/benchmarks/peers.py "$@"
