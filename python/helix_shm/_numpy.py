"""The loader without a framework."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from . import _native
from ._audio import Audio
from ._batch import Batch
from ._collate import Collate, numpy_leaf
from ._loader import NativeLoader
from ._rows import Rows
from ._samples import Facts, SampleIterator, SamplePool
from ._video import Image, Video


def _numpy() -> Any:
    import numpy

    return numpy


class Loader(NativeLoader):
    """A loader that gives NumPy arrays. For PyTorch see ``helix_shm.torch.DataLoader``.

    ``data`` is a manifest, or any dataset with ``len`` and ``[i]``: its samples are made in Python workers, each where
    and when the scheduler says, by what ``describe(i)`` tells of them if the dataset has that: a mapping with any of
    ``frames``, ``width``, ``height``, ``duration``, ``bytes``, ``codec`` and ``decoded`` (frames that have to be decoded),
    from which it learns what they take, ``cost``, which ``balance`` evens out, and ``out_bytes``, what the sample has at
    most. Where it also has ``pieces``, and the dataset ``part(i, k, n)`` and ``join(i, parts)``, several workers make a
    sample that would come late. ``collate_fn`` puts a batch together in the rank; without one arrays stay where they are.

    ``num_workers`` is a rank's share of decoding processes; 0 means one for each core that the job may use. ``budget``
    is the memory of the rank's slab, for all batches that are in use or under way. Rank and world size come from the
    launcher's environment unless given. ``batch_sampler`` gives the batches of all ranks in turn, those of a step side by
    side, the same on every rank; balancing moves their samples, ``micro_batch`` of them at a time.
    """

    def __init__(
        self,
        data: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        num_workers: int = 0,
        drop_last: bool = False,
        timeout: float = 0,
        *,
        batch_sampler: Iterable[list[int]] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        persistent_workers: bool = True,
        transform: Video | Image | Audio | None = None,
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
        split_ms: int | None = None,
        hedge: bool | None = None,
        job: str | None = None,
        name: str | None = None,
        socket: str | None = None,
        keep: int | None = None,
        lookahead: int = 0,
    ) -> None:
        if isinstance(data, (str, os.PathLike)):
            data = _native.Manifest(os.fspath(data))
        native = isinstance(data, _native.Manifest)
        if native and (batch_sampler is not None or collate_fn is not None):
            raise ValueError(
                "batch_sampler and collate_fn are for datasets; helix_shm.torch has them for manifests too"
            )
        self._rows = None if native else Rows.of(data)
        super().__init__(
            data if native else None,
            samples=0 if self._rows is None else self._rows.len,
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
            split_ms=split_ms,
            hedge=hedge,
            job=job,
            name=name,
            socket=socket,
            keep=keep,
            lookahead=lookahead,
        )
        self._np = _numpy()
        self.dataset, self.batch_sampler, self.timeout = data, batch_sampler, timeout
        self.worker_init_fn, self.persistent_workers = worker_init_fn, persistent_workers
        self.collate_fn = collate_fn
        self._collate = Collate(numpy_leaf, torch=False)
        self._uses_torch = False
        #: What is known of the batch of a dataset that was given out last.
        self.last: Facts | None = None
        if self._rows is not None:
            self._samples = SamplePool(self._session.config, self._rows, shared=True)

    def wrap(self, raw: Any) -> Batch:
        np = self._np
        return Batch(raw, np.asarray, lambda values: np.asarray(values, np.float64), self.manifest, self.world)

    def join(self, samples: list[Any]) -> Any:
        """A batch of a dataset's samples."""
        return (self.collate_fn or self._collate)(samples)

    def __len__(self) -> int:
        return self.steps()

    def steps(self) -> int:
        """Steps in an epoch, the same on every rank."""
        if self.batch_sampler is None:
            return super().steps()
        batches = len(self.batch_sampler)  # type: ignore[arg-type]
        return batches // self.world if self._drop_last else -(-batches // self.world)

    def __iter__(self) -> Iterator[Any]:
        return self.begin()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self.begin()

    def begin(self) -> Any:
        if self._rows is None:
            return super().begin()
        self.enter()
        batches = None if self.batch_sampler is None else [list(batch) for batch in self.batch_sampler]
        return SampleIterator(self, self._samples, batches, self._seed)

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next iteration, for this loader and its sampler."""
        super().set_epoch(epoch)
        step = getattr(self.batch_sampler, "set_epoch", None)
        if callable(step):
            step(epoch)
