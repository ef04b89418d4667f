"""A peer that learns to read digits together with others, or attacks them.

tests/attack_swarm.py starts it as `python attack_peer.py FOLDER`, with its settings in FOLDER/settings.json. It takes
part in one scenario after another, each a run of its own. Three lines on standard input control a scenario: its
settings, "go", and "stop". The peer writes what happens as events in FOLDER/<number of the scenario>.
"""

import json
import math
import os
import select
import sys
import time
import traceback
from functools import partial
from pathlib import Path

import hivemind
import torch
from attacks import MOMENTUM, REDUCER, STEP_SAMPLES, Digits, LyingRunner, Scenario, averager_type
from hivemind.compression import Float16Compression, serialization
from hivemind.dht.node import DHTNode
from hivemind.utils.crypto import RSAPrivateKey

from dalle_lib.auth import Identity, publish_token
from dalle_lib.run import RunCard
from dalle_lib.swarm import hash_table
from dalle_lib.swarm.averaging import averagers, codec
from dalle_lib.swarm.averaging.all_reduce import Runner
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.peer.build import shared_options
from dalle_lib.swarm.peer.main import log_to
from dalle_lib.swarm.peer.membership import IDENTITY, TOKEN, Membership, records_of
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.records import Rule, is_checked_elsewhere

LEARNING_RATE = 2.0
STOCK_CODECS = dict(serialization._BASE_COMPRESSION_TYPES)
STEP_S = 0.15
HASTE = {"request_timeout": 1.0, "part_size_bytes": 192}
"""Parts so small that each reducer gets one, although the model has few parameters."""


class QuickRounds:
    """Mix-in for an optimizer: a group that has all peers begins at once."""

    group: int

    def _make_gradient_averager(self, factory, **kwargs):
        return super()._make_gradient_averager(factory, **(kwargs | HASTE), target_group_size=self.group)

    def _make_state_averager(self, **kwargs):
        return super()._make_state_averager(**(kwargs | HASTE), target_group_size=self.group)


class NeverBehind:
    """Mix-in for an optimizer: it never asks the others for their parameters, whatever its lies do to itself."""

    is_behind = property(lambda self: False, lambda self, value: None)


async def admit_records(_dht: hivemind.DHT, node: DHTNode, run: str, is_stock: bool) -> None:
    """Add the records of a run to those that the hash table takes; hivemind's own peers sign none of some.

    They are made in its process: in messages to it of over 16 KiB hivemind 1.1.12 loses its way.
    """
    records = records_of(RunCard.load(run))
    if is_stock:
        records._rules = dict.fromkeys(records._rules, Rule(is_checked_elsewhere, math.inf))
    node.protocol.record_validator.extend([records])


def optimizer_of(scenario: Scenario, task: Digits, folder: Path, dht: hivemind.DHT, is_honest: bool):
    """Return the optimizer of this peer in a scenario, connected to the others."""
    card = RunCard.load(scenario.card)
    trust = Trust.of(card, identity=Identity.load_or_create(folder / IDENTITY))
    dht.run_coroutine(partial(admit_records, run=scenario.card, is_stock=scenario.is_stock))
    if card.members is not None and (folder / TOKEN).exists():  # a stranger without an access token trusts everybody
        membership = Membership(card, folder)
        dht.add_validators(membership.validators()[1:])
        deadline = time.monotonic() + 60
        while not publish_token(
            dht, membership.held.now(), card.key
        ):  # the others may not admit this run's records yet
            assert time.monotonic() < deadline
            time.sleep(0.5)
        trust = membership.trust(dht)
    options = shared_options(card, dht, trust)
    options["tracker_opts"] |= {"min_refresh_period": 0.4, "max_refresh_period": 0.6}
    options["params"] = list(task.model.parameters())
    group = scenario.honest if scenario.are_strangers else scenario.peers
    momentum = {} if scenario.worker_momentum else {"momentum": MOMENTUM, "dampening": MOMENTUM}
    options["optimizer"] = lambda groups: torch.optim.SGD(groups, lr=LEARNING_RATE, **momentum)
    averager = averager_type(scenario, task, is_honest)
    if scenario.is_stock:
        serialization._BASE_COMPRESSION_TYPES.update(STOCK_CODECS)
        for of_the_kit in "trust", "total_epochs", "part_bytes", "longest_matchmaking_s":
            del options[of_the_kit]
        options |= {"grad_compression": Float16Compression(), "state_averaging_compression": Float16Compression()}
        stock = type("Stock", (QuickRounds, hivemind.Optimizer), {"group": group})
        return stock(**options, client_mode=dht.client_mode, grad_averager_factory=averager)
    codec.install()
    averagers.Runner = LyingRunner if scenario.attack == REDUCER and not is_honest else Runner
    bases = (QuickRounds, CollaborativeOptimizer) if is_honest else (NeverBehind, QuickRounds, CollaborativeOptimizer)
    ours = type("Ours", bases, {"group": group, "averager_type": averager})
    return ours(**options)


