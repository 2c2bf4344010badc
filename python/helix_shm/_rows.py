"""What a dataset says of its samples before they are made, for the scheduler."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from . import _native

#: A sample of which nothing is known: frames, width, height, bytes, pieces, cost, codec.
UNKNOWN = (1, 1, 1, 0, 0, 1, "")
#: The largest cost of a dataset in whole numbers; others are in proportion.
_COSTS = 1_000_000
#: Most pieces of which a sample is made.
PIECES = 16

#: A profile that takes a row's cost as it is.
AS_DESCRIBED = {
    "own": {
        "formula": {
            "text": 0,
            "stride": 1,
            "each": 1,
            "patch": 0,
            "most_frames": 0xFFFFFFFF,
            "most_pixels": 0xFFFFFFFF,
            "fps": 1000.0,
        },
        "quadratic": 0.0,
    }
}


class Rows:
    """The rows of a dataset, in a memory file that workers and the daemon read."""

    def __init__(self, descriptions: Iterable[Mapping[str, Any]] | int, parted: bool = False) -> None:
        #: Whether a sample can be made of pieces, by several workers.
        self.parted = parted
        #: Whether samples say what they cost.
        self.costed = False
        #: The most bytes that a sample says it has; 0 if none does.
        self.out_bytes = 0
        if isinstance(descriptions, int):
            rows: list[Any] = [UNKNOWN] * descriptions
        else:
            rows = self._rows(list(descriptions))
        self.len = len(rows)
        self._fd = os.memfd_create("helix-rows")
        _native.write_rows(self.path, rows)

    @staticmethod
    def of(dataset: Any) -> Rows:
        """What ``describe(i)`` of a dataset tells, if it has that."""
        describe = getattr(dataset, "describe", None)
        if not callable(describe):
            return Rows(len(dataset))
        parted = callable(getattr(dataset, "part", None)) and callable(getattr(dataset, "join", None))
        return Rows(map(describe, range(len(dataset))), parted)

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self._fd}"

    def _rows(self, descriptions: list[Mapping[str, Any]]) -> list[Any]:
        costs = [d.get("cost") for d in descriptions]
        self.costed = bool(costs) and all(c is not None for c in costs)
        unit = _COSTS / max(max(costs, default=1), 1e-30) if self.costed else 0.0
        self.out_bytes = max((int(d.get("out_bytes") or 0) for d in descriptions), default=0)
        return [self._row(d, c, unit) for d, c in zip(descriptions, costs)]

    def _row(self, known: Mapping[str, Any], cost: float | None, unit: float) -> tuple[Any, ...]:
        seconds = known.get("duration") or 0.0
        frames = known.get("frames") or 1
        if self.costed:
            # The cost is given, so frames need only tell what decoding takes.
            frames = known.get("decoded") or frames
        pieces = pieces_of(known) if self.parted else 0
        return (
            max(int(frames), pieces, 1),
            min(int(known.get("width") or 1), 0xFFFF),
            min(int(known.get("height") or 1), 0xFFFF),
            int(known.get("bytes") or 0),
            pieces,
            max(round((cost or 0.0) * unit), 1) if self.costed else max(round(seconds * 1000), 1),
            str(known.get("codec") or ""),
        )

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


def pieces_of(known: Mapping[str, Any]) -> int:
    """Pieces of which a sample is made where it is made by several workers; 0 if it cannot be taken apart."""
    pieces = min(int(known.get("pieces") or 0), PIECES)
    return pieces if pieces > 1 else 0
