"""helix-shm: video is decoded once, straight into the shared memory of the rank that needs it.

``helix_shm.torch.DataLoader`` takes the place of torch's, ``helix_shm.Loader`` gives NumPy arrays. Importing this
package needs neither torch nor NumPy nor an accelerator.
"""

from __future__ import annotations

import importlib as _importlib
import os as _os
from typing import TYPE_CHECKING, Any

from ._native import (
    BadSampleError,
    DaemonError,
    ForkedError,
    HelixError,
    Manifest,
    RankDiedError,
    TimeoutError,
    __version__,
)

if TYPE_CHECKING:
    from . import cost
    from ._audio import Audio
    from ._batch import Batch
    from ._numpy import Loader
    from ._video import Image, Video

__all__ = [
    "Audio",
    "BadSampleError",
    "Batch",
    "DaemonError",
    "ForkedError",
    "HelixError",
    "Image",
    "Loader",
    "Manifest",
    "RankDiedError",
    "TimeoutError",
    "Video",
    "__version__",
    "cost",
    "open",
]

#: Where the rest is. It is imported when it is asked for: a job starts a worker a core, and none of them needs it.
_PLACES = {"Audio": "._audio", "Batch": "._batch", "Loader": "._numpy", "Image": "._video", "Video": "._video"}


def __getattr__(name: str) -> Any:
    if name == "cost":
        return _importlib.import_module(".cost", __name__)
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_importlib.import_module(_PLACES[name], __name__), name)
    return value


def open(path: str | _os.PathLike[str]) -> Manifest:
    """Opens a manifest that ``helix index`` made: a sequence of the samples that can be delivered."""
    return Manifest(_os.fspath(path))
