"""A manifest, decoded natively: memory, order, state, errors."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import helix_shm as hx
import numpy as np
import pytest
import torch
from conftest import index
from helix_shm.torch import DataLoader


def ids(loader):
    return [batch.ids for batch in loader]


def pixels(loader):
    return [(batch.ids, batch["video"].clone()) for batch in loader]


def same(a, b):
    return len(a) == len(b) and all(x[0] == y[0] and torch.equal(x[1], y[1]) for x, y in zip(a, b))


def test_a_tensor_lies_on_the_slab_and_no_byte_is_copied(manifest, small):
    loader = DataLoader(manifest, batch_size=4, num_workers=2, transform=small)
    for batch in loader:
        start, length = loader._session.get().slab()
        video = batch["video"]
        assert video.shape == (4, 4, 3, 32, 32) and video.dtype == torch.uint8
        assert start <= video.data_ptr() < start + length
        assert video.data_ptr() == batch._raw.tensor().data_ptr
    assert loader.stats()["copied"] == 0


def test_an_array_lies_on_the_slab_too(manifest, small):
    loader = hx.Loader(manifest, batch_size=4, num_workers=2, transform=small)
    for batch in loader:
        start, length = loader._session.get().slab()
        assert start <= batch["video"].__array_interface__["data"][0] < start + length
        assert batch["video"].flags.writeable


def test_a_batch_may_be_written_to_and_its_neighbours_stay_intact(manifest, small):
    # ray#25106: arrays that others share
    plain = pixels(DataLoader(manifest, batch_size=2, num_workers=2, transform=small))
    loader = DataLoader(manifest, batch_size=2, num_workers=2, transform=small, keep=8)
    batches = []
    for (_, wanted), batch in zip(plain, loader):
        batches.append((wanted, batch["video"]))
        if len(batches) % 2:
            batch["video"].fill_(7)
            batches[-1] = (torch.full_like(wanted, 7), batch["video"])
        assert all(torch.equal(a, b) for a, b in batches)


def test_a_tensor_outlives_its_batch_and_its_loader(manifest, small):
    wanted = pixels(DataLoader(manifest, batch_size=2, num_workers=1, transform=small))[0][1]
    loader = DataLoader(manifest, batch_size=2, num_workers=1, transform=small)
    video = next(iter(loader))["video"]
    loader.close()
    del loader
    assert torch.equal(video, wanted)


def test_memory_goes_back_from_a_thread_without_the_gil(manifest, small):
    # The slab holds eight batches: an epoch ends only if each is given back, here by a thread that drops the last
    # reference while this one waits for the next batch.
    loader = DataLoader(manifest, batch_size=1, num_workers=2, transform=small)
    held, seen = [], 0

    def drop():
        while seen < len(manifest):
            if held:
                held.pop()
            time.sleep(0)

    thread = threading.Thread(target=drop)
    thread.start()
    for batch in loader:
        held.append(batch["video"])
        del batch
        seen += 1
    thread.join()
    assert seen == len(manifest)


def test_kept_batches_are_copied_out_past_a_limit_and_that_is_said_once(manifest, small, caplog):
    # pytorch#973, #34768: whoever keeps batches runs out of files, here of room
    wanted = pixels(DataLoader(manifest, batch_size=1, num_workers=2, transform=small))
    loader = DataLoader(manifest, batch_size=1, num_workers=2, transform=small)
    with caplog.at_level(logging.WARNING, logger="helix_shm"):
        kept = list(loader)
    assert same([(b.ids, b["video"]) for b in kept], wanted)
    copies = [b.is_copy for b in kept]
    assert copies == sorted(copies) and 0 < sum(copies) < len(copies)
    assert sum("are kept" in r.getMessage() for r in caplog.records) == 1
    stats = loader.stats()
    assert stats["kept_copies"] == sum(copies)
    assert stats["copied"] == sum(copies) * 4 * 3 * 32 * 32


def test_256_open_files_are_enough_for_whoever_keeps_everything(manifest, alone):
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import helix_shm as hx
from helix_shm.torch import DataLoader
loader = DataLoader({str(manifest.path)!r}, batch_size=1, num_workers=2, transform=hx.Video(frames=2, size=16))
kept = [batch for _ in range(20) for batch in loader]
assert len(kept) == 20 * len(loader), len(kept)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_import_needs_neither_torch_nor_numpy():
    code = """
