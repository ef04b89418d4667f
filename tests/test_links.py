"""The relay between peers on this machine: bytes arrive whole, are counted for both ends, and take their time.

Links can be cut without a word to either end, and connections ended.
"""

import asyncio
import contextlib
import hashlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from dalle_lib.rehearsal.links import AGAIN_S, PACKET_BYTES, Direction, Link, Plug, Relay
from dalle_lib.swarm import PeerSettings, join
from dalle_lib.swarm.process.addresses import peer_in

SLOW, FAST = Link(up_mbps=4, down_mbps=400), Link(up_mbps=400, down_mbps=400)
SENT = os.urandom(300_000)
SILENT_S = 0.3
"""Seconds after which nothing is taken to come. A busy machine can only hold up what must not come at all."""


def answering(port: int) -> threading.Thread:
    """Start to answer one connection at a port: with the hash of all it brings."""
    server = socket.create_server(("127.0.0.1", port))

    def answer() -> None:
        with server, server.accept()[0] as connection:
            digest = hashlib.sha256()
            while piece := connection.recv(65536):
                digest.update(piece)
            connection.sendall(digest.digest())

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def call(port: int) -> bytes:
    """Return what comes back for SENT."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(SENT)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    return received


def test_bytes_arrive_whole_and_count_for_both_ends(relay):
    caller, called = relay.plug(FAST), relay.plug(FAST)
    caller.process = os.getpid()
    thread = answering(called.listens_on)
    assert call(called.announced) == hashlib.sha256(SENT).digest()
    thread.join()
    assert (caller.up.bytes_through, called.down.bytes_through) == (300_000, 300_000)
    assert (called.up.bytes_through, caller.down.bytes_through) == (32, 32)


def test_a_slow_upload_takes_its_time_also_over_a_connection_that_it_opened(relay):
    caller, called = relay.plug(SLOW), relay.plug(FAST)
    caller.process = os.getpid()
    thread, began = answering(called.listens_on), time.monotonic()
    call(called.announced)
    thread.join()
    assert time.monotonic() - began > 300_000 * 8 / 4e6 - 0.1  # a busy machine can only make it longer


def test_a_caller_without_a_link_passes_the_other_ends_alone(relay):
    other, called = relay.plug(SLOW), relay.plug(FAST)
    thread = answering(called.listens_on)
    call(called.announced)
    thread.join()
    assert (other.up.bytes_through, called.down.bytes_through) == (0, 300_000)


def test_a_peer_that_is_gone_hangs_up_and_the_relay_goes_on(relay):
    gone, called = relay.plug(FAST), relay.plug(FAST)
    with socket.create_connection(("127.0.0.1", gone.announced), timeout=30) as connection:
        assert connection.recv(1) == b""
    thread = answering(called.listens_on)
    assert call(called.announced) == hashlib.sha256(SENT).digest()
    thread.join()


@contextlib.contextmanager
def connected(plug: Plug) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Give both ends of a connection to the peer of a plug, which have heard each other; first the caller's."""
    with socket.create_server(("127.0.0.1", plug.listens_on)) as server:
        caller = socket.create_connection(("127.0.0.1", plug.announced), timeout=60)
        called, _ = server.accept()
    with caller, called:
        called.settimeout(60)
        for one, other in (caller, called), (called, caller):
            one.sendall(b"hello")
            assert heard(other, 5) == b"hello"
        yield caller, called


def heard(end: socket.socket, count: int) -> bytes:
    """Return so many bytes that arrive at an end of a connection, or fewer if it ends before that."""
    received = b""
    while len(received) < count and (piece := end.recv(count - len(received))):
        received += piece
    return received


def is_silent(end: socket.socket) -> bool:
    """Return whether an end of a connection hears nothing, neither bytes nor that it has ended."""
    end.settimeout(SILENT_S)
    try:
        end.recv(1)
    except TimeoutError:
        return True
    finally:
        end.settimeout(60)
    return False


def test_a_cut_link_is_silent_and_what_was_sent_arrives_when_it_is_mended(relay):
    plug, other = relay.plug(FAST), relay.plug(FAST)
    with connected(plug) as (caller, called), connected(other) as (theirs, its):
        relay.cut(plug)
        caller.sendall(b"there")
        called.sendall(b"back")
        theirs.sendall(b"on")
        assert heard(its, 2) == b"on", "nobody else's link is cut"
        assert is_silent(caller)
        assert is_silent(called)
        relay.mend(plug)
        assert (heard(called, 5), heard(caller, 4)) == (b"there", b"back")
        caller.shutdown(socket.SHUT_WR)
        assert heard(called, 1) == b""


@pytest.mark.parametrize("how", ["it ends", "it breaks"])
def test_who_is_cut_off_does_not_hear_that_the_other_end_is_gone(relay, how):
    plug = relay.plug(FAST)
    with connected(plug) as (caller, called):
        relay.cut(plug)
        if how == "it breaks":  # its system says so instead of ending it in order
            called.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        called.close()
        assert is_silent(caller)
        relay.mend(plug)
        with contextlib.suppress(ConnectionResetError):
            assert caller.recv(1) == b""


