"""Python datasets, run in worker processes that write into the rank's slab."""

from __future__ import annotations

import ctypes
import sys
from array import array
from pathlib import Path
from typing import Any

from . import _log, _native
from ._awaitable import Awaitable
from ._brief import Brief
from ._pack import unpack
from ._rows import Rows
from ._session import Session, job_name

#: Bytes of a page of the region; a region has at most 65535 of them.
PAGE = 256 * 256
MOST = 65535
#: Batches of an iterable dataset that are asked for at once: its length is not known.
_CHUNK = 1 << 16


class Pool:
    """Workers of one loader: made when needed, made again with larger regions when a batch outgrows them."""

    def __init__(self, config: dict[str, Any], workers: int, alone: bool) -> None:
        job = f"{job_name(config['job'])}-{config['loader']}"
        rank = config["rank"]
        self._config = dict(
            config,
            job=f"{job}-{rank}" if alone else job,
            loader=f"rank-{rank}",
            rank=0,
            world=1,
            batch_size=1,
            micro_batch=1,
            shuffle=False,
            drop_last=False,
            balance="none",
            profile="equal",
            on_error="raise",
            # An iterable dataset's stream belongs to a worker, so each has its turn.
            policy="local" if alone else None,
            workers=workers,
            pin=False,
            program=[sys.executable, str(Path(__file__).with_name("_worker.py"))],
        )
        self._pages = 4
        self._session: Session | None = None
        self._stub: Rows | None = None
        self._turn = 0

    @property
    def session(self) -> Session:
        if self._session is None:
            # The only row of a stream whose tasks are batches: nothing is known of them.
            if self._stub is None:
                self._stub = Rows(1)
            transform = {
                "frames": self._pages,
                "sampling": "uniform",
                "resize": {"exact": {"width": 256, "height": 256}},
                "crop": "none",
                "flip": 0.0,
                "layout": "PAGES",
                "dtype": "u8",
            }
            self._session = Session(dict(self._config, transform=transform, manifest=self._stub.path))
        return self._session

    def start(self, step: int, steps: int, brief: bytes) -> None:
        """Begins an epoch of so many batches. Its number is of no meaning to the dataset, and never comes again."""
        self._turn += 1
        self.session.get().start_briefed(self._turn, step, steps, brief)

    def grow(self, wanted: int) -> None:
        """Makes room for a batch of so many bytes, and some more."""
        least = -(-wanted // PAGE)
        # Half as large again each time, so that growing batches are not asked for often.
        pages = min(max(least * 5 // 4, self._pages * 3 // 2), MOST)
        if least > MOST:
            raise _native.HelixError(f"a batch of {wanted} bytes; {MOST * PAGE} are the most: lower batch_size")
        self._pages = max(pages, least)
        self.close()

    def next(self) -> tuple[Any, Any] | None:
        """The next batch as the worker packed it, with what is told of it."""
        raw = self.session.get().next(None)
        return None if raw is None else (unpack(memory_of(raw.sample(0))), raw)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def memory_of(tensor: Any) -> memoryview:
    """A tensor's bytes, writable, which keep it alive."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        return memoryview(numpy.asarray(tensor).reshape(-1))
    memory = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr)
    memory.owner = tensor  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


class DatasetIterator(Awaitable):
    """One iteration over a dataset in workers."""

    def __init__(self, loader: Any, batches: list[Any] | None, step: int, seed: int) -> None:
        self._loader, self._pool = loader, loader._pool
        self._turn = loader._turn
        self._iterable = batches is None
        self._step = step
        self._yielded = step
        self._ended: set[int] = set()
        self._over = False
        lens = indices = None
        if batches is not None:
            self._steps = len(batches)
            lens, indices = _flat(batches)
        self._parts = (lens, indices)
        self._payload = Brief.payload(loader.dataset, loader.collate_fn, loader.worker_init_fn)
        self._seed = seed
        self._first = 0
        #: Of an iterable dataset: calls made of the workers, those that found one at its end included.
        self._calls = 0
        if self._iterable and step:
            self._skip_to(step)
        else:
            self._start(step)

    def _start(self, step: int) -> None:
        loader = self._loader
        lens, indices = self._parts
        brief = Brief.write(
            self._payload,
            lens,
            indices,
            seed=self._seed,
            workers=max(loader.num_workers, 1),
            uses_torch=True,
            persistent=loader.persistent_workers,
            turn=self._turn,
            epoch=loader._at[0],
            iterable=self._iterable,
            samples=False,
            batch_size=loader.batch_size,
            drop_last=loader.drop_last,
            first=self._first,
        )
        self._brief = brief
        self._pool.start(step, _CHUNK if self._iterable else self._steps, brief)

    def _skip_to(self, step: int) -> None:
        """Workers pass over what was given out before; where each stood follows from the stream alone."""
        self._start(0)
        self._yielded = 0
        while self._yielded < step and self._pull() is not None:
            self._yielded += 1

    def _pull(self) -> tuple[Any, Any] | None:
        """The next batch, or ``None`` at the end."""
        while True:
            try:
                got = self._pool.next()
            except _native.TimeoutError as error:
                limit = self._loader.timeout
                raise _native.TimeoutError(f"DataLoader timed out after {limit:g} seconds; {error}") from None
            except _native.BadSampleError as error:
                self._again(error)
                continue
            if got is None:
                if not self._iterable:
                    return None
                self._first += _CHUNK
                self._calls = 0
                self._start(0)
                continue
            (kind, value), raw = got
            self._calls += 1
            if kind == "end":
                self._ended.add(value)
                if len(self._ended) >= max(self._loader.num_workers, 1):
                    return None
                continue
            self._step += 1
            if kind == "error":
                self._yielded += 1
                self._loader._at = (self._loader._at[0], self._yielded)
                value.raise_()
            return value, raw

    def _again(self, error: Any) -> None:
        """A batch that outgrew its region is asked for again, with larger ones; all else is an error."""
        if error.stage != "size":
            raise RuntimeError(
                f"DataLoader worker (pid(s) unknown) exited unexpectedly: {error.reason}. Its sample was tried again in "
                "another worker, with the same end"
            ) from error
        self._pool.grow(int(error.reason))
        self._start(self._calls if self._iterable else self._step)

    def __iter__(self) -> DatasetIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        if self._turn != self._loader._turn:
            raise RuntimeError("another iteration over this loader has begun; make a loader of its own for each")
        got = self._pull()
        loader = self._loader
        if got is None:
            self._over = True
            loader._end()
            raise StopIteration
        value, raw = got
        self._yielded += 1
        loader._at = (loader._at[0], self._yielded)
        if raw.copied:
            depth, kept, _ = self._pool.session.get().room()
            _log.said_once(loader._said, _log.KEPT.format(kept=kept, depth=depth))
        return value


def _flat(batches: list[Any]) -> tuple[array[int] | None, Any]:
    """Batches of plain numbers as two arrays; anything else, and single samples, as they are."""
    if batches and isinstance(batches[0], (list, tuple)):
        try:
            return array("Q", map(len, batches)), array("Q", (i for batch in batches for i in batch))
        except (TypeError, OverflowError):
            return None, batches
    return None, batches
