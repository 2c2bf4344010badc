"""The loader without a framework, and what all loaders share."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import json
import math
import os
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import _bin, _log, _native
from . import cost as _cost
from ._batch import Batch
from ._video import Video

_names = itertools.count()
_open: weakref.WeakSet[Session] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Leaves in good order: a rank that merely ends looks like one that died."""
    for session in list(_open):
        session.close()


def _env(name: str) -> int | None:
    value = os.environ.get(name)
    return int(value) if value not in (None, "") else None


def job_name(given: str | None) -> str:
    """What all ranks of one launch share and others do not."""
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if given or os.environ.get("HELIX_SHM_JOB"):
        return given or os.environ["HELIX_SHM_JOB"]
    if run not in ("", "none"):
        return run
    return f"{address}-{port}" if address and port else f"parent-{os.getppid()}"


def bytes_of(value: int | str | None) -> int | None:
    """A number of bytes, such as ``"4G"``."""
    if value is None or isinstance(value, int):
        return value
    text = value.strip().upper().removesuffix("IB").removesuffix("B")
    shift = {"K": 10, "M": 20, "G": 30, "T": 40}.get(text[-1:], 0)
    try:
        return int(float(text[:-1] if shift else text) * (1 << shift))
    except ValueError:
        raise ValueError(f"budget is {value!r}; wanted a number of bytes such as '4G'") from None


