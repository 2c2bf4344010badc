"""What a sample costs the rank that receives it: the quantity that ``balance`` evens out.

It is computed from what is known before decoding, so that the deal is the same in every run. Each model has its token
formula built in; ``quadratic`` weighs attention: a sample of ``s`` tokens costs ``s + quadratic * s**2``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cost:
    """A cost model, as the scheduler takes it."""

    profile: Any

    def __repr__(self) -> str:
        return f"Cost({self.profile!r})"


def equal() -> Cost:
    """Every sample costs the same: nothing to be evened out."""
    return Cost("equal")


def decode() -> Cost:
    """In proportion to the time that decoding takes."""
    return Cost("decode")


def tokens(model: str, quadratic: float = 0.0) -> Cost:
    """By the tokens that a model makes of a sample; ``model`` is the name of one of the functions below."""
    return Cost({"tokens": {"model": model, "quadratic": float(quadratic)}})


def qwen_vl(quadratic: float = 0.0) -> Cost:
    """Qwen2-VL and Qwen2.5-VL, by duration and size."""
    return tokens("qwen_vl", quadratic)


def wan21(quadratic: float = 0.0) -> Cost:
    """Wan2.1, by frames and size."""
    return tokens("wan21", quadratic)


def hunyuan_video(quadratic: float = 0.0) -> Cost:
    """HunyuanVideo, by frames and size."""
    return tokens("hunyuan_video", quadratic)


def open_sora2(quadratic: float = 0.0) -> Cost:
    """Open-Sora 2.0, by frames and size."""
    return tokens("open_sora2", quadratic)


def cog_video_x(quadratic: float = 0.0) -> Cost:
    """CogVideoX, by frames and size."""
    return tokens("cog_video_x", quadratic)


def ltx_video(quadratic: float = 0.0) -> Cost:
    """LTX-Video, by frames and size."""
    return tokens("ltx_video", quadratic)


def llava_video(quadratic: float = 0.0) -> Cost:
    """LLaVA-Video, by frames."""
    return tokens("llava_video", quadratic)


def intern_vl(quadratic: float = 0.0) -> Cost:
    """InternVL, by frames."""
    return tokens("intern_vl", quadratic)


def video_mae(quadratic: float = 0.0) -> Cost:
    """VideoMAE, by frames kept and size kept."""
    return tokens("video_mae", quadratic)


def of(value: Any) -> Cost:
    """A cost from what a user may write: a ``Cost``, ``"equal"``, ``"decode"`` or the name of a model."""
    if isinstance(value, Cost):
        return value
    if value in ("equal", "decode"):
        return Cost(value)
    if isinstance(value, str):
        return tokens(value)
    raise ValueError(f"cost is {value!r}; wanted one of helix_shm.cost, or the name of one")
