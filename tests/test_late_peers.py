"""What a peer notes of those who were late in a round: nothing that it has not seen, and nothing that costs little."""

import asyncio
from types import SimpleNamespace

import pytest
from hivemind.averaging.group_info import GroupInfo
from hivemind.p2p import PeerID
from test_matchmaking import ADA, matchmaking_of
from test_slow_peers import Noted

from dalle_lib.swarm.averaging.all_reduce import Runner
from dalle_lib.swarm.averaging.patience import Patience
from dalle_lib.swarm.averaging.upload import FIRST_REST


def test_a_round_that_is_called_off_shows_of_nobody_that_they_are_in_time():
    async def call_off() -> Runner:
        begun, patience = asyncio.Event(), Patience()

        class Waits(Noted):
            async def _communicate_with_peer(self, peer_id: PeerID) -> None:
                begun.set()
                await asyncio.Event().wait()

        peers = [SimpleNamespace(peer_id=PeerID(name)) for name in (b"ada", b"bob", b"cat")]
        patience.note([peers[1].peer_id], {peers[1].peer_id}, {})
        runner = Waits(peers[0], peers, patience=patience)
        runner.upload.note_round(is_late=True)
        round_ = asyncio.create_task(runner.average())
        await begun.wait()
        round_.cancel()
        await asyncio.wait([round_])
        assert runner._future.exception() is not None  # or asyncio would log that nobody asked
        return runner

    runner = asyncio.run(call_off())
    assert runner.patience._late == {PeerID(b"bob"): 1}
    for _ in range(FIRST_REST):
        assert runner.upload.steps_back, "for as many rounds as before"
        runner.upload.note_round(is_late=False)


@pytest.mark.parametrize(
    ("peers", "slow", "absent", "unreduced", "cheap"),
    [
        ("abcd", "d", "", "", "d"),
        ("abc", "c", "", "", ""),
        ("abcd", "cd", "", "", ""),
        ("abcde", "d", "e", "", "d"),
        ("abcd", "d", "", "d", ""),
        ("abcde", "de", "", "e", "d"),
    ],
    ids=["of four", "of three", "half", "beside one that sent nothing", "gives back nothing", "beside such a one"],
)
def test_who_is_merely_slow_where_that_costs_little_is_let_into_groups_again_and_again(
    peers, slow, absent, unreduced, cheap
):
    async def round_led() -> None:
        runner = Noted(p2ps[0], p2ps)
        runner.failed, runner.slow, runner.unreduced = ids(slow + absent + unreduced), ids(slow), ids(unreduced)
        assert runner.cheap == ids(cheap)
        leader = matchmaking_of(ADA)
        leader.peer_id = p2ps[0].peer_id
        for _ in range(9):
            leader.leader_of[b"group"] = leader.peer_id
            group = GroupInfo(b"group", tuple(p2p.peer_id for p2p in p2ps), (b"",) * len(p2ps))
            leader.note_round(group, runner.failed, runner.refused, runner.slow, runner.cheap)
        assert leader.shut_out.keys() == runner.failed - ids(cheap)

    def ids(names: str) -> set[PeerID]:
        return {PeerID(name.encode()) for name in names}

    p2ps = [SimpleNamespace(peer_id=PeerID(name.encode())) for name in peers]
    asyncio.run(round_led())
