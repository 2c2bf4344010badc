"""Samples that lie in the slab, put together to a batch where they lie.

The regions of a batch lie side by side and are of one size, so arrays of one shape are equally far apart: a view with
that distance as its first stride is the batch. Where it cannot be, samples are stacked, and the bytes are counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any


def spaced(arrays: Sequence[Any]) -> Any:
    """NumPy arrays of one shape as one array over their own memory, or ``None`` where they are not equally far apart."""
    import numpy as np

    first = arrays[0]
    shape, dtype = first.shape, first.dtype
    if dtype.hasobject or not all(a.shape == shape and a.dtype == dtype and a.flags.c_contiguous for a in arrays):
        return None
    places = [a.__array_interface__["data"][0] for a in arrays]
    step = places[1] - places[0] if len(places) > 1 else max(first.nbytes, 1)
    if step < first.nbytes or any(b - a != step for a, b in zip(places, places[1:])):
        return None
    # Those of one batch are in one block of memory, which the first of them keeps alive.
    return np.lib.stride_tricks.as_strided(first, (len(arrays), *shape), (step, *first.strides))


class Collate:
    """Puts samples together as torch's ``default_collate`` does, or for NumPy, without a copy where that can be."""

    def __init__(self, leaf: Callable[[list[Any]], Any], torch: bool) -> None:
        self._leaf, self._torch = leaf, torch
        #: Bytes that were copied.
        self.copied = 0

    def __call__(self, samples: list[Any]) -> Any:
        first = samples[0]
        kind = type(first)
        if kind is dict and all(type(s) is dict and s.keys() == first.keys() for s in samples):
            return {key: self([s[key] for s in samples]) for key in first}
        if kind in (tuple, list) and all(type(s) is kind and len(s) == len(first) for s in samples):
            # As torch has it: a tuple becomes a list.
            return [self(list(column)) for column in zip(*samples)]
        numpy = sys.modules.get("numpy")
        if numpy is not None and kind is numpy.ndarray and all(type(s) is kind for s in samples):
            return self._arrays(samples)
        torch = sys.modules.get("torch")
        if torch is not None and kind is torch.Tensor and all(type(s) is kind for s in samples):
            return self._tensors(torch, samples)
        return self._leaf(samples)

    def _arrays(self, samples: list[Any]) -> Any:
        whole = spaced(samples)
        if whole is None:
            self.copied += sum(s.nbytes for s in samples)
            return self._leaf(samples)
        if not self._torch:
            return whole
        import torch

        try:
            return torch.from_numpy(whole)
        except (TypeError, ValueError):  # a type that torch has not
            return self._leaf(samples)

    def _tensors(self, torch: Any, samples: list[Any]) -> Any:
        plain = [s for s in samples if not s.requires_grad and s.is_contiguous() and s.dtype is not torch.bfloat16]
        whole = spaced([s.numpy() for s in plain]) if len(plain) == len(samples) else None
        if whole is None:
            self.copied += sum(s.numel() * s.element_size() for s in samples)
            return self._leaf(samples)
        return torch.from_numpy(whole)


def numpy_leaf(samples: list[Any]) -> Any:
    """Arrays and numbers as one array; what cannot be one stays a list."""
    import numpy as np

    first = samples[0]
    if isinstance(first, (np.ndarray, np.generic, int, float, bool)):
        if len({np.shape(s) for s in samples}) == 1:
            return np.stack([np.asarray(s) for s in samples])
    return samples
