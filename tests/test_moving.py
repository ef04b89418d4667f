"""Connections that come from an address which the machine has lost."""

import asyncio
import os
import socket
from types import SimpleNamespace

import psutil
import pytest

from dalle_lib.swarm.peer.moving import Moves

WIFI, OTHER = "127.0.0.2", "127.0.0.3"
"""Addresses from which a program of this machine may connect, and which no network card lists."""


@pytest.fixture
def cards(monkeypatch):
    """The addresses of this machine's network cards, as psutil lists them; a test may change them."""
    found = {"wlan0": [WIFI], "eth0": [OTHER]}
    listed = lambda: {name: [SimpleNamespace(address=each) for each in own] for name, own in found.items()}  # noqa: E731
    monkeypatch.setattr(psutil, "net_if_addrs", listed)
    return found


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="connects from addresses that Linux alone has")
def test_only_connections_from_an_address_that_was_there_and_is_gone_are_dead(cards, server):
    moves, own = Moves(), os.getpid()
    with socket.create_connection(server, source_address=(WIFI, 0)):
        assert not moves.dead_connections(own)
        cards["wlan0"] = ["127.0.0.4"]
        assert moves.dead_connections(own) == {server}
        with socket.create_connection(server, source_address=("127.0.0.5", 0)), socket.socket() as unused:
            unused.bind((WIFI, 0))
            assert moves.dead_connections(own) == {server}, "of an address that it has never had, nothing is known"
        cards["wlan0"] = [WIFI]
        assert not moves.dead_connections(own), "it is back in its old network"
    cards["wlan0"] = []
    assert not moves.dead_connections(own)
    assert not moves.dead_connections(2**22 + 1), "the process has ended"


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="connects from addresses that Linux alone has")
def test_peers_behind_dead_connections_are_disconnected_and_no_others(cards, server):
    left, (host, port) = [], server
    places = {"ada": f"/ip4/{host}/tcp/{port}", "eve": "/ip4/1.2.3.4/tcp/5"}
    peers = [SimpleNamespace(peer_id=name, addrs=[where]) for name, where in places.items()]

    async def list_peers():
        return peers

    async def disconnect(peer):
        left.append(peer)

    p2p = SimpleNamespace(
        _child=SimpleNamespace(pid=os.getpid()), list_peers=list_peers, _client=SimpleNamespace(disconnect=disconnect)
    )
    moves = Moves()
    with socket.create_connection(server, source_address=(WIFI, 0)):
        assert not asyncio.run(moves.leave_dead_connections(p2p))
        del cards["wlan0"]
        assert asyncio.run(moves.leave_dead_connections(p2p))
    assert left == ["ada"]
