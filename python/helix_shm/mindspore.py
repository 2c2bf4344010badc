"""A ``DataLoader`` and a source of ``GeneratorDataset`` for MindSpore.

Arrays of a batch lie in the slab. ``DataLoader`` gives them as tensors over the same memory where MindSpore's host
tensors allow that; ``GeneratorDataset`` copies what it is given, as it does with any source.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import mindspore
import numpy as np

from . import _native
from ._batch import Batch
from ._numpy import Loader
from ._order import OrderedStream, listed
from ._video import Video

__all__ = ["DataLoader", "source"]


class Source:
    """Batches as tuples of arrays: what ``GeneratorDataset`` takes, with ``column_names`` for it.

    ``GeneratorDataset(source, source.column_names, shuffle=False, python_multiprocessing=False)``: order, shuffling,
    shards and batches are the loader's. Each run through it is an epoch of the loader.
    """

    def __init__(self, loader: Any, columns: Iterable[str] | None) -> None:
        self._loader = loader
        if columns is None:
            columns = ("video",) if loader.manifest is not None else ("data",)
        #: Names for what the tuples have.
        self.column_names = list(columns)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in iter(self._loader):
            yield tuple(self._columns(batch))

    def _columns(self, batch: Any) -> Iterator[Any]:
        if isinstance(batch, (Batch, dict)):
            for name in self.column_names:
                value = getattr(batch, name) if name in ("ids", "weights") else batch[name]
                yield np.asarray(value)
            return
        values = batch if isinstance(batch, (list, tuple)) else [batch]
        if len(values) != len(self.column_names):
            raise ValueError(f"a batch has {len(values)} columns, and {self.column_names} are named: give `columns`")
        yield from map(np.asarray, values)


def source(loader: Any, columns: Iterable[str] | None = None) -> Source:
    """A source for ``GeneratorDataset`` from a :class:`helix_shm.Loader`.

    Of a manifest columns are ``video``, ``text``, ``ids`` and ``weights``; of a dataset the keys of its samples, or names
    for what their tuples have.
    """
    return Source(loader, columns)


class DataLoader(Loader):
    """The arguments of ``mindspore.dataset.dataloader.DataLoader`` in their order; what is ours comes behind, by keyword.

    Of a manifest (``helix_shm.open``) samples are decoded natively; any map-style dataset runs in Python workers, each of
    its samples a task. Without ``sampler`` and ``batch_sampler`` samples are dealt to all ranks of the launch and balanced
    by ``cost``. With one of them this rank gets what its own says, or with ``balance`` given, all ranks' batches in turn
    are dealt. ``num_workers`` is a rank's share of workers, and 0 means one for each core that the job may use.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        in_order: bool = True,
        transform: Video | None = None,
        balance: Any = None,
        seed: int | None = None,
        lookahead: int = 0,
        **ours: Any,
    ) -> None:
        if num_workers < 0:
            raise ValueError("num_workers option should be non-negative")
        if timeout < 0:
            raise ValueError("timeout option should be non-negative")
        if num_workers == 0 and (prefetch_factor is not None or persistent_workers):
            raise ValueError("prefetch_factor and persistent_workers need num_workers > 0")
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
            )
        if batch_size is None:
            raise ValueError("batch_size=None: samples without batches are not served; use batch_size=1")
        if batch_size < 1:
            raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
        if isinstance(dataset, (str, os.PathLike)):
            dataset = _native.Manifest(os.fspath(dataset))
        if not isinstance(dataset, _native.Manifest) and not hasattr(dataset, "__getitem__"):
            raise ValueError("an iterable dataset has no samples to be dealt: give one with len() and [i]")
        if seed is None:
            seed = int(generator.initial_seed()) if generator is not None else 0
        own = sampler is None and batch_sampler is None
        batches = batch_sampler if batch_sampler is not None else _Batches(sampler, batch_size, drop_last)
        native = isinstance(dataset, _native.Manifest)
        shared = own or balance not in (None, "none")
        super().__init__(
            dataset,
            batch_size,
            bool(shuffle),
            num_workers,
            drop_last and own,
            timeout,
            batch_sampler=None if own or native else batches,
            collate_fn=None if native else collate_fn,
            worker_init_fn=worker_init_fn,
            persistent_workers=persistent_workers,
            transform=transform,
            balance=("cost" if own else "none") if balance is None else balance,
            seed=seed & 0xFFFFFFFFFFFFFFFF,
            lookahead=lookahead or (num_workers * prefetch_factor + 1 if prefetch_factor else 0),
            **ours,
        )
        self.sampler, self.num_workers, self.drop_last = sampler, num_workers, drop_last
        self.batch_size, self.collate_fn = batch_size, collate_fn
        self.generator, self.in_order, self.pin_memory = generator, in_order, pin_memory
        self._shared = shared
        self._ordered: OrderedStream | None = None
        if self._samples is not None:
            self._samples.share(shared)
        if not own and native:
            self.batch_sampler = batches
            largest = getattr(batch_sampler, "batch_size", None) or batch_size
            self._ordered = OrderedStream(self._session.config, largest, shared)
            self._session = self._ordered.session

    def steps(self) -> int:
        """Steps in an epoch, the same on every rank."""
        if self.batch_sampler is not None and not self._shared:
            return len(self.batch_sampler)
        return super().steps()

    def begin(self) -> Any:
        if self._ordered is None:
            return super().begin()
        epoch, step = self.enter()
        self._session = self._ordered.start(epoch, step, listed(list(self.batch_sampler)))  # type: ignore[arg-type]
        return self.iterator()

    def _limit(self) -> int | None:
        return None if self._ordered is not None else super()._limit()

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next iteration, for this loader and its sampler."""
        super().set_epoch(epoch)
        step = getattr(self.sampler, "set_epoch", None)
        if callable(step):
            step(epoch)

    def wrap(self, raw: Any) -> Any:
        def vector(values: list[float]) -> Any:
            return mindspore.Tensor(np.asarray(values, np.float64))

        share = 1 if self._shared else self.world
        batch = Batch(raw, lambda t: _tensor(np.asarray(t)), vector, self.manifest, self.world, share)
        return batch if self.collate_fn is None else self.collate_fn(batch.samples())

    def join(self, samples: list[Any]) -> Any:
        """A batch of a dataset's samples."""
        if self.collate_fn is not None:
            return self.collate_fn(samples)
        return _tensors(self._collate(samples))


class _Batches:
    """A sampler's samples in batches, drawn anew for each epoch."""

    def __init__(self, sampler: Any, size: int, drop_last: bool) -> None:
        self._sampler, self.batch_size, self._drop_last = sampler, size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        samples = iter(self._sampler)
        while batch := [int(i) for i in itertools.islice(samples, self.batch_size)]:
            if len(batch) < self.batch_size and self._drop_last:
                return
            yield batch

    def __len__(self) -> int:
        count = len(self._sampler)
        return count // self.batch_size if self._drop_last else -(-count // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        step = getattr(self._sampler, "set_epoch", None)
        if callable(step):
            step(epoch)


def _tensor(array: Any) -> Any:
    """A tensor over an array's memory; one with gaps between its samples has to be copied."""
    if array.flags.c_contiguous and array.flags.writeable:
        return mindspore.Tensor.from_numpy(array)
    return mindspore.Tensor(np.ascontiguousarray(array))


def _tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _tensor(value) if value.dtype.kind in "biuf" else value
    if type(value) is dict:
        return {key: _tensors(inner) for key, inner in value.items()}
    return (
        [_tensors(inner) for inner in value]
        if isinstance(value, list) and value and not isinstance(value[0], str)
        else value
    )
