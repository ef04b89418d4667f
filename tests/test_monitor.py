"""A monitor of real peers: its checkpoints are the run's, and nothing is lost when it is killed."""

import json
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from statuses import peer_status

from dalle_lib.checkpoint import load_model
from dalle_lib.evaluation import image_loss
from dalle_lib.monitor.checkpoints import found_in
from dalle_lib.run import initial_model
from dalle_lib.streaming import CaptionTokenizer, code_files, read_codes
from dalle_lib.swarm import PeerSettings, local_swarm
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.peer import pulling
from dalle_lib.swarm.peer.pulling import DonorsDisagree, Puller, distance
from dalle_lib.swarm.peer.snapshot import Snapshot
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.status import SwarmStatus

OFTEN = ("--checkpoint-minutes", "0.1", "--look-s", "0.5", "--status-s", "1")


def snapshot(epoch: int, *values: float) -> Snapshot:
    return Snapshot(epoch, [torch.tensor(values)], {"state": {}, "param_groups": []})


def test_the_distance_of_two_states_is_relative_to_their_norm():
    assert distance(snapshot(3, 1.0, 2.0), snapshot(3, 1.001, 2.0)) == pytest.approx(4.5e-4, rel=0.1)


class Donors:
    """In the place of an averager: gives the states of these donors, one after the other, as far as they are asked."""

    def __init__(self, *states: tuple[str, Snapshot]) -> None:
        self.states, self.local_epoch, self.asked = list(states), 0, []

    def load_state_from_peers(self, _timeout, max_epoch, without):
        self.asked.append(without)
        for number, (donor, state) in enumerate(self.states):
            if donor not in without and self.local_epoch <= state.epoch <= max_epoch:
                del self.states[number]
                self.held, self.local_epoch = state, state.epoch
                return donor
        return None


@pytest.mark.parametrize(
    ("states", "donors", "epoch"),
    [
        ([("ada", 5), ("bob", 5)], ("ada", "bob"), 5),
        ([("ada", 5), ("bob", 6), ("ada", 6)], ("ada", "bob"), 6),
        ([("ada", 5), ("ada", 5)], ("ada",), 5),
        ([("ada", 50), ("bob", 7)], ("bob",), 7),
        ([], None, None),
    ],
    ids=["two of one epoch", "an epoch ended between", "nobody else", "a claim of the future", "nobody"],
)
def test_a_state_is_that_of_two_users_where_two_give_one(mini, monkeypatch, states, donors, epoch):
    monkeypatch.setattr(pulling, "take_snapshot", lambda averager: averager.held)
    puller = object.__new__(Puller)
    puller.card, puller.trust = mini, Trust()
    puller.averager = Donors(*((donor, snapshot(of, 1.0, 2.0)) for donor, of in states))
    pulled = puller.pull(2, 20)
    if donors is None:
        assert pulled is None
    else:
        assert (pulled.donors, pulled.snapshot.epoch) == (donors, epoch)
        assert (pulled.difference is None) == (len(donors) == 1)
        assert pulled.refused == ()


def lie(**changed) -> dict:
    return {"donor": "mallory", "epoch": 5, "values": (1.25, 2.5), **changed}


@pytest.mark.parametrize("told", [lie(), lie(epoch=15), lie(epoch=4)], ids=["25% off", "and ahead", "and behind"])
def test_who_lies_is_refused_and_named_and_two_others_are_taken(mini, monkeypatch, told):
    monkeypatch.setattr(pulling, "take_snapshot", lambda averager: averager.held)
    puller = object.__new__(Puller)
    puller.card, puller.trust = mini, Trust()
    lies = (told["donor"], snapshot(told["epoch"], *told["values"]))
    puller.averager = Donors(lies, ("ada", snapshot(5, 1.0, 2.0)), ("bob", snapshot(6, 1.001, 2.0)))
    pulled = puller.pull(2, 15)
    assert (pulled.donors, pulled.snapshot.epoch, pulled.refused) == (("ada", "bob"), 6, ("mallory",))
    puller.averager = Donors(lies, ("ada", snapshot(5, 1.0, 2.0)))
    with pytest.raises(DonorsDisagree, match=r"apart, by \d+\.\d% from mallory to ada.*none is kept"):
        puller.pull(2, 15)


