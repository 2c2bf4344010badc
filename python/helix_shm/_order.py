"""The batches of a user's sampler, as the scheduler takes them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from ._session import Session


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


class OrderedStream:
    """A manifest in the order of a sampler: this rank's own, or all ranks' where they share the stream."""

    def __init__(self, config: dict[str, Any], largest: int, shared: bool) -> None:
        self._config, self.shared = config, shared
        self._largest = self._units = largest
        #: Epoch to a mark of what was ordered for it.
        self._orders: dict[int, int] = {}
        self.session = self._sized()

    def _sized(self) -> Session:
        config = dict(self._config, shuffle=False, drop_last=False, batch_size=self._largest, micro_batch=self._units)
        if not self.shared:
            config.update(loader=f"{config['loader']}-{config['rank']}", rank=0, world=1)
        return Session(config)

    def start(self, epoch: int, step: int, batches: list[Any]) -> Session:
        """Begins an epoch of these batches; answers the session in which it goes on."""
        order = Ordered(listed(batches), self._config["micro_batch"] if self.shared else None)
        # The daemon keeps what it was given for an epoch: other batches, or larger ones, need a new stream.
        larger = order.largest > self._largest or order.micro > self._units
        if larger or self._orders.get(epoch, order.mark) != order.mark:
            self._largest = max(self._largest, order.largest)
            self._units = order.micro if order.micro < order.largest else self._largest
            self.session.close()
            self.session = self._sized()
            self._orders.clear()
        self._orders[epoch] = order.mark
        self.session.get().start_ordered(epoch, step, *order.words)
        return self.session


def listed(batches: list[Any]) -> list[Any]:
    """Batches as lists; a sampler of single samples makes batches of one."""
    return [batch if isinstance(batch, (list, tuple)) else [int(batch)] for batch in batches]
