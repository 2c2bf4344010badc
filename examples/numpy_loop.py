"""A plain loop over NumPy arrays.

helix index ~/videos -o data.arrow
python examples/numpy_loop.py data.arrow
"""

from __future__ import annotations

import sys

import helix_shm as hx


def main() -> None:
    video = hx.Video(frames=16, size=112, crop="center")
    loader = hx.Loader(
        sys.argv[1], batch_size=4, shuffle=True, transform=video, on_error="skip"
    )
    for batch in loader:
        # An array over the memory that the worker wrote to: in use until the last reference to it is gone.
        print(
            f"step {batch.step}: samples {batch.ids}, mean {batch['video'].mean():.1f}, waited {batch.wait:.3f} s"
        )
    for hint in loader.stats()["hints"]:
        print("hint:", hint)


if __name__ == "__main__":
    main()
