#!/bin/sh
# Every fuzz target for so many seconds (60 by default), as many at once as there are cores. What is found stays in
# fuzz/artifacts. FUZZ_SANITIZER=none builds in a third of the time; then only panics, wrong results and endless loops
# are found, which is most of what safe code can do wrong.
set -eu
cd "$(dirname "$0")/.."
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "fuzz: installing cargo-fuzz"
    cargo install cargo-fuzz --locked --quiet
fi
# The sanitizers and the coverage counters are behind a flag of the nightly compiler; the stable one has them too.
export RUSTC_BOOTSTRAP=1 FUZZ_SANITIZER="${FUZZ_SANITIZER:-address}" FUZZ_SECONDS="${1:-60}"
cargo fuzz build --sanitizer "$FUZZ_SANITIZER" --debug-assertions 2>&1 | grep -E '^(error|warning)|Finished' || true

# New finds go to the first folder, the second holds what is kept.
cargo fuzz list | xargs -P "$(nproc)" -I TARGET sh -c '
    mkdir -p fuzz/target/corpus/TARGET fuzz/corpus/TARGET
    log=fuzz/target/TARGET.log
    if cargo fuzz run --sanitizer "$FUZZ_SANITIZER" --debug-assertions TARGET \
        fuzz/target/corpus/TARGET fuzz/corpus/TARGET -- \
        -max_total_time="$FUZZ_SECONDS" -max_len=65536 -rss_limit_mb=2048 -timeout=20 -print_final_stats=1 \
        >"$log" 2>&1; then
        echo "fuzz: TARGET: $(sed -n "s/^stat::number_of_executed_units: *//p" "$log") inputs, nothing found"
    else
        grep -E "^(==|SUMMARY|thread|artifact)|ERROR|panicked|error" "$log" >&2 || tail -20 "$log" >&2
        echo "fuzz: TARGET found something: fuzz/artifacts/TARGET, $log" >&2
        exit 1
    fi'
