"""The native loader's life, and how a job and its memory are named."""

from __future__ import annotations

import atexit
import json
import os
import weakref
from typing import Any

from . import _log, _native

_open: weakref.WeakSet[Session] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Leaves in good order: a rank that merely ends looks like one that died."""
    for session in list(_open):
        session.close()


def env_number(name: str) -> int | None:
    value = os.environ.get(name)
    return int(value) if value not in (None, "") else None


def job_name(given: str | None) -> str:
    """What all ranks of one launch share and others do not."""
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if given or os.environ.get("HELIX_SHM_JOB"):
        return given or os.environ["HELIX_SHM_JOB"]
    if run not in ("", "none"):
        return run
    return f"{address}-{port}" if address and port else f"parent-{os.getppid()}"


def bytes_of(value: int | str | None) -> int | None:
    """A number of bytes, such as ``"4G"``."""
    if value is None or isinstance(value, int):
        return value
    text = value.strip().upper().removesuffix("IB").removesuffix("B")
    shift = {"K": 10, "M": 20, "G": 30, "T": 40}.get(text[-1:], 0)
    try:
        return int(float(text[:-1] if shift else text) * (1 << shift))
    except ValueError:
        raise ValueError(f"budget is {value!r}; wanted a number of bytes such as '4G'") from None


class Session:
    """The native loader, made when it is first needed, and never in a fork()ed child."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.native: Any = None
        self._told: dict[str, Any] = {}
        self.owner = os.getpid()

    def get(self) -> Any:
        if self.owner != os.getpid():
            raise _native.ForkedError(
                f"this loader belongs to process {self.owner}, and this is its fork()ed child {os.getpid()}: make a "
                "loader of its own here, or start processes with the `spawn` start method"
            )
        if self.native is None:
            try:
                self.native = _native.Loader(json.dumps(self.config))
            finally:
                _log.pass_on()
            _open.add(self)
        return self.native

    def stats(self) -> dict[str, Any]:
        """Counters of the native loader, or those that it had at its end."""
        return dict(self._told) if self.native is None else self.native.stats()

    def close(self) -> None:
        if self.native is not None and self.owner == os.getpid():
            self._told = self.native.stats()
            self.native.close()
            self.native = None
            _open.discard(self)
            _log.pass_on()