import sys
sys.modules["torch"] = sys.modules["numpy"] = None
import helix_shm
helix_shm.Video().transform()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_waiting_answers_ctrl_c_and_loses_nothing(manifest, small):
    # The other rank is not there, so the first batch does not come.
    first, second = (
        DataLoader(manifest, batch_size=2, num_workers=1, transform=small, rank=rank, world_size=2, name="x")
        for rank in (0, 1)
    )
    batches = iter(first)
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    signal.signal(signal.SIGUSR1, before)
    others = iter(second)
    assert next(batches).step == 0 and next(others).step == 0


def test_waiting_lets_other_threads_run(manifest, small):
    loader = DataLoader(manifest, batch_size=2, num_workers=1, transform=small, rank=0, world_size=2, timeout=0.5)
    counted = []
    thread = threading.Thread(target=lambda: counted.extend(range(1000)))
    batches = iter(loader)
    threading.Timer(0.1, thread.start).start()
    with pytest.raises(RuntimeError, match="DataLoader timed out after 0.5 seconds"):
        next(batches)
    assert len(counted) == 1000
    assert loader.stats()["batches"] == 0


def test_a_forked_child_that_touches_a_loader_gets_an_error(manifest, small):
    # torchcodec#766, pytorch#138957: decoders and locks that a fork copies
    loader = DataLoader(manifest, batch_size=2, num_workers=1, transform=small)
    batches = iter(loader)
    kept = next(batches)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            next(batches)
        except hx.ForkedError:
            del kept
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(batches)) == len(loader) - 1


def test_epochs_differ_and_set_epoch_brings_one_back(manifest, small):
    loader = DataLoader(manifest, batch_size=4, shuffle=True, num_workers=2, transform=small)
    first, second = ids(loader), ids(loader)
    assert first != second and sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(len(manifest)))
    loader.set_epoch(0)
    assert ids(loader) == first
    other = DataLoader(manifest, 4, True, num_workers=1, transform=small, seed=1)
    assert ids(other) != first
    seeded = DataLoader(manifest, 4, True, num_workers=1, transform=small, generator=torch.Generator().manual_seed(1))
    assert ids(seeded) == ids(DataLoader(manifest, 4, True, num_workers=3, transform=small, seed=1))


def test_augmentation_depends_on_seed_epoch_and_sample_alone(manifest):
    # pytorch#5059: workers that share a seed
    video = hx.Video(frames=2, size=24, crop="random", short_side=32, flip=0.5, stride=1)
    one = pixels(DataLoader(manifest, 4, True, num_workers=1, transform=video))
    many = pixels(DataLoader(manifest, 4, True, num_workers=3, transform=video))
    assert same(one, many)


