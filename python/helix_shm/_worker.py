"""A worker process that makes batches of a Python dataset.

Started by the daemon as ``python _worker.py SOCKET JOB SLOT``. What to make comes with each epoch's brief: the pickled
dataset and the batches of the sampler.
"""

from __future__ import annotations

import hashlib
import os
import random
import select
import sys
import time
import traceback
from typing import Any

if __name__ == "__main__":
    # Run as a script, this folder comes first in the path, where `torch.py` is not torch.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from helix_shm import _native
from helix_shm._brief import Brief, Failure
from helix_shm._pack import Packed
from helix_shm._rows import pieces_of

#: Epochs of a session whose briefs are kept.
_KEPT = 3


class WorkerInfo:
    """What ``torch.utils.data.get_worker_info()`` answers here, with or without torch."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Maker:
    """A dataset in this process, on behalf of one worker of torch's numbering."""

    def __init__(self, brief: Brief, worker: int) -> None:
        self.worker = worker
        seed = (brief.seed + worker) & 0xFFFFFFFFFFFFFFFF
        random.seed(seed)
        numpy, torch = sys.modules.get("numpy"), None
        if brief.uses_torch:
            import torch  # type: ignore[no-redef]
            import torch.utils.data._utils.worker as place

            torch.set_num_threads(1)
            torch.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
        if numpy is not None:
            numpy.random.seed(seed & 0xFFFFFFFF)
        loaded = brief.load()
        self.dataset, self.collate = loaded["dataset"], loaded["collate"]
        if brief.uses_torch:
            place._worker_info = WorkerInfo(id=worker, num_workers=brief.workers, seed=seed, dataset=self.dataset)
        # After seeding, as users of torch rely on.
        self.failure: Failure | None = None
        init = loaded["init"]
        if init is not None:
            try:
                init(worker)
            except Exception as error:
                self.failure = Failure.of(error, worker)
        self.stream: Any = None
        self.at = 0

    def set_epoch(self, epoch: int) -> None:
        step = getattr(self.dataset, "set_epoch", None)
        if callable(step):
            step(epoch)

    def fetch(self, indices: Any) -> Any:
        """A batch of a map-style dataset; one index where batches are not formed."""
        if isinstance(indices, int):
            return self.collate(self.dataset[indices])
        many = getattr(self.dataset, "__getitems__", None)
        samples = many(indices) if many is not None else [self.dataset[i] for i in indices]
        return self.collate(samples)

    def fetch_one(self, index: int, seed: int) -> Any:
        """A sample, with the random numbers that are its own, whichever worker makes it."""
        self._seed(seed)
        return self.dataset[index]

    def part(self, index: int, seed: int, pieces: range, count: int) -> tuple[int, list[Any]]:
        """Pieces of a sample, and up to where."""
        self._seed(seed)
        return pieces.stop, [self.dataset.part(index, k, count) for k in pieces]

    def _seed(self, seed: int) -> None:
        random.seed(seed)
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None:
            numpy.random.seed(seed & 0xFFFFFFFF)
        if torch is not None:
            torch.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)

    def advance(self, item: int, size: int | None, drop_last: bool) -> Any:
        """The `item`-th batch of an iterable dataset; what was not asked for before it is passed over."""
        if self.stream is None or item < self.at:
            self.stream, self.at = iter(self.dataset), 0
        while True:
            samples = []
            for _ in range(size or 1):
                try:
                    samples.append(next(self.stream))
                except StopIteration:
                    break
            if not samples or (drop_last and size and len(samples) < size):
                return None
            self.at += 1
            if self.at > item:
                return (self.collate(samples if size else samples[0]),)


