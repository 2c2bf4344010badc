#!/bin/sh
# Processes made to die at every named point and at random instants (CRASH_KILLS of them): nothing is lost, repeated
# or left behind. Writes target/results/crash.json.
set -eu
CRASH_KILLS=${CRASH_KILLS:-1000} cargo test --locked --quiet --features crash-points --test crash
