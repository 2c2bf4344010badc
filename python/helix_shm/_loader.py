"""What all loaders share: epochs, state, and what is told of an iteration."""

from __future__ import annotations

import itertools
import math
from typing import Any

from . import _bin, _log, _meter, _native
from . import cost as _cost
from ._audio import Audio
from ._awaitable import Awaitable
from ._batch import Batch
from ._session import Session, bytes_of, env_number
from ._video import Image, Video

_names = itertools.count()
#: Bad samples that are remembered.
_BAD = 1000


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
        transform: Video | Image | Audio | None,
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
        split_ms: int | None,
        hedge: bool | None,
        job: str | None,
        name: str | None,
        socket: str | None,
        keep: int | None,
        lookahead: int,
        samples: int = 0,
    ) -> None:
        self.manifest = manifest
        #: Samples of an epoch.
        self._count = samples if manifest is None else len(manifest)
        rank = rank if rank is not None else (env_number("RANK") or 0)
        world = world_size if world_size is not None else (env_number("WORLD_SIZE") or 1)
        if not 0 <= rank < world:
            raise ValueError(f"rank is {rank} of a world of {world}")
        if on_error not in ("raise", "skip", "substitute"):
            raise ValueError(f"on_error is {on_error!r}; wanted 'raise', 'skip' or 'substitute'")
        self.rank, self.world = rank, world
        self._batch_size, self._drop_last, self._seed = batch_size, drop_last, seed
        self.on_error = on_error
        local_world = min(env_number("LOCAL_WORLD_SIZE") or world, world)
        self._workers = num_workers * local_world
        config = {
            "manifest": str(manifest.path) if manifest is not None else "",
            "rank": rank,
            "world": world,
            "local_rank": env_number("LOCAL_RANK"),
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
            "split_ms": split_ms,
            "hedge": hedge,
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
        #: Samples of a dataset that were left out, the first of them with their reasons.
        self._bad: list[tuple[int, str, str, str]] = []
        self._bad_count = 0
        self._said: set[str] = set()
        #: The epoch of the next iteration, and where it begins if it is one that is resumed.
        self._next_epoch = 0
        self._resume: tuple[int, int] | None = None
        #: (epoch, step) of the next batch to be given out.
        self._at = (0, 0)
        self._turn = 0
        #: The stream of a dataset whose samples are tasks.
        self._samples: Any = None

    # Iterating.

    def enter(self) -> tuple[int, int]:
        """Where a new iteration begins."""
        epoch, step = self._resume or (self._next_epoch, 0)
        self._resume = None
        self._next_epoch = epoch + 1
        self._at = (epoch, step)
        self._turn += 1
        return epoch, step

    def begin(self) -> NativeIterator:
        epoch, step = self.enter()
        self._session.get().start(epoch, step)
        return self.iterator()

    def iterator(self) -> NativeIterator:
        return NativeIterator(self, self._turn)

    def wrap(self, raw: Any) -> Batch:
        raise NotImplementedError

    def _limit(self) -> int | None:
        """A rank alone gives out what there is; several fill their last step by repeating samples."""
        if self.world > 1 or self._drop_last:
            return None
        left = self._count - self._at[1] * self._batch_size
        return left if 0 < left < self._batch_size else None

    def take(self) -> Any:
        """The next batch as the native side gives it, or ``None``."""
        try:
            raw = self._session.get().next(self._limit())
        except _native.TimeoutError as error:
            raise _native.TimeoutError(f"DataLoader timed out after {self._timeout:g} seconds; {error}") from None
        if raw is None:
            self._end()
            return None
        self._at = (raw.epoch, raw.step + 1)
        if raw.copied:
            depth, kept, _ = self._session.get().room()
            _log.said_once(self._said, _log.KEPT.format(kept=kept, depth=depth))
        return raw

    def _end(self) -> None:
        self._at = (self._at[0] + 1, 0)

    def note_bad(self, index: int, failure: Any) -> None:
        """A sample of a dataset could not be made, and is left out."""
        self._bad_count += 1
        if len(self._bad) < _BAD:
            self._bad.append((index, "", "dataset", failure.text))
        _log.logger.warning("sample %d of the dataset is left out: %s", index, failure.text)

    def steps(self) -> int:
        """Steps in an epoch, the same on every rank."""
        each = self._batch_size * self.world
        return self._count // each if self._drop_last else math.ceil(self._count / each)

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
            "samples": self._count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state with the next iteration. An empty one restores nothing."""
        if not state:
            return
        missing = {"epoch", "step"} - state.keys()
        if missing:
            raise ValueError(f"not a state of this loader: {', '.join(sorted(missing))} missing")
        epoch, step = int(state["epoch"]), int(state["step"])
        if self._count and "samples" in state:
            for key, own in (("seed", self._seed), ("samples", self._count)):
                if state[key] != own:
                    raise ValueError(f"the state was made with {key} = {state[key]}, and this loader has {own}")
            step = self._steps_of(step, int(state.get("global_batch", self._batch_size * self.world)))
        self._resume = (epoch, step)

    def _steps_of(self, step: int, global_batch: int) -> int:
        """The same place in the epoch, in steps of this loader."""
        own = self._batch_size * self.world
        done = min(step * global_batch, self._count)
        if done == self._count:
            return self.steps()
        if done % own:
            raise ValueError(
                f"the state lies behind {done} samples of the epoch, which is no whole number of steps of {own} samples "
                f"({self.world} ranks of {self._batch_size}): resume with a batch size that divides it"
            )
        return done // own

    # What is told of it.

    def is_ready(self) -> bool:
        """Whether the next batch of the iteration under way is there, so that ``next`` would return at once."""
        session = self._samples.session if self._samples is not None else self._session
        return bool(session.get().is_ready())

    def stats(self) -> dict[str, Any]:
        """Counters, and hints at what would help."""
        told = (self._session if self._samples is None else self._samples).stats()
        stats = {"kept_copies": 0, "copied": 0, "wait_share": 0.0, "spread": 1.0, "spread_max": 0.0, **told}
        if self._bad_count:
            stats["bad_samples"] = [*stats.get("bad_samples", ()), *self._bad]
            stats["skipped"] = stats.get("skipped", 0) + self._bad_count
        stats["hints"] = _meter.hints(stats, self._workers, self.world)
        return stats

    def close(self) -> None:
        """Leaves the job. Batches that are kept stay valid."""
        self._session.close()
        if self._samples is not None:
            self._samples.close()


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