class Server:
    """Serves tasks until the daemon ends it."""

    def __init__(self, socket: str, job: str, slot: int) -> None:
        self.slot = slot
        self.native = _native.Worker(socket, job, slot)
        self.briefs: dict[int, dict[int, Brief]] = {}
        self.makers: dict[tuple[int, int], tuple[Any, Maker]] = {}

    def run(self) -> None:
        news = select.poll()
        for fd in self.native.fds():
            news.register(fd, select.POLLIN)
        while not self.native.is_over:
            task = self.native.poll()
            if task is not None:
                self.serve(task)
                continue
            if self.native.park():
                news.poll(100)
            self.native.unpark()

    def serve(self, task: _native.Task) -> None:
        begun = time.thread_time()
        try:
            brief = self.brief(task)
            packed = Packed(self.make(brief, task))
        except Exception as error:
            packed = Packed(("error", Failure.of(error, self.slot)))
        if packed.size > task.len:
            self.native.fail(task, "size", str(packed.size))
            return
        region = task.region()
        packed.write(region)
        region.release()
        self.native.done(task, time.thread_time() - begun)

    def brief(self, task: _native.Task) -> Brief:
        fd = self.native.brief(task)
        # Each brief is a file of its own; numbers of sessions and epochs come again.
        key, known = os.fstat(fd).st_ino, self.briefs.setdefault(task.session, {})
        if key in known:
            os.close(fd)
        else:
            while len(known) >= _KEPT:
                known.pop(next(iter(known))).close()
            known[key] = Brief.read(fd)
        return known[key]

    def maker(self, brief: Brief, session: int, worker: int) -> Maker:
        """The dataset for an epoch: the same object as long as workers persist and the dataset is the same."""
        # Where samples are the tasks, all ranks' come from one object.
        key = (-1, 0) if brief.samples else (session, worker if brief.iterable else 0)
        mark = (brief.digest, None if brief.persistent else brief.turn)
        known = self.makers.get(key)
        if known is None or known[0] != mark:
            known = self.makers[key] = (mark, Maker(brief, worker))
            known[1].turn = None  # type: ignore[attr-defined]
        maker = known[1]
        if maker.turn != brief.turn:  # type: ignore[attr-defined]
            maker.turn = brief.turn  # type: ignore[attr-defined]
            maker.stream = None
            maker.set_epoch(brief.epoch)
        return maker

    def make(self, brief: Brief, task: _native.Task) -> Any:
        if brief.iterable:
            step = brief.first + task.step
            worker, item = step % brief.workers, step // brief.workers
            maker = self.maker(brief, task.session, worker)
            if maker.failure:
                return ("error", maker.failure)
            try:
                found = maker.advance(item, brief.batch_size, brief.drop_last)
            except Exception as error:
                maker.stream = None
                return ("error", Failure.of(error, worker))
            return ("end", worker) if found is None else ("batch", found[0])
        maker = self.maker(brief, task.session, self.slot)
        task.begin()
        if maker.failure:
            return ("error", maker.failure)
        if brief.samples:
            return self.sample(brief, task, maker)
        try:
            return ("batch", maker.fetch(brief.batch(task.step)))
        except Exception as error:
            return ("error", Failure.of(error, self.slot))

    def sample(self, brief: Brief, task: _native.Task, maker: Maker) -> Any:
        index = task.sample
        seed = int.from_bytes(
            hashlib.blake2b(f"{brief.seed} {brief.epoch} {index}".encode(), digest_size=8).digest(), "little"
        )
        first, count = task.span
        try:
            if brief.pages and count < brief.pages:
                pieces = pieces_of(maker.dataset.describe(index))
                at = [k * brief.pages // pieces for k in range(pieces + 1)]
                mine = range(at.index(first), at.index(first + count))
                return ("part", maker.part(index, seed, mine, pieces))
            return ("sample", maker.fetch_one(index, seed))
        except Exception as error:
            return ("error", Failure.of(error, self.slot))


def main() -> None:
    """Runs a worker; its complaints go to the daemon's log."""
    socket, job, slot = sys.argv[1:4]
    try:
        Server(socket, job, int(slot)).run()
    except KeyboardInterrupt:
        pass
    except Exception:
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