def test_whose_state_a_split_run_explains_is_not_taken_and_not_named(mini, monkeypatch):
    monkeypatch.setattr(pulling, "take_snapshot", lambda averager: averager.held)
    puller = object.__new__(Puller)
    puller.card, puller.trust = mini, Trust()
    states = ("cleo", snapshot(5, 1.1, 2.2)), ("ada", snapshot(5, 1.0, 2.0)), ("bob", snapshot(5, 1.001, 2.0))
    puller.averager = Donors(*states)
    pulled = puller.pull(2, 15)
    assert (pulled.donors, pulled.refused) == (("ada", "bob"), ())


class Clock(threading.Event):
    """Lets `monotonic` go on by what is waited for, until `end_s`."""

    def __init__(self, end_s: float) -> None:
        super().__init__()
        self.now_s, self.end_s = 0.0, end_s

    def wait(self, timeout):
        self.now_s += timeout
        return self.now_s > self.end_s


def test_where_no_state_can_be_taken_volunteers_are_asked_more_and_more_seldom(tmp_path, monkeypatch):
    clock, asked = Clock(7200), []
    monkeypatch.setattr(pulling, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    SwarmStatus(
        time=0.0, epoch=5, total_epochs=9, samples_in_epoch=None, target_batch_size=8, peers=[peer_status("A", "ada")]
    ).write(tmp_path)
    puller = object.__new__(Puller)
    puller.pull = lambda *_epochs: asked.append(clock.now_s)
    pulling._take_states(puller, PeerSettings(run="x", state_every_s=1800.0), tmp_path, EventLog(tmp_path), clock)
    assert [b - a for a, b in pairwise(asked)] == [60, 120, 240, 480, 960, 1800, 1800]


@pytest.mark.chaos
@pytest.mark.long
def test_a_monitor_that_is_killed_goes_on_and_its_checkpoints_draw(mini, swarm_folder):
    quick = mini.with_changes(averaging={**mini.averaging.model_dump(), "target_batch_size": 48})
    trainers = [PeerSettings(run="", name=name, batch_size=8) for name in ("ada", "bob")]
    folder = swarm_folder / "watched"
    with local_swarm(quick, swarm_folder / "swarm", trainers) as swarm:
        command = [sys.executable, "-m", "dalle_lib", "monitor", "--run", swarm.run, "--folder", str(folder), *OFTEN]

        def start() -> subprocess.Popen:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        monitor = start()
        wait_until(lambda: len(status_in(folder).get("checkpoints", [])) >= 2, monitor)
        own = psutil.Process(monitor.pid).children(recursive=True)
        monitor.kill()
        monitor.communicate()
        psutil.wait_procs(own, timeout=60)
        before = status_in(folder)
        monitor = start()
        wait_until(lambda: status_in(folder)["checkpoints"][0]["epoch"] > before["checkpoints"][0]["epoch"], monitor)
        monitor.send_signal(signal.SIGINT)
        told, _ = monitor.communicate(timeout=120)
        assert monitor.returncode == 0, told
    after = status_in(folder)
    assert after["totals"]["users"] == 2
    assert after["totals"]["samples"] >= before["totals"]["samples"] > 0
    epochs = [checkpoint["epoch"] for checkpoint in after["checkpoints"]]
    assert epochs == sorted(epochs, reverse=True)
    assert {checkpoint["epoch"] for checkpoint in before["checkpoints"]} <= set(epochs)
    kept = found_in(folder / "monitor")
    assert list(kept) == epochs[::-1]
    drawn = [load_model(kept[epoch] / "model.safetensors", mini.model) for epoch in (epochs[-1], epochs[0])]
    losses = [loss_of(mini, model) for model in (initial_model(quick), *drawn)]
    assert losses[0] > losses[1] > losses[2]
    history = json.loads((folder / "history.json").read_text())
    assert history["epochs"]["epoch"] == sorted(history["epochs"]["epoch"])


def loss_of(card, model: torch.nn.Module) -> float:
    files = code_files(Path(card.data_source(card.data.train)))
    rows = [row for file in files for row in read_codes(file, card.data.format)]
    return image_loss(model, rows[:48], CaptionTokenizer(card.path(card.tokenizer), card.model.text_length))


def status_in(folder: Path) -> dict:
    file = folder / "status.json"
    return json.loads(file.read_text()) if file.exists() else {}


def wait_until(condition, monitor: subprocess.Popen, timeout_s: float = 200) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert monitor.poll() is None, monitor.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.2)
