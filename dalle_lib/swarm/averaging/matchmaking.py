"""How averagers find each other: as in hivemind, at a gentler pace and among members only."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.averaging.matchmaking import Matchmaking, MatchmakingException
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

from dalle_lib.swarm import wire
from dalle_lib.swarm.averaging.trust import Introduction, Trust

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.3
"""Seconds between two looks at who else is looking for a group."""


class PacedKeyManager(GroupKeyManager):
    """hivemind's view of who else is looking for a group, with a pause between two looks.

    hivemind 1.1.12 looks again as soon as the last look is done: on a fast network a peer that waits for its group
    keeps half a core busy, and everybody's hash table too.
    """

    last_look = 0.0

    async def get_averagers(self, *args, **kwargs):
        """Return the averagers that are looking for a group, at most once in `LOOK_EVERY_S`."""
        await asyncio.sleep(max(0.0, self.last_look + LOOK_EVERY_S - time.monotonic()))
        self.last_look = time.monotonic()
        return await super().get_averagers(*args, **kwargs)


class MemberMatchmaking(Matchmaking):
    """hivemind's matchmaking, which follows members only and forms groups of members only.

    hivemind 1.1.12 checks access tokens in its hash table only; anybody who knows an address can lead or join a group.
    With `is_by_epoch`, a peer meets only peers that are in the same epoch.
    """

    def __init__(self, *args, trust: Trust, is_by_epoch: bool, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.trust, self.is_by_epoch = trust, is_by_epoch
        made = self.group_key_manager  # hivemind's
        self.group_key_manager = PacedKeyManager(made.dht, made.prefix, made.group_bits, made.target_group_size)

    @contextlib.asynccontextmanager
    async def looking_for_group(self, step_control: StepControl):
        """Look for a group while this context is open, under a key of this peer's epoch if that matters.

        hivemind looks under the same key in each epoch.
        """
        async with super().looking_for_group(step_control):
            (told,) = introductions([step_control.data_for_gather])
            if self.is_by_epoch and told.epoch is not None:
                self.group_key_manager.group_bits = f"{told.epoch:b}"
            yield

    async def refusal(self, peer_id: PeerID, request: averaging_pb2.JoinRequest) -> str | None:
        """Return why a peer that asks to join may not join, or None if it may."""
        try:
            (told,) = introductions([request.gather])
        except ValueError as error:
            return str(error)
        problem = await self.trust.refusal(str(peer_id), told.token)
        if problem is None and self.trust.max_peers_per_user is not None:
            others = [str(other) for other in (*self.current_followers, self.peer_id)]
            problem = self._too_many([*others, str(peer_id)])
        return problem

    async def _request_join_group(self, leader: PeerID) -> GroupInfo | None:
        # hivemind asks each peer that looks for a group to lead this one, and those that a leader suggests.
        if (problem := await self.trust.refusal(str(leader))) is not None:
            logger.warning("not following %s: %s", leader, problem)
            return None
        return await super()._request_join_group(leader)

    async def follower_assemble_group(self, leader: PeerID, msg: averaging_pb2.MessageFromLeader) -> GroupInfo:
        """Return the group that a leader has assembled. Raises MatchmakingException if one of it may not take part.

        hivemind takes any group that a leader names.
        """
        peers = [str(PeerID(item)) for item in msg.ordered_peer_ids]
        problems = [self._too_many(peers), "it names a peer twice" if len(set(peers)) < len(peers) else None]
        if len(msg.gathered) == len(peers):
            for peer, told in zip(peers, introductions(msg.gathered), strict=True):
                if (problem := await self.trust.refusal(peer, told.token)) is not None:
                    problems.append(f"{peer} may not take part: {problem}")
        if any(problems):
            raise MatchmakingException(f"the group of {leader} is refused: {'; '.join(filter(None, problems))}")
        return await super().follower_assemble_group(leader, msg)

    def _too_many(self, peers: list[str]) -> str | None:
        """Return what is wrong if one user has too many of these peers, or None."""
        limit = self.trust.max_peers_per_user
        (user, count), *_ = Counter(map(self.trust.user_of, peers)).most_common(1)
        if limit is None or count <= limit:
            return None
        return f"{user!r} has {count} peers in it, but at most {limit} may take part in a round"


def introductions(gathered: Sequence[bytes]) -> list[Introduction]:
    """Return the introduction of each peer of a group, from the messages that hivemind gathered.

    Raises ValueError for a message that no peer of hivemind sends.
    """
    return [Introduction.parse(_unpacked(message)[2]) for message in gathered]


def with_role(message: bytes, may_reduce: bool) -> bytes:
    """Return what a peer told its group, with the role that the run gives it: a client sends parts and reduces none.

    The bandwidth that it claims is left out: a false claim would draw work to whoever makes it.
    """
    _bandwidth, mode, told = _unpacked(message)
    if mode is AveragingMode.NODE and not may_reduce:
        mode = AveragingMode.CLIENT
    bandwidth = 0.0 if mode is AveragingMode.CLIENT else None
    return wire.dumps([bandwidth, mode.value, wire.dumps(told)])


def _unpacked(message: bytes) -> tuple[Any, AveragingMode, Any]:
    """Return the bandwidth, mode and introduction in a message.

    Raises ValueError for a message that hivemind's peers do not send.
    """
    try:
        bandwidth, mode, told = wire.loads(message)
        return bandwidth, AveragingMode(mode), wire.loads(told)
    except (ValueError, TypeError) as error:
        raise ValueError(f"its introduction cannot be read: {error}") from error
