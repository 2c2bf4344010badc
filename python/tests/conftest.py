"""Real clips, indexed once, and loaders that are closed behind every test."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import helix_shm as hx
import pytest
from helix_shm import _bin, _loader, _session

CLIPS = Path(__file__).resolve().parents[2] / "tests" / "data" / "hard"
#: Whole clips of several containers and codecs.
NAMES = (
    "base.mp4 bt601_tagged.mp4 bt709_fullrange.mp4 bt709_tagged.mp4 editlist_preroll.mp4 flush_tail_bf8.mp4 "
    "fragmented.mp4 moov_at_end.mp4 negative_dts.mkv odd_101x67.webm one_frame.mp4 rot90.mp4 sar_4_3.mp4 "
    "vfr_timestamps.mp4 webm_renamed.mp4 two_video_streams.mp4"
).split()


def index(folder: Path) -> Path:
    """A manifest of all clips in a folder."""
    helix = _bin.program("helix")
    assert helix is not None
    manifest = folder / "data.arrow"
    subprocess.run([helix, "index", folder, "-o", manifest], check=True, capture_output=True)
    return manifest


@pytest.fixture(scope="session")
def clips(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for name in NAMES:
        (folder / name).write_bytes((CLIPS / name).read_bytes())
    return folder


@pytest.fixture(scope="session")
def manifest(clips) -> hx.Manifest:
    return hx.open(index(clips))


@pytest.fixture
def small() -> hx.Video:
    return hx.Video(frames=4, size=32)


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path_factory):
    """Sockets in a folder of the test's own, no launcher's variables, nothing left open, and an end."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    folder = Path("/tmp") / f"hx-{os.getpid()}-{next(_loader._names)}"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))

    def hung(*_):
        raise TimeoutError("this test hangs")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(120)
    yield folder
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    _session._close_all()
    subprocess.run(["rm", "-rf", folder], check=True)
