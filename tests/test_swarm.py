"""Swarms of real peers, each a process of its own, on 127.0.0.1."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from functools import partial

import psutil
import pytest
import torch
import waiting
from conftest import living

from dalle_lib.checkpoint import load_model, read_header
from dalle_lib.dashboard.panel import panel_html
from dalle_lib.run import initial_model
from dalle_lib.streaming import Receipt, stream_codes
from dalle_lib.swarm import PeerSettings, local_swarm
from dalle_lib.swarm.peer.state import MODEL, OPTIMIZER
from dalle_lib.swarm.process.events import read_events
from dalle_lib.swarm.process.history import counted_by, epochs_of, names_of, samples_of
from dalle_lib.swarm.process.status import SwarmStatus

EPOCHS = 6
wait_until = partial(waiting.wait_until, timeout_s=300.0)


def short_run(card, **averaging):
    return card.with_changes(
        optimizer={**card.optimizer.model_dump(), "total_epochs": EPOCHS, "warmup_epochs": 1},
        averaging={**card.averaging.model_dump(), "target_batch_size": 96, **averaging},
    )


def trainer(name: str, **settings) -> PeerSettings:
    return PeerSettings(run="", name=name, **{"batch_size": 8, **settings})


def flat(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_three_uneven_peers_train_one_model(mini, swarm_folder):
    # Parameters are not averaged here, so only averaged gradients can keep the peers together. An epoch is long enough
    # for the slow peer to take part in it.
    card = short_run(mini, delayed=False, state_every=1000, target_batch_size=256)
    trainers = [trainer("ada"), trainer("bob"), trainer("eve", duty=0.5)]
    with local_swarm(card, swarm_folder, trainers) as swarm:
        peers = swarm.peers
        swarm.wait(timeout_s=600)
    counted = counted_by(peers["ada"], names_of(list(peers.values()))).fillna(0.0)
    assert (counted > 0).all(axis=1).sum() >= EPOCHS - 2, f"peers were left out:\n{counted}"
    computed = {name: samples_of(peer) for name, peer in peers.items()}
    for name, samples in computed.items():
        share = counted[name].sum() / counted.to_numpy().sum()
        assert share == pytest.approx(samples / sum(computed.values()), abs=0.1), (counted, computed)
    start = flat(initial_model(card))
    ends = [flat(load_model(peer.folder / MODEL, card.model)) for peer in peers.values()]
    for a, b in (0, 1), (0, 2):
        assert (ends[a] - ends[b]).norm() / (ends[a] - start).norm() < 0.2
    losses = epochs_of(peers["ada"])["loss"]
    assert losses.iloc[-1] < losses.iloc[0]
    assert {peer.name for peer in SwarmStatus.read(peers["ada"].folder).peers} <= set(peers)
    panel = panel_html(peers["ada"])
    assert all(
        part in panel for part in ("<svg", "ada (you)", "Computing on cpu: float32, ", f"epoch {EPOCHS} of {EPOCHS}")
    )


@pytest.mark.chaos
@pytest.mark.long
def test_a_swarm_survives_a_killed_peer_which_comes_back(mini, swarm_folder):
    card = short_run(mini, timeout_s=10).with_changes(optimizer={**mini.optimizer.model_dump(), "total_epochs": 1000})
    with local_swarm(card, swarm_folder, [trainer("ada"), trainer("bob")]) as swarm:
        ada, bob = swarm.peers.values()

        def epoch(peer):
            return max(epochs_of(peer)["epoch"], default=0)

        wait_until(lambda: epoch(ada) >= 2 and epoch(bob) >= 2)
        victim = psutil.Process(bob.events()[0]["pid"])
        family = [victim, *victim.children(recursive=True)]
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda: not bob.is_running)
        assert not living(family)
        killed_at = epoch(ada)
        wait_until(lambda: epoch(ada) >= killed_at + 2)

        swarm.add(trainer("bob"))
        joined = bob.wait_for("joined")
        assert joined["epoch"] >= killed_at
        # Alone, ada finishes an epoch in about a second, so it takes several before the two find each other.
        wait_until(lambda: any(e["event"] == "averaged" and len(e["counted"]) == 2 for e in bob.events()))
        wait_until(lambda: epoch(bob) >= joined["epoch"] + 2)
        bob.stop()
        saved_at = next(e["epoch"] for e in bob.events() if e["event"] == "left")
        assert saved_at >= joined["epoch"] + 2

    # Both have left; a peer that starts again goes on from its own folder, in its data too.
    place = json.loads(read_header(bob.folder / OPTIMIZER)[1]["data"])["position"]
    used = [receipt for event in bob.events() if event["event"] == "epoch" for receipt in event["receipts"]]
    assert 0 < max(receipt["stop"] for receipt in used) <= place
    with local_swarm(card, swarm_folder / "again") as swarm:
        (swarm.folder / "peers").mkdir()
        bob.folder.rename(swarm.folder / "peers" / "bob")
        returned = swarm.add(trainer("bob"))
        assert returned.wait_for("joined")["epoch"] == saved_at
        (receipt,) = returned.wait_for("epoch")["receipts"]
        assert receipt["start"] == place
        stream = stream_codes(card.data_source(card.data.train), seed=0)
        assert len(list(stream.draw(Receipt(**{**receipt, "part": tuple(receipt["part"])})))) == receipt["stop"] - place


ROLLBACK = """
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
import torch
from dalle_lib.run import RunCard
from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.peer.membership import Membership
from dalle_lib.swarm.peer.state import OPTIMIZER, read_state
from dalle_lib.swarm.peer.metrics import MetricsBoard
from dalle_lib.swarm.peer.main import connect
from dalle_lib.run import batches_of
from dalle_lib.swarm.peer.traffic import MonthlyTraffic
from dalle_lib.swarm.peer.trainer import Trainer
from dalle_lib.swarm.peer.workplace import Workplace

