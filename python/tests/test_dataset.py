"""Python datasets in workers of their own, beside torch's loader."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
import torch
from helix_shm.torch import DataLoader

Theirs = torch.utils.data.DataLoader
LOCK = threading.Lock()


class Nested(torch.utils.data.Dataset):
    def __init__(self, n=10):
        self.n, self.epoch = n, 0

    def __len__(self):
        return self.n

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, i):
        return {
            "image": torch.full((3, 5), float(i)),
            "pair": (np.arange(i, i + 2), {"flag": torch.tensor(i % 2 == 0)}),
            "half": torch.full((2,), i, dtype=torch.bfloat16),
            "label": i,
            "name": f"sample {i}",
            "epoch": self.epoch,
        }


class Ids(torch.utils.data.Dataset):
    def __init__(self, n=23):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.tensor([i, os.getpid()])


class Locked(Ids):
    def __getitem__(self, i):
        with LOCK:
            return super().__getitem__(i)


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, n=23):
        self.n = n

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, each = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(first, self.n, each))


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return a == b


@pytest.mark.parametrize("workers", [0, 2])
def test_nested_samples_come_as_torchs_loader_gives_them(workers):
    ours, theirs = DataLoader(Nested(), 4, num_workers=workers), Theirs(Nested(), 4)
    assert equal(list(ours), list(theirs))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_order_is_torchs(workers):
    def order(kind, **options):
        generator = torch.Generator().manual_seed(3)
        loader = kind(Ids(), 4, True, generator=generator, **options)
        return [[b[:, 0].tolist() for b in loader] for _ in range(2)]

    assert order(DataLoader, num_workers=workers) == order(Theirs)

    def by_default(kind, **options):
        torch.manual_seed(11)
        return [b[:, 0].tolist() for b in kind(Ids(), 4, shuffle=True, **options)] + [torch.rand(1).item()]

    assert by_default(DataLoader, num_workers=workers) == by_default(Theirs)


def test_workers_are_execd_and_inherit_no_lock():
    # pytorch#169252: a fork copies locks that are held
    with LOCK:
        pids = {int(p) for b in DataLoader(Locked(), 4, num_workers=2) for p in b[:, 1]}
    assert os.getpid() not in pids and pids


def test_lambdas_and_local_classes_travel():
    class Local(Ids):
        def __getitem__(self, i):
            return i

    scale = 3
    loader = DataLoader(Local(), 4, num_workers=2, collate_fn=lambda samples: [s * scale for s in samples])
    assert sum(loader, []) == [3 * i for i in range(23)]


def test_batches_lie_on_the_slab_and_may_be_written_to():
    loader = DataLoader(Nested(), 4, num_workers=2)
    for batch in loader:
        start, length = loader._pool.session.get().slab()
        assert start <= batch["image"].data_ptr() < start + length
        batch["image"].add_(1)
        batch["pair"][0].add_(1)
    assert loader.stats()["copied"] == 0


def test_kept_batches_of_a_dataset_stay_as_they_were():
    kept = list(DataLoader(Nested(100), 4, num_workers=2))
    assert equal(kept, list(Theirs(Nested(100), 4)))


def test_samplers_and_batch_samplers():
    for options in (
        {"sampler": [5, 3, 3, 1], "batch_size": 3},
        {"batch_sampler": [[1], [2, 3, 4], [0, 0]]},
        {"batch_size": None},
        {"batch_size": None, "sampler": [4, 2]},
        {"batch_size": 4, "drop_last": True},
    ):
        ours = DataLoader(Nested(), num_workers=1, **options)
        theirs = Theirs(Nested(), **options)
        assert len(ours) == len(theirs)
        assert equal(list(ours), list(theirs)), options


def test_an_error_of_a_dataset_is_raised_again_with_its_traceback():
    class Broken(Ids):
        def __getitem__(self, i):
            if i == 5:
                raise LookupError(f"no sample {i}")
            return i

    batches = iter(DataLoader(Broken(), 2, num_workers=2))
    assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(LookupError, match="(?s)Caught LookupError in DataLoader worker process .*no sample 5"):
        next(batches)
    assert next(batches).tolist() == [6, 7]


def test_a_worker_that_dies_again_and_again_is_named_as_torch_names_it():
    class Deadly(Ids):
        def __getitem__(self, i):
            if i == 5:
                os.abort()
            return i

    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\(s\) .*\) exited unexpectedly"):
        list(DataLoader(Deadly(), 2, num_workers=1))


def test_a_killed_worker_costs_nothing():
    class Once(Ids):
        def __init__(self, mark):
            super().__init__()
            self.mark = mark

        def __getitem__(self, i):
            if i == 5 and not os.path.exists(self.mark):
                open(self.mark, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return i

    mark = f"/tmp/helix-once-{os.getpid()}"
    try:
        assert sum((b.tolist() for b in DataLoader(Once(mark), 2, num_workers=2)), []) == list(range(23))
    finally:
        os.unlink(mark)


def test_worker_init_runs_in_every_worker_after_seeding(tmp_path):
    def init(worker):
        (tmp_path / f"{os.getpid()}-{worker}").write_text(str(np.random.random()))

    class Random(Ids):
        def __getitem__(self, i):
            info = torch.utils.data.get_worker_info()
            assert info.num_workers == 2 and info.id in (0, 1) and info.dataset is self
            return torch.rand(1)

    values = torch.cat(list(DataLoader(Random(), 1, num_workers=2, worker_init_fn=init)))
    assert len({p.read_text() for p in tmp_path.iterdir()}) == len(list(tmp_path.iterdir())) <= 2
    # pytorch#5059: workers that share a seed
    assert len(values.unique()) == len(values)


def test_batches_that_outgrow_their_region_come_all_the_same():
    class Growing(Ids):
        def __getitem__(self, i):
            return torch.full((1000, 50 * (i + 1)), i)

    seen = [(tuple(b.shape), int(b.max())) for b in DataLoader(Growing(12), 1, num_workers=2)]
    assert seen == [((1, 1000, 50 * (i + 1)), i) for i in range(12)]


def test_set_epoch_reaches_workers_that_persist_and_changes_reach_those_that_do_not():
    # pytorch#31771: persistent workers keep the old epoch
    loader = DataLoader(Nested(), 5, num_workers=2, persistent_workers=True)
    for epoch in (3, 4):
        loader.set_epoch(epoch)
        assert {int(e) for b in loader for e in b["epoch"]} == {epoch}

    class Plain(Ids):
        scale = 1

        def __getitem__(self, i):
            return i * self.scale

    data = Plain()
    loader = DataLoader(data, 23, num_workers=2)
    assert next(iter(loader)).sum() == sum(range(23))
    data.scale = 2
    assert next(iter(loader)).sum() == 2 * sum(range(23))


@pytest.mark.parametrize("options", [{"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {"batch_size": None}])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_iterable_dataset_is_read_as_torch_reads_it(options, workers):
    ours = DataLoader(Stream(), num_workers=workers, **options)
    theirs = Theirs(Stream(), num_workers=workers, **options)
    for _ in range(2):
        assert equal(list(ours), list(theirs))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Ids, Stream])
def test_resume_of_a_dataset_at_every_step(kind, workers):
    def make():
        options = {} if kind is Stream else {"shuffle": True}
        return DataLoader(kind(9), 2, num_workers=workers, **options)

    def ids(batches):
        return [(b[:, 0] if kind is Ids else b).tolist() for b in batches]

    for step in (0, 1, 3, 5) if workers == 0 else (3,):
        torch.manual_seed(7)
        wanted = ids(make())
        torch.manual_seed(7)
        first = make()
        batches = iter(first)
        got = ids(next(batches) for _ in range(step))
        second = make()
        second.load_state_dict(first.state_dict())
        if step == 0:
            torch.manual_seed(7)
        assert got + ids(second) == wanted, step


def test_a_wait_has_an_end():
    class Slow(Ids):
        def __getitem__(self, i):
            threading.Event().wait(3600)

    with pytest.raises(RuntimeError, match="DataLoader timed out after 1 seconds"):
        next(iter(DataLoader(Slow(), 2, num_workers=1, timeout=1)))
