"""What went wrong with peers: few complaints, each of a bounded length, whatever strangers do.

Strangers choose how often they are complained of, and some of the words, which end in a peer's files and terminal.
"""

import contextlib
import logging
import multiprocessing
import queue
import time
from collections.abc import Callable

from dalle_lib.one_line import printable
from dalle_lib.swarm.bounded import put

logger = logging.getLogger(__name__)

RUN = "run"
"""Stands in the place of a peer's id where a problem is that of the whole run."""
BURST, PER_S = 200, 0.1
"""Complaints that are told at once, and then so many a second; the others are counted."""
BURST_OF_ONE, PER_S_OF_ONE = 20, 0.01
"""The same of one peer, so that whoever floods a peer with requests does not keep others from being named."""
MAX_PEERS = 1000
"""Peers whose pace is known; whoever was complained of first is forgotten first."""
MAX_TEXT = 300
"""Letters of a complaint. So at most 3 MB a day reach a peer's files from one teller."""


class Pace:
    """Lets through `burst` complaints at once and `per_s` a second, and says how many it has held back."""

    def __init__(self, burst: int = BURST, per_s: float = PER_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.burst, self.per_s = burst, per_s
        self._clock, self._left, self._then, self._untold = clock, float(burst), clock(), 0

    def paced(self, what: str) -> str | None:
        """Return a complaint in a line of at most about MAX_TEXT letters; None if there have been too many."""
        now = self._clock()
        self._left, self._then = min(self.burst, self._left + self.per_s * (now - self._then)), now
        if self._left < 1:
            self._untold += 1
            return None
        self._left -= 1
        told = printable(what[: MAX_TEXT + 1])
        told = told if len(told) <= MAX_TEXT else f"{told[:MAX_TEXT]}..."
        if self._untold:
            told, self._untold = f"{told} (and {self._untold:,} more problems, which are not told)", 0
        return told


class Complaints:
    """A queue for pairs of a peer's id and what went wrong with that peer: one process tells, another one reads."""

    def __init__(self) -> None:
        self._queue, self._pace = multiprocessing.Queue(2 * BURST), {False: Pace(), True: Pace()}
        self._paces: dict[tuple[str, bool], Pace] = {}

    def tell(self, peer: str, what: str, is_request: bool = False) -> None:
        """Note and log a complaint, if there have not been too many; only log it while nobody reads them.

        What comes of a peer's requests alone, which it can send as often as it likes, hides nothing else.
        """
        if (of := (peer, is_request)) not in self._paces:
            put(self._paces, of, Pace(BURST_OF_ONE, PER_S_OF_ONE), MAX_PEERS)
        of_one = self._paces[of].paced(what)
        if of_one is not None and (told := self._pace[is_request].paced(of_one)) is not None:
            logger.warning("%s: %s", peer, told)
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait((peer, told))

    def read(self) -> list[tuple[str, str]]:
        """Return the complaints that nobody has read yet."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._queue.get_nowait())
        return found
