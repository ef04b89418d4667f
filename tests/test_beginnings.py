"""Newcomers and peers that come back begin with a state that no volunteer has to give, and count soon."""

import json
import queue
import socket
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import waiting

from dalle_lib.checkpoint import load_tensors
from dalle_lib.files import sha256_of
from dalle_lib.run.files import MODEL, OPTIMIZER
from dalle_lib.run.newest import LATEST, folder_on_hub
from dalle_lib.swarm import PeerSettings, local_swarm
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.peer.main import _prepare
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.folder import saved_epoch
from dalle_lib.swarm.process.join import CannotJoin

wait_until = partial(waiting.wait_until, timeout_s=240.0)

REPOSITORY = "crew/photos-checkpoints"


def trainer(name: str, **settings) -> PeerSettings:
    return PeerSettings(run="", name=name, batch_size=8, **settings)


def counted_at(peer) -> list[int]:
    """Return the epochs in whose averages with others a peer's gradient counted."""
    own = next((event["peer_id"] for event in peer.events() if event["event"] == "joined"), None)
    rounds = [event for event in peer.events() if event["event"] == "averaged" and len(event["shares"]) > 1]
    return [event["epoch"] for event in rounds if event["shares"].get(own)]


def epoch_of(peer) -> int:
    return max((event["epoch"] for event in peer.events() if event["event"] in ("joined", "epoch")), default=0)


def begins_with_its_own(peer) -> str:
    """Return what a peer tells of its beginning, once it counts, and see that no donor gave it a state."""
    wait_until(lambda: counted_at(peer))
    left_out = [event["reason"] for event in peer.events() if event["event"] == "left_out"]
    assert not any("took over their state" in reason for reason in left_out), left_out
    return left_out[0]


def counts_only_once_averaged(peer, others) -> None:
    """See that nobody's average holds a gradient of a peer from before its parameters were averaged with theirs."""
    events = peer.events()
    own = next(event["peer_id"] for event in events if event["event"] == "joined")
    (first, *_) = [event["epoch"] for event in events if event["event"] == "parameters" and event["is_whole"]]
    assert min(counted_at(peer)) > first, "its own reports"
    for each in others:
        rounds = [event for event in each.events() if event["event"] == "averaged" and own in event["counted"]]
        began = next(event["time"] for event in events if event["event"] == "joined")
        early = [event for event in rounds if event["epoch"] <= first and event["time"] > began]
        assert not any(event["counted"][own] for event in early), f"{each.folder.name} reports {early}"


def distance(a, b) -> float:
    """Return how far the parameters in two peers' folders are apart, relative to their norm."""
    first, second = (load_tensors(peer.folder / MODEL)[0] for peer in (a, b))
    apart = torch.stack([(first[name] - second[name]).float().norm() for name in first])
    return float(apart.norm() / torch.stack([value.float().norm() for value in first.values()]).norm())


def test_where_no_peer_answers_nothing_large_is_downloaded(mini, tmp_path, hub):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    silent = f"/ip4/127.0.0.1/tcp/{port}/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
    card = mini.with_changes(name="photos", initial_peers=(silent,), checkpoints=REPOSITORY)
    files = [file for file in card.save(tmp_path / "run").iterdir() if file.is_file()]
    hub.add("crew/photos", {file.name: file.read_bytes() for file in files})
    hub.add(REPOSITORY, {LATEST: b"{}"})
    (tmp_path / "peer").mkdir()
    settings = PeerSettings(run="crew/photos", name="new")
    with pytest.raises(CannotJoin, match=r"found no first peer of the run .*doctor"):
        _prepare(tmp_path / "peer", settings, None, EventLog(tmp_path / "peer"))
    assert hub.requests("run.json")
    assert not hub.requests(f"{LATEST}|safetensors|parquet"), "the card alone was fetched"


