"""A small 3D network on real clips, fed by torch's loader and by ours: the same losses, bit for bit.

    helix index ~/videos -o data.arrow
    torchrun --standalone --nproc-per-node 4 examples/train_ddp.py data.arrow

Both loaders get the same clips in the same order from ``DistributedSampler``. Torch's reads them through a dataset whose
worker processes ask helix-shm for one clip at a time, so that pixels are the same and what differs is the loader; with
``--balance cost`` ours deals each step by cost instead, and the losses of a global step agree within rounding.
"""

from __future__ import annotations

import argparse
import os
import time

import helix_shm as hx
import torch
import torch.distributed as dist
import torch.nn as nn
from helix_shm.torch import DataLoader
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, DistributedSampler

VIDEO = hx.Video(frames=8, size=48)
CLASSES = 8


class Clips(Dataset):
    """The same pixels as plain samples, decoded once beforehand: what torch's loader then does is collating."""

    def __init__(self, manifest: hx.Manifest) -> None:
        loader = DataLoader(
            manifest,
            num_workers=1,
            transform=VIDEO,
            rank=0,
            world_size=1,
            job=f"clips-{os.getpid()}",
        )
        self.videos = [batch["video"][0].clone() for batch in loader]
        loader.close()

    def __len__(self) -> int:
        return len(self.videos)

    def __getitem__(self, i: int) -> dict[str, object]:
        return {"video": self.videos[i], "id": i}


class Net(nn.Module):
    """Two convolutions over time and space, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(3, 8, 3, stride=2),
            nn.ReLU(),
            nn.Conv3d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(16, CLASSES)

    def forward(self, video: torch.Tensor) -> torch.Tensor:
        x = video.float().div(255).transpose(1, 2)
        return self.head(self.body(x).mean((2, 3, 4)))


def train(loader, epochs: int, weighted: bool) -> tuple[list[float], float, float]:
    """Losses of the global steps, and the time that all of it and that the waiting took, seconds."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimiser = torch.optim.SGD(model.parameters(), 0.05)
    world, losses, waited, begun = dist.get_world_size(), [], 0.0, time.monotonic()
    for epoch in range(epochs):
        loader.set_epoch(epoch) if weighted else loader.sampler.set_epoch(epoch)
        batches = iter(loader)
        while True:
            asked = time.monotonic()
            batch = next(batches, None)
            waited += time.monotonic() - asked
            if batch is None:
                break
            ids = batch.ids if hasattr(batch, "ids") else batch["id"].tolist()
            target = torch.tensor([i % CLASSES for i in ids])
            each = nn.functional.cross_entropy(
                model(batch["video"]), target, reduction="none"
            )
            # The mean over the global batch, whoever has how many of its samples.
            weights = (
                batch.weights.float()
                if weighted
                else torch.full((len(ids),), 1.0 / (len(ids) * world))
            )
            loss = world * (weights * each).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total = loss.detach() / world
            dist.all_reduce(total)
            losses.append(total.item())
    return losses, time.monotonic() - begun, waited


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("manifest")
    parser.add_argument("--balance", choices=("none", "cost"), default="none")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    manifest = hx.open(args.manifest)
    shared = dict(batch_size=args.batch_size, num_workers=args.workers, drop_last=True)

    clips = Clips(manifest)
    sampler = DistributedSampler(clips, shuffle=True, drop_last=True)
    torchs = torch.utils.data.DataLoader(clips, sampler=sampler, **shared)
    theirs, their_time, their_wait = train(torchs, args.epochs, weighted=False)

    if args.balance == "none":
        sampler = DistributedSampler(range(len(manifest)), shuffle=True, drop_last=True)
        loader = DataLoader(manifest, sampler=sampler, transform=VIDEO, **shared)
    else:
        loader = DataLoader(
            manifest, shuffle=True, transform=VIDEO, balance="cost", **shared
        )
    ours, our_time, our_wait = train(loader, args.epochs, weighted=True)
    if dist.get_rank() == 0:
        print(
            f"{len(ours)} steps; losses {'equal to the last bit' if ours == theirs else 'not equal'}"
        )
        print(
            f"torch {their_time:6.2f} s, of which {their_wait:.2f} s waiting (clips decoded beforehand)"
        )
        print(
            f"ours  {our_time:6.2f} s, of which {our_wait:.2f} s waiting (decoding included)"
        )
        for hint in loader.stats()["hints"]:
            print("hint:", hint)
        if args.balance == "none" and ours != theirs:
            raise SystemExit(f"losses differ: {theirs} and {ours}")
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
