"""A training loop of MindSpore over a manifest: `python examples/mindspore_loop.py data.arrow`.

The same loader also feeds MindSpore's own pipeline: see `--pipeline`.
"""

from __future__ import annotations

import sys

import helix_shm as hx
import mindspore
import mindspore.dataset as ds
from helix_shm.mindspore import DataLoader, source
from mindspore import nn, ops


def main() -> None:
    paths = [arg for arg in sys.argv[1:] if not arg.startswith("--")]
    if len(paths) != 1:
        sys.exit(__doc__)
    video = hx.Video(frames=4, size=32)
    if "--pipeline" in sys.argv:
        loader = hx.Loader(
            paths[0], 2, shuffle=True, num_workers=2, transform=video, on_error="skip"
        )
        feed = source(loader, ["video", "ids"])
        data = ds.GeneratorDataset(
            feed, feed.column_names, shuffle=False, python_multiprocessing=False
        )
        for row in data.create_dict_iterator(num_epochs=1):
            print(row["ids"], row["video"].shape)
        return
    net = nn.Dense(4 * 3 * 32 * 32, 1)
    optimizer = nn.SGD(net.trainable_params(), 1e-3)

    def loss_of(clips: mindspore.Tensor, weights: mindspore.Tensor) -> mindspore.Tensor:
        scores = net(clips.reshape(clips.shape[0], -1).astype(mindspore.float32) / 255)
        # A skipped sample and a balanced batch need no other care: the weights sum to 1 over all ranks.
        return (
            weights.astype(mindspore.float32)
            * ops.square(scores[:, 0] - clips.astype(mindspore.float32).mean() / 255)
        ).sum()

    step = mindspore.value_and_grad(loss_of, None, optimizer.parameters)
    loader = DataLoader(
        paths[0], 2, shuffle=True, num_workers=2, transform=video, on_error="skip"
    )
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            loss, gradients = step(batch["video"], batch.weights)
            optimizer(gradients)
        print(
            f"epoch {epoch}: {len(loader)} steps, last loss {float(loss.asnumpy()):.4f}"
        )
    print(loader.stats()["hints"] or "ranks never waited long")
    loader.close()


if __name__ == "__main__":
    main()
