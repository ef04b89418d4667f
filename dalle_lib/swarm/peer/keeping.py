"""Keeps this peer a member while it takes part, in a thread of its own, and makes it leave when it is none any more."""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dalle_lib.auth import NoLongerAdmitted, Upkeep
from dalle_lib.one_line import in_one_line
from dalle_lib.swarm.peer.membership import Membership
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.join import LEAVE_TIMEOUT_S, NotAMember

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""Seconds between two looks at what is due."""
TELL_EVERY_S = 60.0
"""Seconds after which the same problem is told again."""


@contextmanager
def keeping_member(membership: Membership, events: EventLog, stop: threading.Event) -> Iterator[None]:
    """Keep this peer a member while the block runs; one that is none any more gets `stop` set.

    Neither a hash table that hangs nor one that has nothing to do holds this up: a block that does not end in
    LEAVE_TIMEOUT_S then is ended with the process. Raises NotAMember after the block if that is why it ended.
    """
    if membership.upkeep is None:
        yield
        return
    keeper = _Keeper(membership.upkeep, membership.identity.peer_id, events, stop)
    threading.Thread(target=keeper.keep, daemon=True).start()
    try:
        yield
    finally:
        keeper.is_over.set()
    if keeper.refusal is not None:
        raise NotAMember(keeper.refusal)


class _Keeper:
    def __init__(self, upkeep: Upkeep, peer_id: str, events: EventLog, stop: threading.Event) -> None:
        self.upkeep, self.peer_id, self.events, self.stop = upkeep, peer_id, events, stop
        self.refusal: str | None = None
        self.is_over = threading.Event()

    def keep(self) -> None:
        """Look at what is due until the peer is to leave."""
        told, told_at = None, 0.0
        while not self.stop.wait(LOOK_EVERY_S):
            try:
                problem = self.upkeep.look()
                if problem is not None and (problem != told or time.monotonic() > told_at + TELL_EVERY_S):
                    told, told_at = problem, time.monotonic()
                    self.events.write("problem", peer=self.peer_id, problem=problem)
            except NoLongerAdmitted as refused:
                self._leave(in_one_line(refused))
            except Exception:  # a full disk, or a file that is gone: the next look may succeed
                logger.exception("this look at what a member needs failed")

    def _leave(self, refusal: str) -> None:
        self.refusal = refusal
        self.stop.set()
        if not self.is_over.wait(LEAVE_TIMEOUT_S):
            logger.error("this peer does not leave by itself, and is ended")
            try:
                self.events.write("failed", error=refusal, cannot_join=True, not_a_member=True)
            finally:  # on a full disk, too
                os._exit(1)
