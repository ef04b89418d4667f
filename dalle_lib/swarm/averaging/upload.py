"""How fast a peer sends: no faster than its volunteer allows, over all its processes; and how much goes and comes."""

import asyncio
import math
import multiprocessing
import time
from collections.abc import Callable

from dalle_lib.planning.constants import FRAMES

REDUCES_FROM_MBPS = 50.0
"""A peer whose limit is lower reduces only where too few others in its group can: a reducer sends twice as much."""
FIRST_REST, LONGEST_REST = 4, 64
"""Rounds in which a peer reduces only in need, after it was too slow for one: the first time, and after many."""
LATE_S = 0.1
"""Seconds by which a message may go late and the next one be no later: event loops wake up late."""


class Upload:
    """The messages that a peer sends to others and gets of them: counted, and sent no faster than a limit.

    One for all processes of a peer, made before these are forked. In any time, what is sent has at most the bytes that
    the limit allows in that time and LATE_S more, and one message; so a message goes at the speed of the link, and the
    next one waits. What libp2p adds to messages is counted by its mean.
    """

    def __init__(self, max_mbps: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds, the same ones in all processes; no `max_mbps` is no limit."""
        self.max_mbps, self._clock = max_mbps, clock
        self.bytes_per_s = math.inf if max_mbps is None else 1e6 / 8 * max_mbps
        self._sent, self._received = (multiprocessing.Value("d", 0.0) for _ in range(2))
        self._rest = multiprocessing.Array("i", 2)
        """Rounds in which this peer still steps back, and how many it did the last time."""
        self._free_at = multiprocessing.Value("d", -math.inf)
        """Time from which on the next message may go."""
        self._turn = asyncio.Lock()
        """Whose turn it is among the tasks of one process; processes have no order among them."""

    async def send(self, size: int) -> None:
        """Return when a message of `size` bytes may go; it is counted then. Who is called off meanwhile costs nothing.

        Call it right before the message is sent.
        """
        async with self._turn:
            while (wait_s := self.claim(size)) > 0:
                await asyncio.sleep(wait_s)

    def claim(self, size: int) -> float:
        """Return 0 if a message of `size` bytes may go now, and count it; else the seconds after which to ask again."""
        on_link = FRAMES * size
        with self._free_at.get_lock():
            if (wait_s := self._free_at.value - (now := self._clock())) > 0:
                return wait_s
            self._free_at.value = max(self._free_at.value, now - LATE_S) + on_link / self.bytes_per_s
        with self._sent.get_lock():
            self._sent.value += on_link
        return 0.0

    def receive(self, size: int) -> None:
        """Count a message of `size` bytes that has come."""
        with self._received.get_lock():
            self._received.value += FRAMES * size

    @property
    def sent_bytes(self) -> int:
        """Bytes that all processes of this peer have sent."""
        return int(self._sent.value)

    @property
    def received_bytes(self) -> int:
        """Bytes that all of them have received."""
        return int(self._received.value)

    @property
    def spares(self) -> bool:
        """Whether this peer is to reduce only where too few others can."""
        return (self.max_mbps is not None and self.max_mbps < REDUCES_FROM_MBPS) or self.steps_back

    @property
    def steps_back(self) -> bool:
        """Whether this peer was too slow for the others in one of the last rounds."""
        return self._rest[0] > 0

    def note_round(self, is_late: bool) -> None:
        """Take note of a round, and whether the others went on without this peer in it.

        Then it steps back for some rounds. If it is too slow when it reduces again, it does so for twice as many; each
        round in time in which it reduces counts for one less.
        """
        with self._rest.get_lock():
            left, last = self._rest
            if is_late:
                last = last if left else min(max(FIRST_REST, 2 * last), LONGEST_REST)
                self._rest[:] = last, last
            elif left:
                self._rest[0] = left - 1
            else:
                self._rest[1] = max(0, last - 1)