def test_a_short_last_batch_is_short_and_len_knows_it(manifest, small):
    n = len(manifest)
    loader = DataLoader(manifest, batch_size=5, num_workers=2, transform=small)
    batches = list(loader)
    assert len(batches) == len(loader) == -(-n // 5)
    assert [len(b.ids) for b in batches] == [5] * (n // 5) + [n % 5]
    assert batches[-1]["video"].shape[0] == n % 5
    assert sum((b.ids for b in batches), []) == list(range(n))
    dropped = DataLoader(manifest, batch_size=5, num_workers=2, transform=small, drop_last=True)
    assert len(dropped) == len(list(dropped)) == n // 5


def test_resume_at_every_step_twice_and_at_an_epochs_end(manifest, small):
    # torchdata#1437: the second resume fails, or drifts
    def make():
        return DataLoader(manifest, batch_size=4, shuffle=True, num_workers=2, transform=small)

    whole = make()
    wanted = [*ids(whole), *ids(whole)]
    for step in range(len(whole) + 1):
        first = make()
        batches = iter(first)
        got = [next(batches).ids for _ in range(step)]
        second = make()
        assert second.state_dict()["step"] == 0
        second.load_state_dict(first.state_dict())
        first.close()
        batches = iter(second)
        got += [b.ids for b in itertools.islice(batches, 1)]
        third = make()
        third.load_state_dict(second.state_dict())
        second.close()
        for _ in range(2):
            got += ids(third)
            if len(got) >= len(wanted):
                break
        assert got[: len(wanted)] == wanted, step
        third.close()


def test_an_empty_state_restores_nothing_and_a_strangers_is_refused(manifest, small):
    loader = DataLoader(manifest, batch_size=4, transform=small)
    loader.load_state_dict({})
    with pytest.raises(ValueError, match="step"):
        loader.load_state_dict({"epoch": 1})
    state = loader.state_dict()
    with pytest.raises(ValueError, match="seed"):
        DataLoader(manifest, batch_size=4, transform=small, seed=3).load_state_dict(state)


def test_a_state_goes_on_with_another_number_of_ranks(manifest, small):
    # litData#248: resume on several nodes
    def ranks(world, name):
        return [
            DataLoader(manifest, 2, True, num_workers=1, transform=small, rank=r, world_size=world, name=name)
            for r in range(world)
        ]

    def steps(loaders, most=None):
        iterators = [iter(loader) for loader in loaders]
        out = []
        while most is None or len(out) < most:
            batches = [next(i, None) for i in iterators]
            if batches[0] is None:
                return out
            out.append(sorted(sum((b.ids for b in batches), [])))
        return out

    alone = ranks(1, "one")
    wanted = steps(alone)
    two = ranks(2, "two")
    got = steps(two, 2)
    assert got == [sorted(wanted[0] + wanted[1]), sorted(wanted[2] + wanted[3])]
    back = ranks(1, "back")
    back[0].load_state_dict(two[0].state_dict())
    assert steps(back) == wanted[4:]


def test_several_loaders_at_once(manifest, small):
    train = DataLoader(manifest, 4, True, num_workers=2, transform=small)
    valid = DataLoader(manifest, 2, num_workers=1, transform=hx.Video(frames=2, size=16))
    seen = [(a["video"].shape[1], b["video"].shape[1]) for a, b in zip(train, valid)]
    assert seen == [(4, 2)] * min(len(train), len(valid))


def test_a_sampler_decides_what_meets(manifest, small):
    sampler = torch.utils.data.DistributedSampler(range(len(manifest)), num_replicas=2, rank=1, shuffle=True)
    loader = DataLoader(manifest, batch_size=3, sampler=sampler, num_workers=2, transform=small)
    for epoch in range(3):
        loader.set_epoch(epoch)
        wanted = list(sampler)
        assert sum(ids(loader), []) == wanted
        assert len(loader) == -(-len(wanted) // 3)
    ragged = [[3], [1, 2, 0, 5], [4, 4]]
    assert ids(DataLoader(manifest, batch_sampler=ragged, num_workers=2, transform=small)) == ragged


def test_the_order_is_torchs_own_where_a_torch_sampler_makes_it(manifest, small):
    order = list(range(len(manifest)))
    generator = torch.Generator().manual_seed(5)
    wanted = [b.tolist() for b in torch.utils.data.DataLoader(order, 4, True, generator=generator)]
    generator = torch.Generator().manual_seed(5)
    sampler = torch.utils.data.RandomSampler(order, generator=generator)
    loader = DataLoader(manifest, 4, sampler=sampler, num_workers=1, transform=small, generator=generator)
    assert ids(loader) == wanted


def test_another_iteration_ends_the_one_before(manifest, small):
    loader = DataLoader(manifest, batch_size=4, num_workers=1, transform=small)
    old = iter(loader)
    next(old)
    assert len(list(loader)) == len(loader)
    with pytest.raises(RuntimeError, match="another iteration"):
        next(old)


def test_a_bad_file_is_named_or_left_out(clips, small, tmp_path):
    # pytorch#1137, DALI#1727: one bad file stops the run
    for name in ("base.mp4", "rot90.mp4", "sar_4_3.mp4", "vfr_timestamps.mp4"):
        (tmp_path / name).write_bytes((clips / name).read_bytes())
    manifest = hx.open(index(tmp_path))
    (tmp_path / "rot90.mp4").write_bytes(b"changed since")
    with pytest.raises(hx.BadSampleError) as raised:
        list(DataLoader(manifest, batch_size=2, num_workers=1, transform=small))
    assert raised.value.path.endswith("rot90.mp4") and raised.value.stage == "open"
    loader = DataLoader(manifest, batch_size=2, num_workers=1, transform=small, on_error="skip")
    batches = list(loader)
    assert len(batches) == len(loader) == 2
    assert sum(len(b.ids) for b in batches) == 3 and sum(b.skipped for b in batches) == 1
    stats = loader.stats()
    assert stats["bad"] == 1 and stats["bad_samples"][0][1].endswith("rot90.mp4")
    assert any("skipped" in hint for hint in stats["hints"])


def test_a_killed_worker_costs_nothing(manifest, small):
    # pytorch#21554: a dead worker, and the trainer waits for ever
    wanted = pixels(DataLoader(manifest, batch_size=1, num_workers=2, transform=small))
    loader = DataLoader(manifest, batch_size=1, num_workers=2, transform=small)
    got = []
    for batch in loader:
        got.append((batch.ids, batch["video"].clone()))
        daemon = loader._session.get().daemon_pid()
        children = subprocess.run(["ps", "--ppid", str(daemon), "-o", "pid="], capture_output=True, text=True).stdout
        for pid in children.split()[:1] if len(got) % 5 == 0 else []:
            os.kill(int(pid), signal.SIGKILL)
    assert same(got, wanted)


def test_nothing_is_left_behind(manifest, alone):
    # streaming#781: stale files after kill -9
    code = f"""
import os, sys, helix_shm as hx
loader = hx.Loader({str(manifest.path)!r}, batch_size=2, num_workers=1, transform=hx.Video(frames=2, size=16))
batches = iter(loader)
next(batches)
print(loader._session.get().daemon_pid(), flush=True)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), 9)
"""
    for how in ("kill", "exit"):
        ran = subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True)
        daemon = int(ran.stdout)
        deadline = time.monotonic() + 60
        while os.path.exists(f"/proc/{daemon}") and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not os.path.exists(f"/proc/{daemon}")
        assert list((alone / "helix-shm").iterdir()) == []


def test_too_little_room_names_what_to_change(manifest):
    # pytorch#5040: SIGBUS where memory is short
    with pytest.raises(hx.HelixError, match="bytes"):
        next(iter(DataLoader(manifest, batch_size=4, transform=hx.Video(frames=4, size=64), budget="64K")))


def test_async_for(manifest, small):
    loader = DataLoader(manifest, batch_size=4, num_workers=1, transform=small)

    async def run():
        return [batch.ids async for batch in loader]

    assert sum(asyncio.run(run()), []) == list(range(len(manifest)))


def test_a_cancelled_task_loses_no_batch(manifest, small):
    loader = DataLoader(manifest, batch_size=4, num_workers=1, transform=small)

    async def run():
        batches = loader.__aiter__()
        task = asyncio.ensure_future(batches.__anext__())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return [batch.ids async for batch in batches]

    assert sum(asyncio.run(run()), []) == list(range(len(manifest)))


def test_progress_bars_know_the_length(manifest, small):
    tqdm = pytest.importorskip("tqdm")
    bar = tqdm.tqdm(DataLoader(manifest, batch_size=4, num_workers=1, transform=small), disable=True)
    assert bar.total == len(list(bar))


def test_samples_of_several_shapes_come_as_a_list(manifest):
    loader = DataLoader(manifest, batch_size=4, num_workers=2, transform=hx.Video(frames=2, size=None, short_side=32))
    shapes = {tuple(v.shape) for batch in loader for v in list(batch["video"])}
    assert len(shapes) > 1


def test_a_users_collate_sees_the_samples(manifest, small):
    def collate(samples):
        return torch.stack([s["video"] for s in samples]), [s["id"] for s in samples]

    plain = pixels(DataLoader(manifest, batch_size=4, num_workers=1, transform=small))
    loader = DataLoader(manifest, batch_size=4, num_workers=1, transform=small, collate_fn=collate)
    assert same([(i, v) for v, i in loader], plain)


def test_numbers_and_layouts_are_those_of_a_plain_conversion(manifest):
    raw = next(iter(hx.Loader(manifest, batch_size=2, num_workers=1, transform=hx.Video(frames=2, size=16))))["video"]
    video = hx.Video(frames=2, size=16, layout="THWC", dtype=torch.float32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    made = next(iter(hx.Loader(manifest, batch_size=2, num_workers=1, transform=video)))["video"]
    wanted = (raw.transpose(0, 1, 3, 4, 2) / np.float32(255) - [0.4, 0.5, 0.6]) / [0.2, 0.3, 0.4]
    np.testing.assert_allclose(made, wanted, atol=1e-5)


def test_a_batch_moves_as_frameworks_move_batches(manifest, small):
    batch = next(iter(DataLoader(manifest, batch_size=2, num_workers=1, transform=small)))
    moved = batch.to(torch.float64)
    assert moved["video"].dtype == torch.float64 and moved.ids == batch.ids
    assert set(batch) == {"video", "text"} and batch["caption"] == batch["text"]
    assert batch.n_rank == batch.n_global == 2 and batch.weights.sum() == 1
