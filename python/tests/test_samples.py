"""Datasets whose samples are tasks: put together where they lie, dealt by cost, made of pieces, the same on any workers."""

from __future__ import annotations

import multiprocessing
import os
import random

import helix_shm as hx
import numpy as np
import pytest
import torch
from helix_shm._brief import Brief
from helix_shm.torch import DataLoader


class Described:
    """Numbers that say what they cost."""

    def __init__(self, count=24, costs=None, bad=()):
        self.count, self.costs, self.bad = count, costs or [1 + i % 7 for i in range(count)], set(bad)

    def __len__(self):
        return self.count

    def describe(self, i):
        return {"frames": 1 + i, "width": 64, "height": 64, "cost": self.costs[i]}

    def __getitem__(self, i):
        if i in self.bad:
            raise KeyError(f"sample {i} is bad")
        return {"video": np.full((3, 5), i, np.float32), "id": i, "noise": (random.random(), np.random.rand())}


class Pieces(Described):
    """Samples that several workers can make."""

    def describe(self, i):
        return {**super().describe(i), "pieces": 4}

    def part(self, i, k, n):
        return (i, k, n)

    def join(self, i, parts):
        assert parts == [(i, k, len(parts)) for k in range(len(parts))]
        return self[i]


class Large(Described):
    """Samples that outgrow the first regions."""

    def __getitem__(self, i):
        return np.full((300, 1000 + 100 * i), i, np.uint8)


def stream(loader):
    return [(batch["video"].clone(), batch["id"].tolist(), [n.tolist() for n in batch["noise"]]) for batch in loader]


def test_samples_are_put_together_where_they_lie_without_a_copy_and_can_be_written_to():
    loader = DataLoader(Described(), 4, num_workers=2)
    for batch in loader:
        video = batch["video"]
        address, length = loader._samples.session.get().slab()
        assert address <= video.data_ptr() < address + length
        assert video.shape == (4, 3, 5)
        video += 1  # its memory is this rank's alone
        assert torch.equal(video[:, 0, 0], batch["id"] + 1.0)
    assert loader._collate.copied == 0
    assert loader.stats()["copied"] == 0


def test_arrays_of_several_shapes_fall_back_to_what_the_user_says():
    loader = DataLoader(Large(8), 4, num_workers=2, collate_fn=lambda samples: [s.shape[1] for s in samples])
    assert list(loader) == [[1000, 1100, 1200, 1300], [1400, 1500, 1600, 1700]]


def test_samples_that_outgrow_their_regions_are_asked_for_again():
    loader = DataLoader(Large(9), 1, num_workers=2)
    assert [batch.shape[2] for batch in loader] == [1000 + 100 * i for i in range(9)]
    assert [int(batch[0, 0, 0]) for batch in loader] == list(range(9))


def test_the_stream_and_its_random_numbers_are_the_same_with_any_number_of_workers():
    generator = torch.Generator().manual_seed(7)
    one = stream(DataLoader(Described(), 4, shuffle=True, num_workers=1, generator=generator))
    generator = torch.Generator().manual_seed(7)
    three = stream(DataLoader(Described(), 4, shuffle=True, num_workers=3, generator=generator))
    for a, b in zip(one, three, strict=True):
        assert torch.equal(a[0], b[0])
        assert a[1:] == b[1:]
    noise = [n for _, _, columns in one for n in columns[1]]
    assert len(set(noise)) == len(noise)  # pytorch#5059: no two samples share their numbers


def test_the_order_is_torchs_own():
    def order(kind, **more):
        generator = torch.Generator().manual_seed(3)
        loader = kind(Described(), 5, shuffle=True, num_workers=1, generator=generator, **more)
        return [batch["id"].tolist() for batch in loader]

    assert order(DataLoader) == order(torch.utils.data.DataLoader)


def test_a_bad_sample_raises_as_torch_does_or_is_left_out_with_its_reason():
    with pytest.raises(KeyError, match="sample 5 is bad"):
        list(DataLoader(Described(bad=[5]), 4, num_workers=2))
    loader = DataLoader(Described(bad=[5, 6]), 4, num_workers=2, on_error="skip")
    ids = [batch["id"].tolist() for batch in loader]
    assert ids[1] == [4, 7]
    stats = loader.stats()
    assert stats["skipped"] == 2
    assert sorted(bad[0] for bad in stats["bad_samples"]) == [5, 6]
    assert "sample 5 is bad" in stats["bad_samples"][0][3] + stats["bad_samples"][1][3]


def test_a_sample_can_be_made_of_pieces_by_several_workers():
    plain = [batch["id"].tolist() for batch in DataLoader(Described(), 4, num_workers=2)]
    # Everything that takes longer than no time at all is taken apart.
    loader = DataLoader(Pieces(), 4, num_workers=2, split_ms=1)
    assert [batch["id"].tolist() for batch in loader] == plain


