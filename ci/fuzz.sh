#!/bin/sh
# Every fuzz target for so many seconds (60 by default), as many at once as there are cores. What is found stays in
# fuzz/artifacts. FUZZ_SANITIZER=none needs no cargo-fuzz and builds in a third of the time; then panics, wrong results
# and endless loops are found, which is most of what safe code can do wrong.
set -eu
cd "$(dirname "$0")/.."
FUZZ_SANITIZER=${FUZZ_SANITIZER:-address}
FUZZ_SECONDS=${1:-60}
triple=$(rustc -vV | sed -n 's/^host: //p')
if [ "$FUZZ_SANITIZER" = none ]; then
    # The coverage counters that libFuzzer is guided by; with --target they are not put into build scripts.
    flags="--cfg fuzzing -Cdebug-assertions -Cpasses=sancov-module"
    for pass in level=4 inline-8bit-counters pc-table trace-compares; do
        flags="$flags -Cllvm-args=-sanitizer-coverage-$pass"
    done
    RUSTFLAGS=$flags cargo build --locked --quiet --release --manifest-path fuzz/Cargo.toml --target "$triple"
else
    if ! cargo fuzz --version >/dev/null 2>&1; then
        echo "fuzz: installing cargo-fuzz"
        cargo install cargo-fuzz --locked --quiet
    fi
    # The sanitizers are behind a flag of the nightly compiler; the stable one has them too.
    RUSTC_BOOTSTRAP=1 cargo fuzz build --sanitizer "$FUZZ_SANITIZER" --debug-assertions
fi
export FUZZ_SECONDS programs="fuzz/target/$triple/release"

# New finds go to the first folder, the second holds what is kept.
sed -n 's/^path = "fuzz_targets\/\(.*\)\.rs"$/\1/p' fuzz/Cargo.toml | xargs -P "$(nproc)" -I TARGET sh -c '
    mkdir -p fuzz/target/corpus/TARGET fuzz/artifacts/TARGET
    log=fuzz/target/TARGET.log
    if "$programs/TARGET" -artifact_prefix=fuzz/artifacts/TARGET/ fuzz/target/corpus/TARGET fuzz/corpus/TARGET \
        -max_total_time="$FUZZ_SECONDS" -max_len=65536 -rss_limit_mb=2048 -timeout=20 -print_final_stats=1 \
        >"$log" 2>&1; then
        echo "fuzz: TARGET: $(sed -n "s/^stat::number_of_executed_units: *//p" "$log") inputs, nothing found"
    else
        grep -E "^(==|SUMMARY|thread|artifact)|ERROR|panicked|error" "$log" >&2 || tail -20 "$log" >&2
        echo "fuzz: TARGET found something: fuzz/artifacts/TARGET, $log" >&2
        exit 1
    fi'
