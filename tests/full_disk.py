"""A disk without room, for tests of what goes on without it."""

import resource
from contextlib import contextmanager

import psutil


def fill_disk(process: psutil.Process, room_bytes: int = 0) -> None:
    """Let a process make no file longer than `room_bytes`."""
    _, hard = process.rlimit(resource.RLIMIT_FSIZE)
    process.rlimit(resource.RLIMIT_FSIZE, (room_bytes, hard))


def free_disk(process: psutil.Process) -> None:
    """Undo `fill_disk`."""
    _, hard = process.rlimit(resource.RLIMIT_FSIZE)
    process.rlimit(resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def full_disk():
    """Let this process make no file longer, as if there were no room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
