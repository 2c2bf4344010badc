"""Builds the wheel: the programs by cargo, the extension by maturin, both in one cargo profile.

``HELIX_SHM_PROFILE`` is ``release`` unless it says ``dev``. Only wheels are built: the programs come from the checkout
that this folder lies in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import maturin

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent
PROGRAMS = ("helix", "helix-shmd")


def _profile() -> str:
    return os.environ.get("HELIX_SHM_PROFILE", "release")


def _programs() -> None:
    """Puts the programs where maturin takes them from."""
    profile = _profile()
    bins = [part for name in PROGRAMS for part in ("--bin", name)]
    subprocess.run(["cargo", "build", "--locked", "--profile", profile, *bins], cwd=ROOT, check=True)
    target = Path(os.environ.get("HELIX_SHM_ROOT_TARGET", ROOT / "target"))
    folder = HERE / "helix_shm" / "bin"
    folder.mkdir(exist_ok=True)
    for name in PROGRAMS:
        place = folder / name
        place.unlink(missing_ok=True)  # one that runs cannot be written to
        shutil.copy2(target / ("debug" if profile == "dev" else profile) / name, place)
        subprocess.run(["strip", "--strip-debug", place], check=False)  # 170 MB of it in the profile of tests


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517."""
    os.environ.pop("CARGO_TARGET_DIR", None)
    _programs()
    # A folder of its own: features differ, and cargo locks the folder that it builds in.
    os.environ["CARGO_TARGET_DIR"] = str(ROOT / "target" / "python")
    settings = dict(config_settings or {})
    settings.setdefault("build-args", f"--profile {_profile()} --locked")
    return maturin.build_wheel(wheel_directory, settings, metadata_directory)


def get_requires_for_build_wheel(config_settings=None):
    """PEP 517."""
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """PEP 517."""
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_sdist(sdist_directory, config_settings=None):
    """PEP 517."""
    raise RuntimeError("only wheels are built: pip wheel ./python, in a checkout of helix-shm")
