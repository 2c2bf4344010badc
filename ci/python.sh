#!/bin/sh
# The Python package: built as a wheel in the profile of tests, installed beside Debian's torch, its tests run.
# Arguments go to pytest.
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
venv=$PWD/target/python/venv
# Debian's torch is built for Debian's python, whatever other one comes first in PATH.
[ -x "$venv/bin/pytest" ] || {
    /usr/bin/python3 -m venv --system-site-packages "$venv"
    "$venv/bin/pip" install --quiet 'maturin>=1.9,<2' 'pytest>=8' cloudpickle tqdm
}
# pip finds the build tools of this environment in PATH.
PATH=$venv/bin:$PATH HELIX_SHM_PROFILE=${HELIX_SHM_PROFILE:-dev} "$venv/bin/pip" install --quiet --no-build-isolation --no-deps \
    --force-reinstall ./python
# From a folder without the sources, so that what is tested is what was installed.
cd python/tests
exec "$venv/bin/pytest" -c ../pyproject.toml --rootdir . "$@"
