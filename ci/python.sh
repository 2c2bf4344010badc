#!/bin/sh
# The Python package in the profile of tests, beside Debian's torch, and its tests. `--wheel` installs it as pip does,
# from a wheel; without, the sources are used where they lie. Other arguments go to pytest.
set -eu
cd "$(dirname "$0")/.."
packages="python3-torch python3-venv python3-pip"
missing=
for package in $packages; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done
if [ -n "$missing" ]; then
    echo "python: installing$missing"
    as_root=
    [ "$(id -u)" -eq 0 ] || as_root=sudo
    $as_root apt-get update -qq
    # shellcheck disable=SC2086 # one word a package
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
target=$PWD/${CARGO_TARGET_DIR:-target}
venv=$target/python/venv
# Debian's torch is built for Debian's python, whatever other one comes first in PATH.
[ -x "$venv/bin/pytest" ] || {
    /usr/bin/python3 -m venv --system-site-packages "$venv"
    "$venv/bin/pip" install --quiet 'maturin>=1.9,<2' 'pytest>=8' 'cloudpickle>=2' tqdm
}
if [ "${1:-}" = --wheel ]; then
    shift
    # pip finds the build tools of this environment in PATH.
    PATH=$venv/bin:$PATH HELIX_SHM_PROFILE=dev "$venv/bin/pip" install --quiet --no-build-isolation --no-deps \
        --force-reinstall ./python
else
    "$venv/bin/pip" uninstall --quiet --yes helix-shm 2>/dev/null || true
    cargo build --locked --bins
    CARGO_TARGET_DIR=$target/python cargo build --locked --manifest-path python/Cargo.toml
    mkdir -p python/helix_shm/bin
    for program in helix helix-shmd; do
        ln -sf "$target/debug/$program" "python/helix_shm/bin/$program"
    done
    ln -sf "$target/python/debug/lib_native.so" python/helix_shm/_native.abi3.so
    export PYTHONPATH="$PWD/python"
fi
# From a folder without the sources, so that what was installed is what is tested.
cd python/tests
exec "$venv/bin/pytest" -q -ra -p no:cacheprovider "$@"
