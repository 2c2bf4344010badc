"""With a MindSpore of its own: `make mindspore-test`. Its name keeps it out of what pytest gathers by itself."""

from __future__ import annotations

import helix_shm as hx
import mindspore
import mindspore.dataset as ds
import numpy as np
import pytest
from helix_shm.mindspore import DataLoader, source


class Squares:
    def __len__(self):
        return 20

    def describe(self, i):
        return {"frames": 1 + i, "cost": 1 + i}

    def __getitem__(self, i):
        return {"x": np.full((2, 3), i * i, np.float32), "label": i}


def labels(loader):
    return [batch["label"].asnumpy().tolist() for batch in loader]


def test_batches_of_a_manifest_are_tensors_over_the_slab(manifest, small):
    loader = DataLoader(manifest, 4, transform=small, num_workers=2)
    for batch in loader:
        video = batch["video"]
        assert isinstance(video, mindspore.Tensor)
        array = np.asarray(batch._raw.tensor())
        address, length = loader._session.get().slab()
        assert address <= array.__array_interface__["data"][0] < address + length
        array[0, 0, 0, 0, 0] ^= 0xFF
        assert video.asnumpy()[0, 0, 0, 0, 0] == array[0, 0, 0, 0, 0]
        assert batch.weights.asnumpy().sum() == pytest.approx(1)
    assert loader.stats()["copied"] == 0


def test_a_dataset_is_shuffled_and_each_sample_comes_once():
    loader = DataLoader(Squares(), 4, shuffle=True, num_workers=2, seed=3)
    first = labels(loader)
    assert sorted(sum(first, [])) == list(range(20))
    assert first != labels(loader)
    loader.set_epoch(0)
    batches = list(loader)
    assert [batch["label"].asnumpy().tolist() for batch in batches] == first
    for batch in batches:
        assert (batch["x"].asnumpy()[:, 0, 0] == batch["label"].asnumpy() ** 2).all()
    assert len(loader) == 5


def test_samplers_decide_in_the_order_of_the_arguments():
    assert labels(DataLoader(Squares(), 3, None, [5, 4, 3, 2], None, 1)) == [[5, 4, 3], [2]]
    assert labels(DataLoader(Squares(), 3, sampler=[5, 4, 3, 2], num_workers=1, drop_last=True)) == [[5, 4, 3]]
    assert labels(DataLoader(Squares(), batch_sampler=[[1], [2, 3]], num_workers=1)) == [[1], [2, 3]]


def test_a_sampler_orders_a_manifest(manifest, small):
    loader = DataLoader(manifest, 2, sampler=[3, 1, 2], num_workers=1, transform=small)
    assert [batch.ids for batch in loader] == [[manifest.row(3), manifest.row(1)], [manifest.row(2)]]
    assert len(loader) == 2


def test_errors_of_arguments():
    for more in (
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"sampler": [1], "shuffle": True},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_size": 0},
    ):
        with pytest.raises(ValueError):
            DataLoader(Squares(), **more)


def test_state_goes_on():
    loader = DataLoader(Squares(), 4, num_workers=1)
    batches = iter(loader)
    next(batches)
    other = DataLoader(Squares(), 4, num_workers=2)
    state = loader.state_dict()
    loader.close()
    other.load_state_dict(state)
    assert labels(other)[0] == [4, 5, 6, 7]


def test_a_generator_dataset_takes_a_manifest(manifest, small):
    loader = hx.Loader(manifest, 4, num_workers=2, transform=small)
    feed = source(loader, ["video", "ids"])
    data = ds.GeneratorDataset(feed, feed.column_names, shuffle=False, python_multiprocessing=False)
    rows = [int(i) for row in data.create_dict_iterator(num_epochs=1, output_numpy=True) for i in row["ids"]]
    assert sorted(rows) == sorted(manifest.row(i) for i in range(len(manifest)))
    assert data.get_dataset_size() == len(loader)


def test_a_generator_dataset_takes_a_dataset_over_epochs():
    loader = hx.Loader(Squares(), 4, num_workers=2)
    feed = source(loader, ["x", "label"])
    data = ds.GeneratorDataset(feed, feed.column_names, shuffle=False, python_multiprocessing=False)
    iterator = data.create_dict_iterator(num_epochs=2, output_numpy=True)
    for _ in range(2):
        assert [row["label"].tolist() for row in iterator] == np.arange(20).reshape(5, 4).tolist()
