import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dalle_lib.run import RunCard

DATA = Path(__file__).parent / "data"


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the running processes whose command line names something in `folder`."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and str(folder) in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


def living(processes: list[psutil.Process], timeout_s: float = 30) -> list[psutil.Process]:
    """Return those of `processes` that are still alive after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (alive := [p for p in processes if _is_alive(p)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return alive


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def swarm_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for peers; fails the test that leaves a process behind, after ending it."""
    yield tmp_path
    left = processes_of(tmp_path)
    commands = [process.info["cmdline"] for process in left]
    for process in left:
        os.kill(process.pid, signal.SIGKILL)
    assert not left, f"processes outlived the test: {commands}"


@pytest.fixture(scope="session")
def mini() -> RunCard:
    return RunCard.load("emoji-mini")
