"""What hx.Video and hx.Image say to the native side, and what comes of it."""

from __future__ import annotations

import pytest
import torch

import helix_shm as hx
from helix_shm.torch import DataLoader


def one(manifest, transform):
    loader = DataLoader(manifest, batch_size=1, num_workers=1, transform=transform)
    try:
        return next(iter(loader))["video"].clone()
    finally:
        loader.close()


def test_each_way_to_choose_frames_gives_them(manifest):
    for way in (
        {"fps": 4.0},
        {"fps": 4.0, "start": 0.1, "time_jitter": 0.5},
        {"stride": 2},
        {"stride": 2, "start": 1},
        {"time_jitter": 1.0},
        {"indices": [0, 1, 1, 3]},
        {"times": [0.0, 0.1, 0.1, 0.2]},
    ):
        assert one(manifest, hx.Video(frames=4, size=16, **way)).shape == (1, 4, 3, 16, 16), way


def test_layouts_and_dtypes_hold_the_same_numbers(manifest):
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    plain = {"frames": 3, "size": (24, 32), "mean": mean, "std": std, "resize": "area"}
    full = one(manifest, hx.Video(**plain, dtype=torch.float32))
    swapped = one(manifest, hx.Video(**plain, dtype="float32", layout="CTHW"))
    assert torch.equal(full, swapped.permute(0, 2, 1, 3, 4))
    for dtype in (torch.float16, torch.bfloat16):
        half = one(manifest, hx.Video(**plain, dtype=dtype))
        assert half.dtype == dtype
        assert torch.equal(half, full.to(dtype))


def test_random_parts_and_colours_are_keyed(manifest):
    colour = {"jitter": (0.4, 0.4, 0.4, 0.1), "flip": 0.5}
    video = hx.Video(frames=2, size=16, crop="random_resized", scale=(0.3, 0.8), resize="bicubic", **colour)
    assert torch.equal(one(manifest, video), one(manifest, video))
    assert not torch.equal(one(manifest, video), one(manifest, hx.Video(frames=2, size=16, resize="bicubic")))


def test_pictures_have_the_shapes_of_their_models(manifest):
    smart = one(manifest, hx.Image.qwen2_vl(min_pixels=3136, max_pixels=28 * 28 * 16))
    assert smart.dtype == torch.float32
    assert smart.shape[-1] % 28 == smart.shape[-2] % 28 == 0
    tiles = one(manifest, hx.Image.intern_vl(tiles=6, side=32, dtype="uint8"))
    assert tiles.shape[-3:] == (3, 32, 32)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fps": 2.0, "stride": 2}, "fps and stride are given"),
        ({"start": 2}, "start goes with fps or stride"),
        ({"stride": 2, "time_jitter": 0.5}, "not with stride"),
        ({"crop": "middle"}, "'center'"),
        ({"resize": "nearest"}, "'bicubic'"),
        ({"dtype": "int8"}, "'bfloat16'"),
        ({"jitter": {"glow": 1.0}}, "'brightness'"),
        ({"short_side": 32}, "short_side goes with"),
        ({"size": (1, 2, 3)}, "(height, width)"),
    ],
)
def test_what_cannot_be_is_said(options, words):
    with pytest.raises(ValueError, match=".*") as error:
        hx.Video(**options).transform()
    assert words in str(error.value)


def test_the_native_side_names_an_option_that_it_refuses(manifest):
    with pytest.raises(Exception, match="transform.sampling.fps"):
        one(manifest, hx.Video(frames=2, size=16, fps=-1.0))