class Session:
    """The native loader, made when it is first needed, and never in a fork()ed child."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.native: Any = None
        self.owner = os.getpid()

    def get(self) -> Any:
        if self.owner != os.getpid():
            raise _native.ForkedError(
                f"this loader belongs to process {self.owner}, and this is its fork()ed child {os.getpid()}: make a "
                "loader of its own here, or start processes with the `spawn` start method"
            )
        if self.native is None:
            try:
                self.native = _native.Loader(json.dumps(self.config))
            finally:
                _log.pass_on()
            _open.add(self)
        return self.native

    def close(self) -> None:
        if self.native is not None and self.owner == os.getpid():
            self.native.close()
            self.native = None
            _open.discard(self)
            _log.pass_on()


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


class NativeLoader:
    """Iterates over a manifest: epochs, state, and what is told of it. Frameworks add their tensors."""

    def __init__(
        self,
        manifest: _native.Manifest | None,
        *,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        num_workers: int,
        timeout: float,
        transform: Video | None,
        balance: str | None,
        cost: Any,
        on_error: str,
        budget: int | str | None,
        seed: int,
        rank: int | None,
        world_size: int | None,
        micro_batch: int | None,
        regroup: int,
        policy: str | None,
        job: str | None,
        name: str | None,
        socket: str | None,
        keep: int | None,
        lookahead: int,
    ) -> None:
        self.manifest = manifest
        rank = rank if rank is not None else (_env("RANK") or 0)
        world = world_size if world_size is not None else (_env("WORLD_SIZE") or 1)
        if not 0 <= rank < world:
            raise ValueError(f"rank is {rank} of a world of {world}")
        if on_error not in ("raise", "skip", "substitute"):
            raise ValueError(f"on_error is {on_error!r}; wanted 'raise', 'skip' or 'substitute'")
        self.rank, self.world = rank, world
        self._batch_size, self._drop_last, self._seed = batch_size, drop_last, seed
        local_world = min(_env("LOCAL_WORLD_SIZE") or world, world)
        self._workers = num_workers * local_world
        config = {
            "manifest": str(manifest.path) if manifest is not None else "",
            "rank": rank,
            "world": world,
            "local_rank": _env("LOCAL_RANK"),
            "batch_size": batch_size,
            "seed": seed,
            "shuffle": shuffle,
            "drop_last": drop_last,
            "balance": _balance(balance, batch_size),
            "profile": _cost.of(cost if cost is not None else "decode").profile,
            "on_error": on_error,
            "transform": (transform or Video()).transform(),
            "micro_batch": micro_batch or 1,
            "regroup": regroup,
            "policy": policy,
            "workers": self._workers,
            "max_batches": lookahead,
            "pin": None,
            "slab_bytes": bytes_of(budget),
            "job": job,
            "loader": name or f"loader-{next(_names)}",
            "socket": socket,
            "spawn": None,
            "daemon": _bin.program("helix-shmd"),
            "program": None,
            "node": None,
            "timeout": timeout if timeout > 0 else None,
            "state": {"epoch": 0, "step": 0},
            "keep": keep,
        }
        self._timeout = timeout
        self._session = Session(config)
        self._meter = Meter()
        self._said: set[str] = set()
        #: The epoch of the next iteration, and where it begins if it is one that is resumed.
        self._next_epoch = 0
        self._resume: tuple[int, int] | None = None
        #: (epoch, step) of the next batch to be given out.
        self._at = (0, 0)
        self._turn = 0

    # Iterating.

    def begin(self) -> NativeIterator:
        epoch, step = self._resume or (self._next_epoch, 0)
        self._resume = None
        self._next_epoch = epoch + 1
        self._at = (epoch, step)
        self._turn += 1
        self._meter.pause()
        self._session.get().start(epoch, step)
        return NativeIterator(self, self._turn)

    def wrap(self, raw: Any) -> Batch:
        raise NotImplementedError

    def _limit(self) -> int | None:
        """A rank alone gives out what there is; several fill their last step by repeating samples."""
        if self.world > 1 or self._drop_last:
            return None
        left = len(self.manifest) - self._at[1] * self._batch_size
        return left if 0 < left < self._batch_size else None

    def take(self) -> Any:
        """The next batch as the native side gives it, or ``None``."""
        try:
            raw = self._session.get().next(self._limit())
        except _native.TimeoutError as error:
            raise _native.TimeoutError(f"DataLoader timed out after {self._timeout:g} seconds; {error}") from None
        finally:
            _log.pass_on()
        if raw is None:
            self._at = (self._at[0] + 1, 0)
            self._meter.pause()
            return None
        self._at = (raw.epoch, raw.step + 1)
        self._meter.note(raw)
        if raw.copied:
            depth, kept, _ = self._session.get().room()
            _log.said_once(self._said, _log.KEPT.format(kept=kept, depth=depth))
        return raw

    def steps(self) -> int:
        """Steps in an epoch, the same on every rank."""
        each = self._batch_size * self.world
        return len(self.manifest) // each if self._drop_last else math.ceil(len(self.manifest) / each)

    # State.

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next iteration. A state that was loaded for this epoch stays."""
        if self._resume is not None and self._resume[0] == epoch:
            return
        self._resume = None
        self._next_epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, counted in batches given out: any number of ranks and workers goes on from it."""
        epoch, step = self._resume or self._at
        return {
            "version": 1,
            "epoch": epoch,
            "step": step,
            # In samples as well: another number of ranks makes other steps of them.
            "global_batch": self._batch_size * self.world,
            "seed": self._seed,
            "samples": len(self.manifest),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state with the next iteration. An empty one restores nothing."""
        if not state:
            return
        missing = {"epoch", "step"} - state.keys()
        if missing:
            raise ValueError(f"not a state of this loader: {', '.join(sorted(missing))} missing")
        epoch, step = int(state["epoch"]), int(state["step"])
        if self.manifest is not None and "samples" in state:
            for key, own in (("seed", self._seed), ("samples", len(self.manifest))):
                if state[key] != own:
                    raise ValueError(f"the state was made with {key} = {state[key]}, and this loader has {own}")
            step = self._steps_of(step, int(state.get("global_batch", self._batch_size * self.world)))
        self._resume = (epoch, step)

    def _steps_of(self, step: int, global_batch: int) -> int:
        """The same place in the epoch, in steps of this loader."""
        own = self._batch_size * self.world
        done = min(step * global_batch, len(self.manifest))
        if done == len(self.manifest):
            return self.steps()
        if done % own:
            raise ValueError(
                f"the state lies behind {done} samples of the epoch, which is no whole number of steps of {own} samples "
                f"({self.world} ranks of {self._batch_size}): resume with a batch size that divides it"
            )
        return done // own

    # What is told of it.

    def stats(self) -> dict[str, Any]:
        """Counters, and hints at what would help."""
        native = self._session.native
        stats = native.stats() if native is not None else {}
        meter = self._meter
        stats["kept_copies"] = meter.kept_copies
        stats["copied"] = stats.get("copied", 0) + meter.copied
        share = meter.wait / meter.elapsed if meter.elapsed > 0 else 0.0
        stats["wait_share"] = share
        stats["spread"] = meter.spread / meter.batches if meter.batches else 1.0
        stats["spread_max"] = meter.spread_max
        stats["hints"] = self._hints(share, stats)
        return stats

    def _hints(self, share: float, stats: dict[str, Any]) -> list[str]:
        hints = []
        if share > 0.05:
            cores = self._workers or len(os.sched_getaffinity(0))
            enough = math.ceil(cores / max(1.0 - share, 0.01))
            hints.append(
                f"ranks wait {share:.0%} of the time: decode-bound; {enough} cores would do, and there are {cores}"
            )
        if stats["spread_max"] > 1.2 and self.world > 1:
            hints.append(
                f"this rank had up to {stats['spread_max']:.2f} times the mean cost of a step: balance='cost', or "
                "regroup, evens it out"
            )
        if stats["kept_copies"]:
            hints.append(f"{stats['kept_copies']} batches were copied because earlier ones were kept")
        if stats.get("skipped"):
            hints.append(f"{stats['skipped']} samples could not be made and were skipped: stats()['bad_samples']")
        return hints

    def close(self) -> None:
        """Leaves the job. Batches that are kept stay valid."""
        self._session.close()


