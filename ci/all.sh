#!/bin/sh
# Every check, each timed; all run even if one fails, and the last lines say which did.
set -u
cd "$(dirname "$0")/.."
failed=
for check in fmt words clippy client-only docs test python loom crash; do
    script=ci/$check.sh
    if [ ! -e "$script" ]; then
        echo "== $check: no such check in this tree"
        continue
    fi
    echo "== $check"
    start=$(date +%s)
    sh "$script" || failed="$failed $check"
    echo "== $check: $(($(date +%s) - start)) s"
done
if [ -n "$failed" ]; then
    echo "failed:$failed (run one alone: sh ci/NAME.sh)" >&2
    exit 1
fi
echo "all checks passed"
