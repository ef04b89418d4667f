"""What a bootstrap peer does for newcomers, over a link of known speed on 127.0.0.1."""

import asyncio
import contextlib
import json
import time

import pytest
from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.control import P2PHandlerError
from hivemind.proto.runtime_pb2 import Tensor
from hivemind.utils.multiaddr import Multiaddr

from dalle_lib.swarm.peer.greeter import MOST, Greeter, dial_back, upload_mbps


async def slow_link(to: int, bits_per_second: float) -> asyncio.Server:
    """A TCP port that leads to the port `to`, and passes on what is sent there only so fast."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: float) -> None:
        start, passed = time.perf_counter(), 0
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while data := await reader.read(2**14):
                passed += len(data)
                await asyncio.sleep(start + 8 * passed / rate - time.perf_counter())
                writer.write(data)
                await writer.drain()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", to)
        await asyncio.gather(pass_on(reader, forth, bits_per_second), pass_on(back, writer, float("inf")))

    return await asyncio.start_server(accept, "127.0.0.1", 0)


def port_of(server: asyncio.Server) -> int:
    return server.sockets[0].getsockname()[1]


@contextlib.asynccontextmanager
async def greeter_and_newcomer(bits_per_second: float):
    """A first peer with a greeter, and a newcomer that is connected to it by such a link."""
    first, newcomer = await P2P.create(), await P2P.create()
    link = await slow_link(await port_of_peer(first), bits_per_second)
    try:
        await Greeter(first).add_p2p_handlers(first)
        await newcomer._client.connect(first.peer_id, [Multiaddr(f"/ip4/127.0.0.1/tcp/{port_of(link)}")])
        yield first.peer_id, newcomer
    finally:
        link.close()
        for p2p in newcomer, first:
            await p2p.shutdown()


async def port_of_peer(p2p: P2P) -> int:
    (address,) = await p2p.get_visible_maddrs()
    return int(str(address).split("/")[4])


def test_the_greeter_measures_one_upload_at_a_time_as_fast_as_the_link_is():
    async def meet() -> None:
        async with greeter_and_newcomer(bits_per_second=24e6) as (greeter, newcomer):
            measured = asyncio.create_task(upload_mbps(newcomer, greeter))
            await asyncio.sleep(0.5)
            with pytest.raises(P2PHandlerError, match="measures the upload of another peer"):
                await upload_mbps(newcomer, greeter)
            assert await measured == pytest.approx(24, rel=0.2)

    asyncio.run(meet())


def test_the_greeter_hangs_up_on_who_sends_more_than_it_counts():
    sent = []

    async def chunks():
        while True:
            sent.append(10**6)
            yield Tensor(buffer=bytes(10**6))

    async def meet() -> None:
        async with greeter_and_newcomer(float("inf")) as (greeter, newcomer):
            with contextlib.suppress(ConnectionError):  # or it has read the answer before
                answer = await Greeter.get_stub(newcomer, greeter).rpc_count(chunks(), timeout=60)
                assert json.loads(answer.metadata)["bytes"] == MOST
            assert MOST < sum(sent) < 5 * MOST, "all but what was under way is refused"

    asyncio.run(meet())


def test_the_greeter_reaches_peers_and_nothing_else():
    async def no_peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            writer.write(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n")

    async def meet() -> None:
        other = await asyncio.start_server(no_peer, "127.0.0.1", 0)
        async with other, greeter_and_newcomer(float("inf")) as (greeter, newcomer):
            told = await dial_back(newcomer, greeter, [1, port_of(other), await port_of_peer(newcomer)])
            assert told["reached"] == await port_of_peer(newcomer)
            assert abs(told["ahead"]) < 1
            assert (await dial_back(newcomer, greeter, [1, port_of(other)]))["reached"] == 0

    asyncio.run(meet())
