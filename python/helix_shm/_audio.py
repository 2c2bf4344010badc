"""From a file's sound to numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_NUMBERS = {"float32": "f32", "int16": "i16"}


@dataclass(frozen=True)
class Audio:
    """What becomes of the sound of each sample.

    It is resampled to ``rate`` and mixed to ``channels``, 1 or 2. Beside video it is the sound of the time that the
    frames cover: of the whole clip under ``sampling="uniform"``, else of the window. ``seconds`` is the most that there
    is room for; what is longer is cut. ``batch["audio"]`` is one tensor ``[samples, channels, seconds * rate]`` in which
    silence follows what is shorter, and ``batch.audio_lengths`` says how long each is. A file without sound is a bad
    sample, with ``missing="silence"`` it is silent and ``batch.audio_present`` says so.
    """

    rate: int = 16000
    channels: int = 1
    seconds: float = 10.0
    dtype: Any = "float32"
    missing: str = "error"

    def audio(self) -> dict[str, Any]:
        """The same, as the native side takes it."""
        dtype = str(getattr(self.dtype, "name", self.dtype)).removeprefix("torch.")
        if dtype not in _NUMBERS:
            raise ValueError(f"dtype is {self.dtype!r}; wanted 'float32' or 'int16'")
        if self.missing not in ("error", "silence"):
            raise ValueError(f"missing is {self.missing!r}; wanted 'error' or 'silence'")
        if self.channels not in (1, 2):
            raise ValueError(f"channels is {self.channels!r}; wanted 1 or 2")
        return {
            "rate": self.rate,
            "channels": self.channels,
            "number": _NUMBERS[dtype],
            "max_ms": round(self.seconds * 1000),
            "missing": self.missing,
        }

    def transform(self) -> dict[str, Any]:
        """As a transform of its own, of samples that are sound alone."""
        return {
            "frames": 1,
            "layout": "SOUND",
            "resize": {"exact": {"width": 1, "height": 1}},
            "audio": self.audio(),
        }
