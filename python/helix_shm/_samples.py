"""Python datasets whose samples are tasks: the scheduler decides for each of them who makes it, when, and for whom.

Needed where samples cost differently: a batch that one worker makes waits for the sum of its samples, and no rank's load
can be evened out. Samples lie in the slab one behind the other and are put together in the rank.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from . import _log, _native
from ._awaitable import Awaitable
from ._brief import Brief, Failure
from ._dataset import MOST, PAGE, memory_of
from ._order import Ordered
from ._pack import unpack
from ._rows import AS_DESCRIBED, PIECES, Rows, pieces_of
from ._session import Session, job_name

#: What a packed sample has besides its bytes, with room to spare.
_EXTRA = 4096


class Facts:
    """What is known of the batch that was given out last."""

    __slots__ = ("cost", "home_ranks", "ids", "n_global", "skipped", "step", "tokens", "wait", "weights")

    def __init__(self, raw: Any, kept: list[int], share: int) -> None:
        ids, weights, tokens, homes = raw.ids, raw.weights, raw.tokens, raw.home_ranks
        #: Indices of its samples in the dataset.
        self.ids = [ids[i] for i in kept]
        #: Weight of each in the mean over the global batch: a rank's loss is ``world * (weights * losses).sum()``.
        self.weights = [weights[i] / share for i in kept]
        #: What each costs its rank, by ``cost``.
        self.tokens = [tokens[i] for i in kept]
        #: The rank that each was dealt to before balancing.
        self.home_ranks = [homes[i] for i in kept]
        #: Samples of the step over all ranks.
        self.n_global = raw.n_global * share
        #: Predicted cost of this batch and of the step's mean rank.
        self.cost = raw.cost
        #: Samples that were left out because they could not be made.
        self.skipped = len(ids) - len(kept)
        #: Step within the epoch.
        self.step = raw.step
        #: How long ``next`` had waited for it, seconds.
        self.wait = raw.wait


class SamplePool:
    """The stream of a dataset's samples: made when needed, made again with larger regions when a sample outgrows them."""

    def __init__(self, config: dict[str, Any], rows: Rows, shared: bool) -> None:
        self._given, self.parted = config, rows.parted
        self._rows = rows
        self.share(shared)
        #: Bytes of a region, in pages.
        self._pages = max(-(-(rows.out_bytes + _EXTRA) // PAGE), 1)
        self._largest = 0
        self._micro = 1
        self._session: Session | None = None
        self._told: dict[str, Any] = {}
        #: Epoch to a mark of what was ordered for it.
        self._orders: dict[int, int] = {}

    def share(self, shared: bool) -> None:
        """Whether all ranks are in one stream; else each has one of its own, for its sampler. Said before it is made."""
        config, rows = self._given, self._rows
        self.shared = shared
        job = f"{job_name(config['job'])}-{config['loader']}"
        own = {"job": job, "manifest": rows.path, "on_error": "raise", "pin": False}
        own["program"] = [sys.executable, str(Path(__file__).with_name("_worker.py"))]
        if not shared:
            # A stream of the rank's own: its sampler says what it gets. Workers are the job's all the same.
            own.update(loader=f"rank-{config['rank']}", rank=0, world=1, balance="none")
        if rows.costed and config["profile"] == "decode":
            own["profile"] = AS_DESCRIBED
        self._config = dict(config, **own)

    @property
    def session(self) -> Session:
        if self._session is None:
            transform = {
                "frames": max(self._pages, PIECES) if self.parted else self._pages,
                "sampling": "uniform",
                "resize": {"exact": {"width": 256, "height": 256}},
                "crop": "none",
                "flip": 0.0,
                "layout": "PAGES",
                "dtype": "u8",
            }
            changed: dict[str, Any] = {"transform": transform}
            if self._largest:
                changed.update(batch_size=self._largest, micro_batch=self._micro)
            self._session = Session(dict(self._config, **changed))
            self._orders.clear()
        return self._session

    @property
    def pages(self) -> int:
        return self.session.config["transform"]["frames"]

    def start(self, epoch: int, step: int, brief: bytes, batches: list[Any] | None) -> None:
        """Begins an epoch: in the stream's own order, or of the batches that a sampler has made, those of all ranks in
        turn where they share the stream."""
        words = None
        if batches is not None:
            order = Ordered(batches, self._config["micro_batch"] if self.shared else None)
            # The daemon keeps what it was given for an epoch; other batches, or larger ones, need a new stream.
            larger = order.largest > self._largest or order.micro != self._micro
            if larger or self._orders.get(epoch, order.mark) != order.mark:
                self.close()
                self._largest, self._micro = max(order.largest, self._largest), order.micro
                if order.micro == order.largest:
                    self._micro = self._largest
            self.session.get()
            self._orders[epoch] = order.mark
            words = order.words
        self.session.get().start_samples(epoch, step, brief, words)

    def grow(self, wanted: int) -> None:
        """Makes room for a sample of so many bytes, and some more."""
        least = -(-wanted // PAGE)
        if least > MOST:
            raise _native.HelixError(f"a sample of {wanted} bytes; {MOST * PAGE} are the most")
        self._pages = max(min(max(least * 5 // 4, self._pages * 3 // 2), MOST), least)
        self.close()

    def stats(self) -> dict[str, Any]:
        """Counters of the stream, or those that it had at its end."""
        return self._told if self._session is None else self._session.stats()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._told = self._session.stats()
            self._session = None


class SampleIterator(Awaitable):
    """One iteration over the samples of a dataset."""

    def __init__(self, loader: Any, pool: SamplePool, batches: list[Any] | None, seed: int) -> None:
        self._loader, self._pool, self._turn = loader, pool, loader._turn
        self._batches = batches
        self._epoch, self._step = loader._at
        self._over = False
        dataset = loader.dataset
        payload = Brief.payload(dataset, None, loader.worker_init_fn)
        self._brief = Brief.write(
            payload,
            None,
            None,
            seed=seed,
            workers=max(loader._workers, 1),
            uses_torch=loader._uses_torch,
            persistent=loader.persistent_workers,
            turn=self._turn,
            epoch=self._epoch,
            iterable=False,
            samples=True,
            pages=pool.pages if pool.parted else 0,
        )
        pool.start(self._epoch, self._step, self._brief, batches)

    def _pull(self) -> Any:
        # In the stream's own order the last step is filled by repeating samples; a rank alone does not want them.
        limit = self._loader._limit() if self._batches is None else None
        while True:
            try:
                return self._pool.session.get().next(limit)
            except _native.TimeoutError as error:
                limit = self._loader.timeout
                raise _native.TimeoutError(f"DataLoader timed out after {limit:g} seconds; {error}") from None
            except _native.BadSampleError as error:
                if error.stage != "size":
                    raise RuntimeError(
                        f"DataLoader worker (pid(s) unknown) exited unexpectedly: {error.reason}. {error.path} was tried "
                        "again in another worker, with the same end"
                    ) from error
                self._pool.grow(int(error.reason))
                self._pool.start(self._epoch, self._step, self._brief, self._batches)

    def __iter__(self) -> SampleIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        if self._turn != self._loader._turn:
            raise RuntimeError("another iteration over this loader has begun; make a loader of its own for each")
        loader = self._loader
        raw = self._pull()
        if raw is None:
            self._over = True
            loader._end()
            raise StopIteration
        self._step = raw.step + 1
        loader._at = (loader._at[0], self._step)
        if raw.copied:
            depth, kept, _ = self._pool.session.get().room()
            _log.said_once(loader._said, _log.KEPT.format(kept=kept, depth=depth))
        kept, samples = self._samples(raw)
        # With streams of their own all ranks have a like part of the global batch.
        loader.last = Facts(raw, kept, 1 if self._pool.shared else loader.world)
        return loader.join(samples)

    def _samples(self, raw: Any) -> tuple[list[int], list[Any]]:
        """The samples of a batch, less those that are to be skipped."""
        kept, samples = [], []
        for i, index in enumerate(raw.ids):
            kind, value = self._unpacked(memory_of(raw.sample(i)), index)
            if kind == "error":
                if self._loader.on_error != "skip":
                    value.raise_()
                self._loader.note_bad(index, value)
                continue
            kept.append(i)
            samples.append(value)
        return kept, samples

    def _unpacked(self, region: memoryview, index: int) -> tuple[str, Any]:
        kind, value = unpack(region)
        if kind != "part":
            return kind, value
        # Made by several workers: each has left what it made at the start of its own pages.
        dataset, pages = self._loader.dataset, len(region) // PAGE
        count = pieces_of(dataset.describe(index))
        marks: list[Any] = []
        while True:
            until, made = value
            marks += made
            if until == count:
                break
            kind, value = unpack(region[until * pages // count * PAGE :])
            if kind == "error":
                return kind, value
        try:
            return "sample", dataset.join(index, marks)
        except Exception as error:
            return "error", Failure.of(error, 0)
