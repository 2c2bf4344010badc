"""What ``next()`` costs on a batch that is ready, small and large; writes target/results/python.json.

make bench-python ARGS=data.arrow
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import helix_shm as hx
from helix_shm.torch import DataLoader

RESULTS = Path(__file__).resolve().parents[2] / "target" / "results"
TARGET_US = 60.0
ROUNDS = 60


def median_us(manifest: str, mebibytes: int) -> float:
    """Median microseconds of ``next()`` and taking the tensor."""
    # Of 2 samples with 3 channels; the side is a multiple of 16.
    frames = 16
    side = round((mebibytes * (1 << 20) / (2 * frames * 3)) ** 0.5) // 16 * 16
    loader = DataLoader(
        manifest, 2, transform=hx.Video(frames=frames, size=side), drop_last=True, lookahead=3, num_workers=2
    )
    times, native = [], loader._session
    while len(times) < ROUNDS:
        batches = iter(loader)
        for _ in range(len(loader)):
            while not native.get().is_ready():
                time.sleep(0.001)
            begun = time.perf_counter()
            batch = next(batches)
            video = batch["video"]
            times.append((time.perf_counter() - begun) * 1e6)
            assert video.shape[0] == 2
            del batch, video
            if len(times) == ROUNDS:
                break
    loader.close()
    return statistics.median(times)


def main() -> None:
    rows = []
    for mebibytes in (4, 100):
        value = round(median_us(sys.argv[1], mebibytes), 1)
        rows.append(
            {
                "name": f"python.next_ready_{mebibytes}mib_us",
                "value": value,
                "unit": "us",
                "target": f"< {TARGET_US:g}",
                "holds": value < TARGET_US,
                "command": "make bench-python",
            }
        )
        print(f"next() on a ready batch of {mebibytes} MiB: {value} us")
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "python.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
