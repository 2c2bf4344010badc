#!/bin/sh
# Installs what a bare Debian 12 lacks to build this. Does nothing, not even ask apt, when all is there.
set -eu

packages="build-essential clang libclang-dev pkg-config libavcodec-dev libavformat-dev libavutil-dev
    libswscale-dev libswresample-dev"

missing=
if command -v dpkg-query >/dev/null; then
    for package in $packages; do
        dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
    done
elif ! pkg-config --exists libavcodec libavformat libavutil libswscale libswresample 2>/dev/null; then
    echo "setup: this is no Debian; install FFmpeg's development files, clang and pkg-config, then try again" >&2
    exit 1
fi

if [ -n "$missing" ]; then
    as_root=
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "setup: missing packages; as root run: apt-get install --no-install-recommends$missing" >&2
            exit 1
        fi
        as_root=sudo
    fi
    echo "setup: installing$missing"
    $as_root apt-get update -qq
    # shellcheck disable=SC2086 # one word a package
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

if ! command -v cargo >/dev/null && [ ! -x "$HOME/.cargo/bin/cargo" ]; then
    echo "setup: cargo is missing; install Rust from https://rustup.rs (Debian 12's own is too old), then try again" >&2
    exit 1
fi
