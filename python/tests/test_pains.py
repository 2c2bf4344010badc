"""What users of other loaders report, where no other test shows it; the docs have the whole table (python-pains.md)."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import helix_shm as hx
import numpy as np
from helix_shm import _meter
from helix_shm.torch import DataLoader


def resident(pid: int | str = "self") -> int:
    """Bytes of a process that are its own and not the slab's."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])


def workers_of(loader) -> list[int]:
    parent = str(loader._samples.session.get().daemon_pid())
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "stat").read_text().rsplit(")", 1)[1].split()[1] == parent:
                    found.append(int(entry.name))
            except OSError:
                pass  # it has ended
    return found


class Mixed:
    """Many small samples of many sizes."""

    def __init__(self, count):
        # pytorch#13246: what a worker touches here it copies, where it was forked.
        self.rows = [f"row {i}" for i in range(count)]

    def __len__(self):
        return len(self.rows)

    def describe(self, i):
        return {"cost": 1 + i % 3}

    def __getitem__(self, i):
        return np.full(1 + 997 * i % 50_000, len(self.rows[i]), np.uint8)


def test_memory_is_flat_over_many_samples_of_mixed_sizes_and_the_slab_keeps_its_size():
    # pytorch#13246, DALI#4675: neither the rank nor a worker grows, and the budget is not left.
    loader = hx.Loader(Mixed(6000), 50, num_workers=1, shuffle=True)
    early, slab = {}, None
    for step, batch in enumerate(loader):
        assert len(batch) == 50
        if step == 30:
            slab = loader._samples.session.get().slab()
            early = {pid: resident(pid) for pid in ["self", *workers_of(loader)]}
    assert len(early) >= 2
    assert loader._samples.session.get().slab() == slab
    for pid, before in early.items():
        assert resident(pid) - before < 24 << 20, f"process {pid} grew from {before} to {resident(pid)} bytes"


class Slow(Mixed):
    def __getitem__(self, i):
        time.sleep(0.05)
        return np.zeros(8)


def test_stats_tell_what_the_time_goes_to_and_what_would_help():
    loader = DataLoader(Slow(12), 2, num_workers=1)
    assert len(list(loader)) == 6
    stats = loader.stats()
    assert stats["wait_share"] > 0.5
    hint = next(h for h in stats["hints"] if "decode-bound" in h)
    assert "cores would do, and there are 1" in hint
    loader.close()
    assert loader.stats()["batches"] == 6  # also behind the end


def test_a_hint_says_how_many_cores_would_do():
    stats = {"wait_share": 0.31, "spread_max": 1.5, "kept_copies": 0}
    first, second = _meter.hints(stats, 15, 8)
    assert first == "ranks wait 31% of the time: decode-bound; 22 cores would do, and there are 15"
    assert "1.50 times the mean cost" in second


def test_async_for_over_a_dataset_whose_samples_are_tasks():
    async def main():
        return [len(batch) async for batch in hx.Loader(Mixed(10), 4, num_workers=1)]

    assert asyncio.run(main()) == [4, 4, 2]


def test_workers_are_execd_and_die_with_their_job():
    # pytorch#81794, #39570: no five seconds a worker at the end, and nobody stays behind.
    loader = hx.Loader(Mixed(40), 4, num_workers=2)
    next(iter(loader))
    pids = workers_of(loader)
    assert pids
    begun = time.monotonic()
    loader.close()
    assert time.monotonic() - begun < 2.5  # promised are 2 s; the rest is the machine's
    until = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
