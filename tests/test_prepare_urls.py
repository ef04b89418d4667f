"""Servers of pictures that stall, send bombs, or are not to be asked."""

import socket
import threading
import time
from collections.abc import Callable

import brotli
import pytest
from prepare_sources import as_csv, prepare

from dalle_lib.streaming.prepare import urls
from dalle_lib.streaming.prepare.pictures import Unusable
from dalle_lib.streaming.prepare.urls import Fetcher


@pytest.fixture
def serve():
    """Return a function that gives the URL of a server, which sends what a function yields."""
    servers = []

    def start(answer: Callable) -> str:
        servers.append(server := socket.create_server(("127.0.0.1", 0)))
        asked = []

        def run() -> None:
            while True:
                try:
                    client, _ = server.accept()
                    with client:
                        asked.append(client.recv(1000))
                        for part in answer() if asked[-1] else ():
                            client.sendall(part)
                except OSError:
                    if server.fileno() < 0:
                        return

        threading.Thread(target=run, daemon=True).start()
        start.asked = asked
        return f"http://127.0.0.1:{server.getsockname()[1]}/a.png"

    yield start
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def trickle(first: bytes, then: bytes):
    """Yield without an end: who does not hang up waits for ever."""
    yield first
    while True:
        time.sleep(0.05)
        yield then


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"y"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1;"),
    ],
    ids=["headers", "body", "length of a part"],
)
def test_a_server_that_trickles_holds_up_a_row_for_a_bounded_time(serve, monkeypatch, first, then):
    monkeypatch.setattr(urls, "MAX_S", 0.3)
    with pytest.raises(Unusable, match=r"URL slower than 0\.3 s"):
        Fetcher(local_urls=True).fetch(serve(lambda: trickle(first, then)))


def test_what_a_server_sends_is_not_unpacked(serve):
    small = brotli.compress(bytes(2**25), quality=3)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: %d\r\n\r\n" % len(small)
    with pytest.raises(Unusable, match="URL answered something compressed"):
        Fetcher(local_urls=True).fetch(serve(lambda: (head, small)))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "2130706433", "[::ffff:127.0.0.1]"])
def test_nothing_is_asked_of_a_private_network(serve, host):
    url = serve(lambda: (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",))
    with pytest.raises(Unusable, match="URL of a private network"):
        Fetcher().fetch(url.replace("127.0.0.1", host))
    assert not any(serve.asked)
    assert Fetcher(local_urls=True).fetch(url.replace("127.0.0.1", "localhost")) == b"abc"


def test_a_table_of_dead_links_can_be_gone_on_with(tmp_path):
    dead = as_csv(tmp_path / "dead.csv", {f"dead {n}": "http://127.0.0.1:1/a.png" for n in range(20)}, "url")
    with pytest.raises(ConnectionError, match="If it is online, turn on skip_unreached"):
        prepare(dead, tmp_path / "out")
    with pytest.raises(ValueError, match="URL not reached: 20"):
        prepare(dead, tmp_path / "out", skip_unreached=True)
