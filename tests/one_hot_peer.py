"""A peer whose gradient is one coordinate, so that each update of the parameters shows the weight of every gradient.

The gradient of peer i is 1 in coordinate i of each tensor and 0 elsewhere. With plain gradient descent and a learning
rate of 1, an update thus consists of the weights of the average. There are as many tensors as peers in most tests, so
that each peer reduces one. tests/one_hot.py starts it as `python one_hot_peer.py FOLDER`, with its settings in
FOLDER/settings.json.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import AsyncIterator  # noqa: UP035  (hivemind reads the type of a stream by typing's name)

import hivemind
import torch
from cramped_sgd import CrampedSGD
from ended_in_rounds import end_in, epochs_of, freeze_after
from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time
from noted_averages import note_averages
from spoilt_states import SPOILT

from dalle_lib.run import RunCard
from dalle_lib.swarm import hash_table
from dalle_lib.swarm.averaging import codec, matchmaking
from dalle_lib.swarm.averaging.all_reduce import Runner
from dalle_lib.swarm.averaging.earned import SLACK
from dalle_lib.swarm.averaging.gradient_averager import RunGradientAverager
from dalle_lib.swarm.averaging.introductions import read
from dalle_lib.swarm.averaging.leaving import Interrupted
from dalle_lib.swarm.averaging.matchmaking import MemberMatchmaking
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.averaging.state_averager import RunStateAverager
from dalle_lib.swarm.averaging.upload import Upload
from dalle_lib.swarm.peer import first_peers
from dalle_lib.swarm.peer.build import shared_options
from dalle_lib.swarm.peer.main import connect, log_to
from dalle_lib.swarm.peer.membership import PROGRESS_EXPIRES_S, Membership
from dalle_lib.swarm.peer.snapshot import take_snapshot
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.local import LOCALHOST
from dalle_lib.swarm.process.settings import PeerSettings

TENSORS = 3
SHOWN = 24
"""Number of first coordinates of each tensor that are recorded; each belongs to one peer."""
DEFAULTS = {
    "step_s": 0.1,  # seconds between two steps
    "batch_size": 4,
    "size": 1000,  # values of each tensor
    "fails_in": [],  # epochs whose rounds of gradients fail for this peer
    "no_memory_in": [],  # epochs in whose update its memory runs out, when some of it is made
    "dies_in": None,  # epoch in whose round it is killed ...
    "sends_before": 0,  # ... once it has sent this many parts to each reducer
    "dies_after": None,  # epoch after which it is killed
    "freezes_in": None,  # epoch in whose round of gradients it is stopped, with all that it has started ...
    "freezes_after": None,  # or in the round of parameters after it; both once it has sent as much
    "lies": False,  # whether it lies as `lie` says
    "sends_away": False,  # whether it leads a group for gradients wherever it can, and sends it away at the end
    "reduces_nothing": False,  # whether it takes the others' gradients and never gives an average back
    "drips": False,  # whether it sends each part just before its time is up
    "splits": False,  # whether it leads wherever it can, and gives each follower another name of the group
    "port": 0,  # on which it listens; 0 for any
    "announce": [],  # addresses that it tells others, where these are not its own
    "max_upload_mbps": None,  # what it sends at most
    "records_s": PROGRESS_EXPIRES_S,  # seconds for which its records of progress live
    "avoids_s": matchmaking.AVOID_S,  # seconds for which it lets nobody lead or follow who was waited for in vain
    "looks_every_s": first_peers.FIRST_PEERS_EVERY_S,  # seconds between its looks for the run's first peers
    "spoils": None,  # fault of the state that it offers as the newest of all: a name in SPOILT
}
"""Settings of a peer, where its settings.json gives no other."""

LIES, LIE = "lies.json", -1.0
"""Name of the file with what a liar's records claim, and the value that it averages as its parameters' last one, or
minus that, in turns: so it is never near the others'."""


