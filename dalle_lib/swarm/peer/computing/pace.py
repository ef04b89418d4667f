"""How many samples a peer computes at a time, and how many batches between two looks at the swarm."""

import math
import time

from dalle_lib.swarm.peer.computing.trials import MAX_AT_ONCE, MAX_STEP_S, power_of_two
from dalle_lib.swarm.peer.computing.way import Way

STEPS_AN_EPOCH = 4
"""Looks at the swarm in an epoch, at least: else all would wait for a peer whose share comes late and in one piece."""
LOOKING_SHARE = 0.05
"""Share of the time that looks at the swarm may take; where one takes longer, more batches come between two."""
OWN_STEP = 16
"""Samples of each step where peers make steps of their own, if there is no limit: their number is part of the recipe,
as the learning rate is."""
_FORGETS = 1.1
"""Factor by which the shortest look counts as longer at each look: what was short once may have become long."""


class Pace:
    """Decides the sizes of one trainer's batches, from how long batches and looks at the swarm have taken."""

    def __init__(self, target: int, limit: int | None, *, steps_itself: bool) -> None:
        """`target` is the number of samples in an epoch of all peers, `limit` the volunteer's own."""
        self.target, self.limit, self.steps_itself = target, limit, steps_itself
        self.samples_per_s: float | None = None
        self._look_s: float | None = None

    @property
    def most(self) -> int:
        """Samples at a time, at most, however many peers there are."""
        due = OWN_STEP if self.steps_itself and self.limit is None else max(1, self.target // STEPS_AN_EPOCH)
        return min(due, self.limit or MAX_AT_ONCE, MAX_AT_ONCE)

    def sizes(self, way: Way, peers: int) -> tuple[int, int]:
        """Return the samples of a batch, and the number of batches before the next look at the swarm.

        They are at least 1 each. An epoch takes each of `peers` several looks, and a look comes every few seconds.
        """
        if self.steps_itself:
            return self.limit or OWN_STEP, 1
        due = max(1, self.target // (STEPS_AN_EPOCH * max(1, peers)))
        batch = power_of_two(min(way.batch, due, self.limit or due))
        rate = self.samples_per_s or way.samples_per_s
        if rate is None or self._look_s is None:
            return batch, 1
        wanted = math.ceil(self._look_s / LOOKING_SHARE * rate / batch)
        most = min(due, self.limit or due, int(rate * MAX_STEP_S)) // batch
        return batch, max(1, min(wanted, most))

    def computed(self, samples: int, seconds: float) -> None:
        """Note how long some samples took."""
        if seconds > 0:
            new = samples / seconds
            self.samples_per_s = new if self.samples_per_s is None else 0.9 * self.samples_per_s + 0.1 * new

    def looked(self, since: float) -> None:
        """Note that a look at the swarm ends, which began at `since` in the seconds of `time.monotonic`.

        Some wait for other peers; those that do not say what a look takes.
        """
        seconds = time.monotonic() - since
        self._look_s = seconds if self._look_s is None else min(_FORGETS * self._look_s, seconds)
