"""The batches of a user's sampler, as the scheduler takes them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any


class Ordered:
    """An epoch's batches, cut into what stays together when samples are dealt to ranks."""

    def __init__(self, batches: list[Sequence[Any]], micro: int | None) -> None:
        #: Samples of the largest batch.
        self.largest = max(map(len, batches), default=1)
        #: Samples that stay together; without a number whole batches do.
        self.micro = self.largest if micro is None else min(micro, self.largest)
        whole = self.micro == self.largest
        if not whole and any(len(batch) != self.largest or self.largest % self.micro for batch in batches):
            raise ValueError(
                f"balancing moves {self.micro} samples at a time, so the sampler's batches must all have a like number, "
                f"and a multiple of that; the largest has {self.largest}. Set micro_batch to it where batches move as "
                "they are, or drop_last"
            )
        lens = array("I")
        for batch in batches:
            lens.extend([len(batch)] if whole else [self.micro] * (len(batch) // self.micro))
        samples = array("I", (int(i) for batch in batches for i in batch))
        #: What the native side takes.
        self.words = (lens.tobytes(), samples.tobytes())
        #: Tells orders apart.
        self.mark = hash(self.words)