folder, card = Path(sys.argv[1]), RunCard.load("emoji-mini")
settings = PeerSettings(run="emoji-mini", host="127.0.0.1", batch_size=2)
membership = Membership(card, folder)
board = MetricsBoard(card.key, membership.identity.private_key)
dht = connect(card, settings, membership, board.validators)
workplace = Workplace.prepare(card, settings, str(dht.peer_id))
events = EventLog(folder)
traffic = MonthlyTraffic(settings, events)
trainer = Trainer(settings, workplace, dht, board, membership, events, traffic, threading.Event())
before = [p.detach().clone() for p in trainer.model.parameters()]
with torch.no_grad():
    next(iter(trainer.model.parameters())).fill_(float("nan"))
    trainer.optimizer.opt.param_groups[0]["params"][0].fill_(float("nan"))
batch = next(batches_of(card, settings.batch_size, seed=0))
trainer.step([batch])
assert trainer.samples == 0, "a batch whose loss is not a number was counted"
after = list(trainer.model.parameters())
assert all(torch.equal(a, b) for a, b in zip(before, after)), "the parameters did not come back"
trainer.step([batch])
assert trainer.samples == 2
trainer.work.computer.use(replace(trainer.work.computer.way, precision="float16"))
trainer.work.computer.scale.value = 2.0**40
trainer.step([batch])
assert trainer.samples == 2, "a gradient that overflowed was counted"
trainer.work.computer.scale.value = 2.0**10
trainer.step([batch])
assert trainer.samples == 4

def statistics():
    return [value for each in trainer.optimizer.opt.state.values() for value in each.values()]

for save in lambda: trainer._save(), lambda: trainer.leave():
    next(value for value in statistics() if value.is_floating_point()).fill_(float("inf"))
    save()
    assert all(value.isfinite().all() for value in statistics()), "the statistics did not come back"
    read_state(folder / OPTIMIZER, trainer.snapshot)
dht.shutdown()
os._exit(0)  # as a peer's process ends: what hivemind leaves behind would keep it alive
"""


@pytest.mark.chaos
def test_a_peer_goes_back_when_its_parameters_or_statistics_are_no_longer_finite(swarm_folder):
    output = swarm_folder / "output.txt"
    with open(output, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", ROLLBACK, str(swarm_folder)], stdout=file, stderr=file, start_new_session=True
        )
        try:
            assert process.wait(300) == 0, output.read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its averagers go on without it
    events = read_events(swarm_folder)
    told = [
        (event["event"], event.get("loss_scale")) for event in events if event["event"] in ("skipped", "rolled_back")
    ]
    back = "rolled_back", None
    assert told == [("skipped", 1.0), back, ("skipped", 2.0**40), back, back]
