#!/bin/sh
# All unit and integration tests.
set -eu
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --locked --features tokio "$@"
else
    echo "test: cargo-nextest is not installed, so cargo test runs the tests (slower, no time limit for each)"
    cargo test --locked --features tokio --lib --bins --tests --examples "$@"
fi
