"""Python objects in a region of the slab: NumPy arrays and tensors lie in it as they are, the rest is pickled.

Layout, 64-bit little-endian words: magic, number of buffers, offset and length of the pickle, offset and length of each
buffer. Buffers start on a cache line. Whoever reads gets arrays and tensors over the region itself.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from typing import Any

_MAGIC = 0x6B6361_706E6F7865
_ALIGN = 64


class Packed:
    """An object taken apart: how large it is, and how to write it."""

    def __init__(self, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        out = io.BytesIO()
        try:
            _Pickler(out, protocol=5, buffer_callback=buffers.append).dump(value)
        except (pickle.PicklingError, AttributeError, TypeError):
            # What a script or a notebook defines goes by value.
            import cloudpickle

            buffers.clear()
            out = io.BytesIO()
            cloudpickle.CloudPickler(out, protocol=5, buffer_callback=buffers.append).dump(value)
        self._pickle = out.getbuffer()
        self._buffers = [buffer.raw() for buffer in buffers]
        self._places = []
        at = 8 * (4 + 2 * len(buffers))
        self._pickle_at = at
        at += len(self._pickle)
        for buffer in self._buffers:
            at = -(-at // _ALIGN) * _ALIGN
            self._places.append(at)
            at += len(buffer)
        self.size = at

    def write(self, region: memoryview) -> None:
        """Writes it to the start of a region, each byte once."""
        words = [_MAGIC, len(self._buffers), self._pickle_at, len(self._pickle)]
        for place, buffer in zip(self._places, self._buffers):
            words += (place, len(buffer))
        struct.pack_into(f"<{len(words)}Q", region, 0, *words)
        region[self._pickle_at : self._pickle_at + len(self._pickle)] = self._pickle
        for place, buffer in zip(self._places, self._buffers):
            region[place : place + len(buffer)] = buffer


def unpack(region: memoryview) -> Any:
    """The object in a region; arrays and tensors lie over it and keep it alive."""
    magic, count, at, length = struct.unpack_from("<4Q", region, 0)
    if magic != _MAGIC:
        raise RuntimeError("a region without an object in it: the worker is of another version")
    places = struct.unpack_from(f"<{2 * count}Q", region, 32)
    buffers = [region[place : place + size] for place, size in zip(places[::2], places[1::2])]
    return pickle.loads(region[at : at + length], buffers=buffers)


class _Pickler(pickle.Pickler):
    """Pickles tensors of the host by their memory, as NumPy's arrays are."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor:
            return NotImplemented
        if (
            value.device.type != "cpu"
            or value.layout is not torch.strided
            or value.is_quantized
            or value.is_complex()
        ):
            return NotImplemented
        dense = value.detach().contiguous()
        name = str(dense.dtype).removeprefix("torch.")
        if dense.numel() == 0:
            return _empty, (name, tuple(dense.shape), value.requires_grad)
        raw = (
            dense.reshape(-1).view(torch.uint8)
            if dense.dtype is not torch.bool
            else dense.reshape(-1).to(torch.uint8)
        )
        return _tensor, (pickle.PickleBuffer(raw.numpy()), name, tuple(dense.shape), value.requires_grad)


def _tensor(buffer: Any, name: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch

    flat = torch.frombuffer(buffer, dtype=getattr(torch, name))
    return flat.reshape(shape).requires_grad_(requires_grad)


def _empty(name: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch

    return torch.empty(shape, dtype=getattr(torch, name)).requires_grad_(requires_grad)