def test_state_goes_on_at_each_step():
    for at in range(6):
        loader = DataLoader(Described(), 4, num_workers=1)
        batches = iter(loader)
        before = [next(batches)["id"].tolist() for _ in range(at)]
        state = loader.state_dict()
        loader.close()
        other = DataLoader(Described(), 4, num_workers=2)
        other.load_state_dict(state)
        assert before + [batch["id"].tolist() for batch in other] == np.arange(24).reshape(6, 4).tolist()
        other.close()


def test_numpy_batches_are_views_and_a_rank_alone_gets_no_sample_twice():
    loader = hx.Loader(Described(10), 4, num_workers=2)
    batches = list(loader)
    assert [len(batch["id"]) for batch in batches] == [4, 4, 2]
    assert sorted(np.concatenate([batch["id"] for batch in batches]).tolist()) == list(range(10))
    assert loader._collate.copied == 0


COSTS = [8, 1, 1, 1, 7, 1, 1, 1, 6, 1, 1, 1, 5, 1, 1, 1]


def rank_main(rank, folder, kind, batches, more, pipe):
    import os

    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    data = Described(16, COSTS)
    if kind == "torch":
        loader = DataLoader(data, batch_sampler=batches, num_workers=1, rank=rank, world_size=2, **more)
    elif batches is None:
        loader = hx.Loader(data, 4, num_workers=1, rank=rank, world_size=2, **more)
    else:
        loader = hx.Loader(data, 4, batch_sampler=batches, num_workers=1, rank=rank, world_size=2, **more)
    got = [(batch["id"].tolist(), list(loader.last.weights)) for batch in loader]
    pipe.send((len(loader), got))
    loader.close()


def two_ranks(folder, kind, batches, **more):
    context = multiprocessing.get_context("spawn")
    pipes, ranks = [], []
    for rank in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=rank_main, args=(rank, folder, kind, batches, dict(more, job="two"), theirs))
        process.start()
        pipes.append(ours)
        ranks.append(process)
    got = [pipe.recv() for pipe in pipes]
    for process in ranks:
        process.join(20)
        assert process.exitcode == 0
    return got


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_ranks_share_a_samplers_batches_and_balance_evens_out_what_they_cost(alone, kind):
    batches = [[0, 4, 1, 2], [3, 5, 6, 7], [8, 12, 9, 10], [11, 13, 14, 15]]  # of rank 0, rank 1, rank 0, rank 1
    plain = two_ranks(alone, "numpy", batches, balance="none") if kind == "numpy" else None
    even = two_ranks(alone, kind, batches, balance="cost")
    if plain is not None:
        assert [[ids for ids, _ in got] for _, got in plain] == [[batches[0], batches[2]], [batches[1], batches[3]]]
    for step in range(2):
        mine = [even[rank][1][step][0] for rank in range(2)]
        assert sorted(mine[0] + mine[1]) == sorted(batches[2 * step] + batches[2 * step + 1])
        loads = [sum(COSTS[i] for i in ids) for ids in mine]
        assert max(loads) <= 11, "the two long ones of a step are with one rank"
        assert sum(sum(even[rank][1][step][1]) for rank in range(2)) == pytest.approx(1)
    assert [length for length, _ in even] == [2, 2]


def test_ranks_may_get_more_samples_where_counts_are_free(alone):
    batches = [[0, 1], [2, 3], [4, 5], [6, 7]]
    got = two_ranks(alone, "numpy", batches, balance={"most": 4}, micro_batch=1)
    for step in range(2):
        mine = [got[rank][1][step][0] for rank in range(2)]
        assert sorted(mine[0] + mine[1]) == sorted(batches[2 * step] + batches[2 * step + 1])
        assert sorted(map(len, mine)) == [1, 3]


def test_workers_that_read_one_brief_at_once_do_not_disturb_each_other():
    fd = os.memfd_create("brief")
    os.write(fd, Brief.write(Brief.payload(Described(5), None, None), None, None, turn=3) + b"an order")
    os.lseek(fd, 17, os.SEEK_SET)  # where another process has left the position that all share
    brief = Brief.read(fd)
    assert brief.turn == 3
    assert len(brief.load()["dataset"]) == 5
    assert os.lseek(fd, 0, os.SEEK_CUR) == 17
    brief.close()


def test_balance_says_what_it_needs():
    with pytest.raises(ValueError, match="num_workers > 0"):
        DataLoader(Described(), 4, balance="cost")
    loader = DataLoader(Described(), batch_sampler=[[0, 1, 2], [3, 4]], num_workers=1, balance="cost")
    with pytest.raises(ValueError, match="micro_batch"):
        iter(loader)
