"""Who comes to a round before the others have ended their epoch waits for them: it would spoil the round for all.

So it is with a peer that has missed a round. As long as it gives the others up, it stays an epoch behind them.
"""

import asyncio
import threading
from types import SimpleNamespace

import pytest
import torch
from hivemind.averaging import DecentralizedAverager
from hivemind.averaging.control import AveragingStage
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import as_aiter
from test_leaving import a_round
from test_matchmaking import ADA, matchmaking_of
from test_slow_peers import PARTS, Noted, peers_of_hivemind

from dalle_lib.swarm.averaging.averagers import RunAverager
from dalle_lib.swarm.averaging.leaving import Leaving
from dalle_lib.swarm.averaging.patience import Patience
from dalle_lib.swarm.averaging.rounds import Group, RoundsNow
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.averaging.upload import Upload
from dalle_lib.swarm.averaging.waiting import EARLY, Waiting


def test_a_round_is_whole_in_which_one_has_begun_long_before_all_others():
    most_s = 2.0

    async def average(runner: Noted, after_s: float) -> torch.Tensor:
        await asyncio.sleep(after_s)
        return await runner.average()

    async def play() -> None:
        async with peers_of_hivemind(3) as peers:
            early, *others = [
                Noted(p2p, peers, sender_timeout=s) for p2p, s in zip(peers, (most_s, 600, 600), strict=True)
            ]
            for runner in (early, *others):
                await runner.add_p2p_handlers(runner._p2p, namespace="round")
            after_s = (1 + EARLY / 2) * most_s
            averages = await asyncio.gather(average(early, 0.0), *(average(runner, after_s) for runner in others))
            for runner, mean in zip((early, *others), averages, strict=True):
                torch.testing.assert_close(mean, torch.ones(200 * PARTS))
                assert runner.is_whole
                assert not runner.failed
                assert not runner.told

    asyncio.run(play())


def test_where_nobody_begins_all_are_given_up_in_the_end():
    async def play() -> None:
        async with peers_of_hivemind(3) as peers:
            runners = [Noted(p2p, peers, sender_timeout=0.5) for p2p in peers]
            await asyncio.wait_for(runners[0].average(), 2 * 0.5)  # the longest that hivemind lets a round last
            assert runners[0].failed == {p2p.peer_id for p2p in peers[1:]}

    asyncio.run(play())


def test_of_two_peers_neither_is_taken_to_be_early():
    bob, cat = PeerID(b"bob"), PeerID(b"cat")
    of_two, of_three = (Waiting(Patience(), 600.0, others, others) for others in ([bob], [bob, cat]))
    asyncio.run(asyncio.sleep(0.01))
    assert of_two.seconds > of_three.seconds == 0.0
    of_three.hear(bob)
    assert of_two.seconds > of_three.seconds
    asyncio.run(asyncio.sleep(0.01))
    assert of_three.seconds > 0.0


@pytest.mark.parametrize("is_found", [True, False])
def test_tensors_wait_for_the_round_of_a_group_that_is_found_as_long_as_a_round_may_last(is_found):
    class Stock:
        rpc_aggregate_part = DecentralizedAverager.rpc_aggregate_part

    class Averager(RunAverager, Stock):
        def __init__(self) -> None:
            self.trust, self.upload, self.rounds_now, self._allreduce_timeout = Trust(), Upload(), RoundsNow(), 600.0
            self._running_groups, self.allreduce_kwargs = {}, {"sender_timeout": 0.2}
            self._pending_groups_registered, self._matchmaking = asyncio.Event(), matchmaking_of(ADA)
            self._pending_groups_registered.set()

    class Round:
        async def rpc_aggregate_part(self, _stream, _context):
            yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART)

    async def answered() -> int:
        averager, request = Averager(), averaging_pb2.AveragingData(group_id=b"group")
        if is_found:
            averager._matchmaking.leader_of[b"group"] = averager._matchmaking.peer_id
        begun = asyncio.get_running_loop().create_future()
        begun.set_result(Round())
        asyncio.get_running_loop().call_later(1.0, averager._running_groups.update, {b"group": begun})
        answers = averager.rpc_aggregate_part(as_aiter(request), SimpleNamespace(remote_id=PeerID(b"early")))
        return (await asyncio.wait_for(anext(answers), 30)).code

    assert asyncio.run(answered()) == (averaging_pb2.AVERAGED_PART if is_found else averaging_pb2.BAD_GROUP_ID)


@pytest.mark.parametrize("has_group", [True, False])
def test_a_peer_gives_up_a_round_as_long_after_its_beginning_as_the_search_for_a_group(has_group, no_event_loop):
    peer, group = Leaving(), Group({"own": 8.0, "other": 8.0}, epoch=0)
    handle = a_round()
    handle.stage = AveragingStage.RUNNING_ALLREDUCE  # also where that round has failed
    if not has_group:
        handle.stage = AveragingStage.LOOKING_FOR_GROUP
    threading.Timer(1.5, lambda: handle.done() or handle.set_result(group)).start()
    if has_group:
        assert peer.outcome_of(handle, 1.0) == group
    else:
        with pytest.raises(TimeoutError):
            peer.outcome_of(handle, 1.0)
