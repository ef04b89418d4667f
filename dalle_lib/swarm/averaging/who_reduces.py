"""Whether anybody in a run can average what its peers send, as their records of progress show."""

import math
import time
from collections.abc import Callable, Mapping

from dalle_lib.swarm.averaging.trust import Trust

LOOKS = 2
"""Looks in a row that must find nobody: the first one may have missed a record, or an access token."""
TELL_EVERY_S = 60.0
NOBODY = "nobody can average for this run's peers now, so each trains by itself: {}"
ALL_CLIENTS = (
    "all {} connect out only, as with --client-mode. One that the others can reach is enough: join with "
    "--no-client-mode and an open --port"
)
VOUCHED_CLIENTS = (
    "all that the organiser vouches for connect out only, as with --client-mode. Ask the organiser for one that the "
    "others can reach"
)
NONE_VOUCHED = (
    "only peers that the organiser vouches for may do that, and none of them is there. Ask the organiser to start one"
)


class WhoReduces:
    """Notices that a run has no reducer: then each round of its peers fails, after as long as the card allows."""

    def __init__(self, trust: Trust, clock: Callable[[], float] = time.monotonic) -> None:
        self._trust, self._clock = trust, clock
        self.problem = ""
        """Why nobody can average for this run's peers, and what to do; "" while somebody can, or nobody is there."""
        self._looks, self._told_at = 0, -math.inf

    def look(self, clients: Mapping[str, bool], counting: int) -> None:
        """Note who is in the run, and whether they are clients; `counting` others' gradients count.

        A newcomer is taken for a reducer: its gradients count soon. So is this peer.
        """
        able = [peer for peer in clients if self._trust.may_reduce(peer)]
        if counting == 0 or not all(clients[peer] for peer in able):
            self._looks, self.problem = 0, ""
            return
        self._looks += 1
        if self._looks >= LOOKS:
            self.problem = NOBODY.format(self._reason(able, len(clients)))

    def _reason(self, able: list[str], peers: int) -> str:
        if self._trust.reducers != "vouched":
            return ALL_CLIENTS.format(peers)
        return VOUCHED_CLIENTS if able else NONE_VOUCHED

    def due(self) -> str | None:
        """Return the problem, at most once in TELL_EVERY_S; None without one."""
        if not self.problem or self._clock() < self._told_at + TELL_EVERY_S:
            return None
        self._told_at = self._clock()
        return self.problem
