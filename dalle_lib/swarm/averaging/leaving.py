"""Waits for other peers, which a peer that is to leave cuts short: it is given a minute, and has to save.

Others may keep it waiting for far longer: a round of gradients, or of parameters, in which somebody falls silent lasts
for as long as the run's card allows.
"""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

GRACE_S = 20.0
"""Seconds for which a peer that is to leave still waits for others, in all: a round that is about to end counts."""
LOOK_EVERY_S = 0.2
"""Seconds between looks at whether the peer is to leave."""


class Interrupted(BaseException):
    """Something was not done to its end, because the peer is to leave: nothing tries another way to do it."""


class Leaving:
    """Waits for other peers no longer than its own peer may stay."""

    is_over: Callable[[], bool] = staticmethod(lambda: False)
    """Says that this peer is to leave. It then waits for others for GRACE_S more."""
    _waits_until: float = math.inf
    """In seconds of `time.monotonic`; known since the first look that found `is_over`."""

    @property
    def left_s(self) -> float:
        """Seconds for which this peer still waits for others; infinite until it is to leave."""
        if self._waits_until == math.inf and self.is_over():
            self._waits_until = time.monotonic() + GRACE_S
        return max(0.0, self._waits_until - time.monotonic())

    def wait_for(self, is_done: Callable[[float], object], timeout_s: float = math.inf) -> bool:
        """Return whether something is done within `timeout_s`. Raises Interrupted if this peer leaves before.

        `is_done` waits for it, for so many seconds at most, and returns whether it is.
        """
        ends = time.monotonic() + timeout_s
        while not is_done(max(0.0, min(LOOK_EVERY_S, ends - time.monotonic()))):
            if time.monotonic() >= ends:
                return False
            if self.left_s <= 0:
                raise Interrupted
        return True

    def wait_until_free(self, lock) -> None:
        """Return when a round of averaging does not hold this lock. Raises Interrupted if this peer leaves before."""
        self.wait_for(lambda timeout_s: lock.acquire(True, timeout_s))
        lock.release()

    def ends_within(self, round_of_peers: Future, timeout_s: float) -> bool:
        """Return whether a round ends within `timeout_s`. Raises Interrupted if this peer leaves before."""
        is_over = threading.Event()  # concurrent.futures.wait would not see that the round was cancelled
        round_of_peers.add_done_callback(lambda _: is_over.set())
        return self.wait_for(is_over.wait, timeout_s)

    def outcome_of(self, round_of_peers: Future, timeout_s: float) -> object:
        """Return the result of a round of averaging, by hivemind's handle. Raises what has ended it, and TimeoutError.

        Looking for a group may take `timeout_s`, and the round as long again: who gave it up before would stay an epoch
        behind those for whom it waits. Raises Interrupted if this peer leaves before its end; a round that has no group
        yet is then called off.
        """
        try:
            is_over = self.ends_within(round_of_peers, timeout_s)
            runs = round_of_peers.stage.name == "RUNNING_ALLREDUCE"
            if not is_over and not (runs and self.ends_within(round_of_peers, timeout_s)):
                raise TimeoutError(f"no round ended in {timeout_s:g} s")
        except Interrupted:
            round_of_peers.cancel()
            raise
        return round_of_peers.result()
