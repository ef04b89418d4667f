"""How long one peer of a round is waited for, by how long the others were: a slow one shall cost them little.

A reducer averages a part when all senders have sent it, and fast ones keep in step with the slowest (`in_step.py`). So
when parts come tells nothing of them, but the time in which one sender alone was waited for does.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from hivemind.p2p import PeerID

from dalle_lib.swarm.bounded import put

LEAST_S = 5.0
"""Seconds that any peer is waited for, where a run's card says nothing else."""
TYPICAL = 3.0
"""Who is waited for no longer than the median of the others, in multiples of it, is as the others are."""
SHARE = 0.25
"""Part of the time from one round to the next for which any peer is waited for."""
FEWEST = 2
"""Others that have to be known for a peer to be slower than they are."""
REDUCER_PATIENCE = 1.5
"""How long a reducer is waited for, in multiples of how long it waits for senders."""
ROUNDS = 3
"""Rounds whose distance is known: the median is neither that of a round that was tried again nor of a long sleep."""
AGAIN = 32
"""Late rounds in a row after which a peer is waited for as if it had been in time: one that has got faster is. A
hopeless one costs two such waits in so many rounds."""
MAX_LATE = 1000
"""Peers of which is known how often in a row they were late."""


def are_cheap(late: int, peers: int) -> bool:
    """Return whether so many late senders of a round of so many peers cost little, as most others say what is usual."""
    return peers > FEWEST + 1 and 2 * late < peers


class Patience:
    """What a peer has seen of its rounds that says how long it waits in the next one; one for each kind of rounds."""

    def __init__(self, least_s: float = LEAST_S, clock: Callable[[], float] = time.monotonic) -> None:
        """Wait `least_s` seconds for each peer that has not been late; `clock` tells seconds."""
        self.least_s, self._clock = least_s, clock
        self._began, self._between_s = clock(), deque(maxlen=ROUNDS)
        self._late: dict[PeerID, int] = {}
        self._usual_s = 0.0

    def begin(self) -> None:
        """Note that a round begins."""
        now = self._clock()
        self._between_s.append(now - self._began)
        self._began = now

    def note(self, peers: Collection[PeerID], late: Collection[PeerID], waited_s: Mapping[PeerID, float]) -> None:
        """Note for whom of the peers of a round this one has waited in vain, and for how long for each that sends."""
        for peer in peers:
            times = self._late.pop(peer, 0)
            if peer in late:
                put(self._late, peer, times + 1, MAX_LATE)
        in_time = [seconds for peer, seconds in waited_s.items() if peer in peers and peer not in late]
        if len(in_time) >= FEWEST:
            self._usual_s = statistics.median(in_time)

    def spared_s(self, peer: PeerID) -> float:
        """Return the seconds that a peer is waited for in any case: half as many with each round in which it was late
        again, so that a hopeless one soon costs nothing; every AGAIN rounds, all of them again. As long as for most of
        those who were in time it costs nothing in any case: where a fast peer is among slow ones, who was late once
        would be late for ever."""
        between_s = statistics.median_high(self._between_s) if self._between_s else 0.0
        own_s = max(self.least_s, SHARE * between_s) * 0.5 ** (self._late.get(peer, 0) % AGAIN)
        return max(own_s, self._usual_s)

    def for_sender(self, sender: PeerID, waited_s: Mapping[PeerID, float], most_s: float) -> float:
        """Return the seconds that a sender is waited for in all, at most `most_s`.

        `waited_s` says for how long each of the other peers that send was waited for so far, this one too.
        """
        others = [seconds for peer, seconds in waited_s.items() if peer != sender]
        if len(others) < FEWEST:
            return most_s
        return min(most_s, max(TYPICAL * statistics.median(others), self.spared_s(sender)))

    def for_reducer(self, reducer: PeerID, done_s: Sequence[float], others: int, most_s: float) -> float:
        """Return the seconds from the beginning of a round until a reducer is given up, at most `most_s`.

        `done_s` says when those were done, of so many `others` that reduce, that are.
        """
        enough = max(FEWEST, (others + 1) // 2)
        if len(done_s) < enough:
            return most_s
        return min(most_s, REDUCER_PATIENCE * (sorted(done_s)[enough - 1] + self.spared_s(reducer)))
