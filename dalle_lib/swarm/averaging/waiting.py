"""How long each peer of a round has been waited for, and until when it still is."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection

from hivemind.p2p import PeerID

from dalle_lib.swarm.averaging.patience import REDUCER_PATIENCE, Patience

EARLY = 0.25
"""How long one is waited for that others begin, before it counts that they have not; in multiples of the most that a
sender is waited for."""


class Waiting:
    """Senders and reducers of one round that another peer waits for; without `most_s` it waits for ever.

    The clock starts when another one has begun. Until then it is this peer that is early, as whoever comes to the next
    round of the others after it has missed one: if it gave them up, it would spoil that round for all. Where there are
    two peers, nobody can say who is early or late.
    """

    def __init__(
        self, patience: Patience, most_s: float | None, senders: Collection[PeerID], reducers: Collection[PeerID]
    ) -> None:
        """Wait for these other peers, for each sender `most_s` seconds at most."""
        is_early = most_s is not None and len({*senders, *reducers}) > 1
        self._patience, self._most_s = patience, most_s
        self._starts = time.monotonic() + (EARLY * most_s if is_early else 0.0)
        self.waited_s = dict.fromkeys(senders, 0.0)
        """For how many seconds each sender has been waited for."""
        self.heard: set[PeerID] = set()
        """Others of which something has come, which have begun."""
        self._reducers = reducers
        self._reducing: dict[PeerID, asyncio.Timeout] = {}
        self._done_s: list[float] = []
        patience.begin()

    @property
    def seconds(self) -> float:
        """Seconds since another one has begun."""
        return max(0.0, time.monotonic() - self._starts)

    def hear(self, peer: PeerID) -> None:
        """Note that something has come of another one."""
        self.heard.add(peer)
        if (now := time.monotonic()) < self._starts:
            early_s, self._starts = self._starts - now, now
            for end in self._reducing.values():
                if not end.expired():
                    end.reschedule(end.when() - early_s)

    def limit_s(self, sender: PeerID, waited_s: float) -> float:
        """Note for how many seconds a sender has been waited for, and return for how many it may be."""
        self.waited_s[sender] = waited_s
        return self._patience.for_sender(sender, self.waited_s, self._most_s)

    @contextlib.asynccontextmanager
    async def for_reducer(self, reducer: PeerID) -> AsyncIterator[None]:
        """Run the block, at whose end a reducer has given back all; raises TimeoutError if that takes too long.

        The sooner the others have, the less is waited. This peer's own parts take as long as the senders do.
        """
        most_s = None if self._most_s is None else REDUCER_PATIENCE * self._most_s
        early_s = max(0.0, self._starts - time.monotonic())
        try:
            async with asyncio.timeout(None if most_s is None else early_s + most_s) as end:
                if is_other := reducer in self._reducers:
                    self._reducing[reducer] = end
                yield
        finally:
            self._reducing.pop(reducer, None)
        if is_other and most_s is not None:
            self._done_s.append(self.seconds)
            self._wait_less(most_s)

    def _wait_less(self, most_s: float) -> None:
        """Set the ends of the reducers that are not done, now that another one is."""
        loop, now_s = asyncio.get_running_loop(), self.seconds
        for reducer, end in self._reducing.items():
            limit_s = self._patience.for_reducer(reducer, self._done_s, len(self._reducers) - 1, most_s)
            if not end.expired():
                end.reschedule(loop.time() + max(0.0, limit_s - now_s))