def assert_silent_until_mended(connection: socket.socket, relay: Relay, plug: Plug) -> None:
    """Fail unless what is sent to an `answering` end is answered once its plug is mended, and not before."""
    connection.sendall(SENT)
    connection.shutdown(socket.SHUT_WR)
    assert is_silent(connection)
    relay.mend(plug)
    assert heard(connection, 32) == hashlib.sha256(SENT).digest()


def test_a_new_connection_over_a_cut_link_opens_and_is_silent(relay):
    plug = relay.plug(FAST)
    relay.cut(plug)
    thread = answering(plug.listens_on)
    with socket.create_connection(("127.0.0.1", plug.announced), timeout=60) as connection:
        assert_silent_until_mended(connection, relay, plug)
    thread.join()


def test_two_that_are_cut_off_from_each_other_hear_all_others(relay):
    caller, called, other = (relay.plug(FAST) for _ in range(3))
    with connected(called) as (outside, its):  # while this process is nobody's
        caller.process = os.getpid()
        relay.cut(caller, called)
        thread = answering(called.listens_on)
        with connected(other), socket.create_connection(("127.0.0.1", called.announced), timeout=60) as cut:
            outside.sendall(b"on")
            assert heard(its, 2) == b"on"
            assert_silent_until_mended(cut, relay, called)
        thread.join()


def test_both_ends_hear_that_the_relay_hangs_up_and_may_call_again(relay):
    plug, other = relay.plug(FAST), relay.plug(FAST)
    with connected(plug) as (caller, called), connected(other) as (theirs, its):
        relay.cut(plug)
        relay.hang_up(plug)
        for end in caller, called:
            with contextlib.suppress(ConnectionResetError):
                assert end.recv(1) == b""
        theirs.sendall(b"on")
        assert heard(its, 2) == b"on", "nobody else is hung up on"
        relay.mend(plug)
    thread = answering(plug.listens_on)
    assert call(plug.announced) == hashlib.sha256(SENT).digest()
    thread.join()


def test_delays_of_both_ends_add_up_and_hold_up_no_bytes_behind_the_first(relay):
    caller = relay.plug(Link(up_mbps=10, down_mbps=10, delay_s=0.5))
    called = relay.plug(Link(up_mbps=400, down_mbps=400, delay_s=0.25))
    caller.process = os.getpid()
    with (
        socket.create_server(("127.0.0.1", called.listens_on)) as server,
        socket.create_connection(("127.0.0.1", called.announced), timeout=60) as connection,
    ):
        began = time.monotonic()
        connection.sendall(SENT)
        with server.accept()[0] as end:
            assert end.recv(1) == SENT[:1]
            assert time.monotonic() - began >= 0.75  # a busy machine can only make it longer
            assert caller.up.bytes_through == len(SENT), "all are under way when the first arrives"
            assert heard(end, len(SENT) - 1) == SENT[1:]


def test_of_a_lossy_link_all_bytes_arrive_in_order_and_some_later(relay):
    plug = relay.plug(Link(up_mbps=400, down_mbps=400, loss=0.5))
    thread = answering(plug.listens_on)
    assert call(plug.announced) == hashlib.sha256(SENT).digest()
    thread.join()

    async def held_up(loss: float) -> float:
        link = Direction(1e6, loss=loss)
        late = [await link.carry(2 * PACKET_BYTES) for _ in range(4000)]
        assert set(late) <= {0.0, AGAIN_S}
        return sum(late) / AGAIN_S / len(late)

    assert asyncio.run(held_up(0.0)) == 0.0
    assert asyncio.run(held_up(0.05)) == pytest.approx(1 - 0.95**2, abs=0.02)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["delay_s", "loss"])
def test_a_delay_or_loss_that_no_link_has_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be at least 0"):
        Link(up_mbps=1, down_mbps=1, **{name: value})


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_rate_that_no_link_has_is_refused(rate):
    with pytest.raises(ValueError, match="up_mbps must be above 0"):
        Link(up_mbps=rate, down_mbps=1)


def test_a_peer_is_reached_at_the_address_that_it_announces_and_told_to_nobody_by_another(relay, swarm_folder):
    plugs = [relay.plug(FAST) for _ in range(2)]
    known: tuple[str, ...] = ()
    for number, plug in enumerate(plugs):
        settings = PeerSettings(
            run="emoji-mini", name=f"peer-{number}", role="bootstrap", host="127.0.0.1", port=plug.listens_on,
            announce=(plug.announced_at,), initial_peers=known,
        )  # fmt: skip
        peer = join(settings, swarm_folder / settings.name)
        plug.process = peer.supervisor_id
        known = tuple(peer.wait_for("connected")["addresses"])
        assert [address.removesuffix(f"/p2p/{peer_in(address)}") for address in known] == [plug.announced_at]
        assert PeerSettings.load(peer.folder / "settings.json") == settings
    first, second = plugs
    deadline = time.monotonic() + 60
    while not second.up.bytes_through == first.down.bytes_through > 0:  # some bytes may be on their way
        assert time.monotonic() < deadline, (second.up.bytes_through, first.down.bytes_through)
        time.sleep(0.01)
    for name in "peer-1", "peer-0":
        join(PeerSettings(run="emoji-mini", name=name), swarm_folder / name).stop()
