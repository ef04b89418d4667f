"""A real peer with two devices, which are processors here: one place in the swarm, also while a worker is killed."""

import os
import signal
from functools import partial

import psutil
import pytest
import waiting
from conftest import living

from dalle_lib.swarm import Peer, PeerSettings, local_swarm
from dalle_lib.swarm.process.events import is_loss

wait_until = partial(waiting.wait_until, timeout_s=300.0)


def told(peer: Peer, kind: str) -> list[dict]:
    return [event for event in peer.events() if event["event"] == kind]


def workers_of(peer: Peer) -> list[psutil.Process]:
    process = psutil.Process(told(peer, "started")[0]["pid"])
    return [child for child in process.children() if "dalle_lib.swarm.peer.computing.worker" in child.cmdline()]


def shares(peer: Peer) -> int:
    """Return how often a worker has begun to take part."""
    return sum(event["why"] == "cpu computes a share" for event in told(peer, "computing"))


@pytest.mark.chaos
def test_a_peer_on_two_devices_is_one_peer_and_loses_nothing_when_a_worker_is_killed(mini, swarm_folder):
    card = mini.with_changes(
        optimizer={**mini.optimizer.model_dump(), "total_epochs": 1000, "warmup_epochs": 1},
        averaging={**mini.averaging.model_dump(), "target_batch_size": 64, "timeout_s": 20},
    )
    trainers = [PeerSettings(run="", name=name, device=on) for name, on in (("ada", "cpu,cpu"), ("bob", "cpu"))]
    with local_swarm(card, swarm_folder, trainers) as swarm:
        ada, bob = swarm.peers.values()
        wait_until(lambda: shares(ada) == 1)
        assert told(ada, "joined")[0]["device"] == "cpu, cpu"
        assert told(ada, "computing")[-1]["told"].startswith("2 x ")
        (first,) = workers_of(ada)
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: shares(ada) == 2)
        assert any("dropped out (ended with exit code -9), and starts" in e["why"] for e in told(ada, "computing"))
        assert told(ada, "computing")[-1]["why"] == "", "nothing stands in the panel for the rest of the run"
        epochs = len(told(ada, "epoch"))
        wait_until(lambda: len(told(ada, "epoch")) >= epochs + 3)
        assert max(event["peers"] for event in told(bob, "epoch")) == 2
        assert not told(ada, "skipped")
        assert not any(map(is_loss, ada.events())), ada.events()
        (second,) = workers_of(ada)
        ada.stop()
        assert not living([first, second])
