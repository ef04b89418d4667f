"""Somebody who knows the address of a run and tries to take part: `python stranger.py FOLDER`, as a process.

Its settings are in FOLDER/settings.json. For each of the `attempts`, an identity with or without an access token, it
calls the averagers of a peer as hivemind's own peers do, in the epoch of the peer whose folder is `beside`, and prints
the answers to each call as JSON. With `lies`, it is a member that writes a false record into the hash table and stays
until standard input ends.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import msgpack
from hivemind.averaging.allreduce import AveragingMode
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.optim.progress_tracker import LocalTrainingProgress
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.p2p import P2P, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time

from dalle_lib.auth import Identity
from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging.gradient_averager import RunGradientAverager
from dalle_lib.swarm.averaging.introductions import Introduction, signed
from dalle_lib.swarm.peer.main import connect
from dalle_lib.swarm.peer.membership import Membership
from dalle_lib.swarm.process.events import read_events
from dalle_lib.swarm.process.local import LOCALHOST
from dalle_lib.swarm.process.settings import PeerSettings


async def tries(identity: str, token: str | None, settings: dict, key: str) -> dict[str, list[str]]:
    """Return the answers to each call, by what it asks for."""
    p2p = await P2P.create(initial_peers=settings["initial_peers"], identity_path=identity)
    victim = PeerID.from_base58(settings["victim"])
    state = TrainingStateAverager.get_stub(p2p, victim, namespace=f"{key}_state_averager")
    gradients = RunGradientAverager.get_stub(p2p, victim, namespace=f"{key}_grad_averager")
    shown = Path(token).read_bytes() if token else b""
    updates = [event for event in read_events(Path(settings["beside"])) if event["event"] == "update"]
    own = Introduction(updates[-1]["epoch"], token=shown)
    told = signed(own, f"{key}_grad_averager", Identity.load_or_create(identity))
    join = averaging_pb2.JoinRequest(
        schema_hash=b"unknown",
        expiration=get_dht_time() + 10,
        gather=MSGPackSerializer.dumps([None, AveragingMode.NODE.value, MSGPackSerializer.dumps(told)]),
        group_key=f"{key}_grad_averager.0b",
    )
    nested = averaging_pb2.JoinRequest()
    nested.CopyFrom(join)
    nested.gather = b"\x90"
    for _ in range(300):
        nested.gather = MSGPackSerializer.dumps([msgpack.ExtType(0x40, nested.gather)])
    part = averaging_pb2.AveragingData(code=averaging_pb2.PART_FOR_AVERAGING, group_id=b"none", weight=1.0)

    async def parts():
        yield part

    async def codes(stream) -> list[str]:
        # p2pd resets a stream whose answering side closes it before it has read everything: an answer may be lost.
        try:
            return [averaging_pb2.MessageCode.Name(message.code) async for message in await stream] or ["closed"]
        except ConnectionError:
            return ["closed"]

    answers = {
        "join a group": await codes(gradients.rpc_join_group(join)),
        "join by tuples within tuples": await codes(gradients.rpc_join_group(nested)),
        "send a part": await codes(gradients.rpc_aggregate_part(parts())),
        "ask what was sent": [
            averaging_pb2.MessageCode.Name((await gradients.rpc_part_sent(averaging_pb2.AveragingData())).code)
        ],
        "download the state": [
            "a message" async for _ in await state.rpc_download_state(averaging_pb2.DownloadRequest())
        ],
    }
    await p2p.shutdown()
    return answers


def lies(folder: Path, settings: dict, card: RunCard) -> None:
    """Publish the epoch and samples in `lies` as this peer's progress, until standard input ends."""
    membership = Membership(card, folder)
    signatures = RSASignatureValidator(membership.identity.private_key)
    place = PeerSettings(run=settings["run"], host=LOCALHOST, initial_peers=tuple(settings["initial_peers"]))
    dht = connect(card, place, membership, [*membership.validators(), signatures])
    membership.publish(dht)
    record = LocalTrainingProgress(
        peer_id=dht.peer_id.to_bytes(),
        time=get_dht_time(),
        client_mode=False,
        **settings["lies"],
    )
    owner = signatures.local_public_key
    while not dht.store(f"{card.key}_progress", record.dict(), get_dht_time() + 60, subkey=owner):
        time.sleep(1)
    print("stored", flush=True)
    os.read(0, 1)
    dht.shutdown()
    os._exit(0)


def main(folder: Path) -> None:
    """Lie if the settings say so, else make the attempts."""
    settings = json.loads((folder / "settings.json").read_text())
    card = RunCard.load(settings["run"])
    if "lies" in settings:
        lies(folder, settings, card)
    for name, (identity, token) in settings["attempts"].items():
        print(json.dumps([name, asyncio.run(tries(identity, token, settings, card.key))]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
