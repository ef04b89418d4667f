"""The relay between peers on this machine: bytes arrive whole, are counted for both ends, and take their time."""

import hashlib
import os
import socket
import threading
import time

import pytest

from dalle_lib.rehearsal.links import Link, Relay
from dalle_lib.swarm import PeerSettings, join
from dalle_lib.swarm.process.addresses import peer_in

SLOW, FAST = Link(up_mbps=4, down_mbps=400), Link(up_mbps=400, down_mbps=400)
SENT = os.urandom(300_000)


@pytest.fixture
def relay():
    with Relay() as running:
        yield running


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
