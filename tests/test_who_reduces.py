"""A run in which nobody can average is told so, once a minute, and what to do: by the records of its peers."""

from dataclasses import replace

import pytest
from auth_peers import issued
from test_held_peers import rounds_with_others, told, trainer
from test_progress import PEERS, progress, record, tracker  # noqa: F401  (a fixture)
from waiting import wait_until

from dalle_lib.auth import Role
from dalle_lib.swarm import Peer, local_swarm
from dalle_lib.swarm.averaging.progress import PlausibleProgress
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.averaging.who_reduces import WhoReduces

NEW = {"samples_accumulated": 0, "samples_per_second": 0.0}
CLIENT = {"client_mode": True}


@pytest.fixture
def own(tracker) -> PlausibleProgress:  # noqa: F811
    """The tracker of peer 0, which only connects to others."""
    tracker.local_progress = record(10, peer=0, **CLIENT)
    return tracker


def test_a_run_of_clients_alone_is_told_so_once_two_looks_have_found_it(own):
    clients = [record(10, peer, **CLIENT) for peer in (1, 2)]
    progress(own, clients)
    assert own.who_reduces.problem == "", "another one's record may be missed once"
    progress(own, clients)
    assert "nobody can average for this run's peers now" in own.who_reduces.problem
    assert "all 3 connect out only" in own.who_reduces.problem
    progress(own, [*clients, record(10, peer=3)])
    assert own.who_reduces.problem == ""
    progress(own, clients)
    assert own.who_reduces.problem == "", "the looks were not in a row"


@pytest.mark.parametrize(
    ("is_client", "others"),
    [
        pytest.param(True, [], id="nobody else is there"),
        pytest.param(True, [(1, CLIENT | NEW), (2, CLIENT | NEW)], id="newcomers alone"),
        pytest.param(True, [(1, CLIENT), (2, NEW)], id="a newcomer that others can reach"),
        pytest.param(False, [(1, CLIENT), (2, CLIENT)], id="others reach this peer"),
    ],
)
def test_who_is_alone_or_can_average_is_told_nothing_of_that(own, is_client, others):
    own.local_progress = record(10, peer=0, client_mode=is_client)
    for _look in range(3):
        progress(own, [record(10, peer, **told) for peer, told in others])
        assert own.who_reduces.problem == ""


def test_a_run_whose_vouched_peers_are_away_is_told_whom_to_ask(own):
    shown = {peer.peer_id: issued(peer, peer.peer_id) for peer in PEERS}
    shown[PEERS[3].peer_id] = issued(PEERS[3], "organiser", role=Role.VOUCHED)
    own.trust = Trust(reducers="vouched", shown=shown)
    own.who_reduces = WhoReduces(own.trust)
    members = [record(10, peer) for peer in (1, 2)]
    clients = [record(10, peer=3, **CLIENT)]
    for vouched, expected in ([], "none of them is there"), (clients, "that the organiser vouches for connect out"):
        for _look in range(2):
            progress(own, [*members, *vouched])
        assert expected in own.who_reduces.problem
        assert "Ask the organiser" in own.who_reduces.problem
    progress(own, [*members, record(10, peer=3)])
    assert own.who_reduces.problem == ""


def test_that_nobody_can_average_is_told_once_a_minute_while_it_lasts():
    now = 0.0
    who = WhoReduces(Trust(), clock=lambda: now)
    for is_client, seconds, is_told in [
        (True, 10, False), (True, 10, True), (True, 10, False), (True, 49, False), (True, 1, True),
        (False, 60, False), (True, 60, False), (True, 10, True),
    ]:  # fmt: skip
        now += seconds
        who.look({"own": True, "other": is_client}, counting=1)
        assert (who.due() is not None) == is_told


def warnings(peer: Peer) -> list[str]:
    """Return what a peer was told about who averages."""
    return [event["problem"] for event in told(peer, "problem") if "nobody can average" in event["problem"]]


@pytest.mark.chaos
@pytest.mark.long
def test_peers_that_all_connect_out_only_are_told_so_until_one_comes_that_others_reach(mini, swarm_folder):
    card = mini.with_changes(
        optimizer={**mini.optimizer.model_dump(), "total_epochs": 1000, "warmup_epochs": 1},
        averaging={**mini.averaging.model_dump(), "target_batch_size": 64, "timeout_s": 10.0},
    )
    with local_swarm(
        card, swarm_folder, [replace(trainer(name), client_mode=True) for name in ("ada", "bob")]
    ) as swarm:
        ada, bob = swarm.peers.values()
        wait_until(lambda: warnings(ada) and warnings(bob), 300.0)
        wait_until(
            lambda: any("nobody can average" in (event["error"] or "") for event in told(ada, "averaged")), 300.0
        )
        assert not rounds_with_others(ada)
        carol = swarm.add(trainer("carol"))
        wait_until(lambda: all(len(rounds_with_others(peer)) >= 2 for peer in (ada, bob, carol)), 300.0)
        whole, known = len(rounds_with_others(ada)), len(warnings(ada))
        wait_until(lambda: len(rounds_with_others(ada)) >= whole + 2, 300.0)
        assert len(warnings(ada)) == known
