#!/bin/sh
# MindSpore's face, beside a MindSpore from PyPI (its wheel for CPUs has some 780 MB) in an environment of its own.
# Arguments go to pytest.
set -eu
cd "$(dirname "$0")/.."
target=$PWD/${CARGO_TARGET_DIR:-target}
sh ci/python.sh --collect-only >/dev/null # the extension and the programs
venv=$target/python/mindspore
[ -x "$venv/bin/pytest" ] || {
    /usr/bin/python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet 'mindspore>=2.7,<3' 'pytest>=8' 'cloudpickle>=2'
}
export PYTHONPATH="$PWD/python"
cd python/tests
exec "$venv/bin/pytest" -q -ra -p no:cacheprovider mindspore_test.py "$@"