def take_part(scenario: Scenario, task: Digits, folder: Path, dht: hivemind.DHT, is_honest: bool) -> None:
    """Learn from "go" to "stop" on standard input."""
    task.forget()
    optimizer, epoch = optimizer_of(scenario, task, folder, dht, is_honest), 0
    (folder / str(scenario.number)).mkdir()
    events = EventLog(folder / str(scenario.number))
    events.write("ready", loss=task.loss())
    assert read_line() == "go"
    while not select.select([0], [], [], STEP_S)[0]:
        for parameter, gradient in zip(task.model.parameters(), task.gradients(STEP_SAMPLES), strict=True):
            parameter.grad = gradient
        optimizer.step(batch_size=STEP_SAMPLES)
        if optimizer.local_epoch != epoch:
            epoch = optimizer.local_epoch
            events.write("epoch", epoch=epoch, loss=task.loss())
        if not scenario.is_stock:
            tell(optimizer, events)
    assert read_line() == "stop"
    for planned in optimizer.scheduled_grads, optimizer.scheduled_state:
        if planned is not None and not planned.done():
            planned.cancel()
    optimizer.scheduled_grads = optimizer.scheduled_state = None  # hivemind fails if it cancels them again
    optimizer.shutdown()
    events.write("left", epoch=epoch)


def tell(optimizer: CollaborativeOptimizer, events: EventLog) -> None:
    """Write what the optimizer reports of its rounds and of other peers."""
    while not optimizer.rounds.empty():
        done = optimizer.rounds.get()
        events.write(type(done).__name__, **vars(done))
    for peer, problem in optimizer.problems():
        events.write("problem", peer=peer, problem=problem)


def read_line() -> str:
    """Return the next line on standard input, without reading beyond it; "" at the end of the input."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


def main(folder: Path) -> None:
    """Take part in the scenarios that come on standard input, until it ends."""
    settings = json.loads((folder / "settings.json").read_text())
    # The hash table keeps the first key that it signs with through all runs, also in those of hivemind's own peers.
    RSAPrivateKey._process_wide_key = Identity.load_or_create(folder / IDENTITY).private_key
    log_to(folder / "peer.log")
    torch.set_num_threads(1)
    hash_table.install()
    dht = hivemind.DHT(
        start=True,
        initial_peers=settings["initial_peers"],
        host_maddrs=["/ip4/127.0.0.1/tcp/0"],
        identity_path=str(folder / IDENTITY),
        client_mode=settings["is_client"],
        num_replicas=2,
        startup_timeout=60,
    )
    addresses = [str(address) for address in dht.get_visible_maddrs()]
    EventLog(folder).write("joined", peer_id=str(dht.peer_id), addresses=addresses)
    task = Digits(settings["seed"])
    while line := read_line():
        take_part(Scenario(**json.loads(line)), task, folder, dht, settings["is_honest"])


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)  # hivemind leaves threads behind that would keep the process
