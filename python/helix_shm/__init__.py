"""helix-shm: video is decoded once, straight into the shared memory of the rank that needs it.

``helix_shm.torch.DataLoader`` takes the place of torch's, ``helix_shm.Loader`` gives NumPy arrays. Importing this
package needs neither torch nor NumPy nor an accelerator.
"""

from __future__ import annotations

import os as _os

from . import cost
from ._batch import Batch
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
from ._numpy import Loader
from ._video import Image, Video

__all__ = [
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


def open(path: str | _os.PathLike[str]) -> Manifest:
    """Opens a manifest that ``helix index`` made: a sequence of the samples that can be delivered."""
    return Manifest(_os.fspath(path))
