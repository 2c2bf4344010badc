"""Iterators for `async for`."""

from __future__ import annotations

from typing import Any


class Awaitable:
    """Lets an iterator be iterated over with ``async for``."""

    _flying: Any = None
    _pool_of_one: Any = None

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        # A thread waits; one that was given up by a cancelled task is asked first the next time, so no batch is lost.
        if self._flying is None:
            if self._pool_of_one is None:
                self._pool_of_one = ThreadPoolExecutor(1, thread_name_prefix="helix-async")
            self._flying = self._pool_of_one.submit(next, self, None)
        try:
            batch = await asyncio.shield(asyncio.wrap_future(self._flying))
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._flying = None
            raise
        self._flying = None
        if batch is None:
            if self._pool_of_one is not None:
                self._pool_of_one.shutdown(wait=False)
                self._pool_of_one = None
            raise StopAsyncIteration
        return batch
