"""Two peers of hivemind on 127.0.0.1, connected by a link of known speed."""

import asyncio
import contextlib
import time
from dataclasses import dataclass

from hivemind.p2p import P2P
from hivemind.utils.multiaddr import Multiaddr


@dataclass
class Link:
    """A TCP port that leads to another one, at a limited speed."""

    server: asyncio.Server
    passed: list[tuple[float, int]]
    """When how many bytes had been passed on in all, in seconds."""

    def mbps(self) -> float:
        """Return the speed that the link had, which on a busy machine is below its limit."""
        (first, before), *_, (last, after) = ((when, size) for when, size in self.passed if size >= 10**6)
        return 8e-6 * (after - before) / (last - first)


async def slow_link(to: int, bits_per_second: float) -> Link:
    """Return a link to the port `to` that passes on what is sent there at that speed, and answers at once."""
    passed = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: float, log: list) -> None:
        free_at, size = 0.0, 0
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while data := await reader.read(2**14):
                size += len(data)
                # Counted from now on if the link was idle: what it did not carry then must not pass in a burst.
                free_at = max(free_at, time.perf_counter()) + 8 * len(data) / rate
                await asyncio.sleep(free_at - time.perf_counter())
                writer.write(data)
                await writer.drain()
                log.append((time.perf_counter(), size))

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", to)
        await asyncio.gather(pass_on(reader, forth, bits_per_second, passed), pass_on(back, writer, float("inf"), []))

    return Link(await asyncio.start_server(accept, "127.0.0.1", 0), passed)


def port_of(server: asyncio.Server) -> int:
    return server.sockets[0].getsockname()[1]


@contextlib.asynccontextmanager
async def two_peers(bits_per_second: float):
    """A first peer, a newcomer that is connected to it by such a link, and the link."""
    first, newcomer = await P2P.create(), await P2P.create()
    link = await slow_link(await port_of_peer(first), bits_per_second)
    try:
        await connect(newcomer, first, port_of(link.server))
        yield first, newcomer, link
    finally:
        link.server.close()
        for p2p in newcomer, first:
            await p2p.shutdown()


@contextlib.asynccontextmanager
async def peer_at(host: str, first: P2P):
    """A peer that is connected to a first peer from another address of this machine, such as 127.0.0.2."""
    peer = await P2P.create(host_maddrs=[f"/ip4/{host}/tcp/0"])
    try:
        await connect(peer, first, await port_of_peer(first))
        yield peer
    finally:
        await peer.shutdown()


async def connect(peer: P2P, first: P2P, port: int) -> None:
    await peer._client.connect(first.peer_id, [Multiaddr(f"/ip4/127.0.0.1/tcp/{port}")])


async def port_of_peer(p2p: P2P) -> int:
    (address,) = await p2p.get_visible_maddrs()
    return int(str(address).split("/")[4])
