"""What a rank gives to the workers of a Python dataset with each epoch."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import traceback
from array import array
from typing import Any


class Brief:
    """The dataset, pickled, and the batches that the sampler has made of it."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    @staticmethod
    def payload(dataset: Any, collate: Any, init: Any) -> bytes:
        """The dataset and what goes with it, by value where they are of a script or a notebook."""
        import cloudpickle

        return cloudpickle.dumps({"dataset": dataset, "collate": collate, "init": init})

    @staticmethod
    def write(payload: bytes, lens: array[int] | None, indices: Any, **facts: Any) -> bytes:
        """All of an epoch, in bytes."""
        facts["digest"] = hashlib.blake2b(payload, digest_size=16).digest()
        facts["path"] = [p for p in sys.path if p]
        facts["folder"] = os.getcwd()
        facts["length"] = len(payload)
        head = pickle.dumps((facts, lens, indices), protocol=5)
        return len(head).to_bytes(8, "little") + head + payload

    @staticmethod
    def read(fd: int) -> Brief:
        """The same, in a worker, which the descriptor then belongs to.

        All workers have the same open file, and with it one position: none may use it. The dataset is read when it is
        asked for, since with the briefs of many ranks a worker needs but one.
        """
        length = int.from_bytes(_read(fd, 0, 8), "little")
        facts, lens, indices = pickle.loads(_read(fd, 8, length))
        brief = Brief(**facts)
        brief.fd, brief.at = fd, 8 + length
        brief.indices = indices
        brief.starts = None
        if lens is not None:
            brief.starts = array("Q", [0])
            for n in lens:
                brief.starts.append(brief.starts[-1] + n)
        return brief

    def load(self) -> dict[str, Any]:
        """A dataset of its own, with the modules that the rank could import."""
        # In the rank's own order: a module of the user's may have the name of one of Python's.
        sys.path[:] = [*self.path, *(path for path in sys.path if path not in self.path)]
        try:
            os.chdir(self.folder)
        except OSError:
            pass  # relative paths of a dataset then fail by themselves, and say so
        # An order may lie behind it.
        return pickle.loads(_read(self.fd, self.at, self.length))

    def close(self) -> None:
        os.close(self.fd)

    def batch(self, step: int) -> Any:
        """What the sampler wants in a step."""
        if self.starts is None:
            return self.indices[step]
        return list(self.indices[self.starts[step] : self.starts[step + 1]])


def _read(fd: int, at: int, length: int) -> bytes:
    """So many bytes of a file from a place on."""
    parts = []
    while length > 0:
        part = os.pread(fd, min(length, 1 << 30), at)
        if not part:
            raise EOFError(f"what the workers need ends at byte {at}, {length} bytes early")
        parts.append(part)
        at, length = at + len(part), length - len(part)
    return b"".join(parts)


class Failure:
    """An exception of a worker, to be raised again in the rank."""

    def __init__(self, kind: type[BaseException], text: str) -> None:
        self.kind = kind
        self.text = text

    @staticmethod
    def of(error: BaseException, worker: int) -> Failure:
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        kind = type(error)
        text = f"Caught {kind.__name__} in DataLoader worker process {worker}.\nOriginal {lines}"
        return Failure(kind, text)

    def raise_(self) -> None:
        """Raises it as torch does: the same class, with the worker's traceback as its text."""
        text = _Text(self.text) if issubclass(self.kind, KeyError) else self.text
        try:
            error = self.kind(text)
        except Exception:
            error = RuntimeError(self.text)
        raise error


class _Text(str):
    """A text whose repr is itself: what a KeyError shows."""

    def __repr__(self) -> str:
        return str(self)
