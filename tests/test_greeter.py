"""What a bootstrap peer does for newcomers, over a link of known speed on 127.0.0.1."""

import asyncio
import contextlib
import time
from dataclasses import dataclass

import pytest
from hivemind.p2p import P2P, PeerID
from hivemind.utils.multiaddr import Multiaddr

from dalle_lib.swarm.peer.greeter import (
    MAX_BYTES,
    MAX_REFUSED,
    Greeter,
    NotMeasured,
    dial_back,
    upload_mbps,
)


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
        address = Multiaddr(f"/ip4/127.0.0.1/tcp/{port_of(link.server)}")
        await newcomer._client.connect(first.peer_id, [address])
        yield first, newcomer, link
    finally:
        link.server.close()
        for p2p in newcomer, first:
            await p2p.shutdown()


@contextlib.asynccontextmanager
async def greeter_and_newcomer(bits_per_second: float):
    """The id of a first peer with a greeter, and a newcomer that is connected to it by such a link."""
    async with two_peers(bits_per_second) as (first, newcomer, _):
        await Greeter(first).serve()
        yield first.peer_id, newcomer


async def port_of_peer(p2p: P2P) -> int:
    (address,) = await p2p.get_visible_maddrs()
    return int(str(address).split("/")[4])


def test_the_greeter_measures_one_upload_at_a_time_as_fast_as_the_link_is():
    async def meet() -> None:
        async with two_peers(bits_per_second=12e6) as (first, newcomer, link):
            await Greeter(first).serve()
            measured = asyncio.create_task(upload_mbps(newcomer, first.peer_id))
            while not link.passed or link.passed[-1][1] < 10**5:
                await asyncio.sleep(0.01)
            with pytest.raises(NotMeasured, match="measures the upload of another peer"):
                await upload_mbps(newcomer, first.peer_id)
            assert await measured == pytest.approx(link.mbps(), rel=0.2)
            assert link.mbps() < 13

    asyncio.run(meet())


async def call(newcomer: P2P, greeter: PeerID) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask the greeter to measure an upload, and leave it to the test what is read and sent."""
    _, reader, writer = await newcomer.call_binary_stream_handler(greeter, "Greeter.upload")
    return reader, writer


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    """Return the next line of an answer; it is empty when the greeter has hung up."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.readline(), 60)
    return b""


async def sent_before_it_was_hung_up_on(writer: asyncio.StreamWriter) -> int:
    """Send ten times as much as the greeter counts, or until it hangs up; return how many bytes went."""
    sent = 0
    with contextlib.closing(writer), contextlib.suppress(ConnectionError):
        while sent < 10 * MAX_BYTES:
            writer.write(bytes(10**5))
            await writer.drain()
            sent += 10**5
    return sent


@contextlib.asynccontextmanager
async def busy_greeter_and_newcomer():
    """A greeter that counts an upload, of which nothing comes, and a newcomer that it refuses meanwhile."""
    async with greeter_and_newcomer(float("inf")) as (greeter, newcomer):
        reader, writer = await call(newcomer, greeter)
        assert await answer_of(reader) == b"{}\n"
        yield greeter, newcomer
        writer.close()


def test_an_uploader_sends_nothing_before_it_may_and_hangs_up_after_a_refusal():
    seen = asyncio.Queue()

    async def refuse(_, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            sent = asyncio.create_task(reader.read())
            await asyncio.wait({sent}, timeout=0.5)
            writer.write(b'{"refused": "not today"}\n')
            seen.put_nowait(await sent)

    async def meet() -> None:
        async with two_peers(float("inf")) as (first, newcomer, _):
            await first.add_binary_stream_handler("Greeter.upload", refuse)
            with pytest.raises(NotMeasured, match="not today"):
                await upload_mbps(newcomer, first.peer_id)
            assert await asyncio.wait_for(seen.get(), 60) == b""

    asyncio.run(meet())


def test_refused_newcomers_that_send_or_stay_or_are_too_many_are_hung_up_on(monkeypatch):
    monkeypatch.setattr("dalle_lib.swarm.peer.greeter.UPLOAD_S", 600.0)
    monkeypatch.setattr("dalle_lib.swarm.peer.greeter.HANG_UP_S", 10.0)  # on a busy machine, all have called by then

    async def meet() -> None:
        async with busy_greeter_and_newcomer() as (greeter, newcomer):
            _, sender = await call(newcomer, greeter)
            assert await sent_before_it_was_hung_up_on(sender) < MAX_BYTES, "only what was under way is accepted"
            callers = [await call(newcomer, greeter) for _ in range(MAX_REFUSED + 5)]
            told = [await answer_of(reader) for reader, _ in callers]
            assert sum(b"refused" in answer for answer in told) == MAX_REFUSED
            for reader, _ in callers:
                assert await answer_of(reader) == b"", "it is hung up on though it stays"
            for _, writer in callers:
                writer.close()

    asyncio.run(meet())


def test_the_greeter_hangs_up_on_who_sends_more_than_it_counts():
    async def meet() -> None:
        async with greeter_and_newcomer(float("inf")) as (greeter, newcomer):
            reader, writer = await call(newcomer, greeter)
            assert await answer_of(reader) == b"{}\n"
            sent = await sent_before_it_was_hung_up_on(writer)
            assert MAX_BYTES <= sent < 5 * MAX_BYTES, "only what was under way is accepted"

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
