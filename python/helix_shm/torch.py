"""A ``DataLoader`` with torch's signature.

Of a manifest (``helix_shm.open``) samples are decoded natively, straight into the batch. Any other dataset runs in
worker processes of its own, started by exec and not by fork, which write into the same shared memory.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed
import torch.utils.data as _data
import torch.utils.dlpack
from torch.utils.data import _utils as _torch_utils

from . import _log, _native
from ._audio import Audio
from ._batch import Batch
from ._collate import Collate
from ._dataset import DatasetIterator, Pool
from ._loader import NativeIterator, NativeLoader
from ._order import OrderedStream, listed
from ._rows import Rows
from ._samples import Facts, SampleIterator, SamplePool
from ._video import Image, Video

__all__ = ["DataLoader"]

_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


def _distributed() -> tuple[int | None, int | None]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return None, None


class _Own:
    """Stands for the stream's own order where torch has a sampler."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        return math.ceil(len(self._loader.dataset) / self._loader.world)


class DataLoader(NativeLoader):
    """torch's loader, with its arguments in its order; what is ours comes behind, by keyword.

    Of a manifest:

    * ``num_workers`` is a rank's share of decoding processes, 0 means one for each core that the job may use;
    * without a sampler the samples are dealt to all ranks of the launch, and ``balance="cost"`` evens out what each step
      costs them by ``cost``; with a sampler (such as ``DistributedSampler``) each rank gets what its sampler says;
    * batches are :class:`helix_shm.Batch`: ``batch["video"]`` lies in the slab and may be written to;
    * ``transform`` says what becomes of a clip, ``on_error="skip"`` leaves out what cannot be decoded,
      ``"substitute"`` takes another sample for it, the same in every run.

    ``budget`` is the memory of the rank's slab, ``keep`` the batches that may be kept in it before later ones are
    copied out. ``rank`` and ``world_size`` come from ``torch.distributed`` or the launcher's environment.
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
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        transform: Video | Image | Audio | None = None,
        balance: Any = None,
        cost: Any = None,
        on_error: str = "raise",
        budget: int | str | None = None,
        seed: int | None = None,
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
        self._fixed = False
        if num_workers < 0:
            raise ValueError(
                "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing."
            )
        if timeout < 0:
            raise ValueError("timeout option should be non-negative")
        if num_workers == 0 and prefetch_factor is not None:
            raise ValueError("prefetch_factor option could only be specified in multiprocessing: let num_workers > 0")
        if prefetch_factor is not None and prefetch_factor < 0:
            raise ValueError("prefetch_factor option should be non-negative")
        if persistent_workers and num_workers == 0:
            raise ValueError("persistent_workers option needs num_workers > 0")
        if isinstance(dataset, (str, os.PathLike)):
            dataset = _native.Manifest(os.fspath(dataset))
        self._native = isinstance(dataset, _native.Manifest)
        self._iterable = isinstance(dataset, _data.IterableDataset)
        if self._iterable:
            for option, value in (("shuffle", shuffle), ("sampler", sampler), ("batch_sampler", batch_sampler)):
                if value not in (None, False):
                    raise ValueError(
                        f"DataLoader with IterableDataset: expected unspecified {option} option, but got "
                        f"{option}={value}"
                    )
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
                )
            batch_size, drop_last = None, False
        elif batch_size is None:
            if drop_last:
                raise ValueError(
                    "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
                )
        elif batch_size < 1:
            raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
        shuffle = bool(shuffle)
        balanced = balance not in (None, "none")
        described = callable(getattr(dataset, "describe", None))
        #: Whether the samples of a dataset are tasks of their own, and not whole batches.
        self._by_sample = not self._native and not self._iterable and num_workers > 0 and (described or balanced)
        if balanced and not (self._native or self._by_sample):
            raise ValueError(
                "balance moves samples that workers make: it needs num_workers > 0 and a map-style dataset"
            )
        own_order = self._native or (self._by_sample and balanced)
        own_order = own_order and sampler is None and batch_sampler is None and batch_size is not None

        self.dataset = dataset
        self.num_workers = num_workers
        self.prefetch_factor = prefetch_factor if prefetch_factor is not None or num_workers == 0 else 2
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._own_order = own_order
        self._given_order = self._native and not own_order
        #: Whether all ranks share a stream; else each has one of its own, for its sampler.
        self._shared = own_order or balanced

        if own_order:
            sampler = _Own(self)
        elif sampler is None and not self._iterable and batch_sampler is None:
            positions = range(len(dataset))
            if shuffle:
                sampler = _data.RandomSampler(positions, generator=generator)
            else:
                sampler = _data.SequentialSampler(positions)
        if not own_order and batch_size is not None and batch_sampler is None and not self._iterable:
            batch_sampler = _data.BatchSampler(sampler, batch_size, drop_last)
        if sampler is None and batch_sampler is not None:
            sampler = getattr(batch_sampler, "sampler", None)
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        formed = batch_sampler is not None or (self._iterable and batch_size is not None)
        if collate_fn is None and not self._native:
            collate_fn = _torch_utils.collate.default_collate if formed else _torch_utils.collate.default_convert
        self.collate_fn = collate_fn

        env_rank, env_world = _distributed()
        if seed is None:
            seed = generator.initial_seed() & 0xFFFFFFFFFFFFFFFF if generator is not None and own_order else 0
        rows = Rows.of(dataset) if self._by_sample else None
        super().__init__(
            dataset if self._native else None,
            samples=rows.len if rows is not None and own_order else 0,
            batch_size=batch_size or 1,
            shuffle=shuffle and own_order,
            drop_last=drop_last and own_order,
            num_workers=num_workers,
            timeout=timeout,
            transform=transform,
            balance=("cost" if own_order and self._native else "none") if balance is None else balance,
            cost=cost,
            on_error=on_error,
            budget=budget,
            seed=seed,
            rank=rank if rank is not None else env_rank,
            world_size=world_size if world_size is not None else env_world,
            micro_batch=micro_batch,
            regroup=regroup,
            policy=policy,
            split_ms=split_ms,
            hedge=hedge,
            job=job,
            name=name,
            socket=socket,
            keep=keep,
            lookahead=lookahead or (0 if self._native else 1 + max(num_workers, 1) * (self.prefetch_factor or 2)),
        )
        self._ordered: OrderedStream | None = None
        if self._given_order:
            largest = batch_size or getattr(batch_sampler, "batch_size", None) or 1
            self._ordered = OrderedStream(self._session.config, largest, self._shared)
            self._session = self._ordered.session
        self._pool = None
        #: What is known of the batch of a dataset that was given out last, where its samples are tasks.
        self.last: Facts | None = None
        self._uses_torch = True
        self._collate = Collate(_torch_utils.collate.default_collate, torch=True)
        if rows is not None:
            self._samples = SamplePool(self._session.config, rows, self._shared)
        elif not self._native and num_workers > 0:
            config = self._session.config
            workers = num_workers if self._iterable else self._workers
            self._pool = Pool(config, workers, alone=self._iterable)
        if self._native and worker_init_fn is not None:
            _log.said_once(self._said, "worker_init_fn is not called: samples of a manifest are decoded natively")
        #: Random state from which the sampler makes the epoch under way, and which it is to start from.
        self._random: list[Any] | None = None
        self._resume_random: list[Any] | None = None
        #: Where the slab begins that is registered with CUDA; 0 if none is.
        self._pinned = 0
        self._fixed = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and getattr(self, "_fixed", False):
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(name, value)

    # Iterating.

    @property
    def _index_sampler(self) -> Any:
        return self.batch_sampler if self.batch_sampler is not None else self.sampler

    def __len__(self) -> int:
        if self._own_order:
            return self.steps()
        if self._iterable:
            length = len(self.dataset)
            if self.batch_size is None:
                return length
            return length // self.batch_size if self.drop_last else math.ceil(length / self.batch_size)
        return self._shares(len(self._index_sampler))

    def _shares(self, batches: int) -> int:
        """Steps that so many batches of a sampler make: each one's own, or those of all ranks."""
        return -(-batches // self.world) if self._shared else batches

    def __iter__(self) -> Iterator[Any]:
        if self._native and not self._given_order:
            iterator = self.begin()
            self._pin()
            return iterator
        epoch, step = self.enter()
        if self._own_order:
            return SampleIterator(self, self._samples, None, self._seed)
        batches, seed = self._materialise()
        if self._samples is not None:
            return SampleIterator(self, self._samples, listed(batches or []), seed)
        if self._ordered is not None:
            self._session = self._ordered.start(epoch, step, batches or [])
            self._pin()
            return NativeIterator(self, self._turn)
        if self._pool is not None:
            return DatasetIterator(self, batches, step, seed)
        return self._in_process(batches, step)

    def __aiter__(self) -> Any:
        iterator = iter(self)
        if not hasattr(iterator, "__anext__"):
            raise TypeError("`async for` needs workers: num_workers > 0")
        return iterator

    def _materialise(self) -> tuple[list[Any] | None, int]:
        """The sampler's batches of this epoch, drawn as torch draws them, and a base for the workers' seeds."""
        own = [self.generator, getattr(self.sampler, "generator", None)]
        generators = list(dict.fromkeys(g for g in own if g is not None))
        before = torch.get_rng_state()
        resumed = self._resume_random
        if resumed is not None:
            torch.set_rng_state(resumed[0])
            for generator, state in zip(generators, resumed[1:]):
                generator.set_state(state)
        self._resume_random = None
        self._random = [torch.get_rng_state(), *(g.get_state() for g in generators)]
        try:
            seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
            batches = None if self._iterable else list(self._index_sampler)
        finally:
            if resumed is not None:
                # It is the program's, which has a checkpoint of its own.
                torch.set_rng_state(before)
        return batches, seed

    def _end(self) -> None:
        super()._end()
        self._random = None

    def join(self, samples: list[Any]) -> Any:
        """A batch of a dataset's samples, where they are tasks of their own."""
        if self.batch_sampler is None and not self._own_order:
            return self.collate_fn(samples[0])  # type: ignore[misc]
        if self.collate_fn is _torch_utils.collate.default_collate:
            return self._collate(samples)
        return self.collate_fn(samples)  # type: ignore[misc]

    def steps(self) -> int:
        """Steps in an epoch, the same on every rank."""
        return super().steps() if self._own_order else self._shares(len(self._index_sampler))

    def _limit(self) -> int | None:
        return None if self._given_order else super()._limit()

    def wrap(self, raw: Any) -> Any:
        world = self.world
        batch = Batch(raw, _from_dlpack, _vector, self.manifest, world, 1 if self._shared else world)
        if self.collate_fn is not None:
            return self.collate_fn(batch.samples())
        if self._given_order and self.batch_sampler is None:
            return batch.samples()[0]
        return batch

    # A dataset in this process.

    def _in_process(self, batches: list[Any] | None, step: int) -> Iterator[Any]:
        turn, collate = self._turn, self.collate_fn
        if batches is None:
            made = self._iterable_batches()
            next(itertools.islice(made, step, step), None)
        else:
            many = getattr(self.dataset, "__getitems__", None)
            formed = self.batch_sampler is not None

            def fetch(indices: Any) -> Any:
                if not formed:
                    return collate(self.dataset[indices])
                return collate(many(indices) if many is not None else [self.dataset[i] for i in indices])

            made = map(fetch, batches[step:])
        for batch in made:
            if turn != self._turn:
                raise RuntimeError("another iteration over this loader has begun; make a loader of its own for each")
            self._at = (self._at[0], self._at[1] + 1)
            yield batch
        self._end()

    def _iterable_batches(self) -> Iterator[Any]:
        items = iter(self.dataset)
        if self.batch_size is None:
            yield from map(self.collate_fn, items)
            return
        while True:
            samples = list(itertools.islice(items, self.batch_size))
            if not samples or (self.drop_last and len(samples) < self.batch_size):
                return
            yield self.collate_fn(samples)

    # State.

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next iteration, for this loader and its sampler."""
        super().set_epoch(epoch)
        for sampler in (self.sampler, self.batch_sampler):
            step = getattr(sampler, "set_epoch", None)
            if callable(step) and not isinstance(sampler, _Own):
                step(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, counted in batches given out."""
        epoch, step = self._resume or self._at
        state: dict[str, Any] = {"version": 1, "epoch": epoch, "step": step}
        if self._own_order:
            return super().state_dict()
        random = self._resume_random if self._resume is not None else self._random
        if random is not None and step > 0:
            state["random"] = random
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state with the next iteration. An empty one restores nothing."""
        super().load_state_dict(state)
        if state:
            self._resume_random = state.get("random")

    # Memory.

    def _pin(self) -> None:
        """Registers the slab with CUDA, once, so that uploads from it are asynchronous and need no copy."""
        if not self.pin_memory or self._pinned or not torch.cuda.is_available():
            return
        address, length = self._session.get().slab()
        code = torch.cuda.cudart().cudaHostRegister(address, length, 0)
        if int(code) != 0:
            _log.said_once(self._said, f"the slab cannot be pinned (cudaHostRegister: {code}); uploads wait for it")
        self._pinned = address

    def stats(self) -> dict[str, Any]:
        """Counters, and hints at what would help."""
        if self._pool is not None and self._pool._session is not None:
            self._session = self._pool._session
        return super().stats()

    def close(self) -> None:
        """Leaves the job. Batches that are kept stay valid."""
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._pinned)
            self._pinned = 0
        super().close()
        if self._pool is not None:
            self._pool.close()


_vector = functools.partial(torch.tensor, dtype=torch.float64)


def _from_dlpack(tensor: Any) -> torch.Tensor:
    return torch.utils.dlpack.from_dlpack(tensor.__dlpack__())
