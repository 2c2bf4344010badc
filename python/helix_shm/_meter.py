"""Where the time of an iteration goes, and what would help."""

from __future__ import annotations

import math
import os
import time
from typing import Any


#: Bad samples that are remembered.
KEPT = 1000


class Meter:
    """Where the time of an iteration goes."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        self.wait = 0.0
        self.spread = 0.0
        self.spread_max = 0.0
        self.batches = 0
        self.kept_copies = 0
        self.copied = 0
        #: Samples of a dataset that were left out, the first of them with their reasons.
        self.bad: list[tuple[int, str, str, str]] = []
        self.bad_count = 0
        self._last: float | None = None

    def note(self, raw: Any) -> None:
        now = time.monotonic()
        if self._last is not None:
            # The first batch waits for the start, which says nothing of the pace.
            self.elapsed += now - self._last
            self.wait += raw.wait
        self._last = now
        own, mean = raw.cost
        ratio = own / mean if mean > 0 else 1.0
        self.spread += ratio
        self.spread_max = max(self.spread_max, ratio)
        self.batches += 1
        if raw.copied:
            self.kept_copies += 1
            self.copied += raw.copied

    def note_wait(self, wait: float, copied: int) -> None:
        """A batch of a Python dataset, of whose cost nothing is known."""
        now = time.monotonic()
        if self._last is not None:
            self.elapsed += now - self._last
            self.wait += wait
        self._last = now
        self.batches += 1
        self.spread += 1.0
        if copied:
            self.kept_copies += 1
            self.copied += copied

    def pause(self) -> None:
        self._last = None


def hints(share: float, stats: dict[str, Any], workers: int, world: int) -> list[str]:
    """What would help, in words."""
    hints = []
    if share > 0.05:
        cores = workers or len(os.sched_getaffinity(0))
        enough = math.ceil(cores / max(1.0 - share, 0.01))
        hints.append(
            f"ranks wait {share:.0%} of the time: decode-bound; {enough} cores would do, and there are {cores}"
        )
    if stats["spread_max"] > 1.2 and world > 1:
        hints.append(
            f"this rank had up to {stats['spread_max']:.2f} times the mean cost of a step: balance='cost', or regroup, "
            "evens it out"
        )
    if stats["kept_copies"]:
        hints.append(f"{stats['kept_copies']} batches were copied because earlier ones were kept")
    if stats.get("skipped"):
        hints.append(f"{stats['skipped']} samples could not be made and were skipped: stats()['bad_samples']")
    return hints
