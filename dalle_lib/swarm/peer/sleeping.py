"""A clock that leaves out the time in which this process stood still: its computer slept, or it was stopped."""

import threading
import time
from collections.abc import Callable

TICK_S = 1.0
"""Seconds between two looks at the clocks."""
ASLEEP_S = 10.0
"""Seconds beyond a tick from which on the process stood still; a busy machine holds a thread up for less."""


class AwakeClock:
    """Seconds in which this process could run, and whether it has slept since somebody asked.

    A stopped process finds `monotonic` far ahead when it goes on. After a computer has slept, on Linux only the clock
    on the wall is. One that is set has jumped, too, which calls for the same: what others know for a time only is told
    anew.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._monotonic, self._wall = monotonic, wall
        self._lock = threading.Lock()
        self._last = monotonic(), wall()
        self._slept_s: float | None = None
        self.still_s = 0.0
        """Seconds by `monotonic` in which the process stood still."""

    def now(self) -> float:
        """Return seconds from some moment on, without those in which the process stood still."""
        with self._lock:
            before, self._last = self._last, (self._monotonic(), self._wall())
            passed_s, on_wall_s = (now - then for now, then in zip(self._last, before, strict=True))
            if passed_s > TICK_S + ASLEEP_S:
                self.still_s += passed_s - TICK_S
            if max(passed_s, on_wall_s) > TICK_S + ASLEEP_S or abs(on_wall_s - passed_s) > ASLEEP_S:
                self._slept_s = (self._slept_s or 0.0) + max(0.0, passed_s - TICK_S, on_wall_s - TICK_S)
            return self._last[0] - self.still_s

    def slept_s(self) -> float | None:
        """Return how long it slept since the last call, 0 where a clock was set back; None if nothing happened."""
        with self._lock:
            slept_s, self._slept_s = self._slept_s, None
            return slept_s

    def watch(self, stop: threading.Event) -> None:
        """Look at the clocks until `stop` is set: who looks seldom cannot tell sleep from work."""
        while not stop.wait(TICK_S):
            self.now()
