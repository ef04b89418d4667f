"""How many threads of the processor a peer computes on."""

import os
from pathlib import Path

import psutil

from dalle_lib.swarm.process.settings import PeerSettings

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def threads_of(settings: PeerSettings) -> int:
    """Return the threads of a peer: what its volunteer says, one for a helper, else all that `threads_here` returns."""
    if settings.threads is not None:
        return settings.threads
    return threads_here() if settings.role == "trainer" else 1


def threads_here() -> int:
    """Return on how many threads a peer of this machine computes, at least 1.

    There is one for each core that this process may use, and one processor is left for answering others. Where a core
    is two processors, as with hyper-threading, the second ones answer.
    """
    usable, of_machine = _usable(), os.cpu_count() or 1
    cores = psutil.cpu_count(logical=False) or of_machine
    return max(1, min(-(-cores * usable // of_machine), usable - 1))


def _usable() -> int:
    """Return the processors that this process may use: those that it is bound to, or its container's share."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text().split()
    except (OSError, ValueError):  # no container, or not Linux
        return bound
    return bound if quota == "max" else min(bound, max(1, int(quota) // int(period)))
