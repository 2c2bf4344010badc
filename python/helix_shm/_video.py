"""From a clip, or a picture, to numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._audio import Audio

_DTYPES = {"uint8": "u8", "float16": "f16", "bfloat16": "bf16", "float32": "f32"}
_FILTERS = ("bilinear", "bicubic", "area")
_LAYOUTS = ("TCHW", "THWC", "CTHW")
_CROPS = (None, "center", "random", "random_resized")
_CHANGES = ("brightness", "contrast", "saturation", "hue")

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def _one_of(name: str, value: Any, wanted: Sequence[Any]) -> Any:
    if value not in wanted:
        *most, last = (repr(w) for w in wanted)
        raise ValueError(f"{name} is {value!r}; wanted {', '.join(most)} or {last}")
    return value


def _pair(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    if len(value) != 2:
        raise ValueError(f"{name} is {value!r}; wanted pixels of a square, or (height, width)")
    return int(value[0]), int(value[1])


def _numbers(
    layout: str, dtype: Any, mean: Sequence[float], std: Sequence[float], resize: str, jitter: Any
) -> dict[str, Any]:
    name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    changes = jitter if isinstance(jitter, dict) else dict(zip(_CHANGES, jitter, strict=False))
    for change in changes:
        _one_of("a key of jitter", change, _CHANGES)
    return {
        "filter": _one_of("resize", resize, _FILTERS),
        "layout": _one_of("layout", layout, _LAYOUTS),
        "dtype": _DTYPES[_one_of("dtype", name, tuple(_DTYPES))],
        "mean": [float(v) for v in mean],
        "std": [float(v) for v in std],
        "colour": {change: float(most) for change, most in changes.items()},
    }


@dataclass(frozen=True)
class Video:
    """What becomes of each clip. Everything random is keyed by seed, epoch and sample.

    **Which frames.** ``frames`` of them: the middles of equal parts of the clip; with ``stride`` so many frames
    apart; with ``fps`` what is shown so many times a second; ``indices`` or ``times`` (seconds) name each one, and
    a clip that does not have them is a bad sample. ``stride`` and ``fps`` begin at a random place where all fits,
    or at ``start``: a frame's number, or seconds. ``time_jitter`` (0 to 1) moves frames within their equal parts,
    or around the times of ``fps``. A clip that is too short repeats its last frame.

    **Their size.** ``size`` is that of the output: pixels of a square, or ``(height, width)``. Without ``crop``
    frames are resized to it exactly. With ``crop="center"`` or ``"random"`` their shorter side is resized to
    ``short_side`` (by default as small as ``size`` allows) and the output is cut out. With
    ``crop="random_resized"`` a part of the frame, its area and aspect ratio within ``scale`` and ``ratio``, is
    resized to ``size``. ``size=None`` with ``short_side`` keeps each clip's aspect ratio, so that the samples of a
    batch differ in shape. ``resize`` is the filter: ``"bilinear"``, ``"bicubic"`` or ``"area"``, all with
    antialias.

    **Their colours.** ``flip`` is the probability of a horizontal flip. ``jitter`` says how far the factors of
    brightness, contrast, saturation and hue may be from 1 (hue: 0), in this order or by name; they are the same for
    all frames of a clip. The numbers are bytes for ``dtype="uint8"``; for ``"float32"``, ``"float16"`` and
    ``"bfloat16"`` they are ``(v / 255 - mean) / std``.

    **Their sound.** ``audio`` adds the sound of the frames' time.
    """

    frames: int = 16
    size: int | Sequence[int] | None = 224
    crop: str | None = None
    layout: str = "TCHW"
    dtype: Any = "uint8"
    short_side: int | None = None
    resize: str = "bilinear"
    fps: float | None = None
    stride: int | None = None
    start: float | None = None
    indices: Sequence[int] | None = None
    times: Sequence[float] | None = None
    time_jitter: float = 0.0
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    jitter: Sequence[float] | dict[str, float] = ()
    mean: Sequence[float] = (0.0, 0.0, 0.0)
    std: Sequence[float] = (1.0, 1.0, 1.0)
    audio: Audio | None = None

    def transform(self) -> dict[str, Any]:
        """The same, as the native side takes it."""
        resize, crop = self._size()
        named = self.indices if self.indices is not None else self.times
        return {
            "frames": self.frames if named is None else len(named),
            "sampling": self._sampling(),
            "resize": resize,
            "crop": crop,
            "flip": float(self.flip),
            **_numbers(self.layout, self.dtype, self.mean, self.std, self.resize, self.jitter),
            **({"audio": self.audio.audio()} if self.audio is not None else {}),
        }

    def _sampling(self) -> Any:
        ways = ("fps", "stride", "indices", "times")
        given = [way for way in ways if getattr(self, way) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given; wanted one of {', '.join(ways)}, or none")
        way = given[0] if given else "uniform"
        if self.start is not None and way not in ("fps", "stride"):
            raise ValueError("start goes with fps or stride")
        if self.time_jitter and way not in ("fps", "uniform"):
            raise ValueError(f"time_jitter goes with fps or with equal parts, not with {way}")
        if self.fps is not None:
            start = "random" if self.start is None else {"at": {"ms": round(self.start * 1000)}}
            return {"fps": {"fps": float(self.fps), "start": start, "jitter": float(self.time_jitter)}}
        if self.stride is not None:
            if self.start is None:
                return {"random_window": {"stride": self.stride}}
            return {"window": {"start": int(self.start), "stride": self.stride}}
        if self.indices is not None:
            return {"indices": {"at": [int(i) for i in self.indices]}}
        if self.times is not None:
            return {"times": {"us": [round(t * 1_000_000) for t in self.times]}}
        return {"jittered": {"part": float(self.time_jitter)}} if self.time_jitter else "uniform"

    def _size(self) -> tuple[dict[str, Any], Any]:
        _one_of("crop", self.crop, _CROPS)
        if self.size is None:
            if self.short_side is None or self.crop is not None:
                raise ValueError("size=None keeps the aspect ratio: it needs short_side and takes no crop")
            return {"short_side": {"pixels": self.short_side}}, "none"
        height, width = _pair("size", self.size)
        exact = {"width": width, "height": height}
        if self.crop in ("center", "random"):
            return {"short_side": {"pixels": self.short_side or max(height, width)}}, {self.crop: exact}
        if self.short_side is not None:
            raise ValueError('short_side goes with crop="center" or "random", or with size=None')
        if self.crop is None:
            return {"exact": exact}, "none"
        part = {"scale": [float(v) for v in self.scale], "ratio": [float(v) for v in self.ratio]}
        return {"exact": exact}, {"random_resized": {**exact, **part}}


@dataclass(frozen=True)
class Image:
    """What becomes of each picture: a clip of one frame, upright as its EXIF orientation says.

    ``size`` is that of the output, for pictures of any shape: pixels of a square, or ``(height, width)``.
    :meth:`qwen2_vl` and :meth:`intern_vl` prepare pictures as those models do; their samples differ in shape, which
    follows from a picture's height and width alone. ``resize``, ``flip``, ``jitter``, ``mean``, ``std``, ``dtype``
    and ``layout`` are those of :class:`Video`.
    """

    size: int | Sequence[int] = 224
    resize: str = "bicubic"
    flip: float = 0.0
    jitter: Sequence[float] | dict[str, float] = ()
    mean: Sequence[float] = (0.0, 0.0, 0.0)
    std: Sequence[float] = (1.0, 1.0, 1.0)
    dtype: Any = "uint8"
    layout: str = "TCHW"
    sides: dict[str, Any] | None = None

    @classmethod
    def qwen2_vl(
        cls,
        min_pixels: int = 56 * 56,
        max_pixels: int = 14 * 14 * 4 * 1280,
        factor: int = 28,
        dtype: Any = "float32",
        **others: Any,
    ) -> Image:
        """Sides that are multiples of ``factor``, an area from ``min_pixels`` to ``max_pixels``, the aspect ratio
        nearly kept: ``smart_resize`` of Qwen2-VL and its successors. Shape ``(1, 3, height, width)``."""
        mean, std = _CLIP
        sides = {"smart": {"unit": factor, "least": min_pixels, "most": max_pixels}}
        return cls(**{"mean": mean, "std": std, **others}, dtype=dtype, sides=sides)

    @classmethod
    def intern_vl(
        cls, tiles: int = 12, thumbnail: bool = True, side: int = 448, dtype: Any = "float32", **others: Any
    ) -> Image:
        """At most ``tiles`` square tiles of the grid whose aspect ratio is nearest, row by row, then the whole
        picture as small as a tile: ``dynamic_preprocess`` of InternVL. Shape ``(tiles, 3, side, side)``."""
        mean, std = _IMAGENET
        sides = {"tiles": {"side": side, "most": tiles, "thumbnail": thumbnail}}
        return cls(**{"mean": mean, "std": std, **others}, dtype=dtype, sides=sides)

    def transform(self) -> dict[str, Any]:
        """The same, as the native side takes it."""
        height, width = _pair("size", self.size)
        return {
            "frames": 1,
            "resize": self.sides or {"exact": {"width": width, "height": height}},
            "flip": float(self.flip),
            **_numbers(self.layout, self.dtype, self.mean, self.std, self.resize, self.jitter),
        }
