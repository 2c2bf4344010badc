"""torch's signature, its errors, and what may not be set."""

from __future__ import annotations

import inspect

import pytest
import torch
from helix_shm.torch import DataLoader


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, i):
        return i


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(10))


def test_the_arguments_stand_in_torchs_order():
    ours = list(inspect.signature(DataLoader.__init__).parameters)
    theirs = list(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)
    assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"sampler": [0], "shuffle": True},
        {"batch_sampler": [[0]], "batch_size": 2},
        {"batch_sampler": [[0]], "shuffle": True},
        {"batch_sampler": [[0]], "sampler": [0]},
        {"batch_sampler": [[0]], "drop_last": True},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
        {"batch_size": -1},
    ],
)
def test_torchs_value_errors(options):
    with pytest.raises(ValueError):
        DataLoader(Numbers(), **options)


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}])
def test_an_iterable_dataset_has_no_order_to_choose(options):
    with pytest.raises(ValueError, match="IterableDataset"):
        DataLoader(Stream(), **options)


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_some_attributes_are_fixed(name):
    loader = DataLoader(Numbers(), batch_size=2)
    with pytest.raises(ValueError, match=name):
        setattr(loader, name, None)


@pytest.mark.parametrize(
    "options", [{}, {"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {"batch_size": None}]
)
def test_len_is_torchs(options):
    assert len(DataLoader(Numbers(), **options)) == len(torch.utils.data.DataLoader(Numbers(), **options))
