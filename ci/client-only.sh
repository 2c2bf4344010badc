#!/bin/sh
# A trainer that only links the client builds without FFmpeg: no package of the daemon's is in its tree.
set -eu
cargo build --locked --no-default-features --lib
tree=$(cargo tree --locked --no-default-features --edges normal --prefix none)
if echo "$tree" | grep -E '^(ffmpeg|io-uring|clap|indicatif|landlock|seccompiler)'; then
    echo "client-only: the packages above belong behind the feature \`decode\`" >&2
    exit 1
fi
