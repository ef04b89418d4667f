"""A real peer that a stranger sends thousands of changed messages trains on with the others, and does not grow."""

import asyncio
import contextlib
import time
from random import Random

import psutil
import pytest
from auth_peers import identity
from hivemind.dht import DHTID
from hivemind.p2p import P2P, PeerID
from hivemind.proto import averaging_pb2, dht_pb2, runtime_pb2
from hivemind.utils import get_dht_time
from mutations import changed
from one_hot import OneHotPeer, OneHotSwarm, one_hot_card
from two_peers import two_peers

from dalle_lib.swarm import wire
from dalle_lib.swarm.averaging.introductions import Introduction, signed
from dalle_lib.swarm.peer.greeter import Greeter, dial_back

CALLS, AT_ONCE = 3000, 20
MAX_GROWTH = 60e6
"""Bytes by which a peer's processes may grow: what stays of one message in a hundred, if each is of a megabyte."""

pytestmark = pytest.mark.chaos


def real_calls(key: str) -> dict[str, bytes]:
    """Return a call of each kind as a peer of the run of that key makes it, by the name of its handler."""
    rounds = f"{key}_grad_averager"
    told = wire.dumps([None, 0, wire.dumps(signed(Introduction(), rounds, identity("eve")))])
    node, part = dht_pb2.NodeInfo(node_id=DHTID.generate().to_bytes()), runtime_pb2.Tensor(dtype="float32", size=[1, 0])
    keys = [DHTID.generate(source=name).to_bytes() for name in (f"{rounds}.0b", f"{key}_progress")]
    store = dht_pb2.StoreRequest(peer=node, keys=keys, in_cache=[False] * 2, expiration_time=[get_dht_time() + 50] * 2)
    store.subkeys.extend([wire.dumps(b"\x12\x20" + bytes(32)), b""])
    store.values.extend([wire.dumps(True), wire.dumps({"a": (1, 2.5)})])
    messages = {
        "DHTProtocol.rpc_ping": dht_pb2.PingRequest(peer=node),
        "DHTProtocol.rpc_find": dht_pb2.FindRequest(peer=node, keys=keys),
        "DHTProtocol.rpc_store": store,
        f"{rounds}::GradientAverager.rpc_part_sent": averaging_pb2.AveragingData(group_id=b"x", tensor_part=part),
        f"{rounds}::GradientAverager.rpc_join_group": averaging_pb2.JoinRequest(
            schema_hash=b"x", expiration=get_dht_time() + 9, gather=told, group_key=f"{rounds}.0b"
        ),
        f"{rounds}::GradientAverager.rpc_aggregate_part": averaging_pb2.AveragingData(
            code=averaging_pb2.PART_FOR_AVERAGING, group_id=b"none", tensor_part=part, weight=1.0
        ),
        f"{key}_state_averager::TrainingStateAverager.rpc_download_state": averaging_pb2.DownloadRequest(),
    }
    return {name: message.SerializeToString() for name, message in messages.items()}


STREAMS = ("rpc_join_group", "rpc_aggregate_part", "rpc_download_state")


async def call(p2p: P2P, victim: PeerID, name: str, message: bytes, rng: Random | None = None) -> bytes:
    """Return what a peer answers to a call, at most its first 64 kB; with `rng`, a stream's framing is changed, too."""
    if not name.endswith(STREAMS):
        return await p2p._client.call_unary_handler(victim, name, message)
    _, reader, writer = await p2p.call_binary_stream_handler(victim, name)
    with contextlib.closing(writer):
        end = P2P.ERROR_MARKER + bytes(P2P.HEADER_LEN)
        framed = P2P.MESSAGE_MARKER + len(message).to_bytes(P2P.HEADER_LEN, P2P.BYTEORDER) + message + end
        writer.write(framed if rng is None or rng.random() < 0.8 else changed(rng, framed))
        return await asyncio.wait_for(reader.read(2**16), 0.3 if rng else 30)


async def pester(p2p: P2P, victim: PeerID, calls: dict[str, bytes], count: int, rng: Random) -> None:
    """Make so many changed calls, some at once; whatever is answered."""
    left = iter(range(count))

    async def go_on() -> None:
        for _ in left:
            name = rng.choice(list(calls))
            with contextlib.suppress(Exception):  # all that matters is whether the peer goes on
                await asyncio.wait_for(call(p2p, victim, name, changed(rng, calls[name]), rng), 10)

    await asyncio.gather(*(go_on() for _ in range(AT_ONCE)))


def bytes_of(peer: OneHotPeer) -> int:
    """Return the memory that all processes of a peer have for themselves."""
    first = psutil.Process(peer.process.pid)
    return sum(process.memory_full_info().uss for process in (first, *first.children(recursive=True)))


def test_a_peer_that_strangers_send_changed_messages_trains_on_and_does_not_grow(mini, swarm_folder):
    card = one_hot_card(mini, audits=1.0)
    with OneHotSwarm(card, swarm_folder) as swarm:
        ada, bob = swarm.add(), swarm.add()
        swarm.go()
        swarm.wait_for_epoch(2)
        calls, rng, sizes = real_calls(card.key), Random(7), []

        async def attack() -> None:
            stranger, another = [await P2P.create(initial_peers=ada.events("joined")[0]["addresses"]) for _ in range(2)]
            victim = PeerID.from_base58(ada.peer_id)
            try:
                for count in CALLS // 5, CALLS:  # some memory is taken once
                    await pester(stranger, victim, calls, count, rng)
                    sizes.append(bytes_of(ada))
                for name in "rpc_ping", "rpc_find", "rpc_part_sent", "rpc_download_state":
                    (handler,) = [each for each in calls if each.endswith(name)]
                    deadline = time.monotonic() + 60  # its own downloads that nobody reads keep its place in line
                    while not await call(another, victim, handler, calls[handler]):  # the first has had its turns
                        assert time.monotonic() < deadline, handler
                        await asyncio.sleep(1)
            finally:
                await stranger.shutdown()
                await another.shutdown()

        asyncio.run(attack())
        swarm.wait_together([ada, bob], after=max(ada.epoch, bob.epoch))
        print(f"{(sizes[1] - sizes[0]) / 1e6:.1f} MB more after {CALLS} calls")
        assert sizes[1] - sizes[0] < MAX_GROWTH


def test_a_greeter_that_strangers_send_changed_requests_greets_on():
    real, rng = runtime_pb2.ExpertRequest(metadata=b'{"ports": [31337, 80]}').SerializeToString(), Random(7)

    async def meet() -> None:
        async with two_peers(float("inf")) as (first, newcomer, _):
            await Greeter(first).serve()
            await pester(newcomer, first.peer_id, {"Greeter.rpc_dial_back": real}, 500, rng)
            await asyncio.sleep(1.5)  # an address is dialled once a second
            assert abs((await dial_back(newcomer, first.peer_id, []))["ahead"]) < 5

    asyncio.run(meet())