class Awaitable:
    """Lets an iterator be iterated over with ``async for``."""

    _flying: Any = None
    _pool_of_one: ThreadPoolExecutor | None = None

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        # A thread waits; one that was given up by a cancelled task is asked first the next time, so no batch is lost.
        if self._flying is None:
            if self._pool_of_one is None:
                self._pool_of_one = ThreadPoolExecutor(1, thread_name_prefix="helix-async")
            self._flying = self._pool_of_one.submit(next, self, None)
        try:
            batch = await asyncio.shield(asyncio.wrap_future(self._flying))
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._flying = None
            raise
        self._flying = None
        if batch is None:
            if self._pool_of_one is not None:
                self._pool_of_one.shutdown(wait=False)
                self._pool_of_one = None
            raise StopAsyncIteration
        return batch


class NativeIterator(Awaitable):
    """One iteration over a loader's stream."""

    def __init__(self, loader: NativeLoader, turn: int) -> None:
        self._loader = loader
        self._turn = turn
        self._over = False

    def __iter__(self) -> NativeIterator:
        return self

    def __len__(self) -> int:
        return self._loader.steps()

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        if self._turn != self._loader._turn:
            raise RuntimeError("another iteration over this loader has begun; make a loader of its own for each")
        raw = self._loader.take()
        if raw is None:
            self._over = True
            raise StopIteration
        return self._loader.wrap(raw)


def _balance(balance: Any, batch_size: int) -> Any:
    if balance in (None, "none"):
        return "none"
    if balance == "cost":
        return "cost"
    if isinstance(balance, dict) and set(balance) == {"most"}:
        return {"free": {"most": int(balance["most"])}}
    raise ValueError(
        f"balance is {balance!r}; wanted 'none', 'cost', or {{'most': N}} for free counts up to N a rank"
    )


def _numpy() -> Any:
    import numpy

    return numpy


class Loader(NativeLoader):
    """A loader that gives NumPy arrays. For PyTorch see ``helix_shm.torch.DataLoader``.

    ``num_workers`` is a rank's share of decoding processes; 0 means one for each core that the job may use. ``budget``
    is the memory of the rank's slab, for all batches that are in use or under way. Rank and world size come from the
    launcher's environment unless given.
    """

    def __init__(
        self,
        data: _native.Manifest | str | os.PathLike[str],
        batch_size: int = 1,
        shuffle: bool = False,
        num_workers: int = 0,
        drop_last: bool = False,
        timeout: float = 0,
        *,
        transform: Video | None = None,
        balance: Any = "cost",
        cost: Any = None,
        on_error: str = "raise",
        budget: int | str | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        micro_batch: int | None = None,
        regroup: int = 1,
        policy: str | None = None,
        job: str | None = None,
        name: str | None = None,
        socket: str | None = None,
        keep: int | None = None,
        lookahead: int = 0,
    ) -> None:
        manifest = data if isinstance(data, _native.Manifest) else _native.Manifest(os.fspath(data))
        super().__init__(
            manifest,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            num_workers=num_workers,
            timeout=timeout,
            transform=transform,
            balance=balance,
            cost=cost,
            on_error=on_error,
            budget=budget,
            seed=seed,
            rank=rank,
            world_size=world_size,
            micro_batch=micro_batch,
            regroup=regroup,
            policy=policy,
            job=job,
            name=name,
            socket=socket,
            keep=keep,
            lookahead=lookahead,
        )
        self._np = _numpy()

    def wrap(self, raw: Any) -> Batch:
        np = self._np
        return Batch(raw, np.asarray, lambda values: np.asarray(values, np.float64), self.manifest, self.world)

    def __len__(self) -> int:
        return self.steps()

    def __iter__(self) -> Iterator[Batch]:
        return self.begin()

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self.begin()