def test_who_waits_to_average_and_is_left_alone_counts_and_gives_its_state():
    class LeftAlone(CollaborativeOptimizer):
        """One that has begun with an older state, without the processes that would exchange anything."""

        def __init__(self) -> None:
            self.rounds, self.scheduled_grads, self.client_mode = queue.SimpleQueue(), None, False
            self.dht, self._brought = SimpleNamespace(peer_id="own"), []
            self.state_averager = SimpleNamespace(local_epoch=7)
            self.grad_averager = SimpleNamespace(local_samples_accumulated=48)
            self.parameter_rounds = SimpleNamespace(
                give_up=lambda: None, plan=lambda epoch, is_urgent: planned.append((epoch, is_urgent))
            )
            self.tracker = SimpleNamespace(global_progress=SimpleNamespace(num_peers=1), newcomers=0, is_alone=True)

        def __del__(self) -> None:
            """Nothing has to end."""

    planned, optimizer = [], LeftAlone()
    optimizer.is_behind = True
    optimizer._count(False)
    assert not optimizer._begin_averaging_gradients(None)
    assert (optimizer.is_behind, optimizer.is_counted) == (False, True)
    assert optimizer.state_averager.allow_state_sharing
    assert optimizer.rounds.get().counted == {"own": 48.0}
    assert not planned, "nobody would come to a round of parameters"
    optimizer._count(False)
    optimizer.tracker.global_progress.num_peers = 2
    assert not optimizer._begin_averaging_gradients(None), "the other is lost in an epoch long past"
    assert optimizer.is_counted
    optimizer.tracker.global_progress.num_peers = 1
    optimizer.tracker.newcomers = 1
    assert not optimizer._begin_averaging_gradients(None)
    assert planned == [(7, True)]


@pytest.mark.chaos
@pytest.mark.long
def test_who_comes_back_or_is_new_asks_no_donor_and_counts(mini, swarm_folder, hub):
    quick = {**mini.averaging.model_dump(), "target_batch_size": 48}
    card = mini.with_changes(averaging=quick, checkpoints=REPOSITORY)
    with local_swarm(card, swarm_folder, [trainer("ada"), trainer("bob"), trainer("eve")]) as swarm:
        ada, bob, eve = (swarm.peers[name] for name in ("ada", "bob", "eve"))
        wait_until(lambda: min(map(epoch_of, (ada, bob, eve))) >= 2)
        eve.stop()
        left_at = saved_epoch(eve.folder)
        wait_until(lambda: epoch_of(ada) >= left_at + 3)
        eve = swarm.add(trainer("eve"))
        told = begins_with_its_own(eve)
        assert "it goes on from its own state" in told
        assert min(counted_at(eve)) > left_at
        counts_only_once_averaged(eve, [ada, bob])

        # What eve saves is the run's checkpoint for somebody new, whose folder is empty.
        eve.stop()
        epoch, folder = saved_epoch(eve.folder), folder_on_hub(saved_epoch(eve.folder))
        files = {name: eve.folder / name for name in (MODEL, OPTIMIZER)}
        told = {name: {"sha256": sha256_of(file), "bytes": file.stat().st_size} for name, file in files.items()}
        pointer = json.dumps({"epoch": epoch, "folder": folder, "files": told}).encode()
        hub.add(
            REPOSITORY, {LATEST: pointer, **{f"{folder}/{name}": file.read_bytes() for name, file in files.items()}}
        )
        new = swarm.add(trainer("new"))
        told = begins_with_its_own(new)
        assert min(counted_at(new)) > epoch
        counts_only_once_averaged(new, [ada, bob])
        at = max(counted_at(new)) + 2
        wait_until(lambda: min(map(epoch_of, (ada, new))) >= at)
        for peer in ada, new:
            peer.ask_to_stop()
        for peer in ada, new:
            peer.wait(timeout_s=90)
        assert abs(saved_epoch(ada.folder) - saved_epoch(new.folder)) <= 1
        assert distance(ada, new) < 0.05, "one model"


@pytest.mark.chaos
@pytest.mark.long
def test_the_only_peer_that_others_can_reach_comes_back_among_clients_and_counts(mini, swarm_folder):
    quick = {**mini.averaging.model_dump(), "target_batch_size": 48, "timeout_s": 10.0}
    trainers = [trainer("ada"), trainer("bob", client_mode=True), trainer("cem", client_mode=True)]
    with local_swarm(mini.with_changes(averaging=quick), swarm_folder, trainers) as swarm:
        ada, bob, cem = (swarm.peers[name] for name in ("ada", "bob", "cem"))
        wait_until(lambda: min(map(epoch_of, (ada, bob, cem))) >= 2)
        ada.stop()
        left_at = saved_epoch(ada.folder)
        wait_until(lambda: min(map(epoch_of, (bob, cem))) >= left_at + 2)  # each alone: no client leads
        ada = swarm.add(trainer("ada"))
        assert "it goes on from its own state" in begins_with_its_own(ada)
        counts_only_once_averaged(ada, [bob, cem])
        wait_until(lambda: len(counted_at(bob)) and max(counted_at(bob)) > left_at + 2)
