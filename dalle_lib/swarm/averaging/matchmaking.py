"""How averagers find each other: hivemind's way, at a gentler pace, and among members only."""

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
from hivemind.utils import MSGPackSerializer

from dalle_lib.swarm.averaging.trust import Introduction, Trust

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.3


class PacedKeyManager(GroupKeyManager):
    """hivemind's view of who else looks for a group, which pauses between looks.

    hivemind 1.1.12 looks again as soon as the last look is done: on a fast network a peer that waits for its group
    keeps half a core, and everybody's hash table, busy.
    """

    last_look = 0.0

    async def get_averagers(self, *args, **kwargs):
        """Return the averagers that look for a group, at most once in LOOK_EVERY_S."""
        await asyncio.sleep(max(0.0, self.last_look + LOOK_EVERY_S - time.monotonic()))
        self.last_look = time.monotonic()
        return await super().get_averagers(*args, **kwargs)


class MemberMatchmaking(Matchmaking):
    """hivemind's matchmaking that follows members only, and forms groups of members only.

    hivemind 1.1.12 checks tokens in its hash table alone; anybody who knows an address can lead or join a group.
    """

    trust: Trust
    is_by_epoch: bool
    """Whether those only meet who are in the same epoch."""

    @classmethod
    def take_over(cls, matchmaking: Matchmaking, trust: Trust, is_by_epoch: bool) -> None:
        """Make the matchmaking that an averager has made for itself one of these."""
        matchmaking.__class__, matchmaking.trust, matchmaking.is_by_epoch = cls, trust, is_by_epoch
        matchmaking.group_key_manager.__class__ = PacedKeyManager

    @contextlib.asynccontextmanager
    async def looking_for_group(self, step_control: StepControl):
        """Look under the key of the epoch, where it matters."""
        async with super().looking_for_group(step_control):
            (told,) = introductions([step_control.data_for_gather])
            if self.is_by_epoch and told.epoch is not None:
                self.group_key_manager.group_bits = f"{told.epoch:b}"
            yield

    async def refusal(self, peer_id: PeerID, request: averaging_pb2.JoinRequest) -> str | None:
        """Return why a peer that asks to join may not, or None if it may."""
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
        if (problem := await self.trust.refusal(str(leader))) is not None:
            logger.warning("not following %s: %s", leader, problem)
            return None
        return await super()._request_join_group(leader)

    async def follower_assemble_group(self, leader: PeerID, msg: averaging_pb2.MessageFromLeader) -> GroupInfo:
        """Form the group that a leader has assembled, if all in it may take part."""
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
        limit = self.trust.max_peers_per_user
        (user, count), *_ = Counter(map(self.trust.user_of, peers)).most_common(1)
        if limit is None or count <= limit:
            return None
        return f"{user!r} has {count} peers in it, and {limit} may have a part in a round"


def introductions(gathered: Sequence[bytes]) -> list[Introduction]:
    """Return what each peer of a group has told."""
    return [Introduction.parse(_unpacked(message)[2]) for message in gathered]


def with_role(message: bytes, may_reduce: bool) -> bytes:
    """Return what a peer told, with the part of the work that the run lets it do.

    The bandwidth that it claims is left out: a false claim would draw the work to its author.
    """
    _bandwidth, mode, told = _unpacked(message)
    if mode is AveragingMode.NODE and not may_reduce:
        mode = AveragingMode.CLIENT
    bandwidth = 0.0 if mode is AveragingMode.CLIENT else None
    return MSGPackSerializer.dumps([bandwidth, mode.value, MSGPackSerializer.dumps(told)])


def _unpacked(message: bytes) -> tuple[Any, AveragingMode, Any]:
    """Return bandwidth, mode and introduction. Raises ValueError for what no peer of hivemind sends."""
    try:
        bandwidth, mode, told = MSGPackSerializer.loads(message)
        return bandwidth, AveragingMode(mode), MSGPackSerializer.loads(told)
    except Exception as error:  # msgpack has many, and some are not its own
        raise ValueError(f"what it tells of itself cannot be read: {error}") from error
