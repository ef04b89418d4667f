"""What a bootstrap peer does for newcomers, over a link of known speed on 127.0.0.1."""

import asyncio
import contextlib

import psutil
import pytest
from hivemind.p2p import P2P, P2PHandlerError, PeerID
from hivemind.proto.runtime_pb2 import ExpertRequest
from two_peers import peer_at, port_of, port_of_peer, two_peers

from dalle_lib.swarm.peer.greeter import (
    MAX_BYTES,
    MAX_REFUSED,
    REDIAL_S,
    Greeter,
    NotMeasured,
    dial_back,
    upload_mbps,
)


@contextlib.asynccontextmanager
async def greeter_and_newcomer(bits_per_second: float):
    """The id of a first peer with a greeter, and a newcomer that is connected to it by such a link."""
    async with two_peers(bits_per_second) as (first, newcomer, _):
        await Greeter(first).serve()
        yield first.peer_id, newcomer


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
            await asyncio.sleep(REDIAL_S)
            assert (await dial_back(newcomer, greeter, [1, port_of(other)]))["reached"] == 0

    asyncio.run(meet())


@contextlib.asynccontextmanager
async def silent_ports():
    """Four ports that accept and say nothing, and the list of who connected to them."""
    connected = []
    async with contextlib.AsyncExitStack() as stack:
        servers = [await asyncio.start_server(lambda *them: connected.append(them), "127.0.0.1", 0) for _ in range(4)]
        for server in servers:
            await stack.enter_async_context(server)
        yield [port_of(server) for server in servers], connected
        for _, writer in connected:
            writer.close()


async def until_answered(newcomer: P2P, greeter: PeerID) -> dict:
    """Ask to be dialled back until the greeter is not busy, and return its answer."""
    while True:
        with contextlib.suppress(P2PHandlerError):
            return await dial_back(newcomer, greeter, [])


async def refusals(calls: list[asyncio.Task], unanswered: int) -> list[str]:
    """Return why each of some calls was refused, all but `unanswered` of them."""
    while sum(not call.done() for call in calls) > unanswered:
        await asyncio.sleep(0.01)
    return [str(call.exception()) for call in calls if call.done()]


def test_an_address_is_dialled_for_one_caller_at_a_time_and_then_for_the_next(monkeypatch):
    monkeypatch.setattr("dalle_lib.swarm.peer.greeter.DIAL_TIMEOUT_S", 100.0)

    async def meet() -> None:
        async with silent_ports() as (ports, connected), greeter_and_newcomer(float("inf")) as (greeter, attacker):
            calls = [asyncio.create_task(dial_back(attacker, greeter, ports)) for _ in range(100)]
            why = await asyncio.wait_for(refusals(calls, unanswered=1), 30)
            assert all("Busy" in refusal for refusal in why)
            assert len(connected) == len(ports), "the only ones that are dialled are the first caller's"
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            # until the greeter has heard that the first caller hung up
            assert (await asyncio.wait_for(until_answered(attacker, greeter), 30))["reached"] == 0

    asyncio.run(meet())


def test_an_address_is_not_dialled_again_at_once(monkeypatch):
    monkeypatch.setattr("dalle_lib.swarm.peer.greeter.REDIAL_S", 600.0)

    async def meet() -> None:
        async with greeter_and_newcomer(float("inf")) as (greeter, newcomer):
            assert (await dial_back(newcomer, greeter, [1]))["reached"] == 0
            with pytest.raises(P2PHandlerError, match="it dials another peer at your address back"):
                await dial_back(newcomer, greeter, [1])

    asyncio.run(meet())


def test_callers_that_hang_up_leave_no_file_open(monkeypatch):
    monkeypatch.setattr("dalle_lib.swarm.peer.greeter.REDIAL_S", 0.0)

    async def hang_up(newcomer: P2P, greeter: PeerID, after_s: float) -> None:
        with contextlib.suppress(TimeoutError, P2PHandlerError):
            await asyncio.wait_for(dial_back(newcomer, greeter, []), after_s)

    async def meet() -> None:
        async with greeter_and_newcomer(float("inf")) as (greeter, newcomer):
            before = psutil.Process().num_fds()
            for _ in range(20):
                await asyncio.gather(*(hang_up(newcomer, greeter, i / 10_000) for i in range(50)))
            assert (await until_answered(newcomer, greeter))["reached"] == 0
            assert psutil.Process().num_fds() < before + 20, "of 1000 calls"

    asyncio.run(meet())


def test_a_newcomer_at_another_address_is_served_though_strangers_keep_calling(monkeypatch):
    monkeypatch.setattr("dalle_lib.swarm.peer.greeter.UPLOAD_S", 1.0)
    monkeypatch.setattr("dalle_lib.swarm.peer.greeter.MAX_DIALLED", 2)
    has_begun, is_over = asyncio.Event(), asyncio.Event()

    async def keep_asking(attacker: P2P, greeter: PeerID) -> None:
        while not is_over.is_set():
            await asyncio.gather(dial_back(attacker, greeter, []), return_exceptions=True)

    async def keep_taking_the_upload(attacker: P2P, greeter: PeerID) -> None:
        while not is_over.is_set():
            reader, writer = await call(attacker, greeter)
            with contextlib.closing(writer):
                if await answer_of(reader) == b"{}\n":
                    has_begun.set()
                    await answer_of(reader)

    async def meet() -> None:
        async with two_peers(float("inf")) as (first, attacker, _), peer_at("127.0.0.2", first) as newcomer:
            await Greeter(first).serve()
            async with asyncio.TaskGroup() as attacks:
                for _ in range(8):
                    attacks.create_task(keep_asking(attacker, first.peer_id))
                for _ in range(2):
                    attacks.create_task(keep_taking_the_upload(attacker, first.peer_id))
                await has_begun.wait()
                port = await port_of_peer(newcomer)
                assert (await dial_back(newcomer, first.peer_id, [port]))["reached"] == port
                for _ in range(2):
                    assert await upload_mbps(newcomer, first.peer_id) > 0
                is_over.set()

    asyncio.run(meet())


def test_few_callers_are_dialled_back_at_once(monkeypatch):
    monkeypatch.setattr("dalle_lib.swarm.peer.greeter.MAX_DIALLED", 1)
    monkeypatch.setattr("dalle_lib.swarm.peer.greeter.DIAL_TIMEOUT_S", 100.0)

    async def meet() -> None:
        async with silent_ports() as (ports, connected), greeter_and_newcomer(float("inf")) as (greeter, newcomer):
            first_call = asyncio.create_task(dial_back(newcomer, greeter, ports))
            while not connected:
                await asyncio.sleep(0.01)
            with pytest.raises(P2PHandlerError, match="it dials too many others back"):
                await asyncio.wait_for(dial_back(newcomer, greeter, []), 30)
            first_call.cancel()
            await asyncio.gather(first_call, return_exceptions=True)

    asyncio.run(meet())


def test_a_long_request_is_refused_before_it_is_read():
    async def meet() -> None:
        async with greeter_and_newcomer(float("inf")) as (greeter, newcomer):
            with pytest.raises(P2PHandlerError, match="expected a request of at most 1000 bytes"):
                await dial_back(newcomer, greeter, list(range(1, 1000)))
            hidden = ExpertRequest(uid=1000 * "x", metadata=b'{"ports": []}')
            with pytest.raises(P2PHandlerError, match="expected a request of at most 1000 bytes"):
                await Greeter.get_stub(newcomer, greeter).rpc_dial_back(hidden, timeout=60)

    asyncio.run(meet())
