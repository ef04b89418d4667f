"""Groups that begin when all are there: nobody waits for the end of a search, and few are left out."""

import asyncio
import contextlib
import math
import time
from dataclasses import replace

from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time
from hivemind.utils.asyncio import cancel_and_wait

from dalle_lib.swarm.averaging.expected import MAX_EXPECTED, Expected, GroupPatience, Told
from dalle_lib.swarm.averaging.group_keys import LOOK_EVERY_S, SignedKeyManager
from dalle_lib.swarm.averaging.introductions import Introduction, read
from dalle_lib.swarm.bounded import put

MAX_IN_VAIN, MAX_COUNTED = 2, 8
"""By how many groups more than it comes to a peer may miss and is still waited for, as it may claim for ever that it is
there; and how many more are counted, so that one that comes again is soon waited for."""


class CompletingMatchmaking(Matchmaking):
    """hivemind's matchmaking, whose groups begin as soon as the epoch has ended and those are there who come.

    hivemind's begin when their leader's search ends, with whoever has come. On busy machines some come later, and make
    a second group; where all come at once, they wait for nobody.
    """

    group_key_manager: SignedKeyManager
    is_by_epoch: bool
    """Whether a peer meets only peers that are in the same epoch, as for rounds of parameters."""

    def __init__(self, *args, expected: Expected, min_matchmaking_time: float, **kwargs) -> None:
        """Take who is expected; until `min_matchmaking_time` has passed, a group waits for each of them."""
        longest_s = max(min_matchmaking_time, expected.longest_s)
        super().__init__(*args, min_matchmaking_time=longest_s, **kwargs)
        self.expected, self.patience = expected, GroupPatience(least_s=min_matchmaking_time, longest_s=longest_s)
        self.shut_out: dict[PeerID, float] = {}
        """When this peer lets another one into its groups again, in seconds of `time.monotonic`."""
        self.in_vain: dict[PeerID, int] = {}
        """In how many more groups that this peer led another one was missing than not, though it was expected."""
        self.refused: dict[PeerID, str] = {}
        """Who was not let into a group in this search, and why."""
        self._epoch = 0

    @contextlib.asynccontextmanager
    async def looking_for_group(self, step_control: StepControl):
        """Look for a group while this context is open, and begin it when it is complete."""
        async with super().looking_for_group(step_control):
            self._epoch = self._own.epoch
            self.group_key_manager.begin_search()
            self.refused.clear()
            beginning = asyncio.create_task(self._begin_when_complete())
            try:
                yield
            finally:
                await cancel_and_wait(beginning)

    async def _begin_when_complete(self) -> None:
        """Assemble the group that this peer leads as soon as it waits for nobody any more.

        hivemind assembles it when this peer's search ends, with those who are there then.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_S / 3)
            # hivemind looks no more who is there once it has found one that would lead after this peer.
            self.potential_leaders.update_triggered.set()
            if self._is_complete():
                async with self.lock_request_join_group:  # it is not about to follow another peer
                    if self._is_complete():
                        await self.leader_assemble_group()

    async def leader_assemble_group(self) -> GroupInfo:
        """Return the group of this peer and those who follow it, and note who is missing."""
        self._note_missing()
        return await super().leader_assemble_group()

    async def leader_disband_group(self) -> None:
        """Send all followers away, and note who was missing, if that kept the group from beginning before its end."""
        if self.current_leader is None and self.current_followers:
            self._note_missing()
        await super().leader_disband_group()

    def _is_complete(self) -> bool:
        """Return whether this peer leads a group that has not begun and waits for nobody."""
        leads = self.current_followers and self.current_leader is None and not self.assembled_group.done()
        if not leads or (looking := self.group_key_manager.looking) is None:
            return False
        group, now, expected = {self.peer_id, *self.current_followers}, get_dht_time(), self._expected()
        looking = looking - self._kept_out() - self._given_up()
        waited_s = now - self.potential_leaders.declared_expiration_time + self.min_matchmaking_time
        is_due = self.step_control.triggered
        return self.patience.begins(group, expected, looking, is_due=is_due, now=now, waited_s=waited_s)

    def _expected(self) -> dict[PeerID, Told] | None:
        """Return who comes to this peer's round, as far as is known; None if nothing is.

        Who comes to a round of parameters is seen by its looking for a group alone. So it is with peers that were given
        up, and with those that looked for one and do no more.
        """
        if (told := self.expected.of(self._epoch)) is None:
            return None
        kept_out, doubted = self._kept_out(), self._given_up() | self.group_key_manager.gone
        return {
            peer: replace(of, at=-math.inf) if self.is_by_epoch or peer in doubted else of
            for peer, of in told.items()
            if peer not in kept_out and (of.counts or self.is_by_epoch)
        }

    def _kept_out(self) -> set[PeerID]:
        return self._still(self.shut_out).keys() | self.refused.keys()

    def _given_up(self) -> set[PeerID]:
        return {peer for peer, times in self.in_vain.items() if times > MAX_IN_VAIN}

    def _note_missing(self) -> None:
        """Take note of who was expected and is not in the group that this peer leads."""
        known = (self._expected() or {}).keys() | (self.group_key_manager.looking or set())
        for peer in known - self._kept_out() - {self.peer_id}:
            times = self.in_vain.pop(peer, 0) + (-1 if peer in self.current_followers else 1)
            if times > 0:
                put(self.in_vain, peer, min(times, MAX_COUNTED), MAX_EXPECTED)

    @property
    def _own(self) -> Introduction:
        """What this peer tells the group that it looks for."""
        return read(self.step_control.data_for_gather, self.peer_id, self._prefix, math.inf)

    @staticmethod
    def _still(until: dict[PeerID, float]) -> dict[PeerID, float]:
        return {peer: end for peer, end in until.items() if end > time.monotonic()}
