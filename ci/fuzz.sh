#!/bin/sh
# Every fuzz target for so many seconds (60 by default). What is found stays in fuzz/artifacts.
set -eu
cd "$(dirname "$0")/.."
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "fuzz: installing cargo-fuzz"
    cargo install cargo-fuzz --locked --quiet
fi
# The sanitizers are behind a flag of the nightly compiler; the stable one has them too.
export RUSTC_BOOTSTRAP=1
seconds=${1:-60}
for target in $(cargo fuzz list); do
    echo "fuzz: $target for $seconds s"
    # New finds go to the first folder, the second holds what is kept.
    mkdir -p "fuzz/target/corpus/$target" "fuzz/corpus/$target"
    cargo fuzz run "$target" "fuzz/target/corpus/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=2048 -print_final_stats=1 2>&1 |
        grep -E '^(==|stat::number|stat::peak|SUMMARY|thread|artifact)|ERROR|panicked' || true
    if ls fuzz/artifacts/"$target"/* >/dev/null 2>&1; then
        echo "fuzz: $target found something: fuzz/artifacts/$target" >&2
        exit 1
    fi
done
