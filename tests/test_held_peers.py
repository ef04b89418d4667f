"""Real peers of the embedded run that are paused, or whose machine sleeps: the others go on, and they come back."""

import os
import signal
import time
from functools import partial

import psutil
import pytest
import waiting

from dalle_lib.cli.lend import Finish, Pause, Resume
from dalle_lib.swarm import Peer, PeerSettings, local_swarm
from dalle_lib.swarm.peer.metrics import EXPIRES_S
from dalle_lib.swarm.process.events import is_loss, read_starts
from dalle_lib.swarm.process.lending import wish_of
from dalle_lib.swarm.process.local import PEERS
from dalle_lib.swarm.process.standing import Standing
from dalle_lib.swarm.process.status import SwarmStatus

wait_until = partial(waiting.wait_until, timeout_s=300.0)


@pytest.fixture
def card(mini):
    """A run whose epochs are short, and which does not end meanwhile."""
    return mini.with_changes(
        optimizer={**mini.optimizer.model_dump(), "total_epochs": 1000, "warmup_epochs": 1},
        averaging={**mini.averaging.model_dump(), "target_batch_size": 64, "timeout_s": 20},
    )


def trainer(name: str) -> PeerSettings:
    return PeerSettings(run="", name=name, batch_size=8)


def told(peer: Peer, kind: str) -> list[dict]:
    return [event for event in peer.events() if event["event"] == kind]


def rounds_with_others(peer: Peer) -> list[dict]:
    return [event for event in told(peer, "averaged") if len(event["shares"]) > 1 and not event["error"]]


@pytest.mark.chaos
@pytest.mark.long
def test_a_paused_peer_hands_in_what_it_has_lets_others_go_on_and_comes_back(card, swarm_folder):
    here = {"folder": swarm_folder / PEERS, "name": "bob"}
    with local_swarm(card, swarm_folder, [trainer("ada"), trainer("bob")]) as swarm:
        ada, bob = swarm.peers.values()
        wait_until(lambda: len(rounds_with_others(bob)) >= 2)
        Pause(**here).run()
        wait_until(lambda: told(bob, "held"))
        alone = len(told(ada, "epoch"))
        wait_until(lambda: [event["peers"] for event in told(ada, "epoch")[alone:]][-3:] == [1, 1, 1])
        standing, computed = Standing.of(bob), told(bob, "held")[0]["time"]
        assert (standing.state, standing.hold.reason) == ("paused", "you")
        assert standing.old_look_s is None, "it goes on to look at the others"
        wait_until(lambda: {peer.name: peer.held for peer in SwarmStatus.read(ada.folder).peers}["bob"] == "you")
        rounds = rounds_with_others(bob)
        own = told(bob, "joined")[0]["peer_id"]
        assert all(event["shares"][own] > 0 for event in rounds), rounds
        assert all(event["samples"] for event in told(bob, "epoch"))
        Resume(**here).run()
        wait_until(lambda: len(rounds_with_others(bob)) >= len(rounds) + 2)
        assert told(bob, "going_on")[0]["time"] > computed
        assert not any(map(is_loss, bob.events())), bob.events()
        Finish(**here).run()
        bob.wait(timeout_s=120)
        left, last = told(bob, "left")[0], told(bob, "epoch")[-1]
        assert left["epoch"] == last["epoch"]
        assert left["samples"] == sum(event["samples"] for event in told(bob, "epoch")), "all that it computed counts"
        assert wish_of(bob.folder).wish == "finish"
        swarm.add(trainer("bob"))
        wait_until(lambda: told(bob, "joined"))
        assert wish_of(bob.folder) is None, "the start before was asked to finish"
        Pause(**here).run()
        wait_until(lambda: told(bob, "held"))
        bob.stop()
        swarm.add(trainer("bob"))
        wait_until(lambda: told(bob, "held"))
        assert not told(bob, "epoch"), "it stays paused"


@pytest.mark.chaos
@pytest.mark.long
def test_a_peer_whose_machine_slept_for_longer_than_its_records_live_is_back_by_itself(card, swarm_folder):
    with local_swarm(card, swarm_folder, [trainer("ada"), trainer("bob")]) as swarm:
        ada, bob = swarm.peers.values()
        wait_until(lambda: len(rounds_with_others(bob)) >= 2)
        supervisor = psutil.Process(bob.supervisor_id)
        family, known = [supervisor, *supervisor.children(recursive=True)], len(told(bob, "epoch"))
        for process in family:
            os.kill(process.pid, signal.SIGSTOP)
        time.sleep(EXPIRES_S + 10)
        for process in family:
            os.kill(process.pid, signal.SIGCONT)
        woke, rounds = time.time(), len(rounds_with_others(bob))
        wait_until(lambda: len(rounds_with_others(bob)) >= rounds + 2)
        (slept,) = told(bob, "woke")
        assert slept["seconds"] == pytest.approx(EXPIRES_S + 10, abs=10)
        epochs = told(bob, "epoch")[known:]
        began, slept_at = told(bob, "joined")[0]["time"], woke - EXPIRES_S - 10
        assert epochs[0]["seconds"] < slept_at - began + epochs[0]["time"] - woke + 1, "sleep is no part of an epoch"
        assert epochs[0]["compute_s"] < slept_at - began + epochs[0]["time"] - woke, "nor of the time of computing"
        wait_until(lambda: {"ada", "bob"} <= {peer.name for peer in SwarmStatus.read(ada.folder).peers})


@pytest.mark.chaos
@pytest.mark.parametrize(
    "lost",
    [
        "averagers",
        "hash table",
        pytest.param("averager", marks=pytest.mark.long),
        pytest.param("p2pd", marks=pytest.mark.long),
    ],
)
def test_a_peer_that_loses_one_of_its_processes_saves_and_is_back_by_itself(card, swarm_folder, lost):
    with local_swarm(card, swarm_folder, [trainer("ada"), trainer("bob")]) as swarm:
        bob = swarm.peers["bob"]
        wait_until(lambda: len(rounds_with_others(bob)) >= 2)
        (own,) = psutil.Process(bob.supervisor_id).children()
        averagers = [each for each in own.children() if each.cmdline() == own.cmdline() and not each.children()]
        p2pd = [each for each in own.children(recursive=True) if each.name() == "p2pd"]
        (table,) = (process for process in own.children() if p2pd[0] in process.children())
        parts = {"averager": averagers[:1], "averagers": averagers, "hash table": [table], "p2pd": p2pd[:1]}
        assert len(averagers) == 2
        for process in parts[lost]:
            os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: len(read_starts(bob.folder)) == 2)
        before = read_starts(bob.folder)[0]
        (why,) = (event["reason"] for event in before if event["event"] == "again")
        assert "has ended" in why
        wait_until(lambda: len(rounds_with_others(bob)) >= 2)
        last = max(event["epoch"] for event in before if event["event"] == "epoch")
        assert told(bob, "joined")[0]["epoch"] >= last, "its progress is lost"
        assert why in told(bob, "problem")[0]["problem"]
