"""A trainer tells a sketch of its parameters, and takes a state again when most users' are elsewhere."""

import json
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peer_files import BEGINNING, epoch, peer_with, running
from statuses import peer_status
from waiting import wait_until

from dalle_lib.checkpoint import load_model
from dalle_lib.dashboard.panel import panel_html
from dalle_lib.run import RunCard
from dalle_lib.run.files import MODEL
from dalle_lib.swarm import PeerSettings, local_swarm
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.peer.spreading import AGAIN_EPOCHS, OFF, Spreading
from dalle_lib.swarm.process.drift import DIFFERENCE, SIZE, Sketch, explained
from dalle_lib.swarm.process.events import EventLog, read_events
from dalle_lib.swarm.process.folder import SETTINGS
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus
from dalle_lib.troubles import TROUBLES, trouble_in

OWN = "own"


class Optimizer(CollaborativeOptimizer):
    """What of an optimizer is looked at, without processes, and with parameters that a test changes."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.is_behind, self.is_counted, self.replaced = False, True, []
        self.trust = SimpleNamespace(roster=None, user_of=lambda peer: peer.split("-")[0])
        self.state_averager = SimpleNamespace(
            optimizer=SimpleNamespace(param_groups=[{"params": parameters}]), epoch_of_parameters=0,
            pending_updates=set(), lock_averaged_tensors=threading.Lock(),
        )  # fmt: skip

    def __del__(self) -> None:
        """Nothing has to end."""

    def replace_parameters(self, why: str) -> None:
        self.replaced.append(why)


@pytest.fixture
def parameters():
    return [torch.linspace(-1, 1, 5000), torch.ones(30, 7)]


@pytest.fixture
def optimizer(parameters):
    return Optimizer(parameters)


@pytest.fixture
def spreading(optimizer, tmp_path):
    return Spreading(RunCard.load("emoji-mini"), optimizer, OWN, EventLog(tmp_path))


def others(text: str, *peers: str) -> list[PeerStatus]:
    return [peer_status(peer, peer, sketch=text) for peer in peers]


def test_a_sketch_is_made_once_after_each_update_and_never_of_parameters_that_change(spreading, optimizer):
    averager = optimizer.state_averager
    assert spreading.make()
    first = spreading.text
    assert not spreading.make()
    averager.epoch_of_parameters = 1
    averager.pending_updates.add(update := Future())
    assert not spreading.make(), "the next update is being made"
    update.set_result(None)
    with averager.lock_averaged_tensors:
        assert not spreading.make(), "a group averages parameters"
    assert spreading.make()
    assert (Sketch.read(first).epoch, Sketch.read(spreading.text).epoch) == (0, 1)


def test_parameters_that_lack_an_update_are_not_told_until_they_are_averaged(spreading, optimizer):
    spreading.make()
    for name, lacking in ("is_behind", True), ("is_counted", False):
        usual = getattr(optimizer, name)
        setattr(optimizer, name, lacking)
        assert spreading.make()
        assert spreading.text == ""
        spreading.see(others(str(Sketch(0, np.ones(SIZE))), "a", "b", "c"))
        spreading.mend()
        assert not optimizer.replaced, "nor compared"
        setattr(optimizer, name, usual)
        assert spreading.make()
        assert spreading.text, "of the same epoch"


def test_parameters_that_are_not_finite_are_told_to_nobody(spreading, parameters):
    parameters[0][7] = float("nan")
    assert not spreading.make()
    assert spreading.text == ""


def damage(spreading, optimizer, parameters, updates: int, *peers: str) -> None:
    """Let these peers tell right parameters after an update, and this one wrong ones of its own."""
    optimizer.state_averager.epoch_of_parameters = updates
    spreading.make()
    spreading.see(others(spreading.text, *peers))
    spreading._epoch = -1
    parameters[0].mul_(1.5)
    spreading.make()
    parameters[0].div_(1.5)


def test_a_peer_whose_parameters_are_off_says_so_and_takes_a_state_at_most_once_in_some_epochs(
    spreading, optimizer, parameters, tmp_path
):
    for updates in 3, 4, 2 + AGAIN_EPOCHS, 3 + AGAIN_EPOCHS:
        damage(spreading, optimizer, parameters, updates, "a", "b")
        spreading.mend()
        spreading.mend()
    told = list(read_events(tmp_path))
    assert [event["epoch"] for event in told] == [3, 3 + AGAIN_EPOCHS]
    assert len(optimizer.replaced) == 2
    assert optimizer.replaced[0].startswith("the parameters of this peer were off by ")
    assert told[0]["event"] == "drifted"
    assert told[0]["off"] > told[0]["explained"] == explained(RunCard.load("emoji-mini")) > told[0]["usual"]


@pytest.mark.parametrize(
    ("peers", "roster"),
    [(["a"], None), (["a-1", "a-2", "a-3"], None), (["a", "b"], {"a"}), ([], None)],
    ids=["one other", "one other user", "one other member", "nobody"],
)
def test_one_user_or_strangers_make_no_peer_take_a_state(spreading, optimizer, parameters, peers, roster):
    if roster is not None:
        optimizer.trust.roster = SimpleNamespace(known=lambda peer: peer in roster or None)
    damage(spreading, optimizer, parameters, 3, *peers)
    spreading.mend()
    assert not optimizer.replaced


def test_a_user_who_is_banned_after_a_look_has_no_more_votes_by_that(spreading, optimizer, parameters):
    damage(spreading, optimizer, parameters, 3, "a-1", "a-2", "a-3")
    optimizer.trust.user_of = lambda peer: peer
    spreading.mend()
    assert not optimizer.replaced


def test_paused_peers_do_not_count_and_those_that_tell_no_sketch_do(spreading, optimizer, parameters):
    damage(spreading, optimizer, parameters, 3, "a", "b")
    right, _user = spreading._others["a"]
    paused = [peer_status(name, name, sketch=right, held="you") for name in "ab"]
    spreading.see([*paused, *others("", "c", "d")])
    spreading.mend()
    assert not optimizer.replaced
    spreading.see([*others("", "c", "d"), *others(right, "a", "b")])
    spreading.mend()
    assert not optimizer.replaced, "two of five users"
    spreading.see(
        [*others("", "c"), *(replace(each, held="you") for each in others("", "d")), *others(right, "a", "b")]
    )
    spreading.mend()
    assert not optimizer.replaced, "two of four"
    spreading.see([*others("", "c", "d"), *others(right, "a", "b", "e", "f")])
    spreading.mend()
    assert len(optimizer.replaced) == 1


def test_the_panel_says_how_far_parameters_are_apart_and_that_a_peer_was_off_with_a_link(mini, tmp_path):
    drifted = {"event": "drifted", "epoch": 10, "off": 0.312, "explained": 0.12, "usual": 0.004}
    peer = peer_with(tmp_path / "ada", [*BEGINNING, *epoch(10), drifted], mini)
    near, far = (str(Sketch(10, values)) for values in (np.ones(SIZE), np.linspace(1.0, 1.02, SIZE)))
    peers = [
        peer_status(f"id{number}", name, sketch=told) for number, name, told in ((0, "ada", near), (1, "bob", far))
    ]
    SwarmStatus(
        time=time.time(), epoch=10, total_epochs=60, samples_in_epoch=8, target_batch_size=192, peers=peers
    ).write(peer.folder)
    with running(peer):
        html = panel_html(peer)
    assert re.search(r"<b>1\.1\d%</b>parameters apart", html)
    assert "The parameters of this peer were off by 31.2% after update 10" in html
    assert "averaging explains 12.0%: those of the others take their place." in html, "no peer may have given its state"
    (trouble,) = [trouble for trouble in TROUBLES if trouble.title == "Parameters off"]
    assert html.count(f'<a href="{trouble.link}"') == 1
    lost = "8 samples of yours are not in the others' update of epoch 10: " + OFF.format(0.312, 0.12)
    assert trouble_in(lost) is trouble


EPOCHS, NAMES = 12, ("ada", "bob", "cleo")


@pytest.mark.chaos
@pytest.mark.long
def test_a_peer_whose_parameters_are_damaged_in_silence_sees_it_and_has_the_others_again(mini, swarm_folder):
    card = mini.with_changes(
        optimizer={**mini.optimizer.model_dump(), "total_epochs": EPOCHS, "warmup_epochs": 1},
        # Parameters are not averaged otherwise: that would spread the damage over all.
        averaging={**mini.averaging.model_dump(), "target_batch_size": 192, "state_every": 1000, "matchmaking_s": 5.0},
    )
    trainers = [PeerSettings(run="", name=name, batch_size=8) for name in NAMES]
    own, limit = swarm_folder / "mallory", explained(card)
    own.mkdir(parents=True)
    with local_swarm(card, swarm_folder / "swarm", trainers) as swarm:
        PeerSettings(run=swarm.run, name="mallory", host="127.0.0.1", batch_size=8, threads=1).save(own / SETTINGS)
        script = Path(__file__).with_name("damaged_peer.py")
        with open(own / "output.txt", "wb") as output:
            damaged = subprocess.Popen(
                [sys.executable, str(script), str(own)], stdin=subprocess.PIPE, stdout=output, stderr=output
            )
        try:
            damaged.stdin.write(b"\n")  # no Hub token
            damaged.stdin.flush()
            spreads = []

            def is_seen() -> bool:
                status = SwarmStatus.read(swarm.peers["ada"].folder)
                if status is not None and status.spread is not None and len(status.spread.apart) == 1 + len(NAMES):
                    spreads.append((status.spread.epoch, status.spread.farthest))
                return bool(drifted(own)) and spreads[-1][0] > drifted(own)[0]["epoch"] and spreads[-1][1] < limit

            wait_until(is_seen, 600, lambda: json.dumps([spreads, list(read_events(own))[-30:]], default=str))
            swarm.wait(timeout_s=600)
            damaged.wait(120)
        finally:
            damaged.kill()
            damaged.communicate()
        folders = [*(peer.folder for peer in swarm.peers.values()), own]
        (event,) = drifted(own)
        assert event["off"] > 2 * event["explained"]
        assert not [each for folder in folders[:-1] for each in drifted(folder)], "nobody else is blamed"
        ends = [flat(load_model(folder / MODEL, card.model)) for folder in folders]
        apart = [float((each - ends[-1]).norm() / ends[-1].norm()) for each in ends[:-1]]
        assert max(apart) < limit, "rounds may have split on a busy machine"
        assert min(apart) < DIFFERENCE, "it has the state of one of them"
        dropped = [each for each in read_events(own) if each["event"] == "left_out" and "were off by" in each["reason"]]
        assert [each["reason"].rpartition(": ")[2] for each in dropped] == ["took over their state"]


def drifted(folder: Path) -> list[dict]:
    return [event for event in read_events(folder) if event["event"] == "drifted"]


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
