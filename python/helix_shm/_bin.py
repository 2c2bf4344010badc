"""The programs that the wheel carries: ``helix`` and ``helix-shmd``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "bin"


def program(name: str) -> str | None:
    """Path of a program in the wheel; ``None`` where the package was built without."""
    path = FOLDER / name
    return str(path) if os.access(path, os.X_OK) else None


def _run(name: str) -> None:
    path = program(name)
    if path is None:
        sys.exit(f"{name} is not in {FOLDER}: this helix-shm was built without its programs")
    os.execv(path, [name, *sys.argv[1:]])


def helix() -> None:
    """The command ``helix``."""
    _run("helix")


def helix_shmd() -> None:
    """The command ``helix-shmd``."""
    _run("helix-shmd")
