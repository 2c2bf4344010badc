"""What the native client says goes to the logger ``helix_shm``."""

from __future__ import annotations

import logging

from . import _native

logger = logging.getLogger("helix_shm")


def pass_on() -> None:
    """Hands the lines that wait to ``logging``."""
    for level, target, text in _native.take_log():
        name = target.replace("::", ".")
        logging.getLogger(name if name.startswith("helix_shm") else f"helix_shm.{name}").log(level, "%s", text)


def said_once(said: set[str], text: str) -> None:
    """Warns, the first time that this set sees the text."""
    if text not in said:
        said.add(text)
        logger.warning("%s", text)
