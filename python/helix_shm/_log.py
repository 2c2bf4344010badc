"""What the native client says goes to the logger ``helix_shm``."""

from __future__ import annotations

import logging

from . import _native

logger = logging.getLogger("helix_shm")

KEPT = (
    "more than {kept} batches are kept, and the slab holds {depth}: those that come now are copied out of it. Let go of "
    "batches (tensors made of them count), or give the loader a larger `budget` or `keep`"
)


def pass_on() -> None:
    """Hands the lines that wait to ``logging``."""
    for level, target, text in _native.take_log():
        if "failed in stage `size`" in text:
            continue  # a batch of a Python dataset that is asked for again, with more room
        name = target.replace("::", ".")
        logging.getLogger(name if name.startswith("helix_shm") else f"helix_shm.{name}").log(level, "%s", text)


def said_once(said: set[str], text: str) -> None:
    """Warns, the first time that this set sees the text."""
    if text not in said:
        said.add(text)
        logger.warning("%s", text)
