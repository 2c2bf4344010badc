"""Four ranks under gloo: the example, as a launcher would run it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_ddp.py"


def launch(world, *arguments):
    """What torchrun does; Debian's own fails with Python 3.11."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(world):
        env = dict(
            os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world)
        )
        env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
        command = [sys.executable, EXAMPLE, *map(str, arguments)]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    said = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, "\n".join(said)
    return said[0]


@pytest.mark.skipif(
    "not __import__('torch').distributed.is_available()", reason="torch without its distributed package"
)
def test_the_losses_of_four_ranks_are_torchs_to_the_last_bit(manifest):
    assert "losses equal to the last bit" in launch(4, manifest.path, "--balance", "none")
    launch(2, manifest.path, "--balance", "cost")
