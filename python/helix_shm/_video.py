"""From a clip to numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._audio import Audio

_DTYPES = {"uint8": "u8", "float32": "f32"}


@dataclass(frozen=True)
class Video:
    """What becomes of each clip.

    ``size`` is that of the output: pixels of a square, or ``(height, width)``. Without ``crop`` frames are resized to
    it exactly; with ``crop="center"`` or ``"random"`` their shorter side is resized to ``resize`` (by default as
    small as ``size`` allows) and the output is cut out. ``size=None`` with ``resize`` keeps each clip's aspect ratio, so
    that the samples of a batch differ in shape. With ``sampling="uniform"`` the frames are the middles of equal parts
    of the clip, with ``"window"`` consecutive ones ``stride`` apart from a random start. ``flip`` is the probability of
    a horizontal flip. Everything random is keyed by seed, epoch and sample. Of ``dtype="float32"`` the numbers are
    ``(v / 255 - mean) / std``. ``audio`` adds the sound of the frames' time.
    """

    frames: int = 16
    size: int | Sequence[int] | None = 224
    crop: str | None = None
    layout: str = "TCHW"
    dtype: Any = "uint8"
    resize: int | None = None
    sampling: str = "uniform"
    stride: int = 1
    flip: float = 0.0
    mean: Sequence[float] = (0.0, 0.0, 0.0)
    std: Sequence[float] = (1.0, 1.0, 1.0)
    audio: Audio | None = None

    def transform(self) -> dict[str, Any]:
        """The same, as the native side takes it."""
        if self.crop not in (None, "center", "random"):
            raise ValueError(f"crop is {self.crop!r}; wanted None, 'center' or 'random'")
        if self.sampling not in ("uniform", "window"):
            raise ValueError(f"sampling is {self.sampling!r}; wanted 'uniform' or 'window'")
        if self.layout not in ("TCHW", "THWC"):
            raise ValueError(f"layout is {self.layout!r}; wanted 'TCHW' or 'THWC'")
        dtype = str(getattr(self.dtype, "name", self.dtype)).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}; wanted 'uint8' or 'float32'")
        resize: dict[str, Any]
        crop: Any = "none"
        if self.size is None:
            if self.resize is None or self.crop is not None:
                raise ValueError("size=None keeps the aspect ratio: it needs `resize` and takes no `crop`")
            resize = {"short_side": {"pixels": self.resize}}
        else:
            height, width = (self.size, self.size) if isinstance(self.size, int) else tuple(self.size)
            if self.crop is None:
                if self.resize is not None:
                    raise ValueError("resize goes with crop, or with size=None")
                resize = {"exact": {"width": width, "height": height}}
            else:
                resize = {"short_side": {"pixels": self.resize or max(height, width)}}
                crop = {self.crop: {"width": width, "height": height}}
        window = {"random_window": {"stride": self.stride}}
        return {
            "frames": self.frames,
            "sampling": "uniform" if self.sampling == "uniform" else window,
            "resize": resize,
            "crop": crop,
            "flip": float(self.flip),
            "layout": self.layout,
            "dtype": _DTYPES[dtype],
            "mean": [float(v) for v in self.mean],
            "std": [float(v) for v in self.std],
            **({"audio": self.audio.audio()} if self.audio is not None else {}),
        }
