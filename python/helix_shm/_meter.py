"""What would help, in words."""

from __future__ import annotations

import math
import os
from typing import Any


def hints(stats: dict[str, Any], workers: int, world: int) -> list[str]:
    """What a loader's counters say."""
    hints, share = [], stats["wait_share"]
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
