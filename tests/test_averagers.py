"""What an averager answers others, who may not read it."""

import asyncio
from types import SimpleNamespace

from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.crypto import RSAPrivateKey
from test_matchmaking import matchmaking_of, told_by

from dalle_lib.auth import Identity
from dalle_lib.swarm.averaging import answers
from dalle_lib.swarm.averaging.averagers import RunAverager

LEADER, FOLLOWER = (Identity(RSAPrivateKey()) for _ in range(2))


class Leads:
    """What answers a follower, as hivemind does."""

    async def rpc_join_group(self, _request, _context):
        """Tell it that the round begins; the leader's own round waits until it has taken that."""
        try:
            yield averaging_pb2.MessageFromLeader(code=averaging_pb2.BEGIN_ALLREDUCE)
        finally:
            self.may_begin.set()


class Averager(RunAverager, Leads):
    """What leads a group, without a network."""

    def __init__(self) -> None:
        self._matchmaking, self.request_timeout, self.may_begin = matchmaking_of(LEADER), 0.1, asyncio.Event()


def test_a_follower_that_does_not_read_keeps_its_leader_from_no_round(monkeypatch):
    monkeypatch.setattr(answers, "HANG_UP_S", 0.1)
    request = averaging_pb2.JoinRequest(gather=told_by(FOLLOWER))
    context = SimpleNamespace(remote_id=PeerID.from_base58(FOLLOWER.peer_id))

    async def handle(averager: Averager) -> None:
        """Send answers as hivemind does, to a caller that reads none."""
        async for _ in averager.rpc_join_group(request, context):
            await asyncio.sleep(600)

    async def begins() -> bool:
        averager = Averager()
        handling = asyncio.create_task(handle(averager))
        await asyncio.wait([handling], timeout=30)
        has_ended = handling.done()
        handling.cancel()
        await asyncio.wait_for(averager.may_begin.wait(), 30)
        return has_ended

    assert asyncio.run(begins())