def lie(folder: Path) -> None:
    """Make this peer publish what LIES in its folder says, and average false parameters with a huge weight."""
    store, average, values = hivemind.DHT.store, RunStateAverager._run_allreduce_inplace_, cycle((LIE, -LIE))

    def store_lies(self, key, value, *args, **kwargs):
        if key.endswith("_progress") and value is not None and (folder / LIES).exists():
            lies = json.loads((folder / LIES).read_text())
            value = value | {"time": value["time"] - lies.pop("age_s", 0)} | lies
        return store(self, key, value, *args, **kwargs)

    async def average_lies(self, tensors, *args, **kwargs):
        value = next(values)
        for tensor in tensors:
            tensor[SHOWN - 1] = value
        await average(self, tensors, *args, **(kwargs | {"weight": 1e12}))

    hivemind.DHT.store, RunStateAverager._run_allreduce_inplace_ = store_lies, average_lies


def drip() -> None:
    """Make this peer send each part to reducers just before its time is up."""
    send = Runner._generate_input_for_peer

    async def send_late(self, peer_index):
        async for part in send(self, peer_index):
            await asyncio.sleep(0.8 * self.sender_timeout)
            yield part

    Runner._generate_input_for_peer = send_late


class FailingMatchmaking(MemberMatchmaking):
    """Finds no group in the epochs whose rounds are to fail, or leads groups that come to nothing."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.leads = FaultyAverager.settings["sends_away"] or FaultyAverager.settings["splits"]
        self.declare = self.group_key_manager.declare_averager
        if self.leads:
            self.group_key_manager.declare_averager = self.declare_early

    @contextlib.asynccontextmanager
    async def looking_for_group(self, step: StepControl):
        """Look for a group; who would lead does not keep to following as long as it is new."""
        async with super().looking_for_group(step):
            self.client_mode = self.client_mode and not self.leads
            yield

    def declare_early(self, key, peer, expiration_time, **options):
        """Say that this peer's search ends before the others'; who ends first, leads."""
        return self.declare(key, peer, expiration_time - 1, **options)

    def note_round(self, *args) -> None:
        """Blame others, unless this peer is to blame itself."""
        if not any(FaultyAverager.settings[kind] for kind in ("reduces_nothing", "drips", "splits")):
            super().note_round(*args)

    async def rpc_join_group(self, request, context):
        if not FaultyAverager.settings["sends_away"]:
            async for message in super().rpc_join_group(request, context):
                if FaultyAverager.settings["splits"] and message.code == averaging_pb2.BEGIN_ALLREDUCE:
                    message.group_id = os.urandom(len(message.group_id))
                yield message
            return
        yield averaging_pb2.MessageFromLeader(code=averaging_pb2.ACCEPTED)
        await asyncio.sleep(0.9 * (request.expiration - get_dht_time()))
        yield averaging_pb2.MessageFromLeader(code=averaging_pb2.GROUP_DISBANDED)

    async def _request_join_group(self, leader: PeerID) -> GroupInfo | None:
        return None if self.leads else await super()._request_join_group(leader)

    async def look_for_group(self, step: StepControl) -> GroupInfo | None:
        if read(step.data_for_gather, self.peer_id, self._prefix).epoch in FaultyAverager.settings["fails_in"]:
            raise TimeoutError("this round is to fail")
        return await super().look_for_group(step)


class FaultyAverager(RunGradientAverager):
    """Averages gradients, except in the epochs in which it is to fail."""

    settings: dict
    matchmaking_type = FailingMatchmaking

    async def _aggregate_with_group(self, group_info, *args, **kwargs):
        epochs = epochs_of(self, group_info)
        for kind, number in ("dies_in", signal.SIGKILL), ("freezes_in", signal.SIGSTOP):
            if self.settings[kind] in epochs:
                asyncio.create_task(end_in(self, group_info, number, self.settings["sends_before"]))  # noqa: RUF006
        return await super()._aggregate_with_group(group_info, *args, **kwargs)

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        if self.settings["reduces_nothing"]:
            await asyncio.sleep(600)
        async for message in super().rpc_aggregate_part(stream, context):
            yield message


class FaultyOptimizer(CollaborativeOptimizer):
    """The optimizer under test, with an averager of gradients that fails on purpose."""

    averager_type = FaultyAverager


def main(folder: Path) -> None:
    """Take part until standard input ends or the run is complete, and write every update as an event."""
    settings = FaultyAverager.settings = DEFAULTS | json.loads((folder / "settings.json").read_text())
    events, stop = EventLog(folder), threading.Event()
    threading.Thread(target=lambda: (os.read(0, 1), stop.set()), daemon=True).start()
    log_to(folder / "peer.log")
    torch.set_num_threads(1)
    codec.install()
    hash_table.install()
    card = RunCard.load(settings["run"])
    membership = Membership(card, folder)
    first_peers.FIRST_PEERS_EVERY_S = settings["looks_every_s"]
    matchmaking.AVOID_S = settings["avoids_s"]
    where = {"port": settings["port"], "announce": tuple(settings["announce"])}
    place = PeerSettings(run=settings["run"], host=LOCALHOST, initial_peers=tuple(settings["initial_peers"]), **where)
    dht = connect(card, place, membership, membership.validators())
    membership.publish(dht)
    note_averages(folder, SHOWN - 1)
    if settings["lies"]:
        lie(folder)
    if settings["drips"]:
        drip()
    if settings["freezes_after"] is not None:
        freeze_after(settings["freezes_after"], settings["sends_before"])
    if settings["spoils"] is not None:
        give, spoil = RunStateAverager.get_current_state, SPOILT[settings["spoils"]]
        RunStateAverager.get_current_state = lambda averager: spoil(*give(averager))
        offered = RunStateAverager.state_sharing_priority
        later = property(offered.fget, lambda averager, epoch: offered.fset(averager, epoch + SLACK // 2))
        RunStateAverager.state_sharing_priority = later
    parameters = [torch.nn.Parameter(torch.zeros(settings["size"])) for _ in range(TENSORS)]
    options = shared_options(card, dht, membership.trust(dht)) | {"upload": Upload(settings["max_upload_mbps"])}
    options["tracker_opts"]["metadata_expiration"] = settings["records_s"]
    CrampedSGD.no_memory_in = settings["no_memory_in"]
    optimizer = FaultyOptimizer(params=parameters, optimizer=partial(CrampedSGD, lr=1.0), **options)
    if optimizer.tracker.global_epoch > optimizer.local_epoch:
        optimizer.load_state_from_peers()
    addresses = [str(address) for address in dht.get_visible_maddrs()]
    events.write("joined", peer_id=str(dht.peer_id), addresses=addresses, epoch=optimizer.local_epoch)
    optimizer.state_averager.is_over = stop.is_set
    with contextlib.suppress(Interrupted):  # as a trainer leaves what it waits for
        train(optimizer, parameters, settings, events, stop, card.optimizer.total_epochs)
    stop.set()
    saved = take_snapshot(optimizer.state_averager, patience_s=optimizer.state_averager.left_s)
    events.write("saved", epoch=saved.epoch, values=(-shown(saved.parameters)).tolist())
    optimizer.shutdown()
    dht.shutdown()
    events.write("left", epoch=optimizer.local_epoch)
    os._exit(0)


def train(
    optimizer: CollaborativeOptimizer,
    parameters: list[torch.nn.Parameter],
    settings: dict,
    events: EventLog,
    stop: threading.Event,
    total_epochs: int,
) -> None:
    """Step on the same gradient again and again, and write each change of the parameters."""
    go = Path(settings["go"])
    is_early = not go.exists()
    while not go.exists() and not stop.is_set():
        time.sleep(0.02)
    before, epoch, samples = shown(parameters), optimizer.local_epoch, 0
    while not stop.is_set() and optimizer.local_epoch < total_epochs:
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
            parameter.grad[settings["index"]] = 1.0
        samples += settings["batch_size"]
        optimizer.step(batch_size=settings["batch_size"])
        while not optimizer.rounds.empty():
            done = optimizer.rounds.get()
            events.write(type(done).__name__, computed=samples, **vars(done))
        for peer, problem in optimizer.problems():
            events.write("problem", peer=peer, problem=problem)
        after = shown(parameters)
        if optimizer.local_epoch != epoch or not torch.equal(before, after):
            epoch = optimizer.local_epoch
            events.write("update", epoch=epoch, delta=(before - after).tolist(), values=(-after).tolist())
            before = after
        if epoch == settings["dies_after"]:
            os.killpg(0, signal.SIGKILL)
        stop.wait(settings["step_s"])
        while is_early and not stop.is_set() and optimizer.tracker.global_progress.num_peers < int(go.read_text()):
            time.sleep(0.02)
        is_early = False


def shown(parameters: list[torch.Tensor]) -> torch.Tensor:
    """Return the coordinates that belong to peers, one row for each tensor."""
    return torch.stack([parameter.detach()[:SHOWN] for parameter in parameters])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
