# To be sourced in the repository's root: the Python package in release, where the sources lie. Sets `target`.
target=$PWD/${CARGO_TARGET_DIR:-target}
sh ci/python.sh --collect-only >/dev/null # the environment with torch
CARGO_TARGET_DIR=$target/python cargo build --release --locked --manifest-path python/Cargo.toml
for program in helix helix-shmd; do
    ln -sf "$target/release/$program" "python/helix_shm/bin/$program"
done
ln -sf "$target/python/release/lib_native.so" python/helix_shm/_native.abi3.so
