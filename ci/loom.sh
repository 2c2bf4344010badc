#!/bin/sh
# Runs every loom model, then every mutant: each ordering and fence that src/ring names, weakened in turn, a lease that
# its first holder lets go, and an heir that trusts the wake-up which a dead producer claimed. A mutant is caught when a model fails. Writes target/results/loom.json.
set -eu
cd "$(dirname "$0")/.."
export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-3}" RUST_BACKTRACE=0
models="loom_ring loom_bell"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

run() { # run MODEL_FILE [ARGUMENT…]
    file=$1
    shift
    cargo test --quiet --no-default-features --features loom --test "$file" -- "$@"
}

count=0
failed=0
for file in $models; do
    count=$((count + $(run "$file" --list | grep -c ': test$')))
    run "$file" || failed=$((failed + 1))
done

# A name that spans a line break would be missed, and rustfmt keeps these calls on one line.
mutants="lease.first heir.ring $(grep -rhoE '(point|fence|fence_after_rmw)\("[a-z._]+"' src/ring | sed 's/.*"\(.*\)"/\1/' | sort -u)"
total=0
caught=0
for mutant in $mutants; do
    total=$((total + 1))
    # The likelier catcher first; one is enough.
    case $mutant in
    push.* | pop.* | lease.*) order="loom_ring loom_bell" ;;
    *) order="loom_bell loom_ring" ;;
    esac
    by=
    for file in $order; do
        if ! HELIX_MUTANT=$mutant run "$file" >"$log" 2>&1 && grep -q '^test result: FAILED' "$log"; then
            by=$file
            break
        fi
    done
    if [ -n "$by" ]; then
        caught=$((caught + 1))
        echo "mutant $mutant: caught by $by"
    else
        echo "mutant $mutant: NOT CAUGHT" >&2
    fi
done

holds() { [ "$1" -eq "$2" ] && echo true || echo false; }
row() { # row NAME VALUE TARGET HOLDS
    printf '{"name": "%s", "value": %s, "unit": "", "target": "%s", "holds": %s, "command": "make loom"}' "$@"
}
mkdir -p target/results
{
    echo "[$(row loom.models "$count" 'all pass' "$(holds "$failed" 0)"),"
    echo " $(row loom.mutants "$total" '>= 8' "$([ "$total" -ge 8 ] && echo true || echo false)"),"
    echo " $(row loom.mutants_caught "$caught" "== $total" "$(holds "$caught" "$total")")]"
} >target/results/loom.json
echo "$count models ($failed files failed), $caught of $total mutants caught"
[ "$failed" -eq 0 ] && [ "$caught" -eq "$total" ]
