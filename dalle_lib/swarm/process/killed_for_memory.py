"""Which processes Linux has ended because memory ran out, and which of them were a peer's workers."""

import contextlib
import signal
import time
from itertools import pairwise
from pathlib import Path

VMSTAT = Path("/proc/vmstat")
WORKER_KILLED = f"dropped out (ended with exit code {-signal.SIGKILL})"
"""What a peer says of a process on a further device that somebody has killed, or the system for its memory."""
SEEN_LATE_S = 2.0
"""Seconds that a peer may tell so before the supervisor sees that the system has ended a process."""


def when_workers_were_killed(events: list[dict]) -> list[float]:
    """Return when a peer has told of workers that were killed, by its events, in seconds since 1970."""
    told = [(event["time"], str(event.get("why"))) for event in events if event["event"] == "computing"]
    return [at for (_, before), (at, why) in pairwise([(0.0, ""), *told]) if why != before and WORKER_KILLED in why]


class Memory:
    """When the system ended processes, anybody's, because memory ran out, as far as it tells."""

    def __init__(self) -> None:
        self._count, self._at = _count_ended(), []

    def look(self) -> None:
        """Note those that it has ended since the last look."""
        count = _count_ended()
        self._at += [time.time()] * (count - self._count)
        self._count = max(self._count, count)

    def has_run_out(self, within_s: float, workers_killed: list[float]) -> bool:
        """Return whether the system ended one in the last seconds; a worker, told at one of these times, is none."""
        self.look()
        others = self._at.copy()
        for told in workers_killed:
            if before := [at for at in others if at <= told + SEEN_LATE_S]:
                others.remove(before[-1])
        return any(time.time() - at < within_s for at in others)


def _count_ended() -> int:
    """Return how many processes Linux has ended since it started because memory ran out; 0 where nobody tells."""
    with contextlib.suppress(OSError, ValueError):
        counts = dict(line.split() for line in VMSTAT.read_text().splitlines())
        return int(counts.get("oom_kill", 0))
    return 0
