"""Real peers on a full disk: a trainer trains on, and `dalle-lib join` tells of one that cannot say how it ended."""

import signal
import subprocess
import sys
from functools import partial

import psutil
import pytest
import waiting
from full_disk import fill_disk, free_disk

from dalle_lib.run.files import OPTIMIZER
from dalle_lib.swarm import Peer, PeerSettings, local_swarm
from dalle_lib.swarm.peer.trainer import SNAPSHOT_EVERY
from dalle_lib.swarm.process.folder import saved_epoch
from dalle_lib.swarm.process.history import epochs_of

ROOM_BYTES = 4096
"""Room that is left for each file: a page, of which what processes share is made, too, and less than events take."""
wait_until = partial(waiting.wait_until, timeout_s=300.0)


def epoch(peer: Peer) -> int:
    return max(epochs_of(peer)["epoch"], default=0)


def problems(peer: Peer) -> str:
    return " ".join(event["problem"] for event in peer.events() if event["event"] == "problem")


@pytest.mark.chaos
@pytest.mark.long
def test_a_trainer_on_a_full_disk_trains_on_saves_later_and_goes_on_from_the_state_before_a_broken_one(
    mini, swarm_folder
):
    card = mini.with_changes(
        optimizer={**mini.optimizer.model_dump(), "total_epochs": 1000},
        averaging={**mini.averaging.model_dump(), "target_batch_size": 64, "timeout_s": 10},
    )
    ada, bob = (PeerSettings(run="", name=name, batch_size=8) for name in ("ada", "bob"))
    with local_swarm(card, swarm_folder, [ada, bob]) as swarm:
        peers = swarm.peers
        wait_until(lambda: any(len(e["counted"]) == 2 for e in peers["bob"].events() if e["event"] == "averaged"))
        trainer = psutil.Process(peers["bob"].events()[0]["pid"])
        fill_disk(trainer, ROOM_BYTES)
        full_at = epoch(peers["ada"])
        wait_until(lambda: epoch(peers["ada"]) > full_at + SNAPSHOT_EVERY + 2)
        assert peers["bob"].is_running
        assert saved_epoch(peers["bob"].folder) is None
        free_disk(trainer)
        wait_until(lambda: "this peer's progress was not saved: " in problems(peers["bob"]))
        counted = [e for e in peers["bob"].events() if e["event"] == "averaged" and len(e["counted"]) == 2]
        assert len({e["epoch"] for e in counted if e["epoch"] > full_at}) >= SNAPSHOT_EVERY / 2, "it trained on"
        wait_until(lambda: saved_epoch(peers["bob"].folder) is not None)

        earlier = saved_epoch(peers["bob"].folder)
        wait_until(lambda: epoch(peers["bob"]) > earlier)
        peers["bob"].stop()
        file = peers["bob"].folder / OPTIMIZER
        assert saved_epoch(peers["bob"].folder) > earlier
        file.write_bytes(file.read_bytes()[:-1])
        swarm.add(bob)
        wait_until(lambda: epoch(peers["bob"]) > earlier)
        assert f"goes on from that of epoch {earlier}. Remove {file.with_suffix('.broken')}" in problems(peers["bob"])


@pytest.mark.peers
def test_join_says_and_fails_where_a_peers_disk_takes_no_word_of_how_it_ended(swarm_folder):
    typed = ["join", "--run", "emoji-mini", "--name", "ada", "--role", "bootstrap", "--folder", str(swarm_folder)]
    command = [sys.executable, "-m", "dalle_lib", *typed, "--host", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as joined:
        peer = Peer(swarm_folder / "emoji-mini" / "ada")
        wait_until(lambda: any(event["event"] == "connected" for event in peer.events()))
        supervisor = psutil.Process(peer.supervisor_id)
        for process in supervisor, *supervisor.children(recursive=True):
            fill_disk(process)
        joined.send_signal(signal.SIGINT)
        said, _ = joined.communicate(timeout=120)
    assert joined.returncode == 1
    assert (
        f"the peer in {peer.folder} has ended with exit code 74 and no word of how, as where the disk is full" in said
    )
    assert said.count("no word of how") == 1
