"""Addresses of first peers: which can be some, and whether anybody answers there."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hivemind.utils.multiaddr import Multiaddr

from dalle_lib.swarm.process.addresses import MAX_SHOWN, of_others, require_addresses, those_that_answer

PEER = "12D3KooWRy6EbDgUAKT1z9GKkD5x4G8yaJEsnhmBGPo3L5qGCY32"
NOBODY = f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}"


OTHER = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
NAMED = f"/dns4/peer.example/tcp/443/wss/p2p/{PEER}"
GOOD = [
    NOBODY,
    NAMED,
    f"/ip6/::1/tcp/31337/p2p/{OTHER}",
    f"/ip4/127.0.0.1/udp/4001/quic-v1/p2p/{PEER}",
    f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}/p2p-circuit/p2p/{PEER}",
    f"/dnsaddr/peer.example/p2p/{PEER}",
]


@pytest.mark.parametrize("address", GOOD)
def test_addresses_that_libp2p_writes_are_accepted(address):
    require_addresses([address])


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("127.0.0.1:31337", "lacks the peer's id"),
        (NOBODY[1:], "another form"),
        (NOBODY[:-2], "a part of it may be missing"),
        (NOBODY.replace("12D3", "12D0"), "is no peer's id"),
        (NOBODY.replace("127.0.0.1", "127.0.0"), "Expected 4 octets"),
        (NOBODY.replace("tcp/1/", "tcp/70000/"), "there is no port 70000"),
        (NOBODY.replace("tcp/1/", "tcp/0/"), "there is no port 0"),
    ],
)
def test_what_can_be_no_address_is_told_what_is_wrong_with_it(address, told):
    with pytest.raises(ValueError, match=told):
        require_addresses([address])


def test_what_is_accepted_can_be_read_by_hivemind():
    for address in GOOD:
        assert Multiaddr(address)["p2p"]


LONG = NOBODY.replace("127.0.0.1", "a." * 300)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        (NOBODY.replace("/p2p/", "/nonsense/p2p/"), "another form"),
        (NOBODY.replace("tcp/1/", "tcp/\N{ARABIC-INDIC DIGIT ONE}/"), "letters or signs that no address has"),
        (NAMED.replace("peer", "a" * 64), "is no machine's name"),
        (NAMED.replace("peer", "peer."), "is no machine's name"),
        (NAMED.replace("peer", "\x1b[31m"), "letters or signs that no address has"),
        (NAMED.replace("peer", "\udcff"), "letters or signs that no address has"),
        (f"/ip6/fe80::1%eth0/tcp/1/p2p/{PEER}", "holds for one machine alone"),
        (LONG, f"it has {len(LONG)} letters"),
        (NOBODY.replace("tcp/1/", f"tcp/{'1' * 5000}/"), "it has 5,0.. letters"),
        (NOBODY.replace(PEER, "1" + "z" * 300_000), "it has 300,... letters"),
        (NOBODY.replace(PEER, "1" + "z" * 300), "is no peer's id"),
        (NOBODY.replace(PEER, f"12D3/p2p-circuit/p2p/{PEER}"), "'12D3' is no peer's id"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_what_p2pd_could_not_start_with_is_told_in_a_short_line_that_a_terminal_can_show(address, told):
    with pytest.raises(ValueError, match=told) as refused:
        require_addresses([NAMED, address])
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 900


@contextmanager
def listening(words: bytes | None) -> Iterator[str]:
    """Yield an address where each caller hears these words and no more; None says nothing and does not hang up."""

    def answer() -> None:
        with contextlib.suppress(OSError):  # the server is closed
            while True:
                caller, _ = server.accept()
                callers.append(caller)
                if words is not None:
                    caller.sendall(words)
                    caller.close()

    callers = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        yield NOBODY.replace("tcp/1/", f"tcp/{server.getsockname()[1]}/")
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for caller in callers:
        caller.close()


def test_only_first_peers_that_speak_are_found(monkeypatch):
    def limits(answer_s: float, others_s: float) -> None:
        monkeypatch.setattr("dalle_lib.swarm.process.addresses.ANSWER_S", answer_s)
        monkeypatch.setattr("dalle_lib.swarm.process.addresses.OTHERS_S", others_s)

    limits(60.0, 60.0)
    with (
        listening(b"\x13/multistream/1.0.0\n") as peer,
        listening(None) as silent,
        listening(b"HTTP/1.1 400 Bad Request\r\n\r\n") as other,
        listening(b"\x13/multi") as cut,
    ):
        answering, why = those_that_answer([NOBODY, other, cut, peer])
        assert answering == [peer]
        encrypted = silent.replace("/p2p/", "/wss/p2p/")
        assert those_that_answer([encrypted]) == ([encrypted], ""), "what is said there cannot be read"
        limits(60.0, 0.4)
        assert those_that_answer([silent, peer])[0] == [peer], "the silent one has little time once another has spoken"
        limits(0.5, 0.4)
        assert those_that_answer([silent]) == ([], f"127.0.0.1 port {silent.split('/')[4]}: no answer within 0.5 s")
    assert "127.0.0.1 port 1: Connection refused" in why
    assert why.count("no peer is there, but something else") == 2


def test_what_p2pd_alone_can_try_is_left_to_it_where_no_other_answers():
    udp, relayed = NOBODY.replace("tcp", "udp"), NOBODY + f"/p2p-circuit/p2p/{PEER}"
    assert those_that_answer([NOBODY, udp, relayed]) == ([udp, relayed], "127.0.0.1 port 1: Connection refused")
    with listening(b"\x13/multistream/1.0.0\n") as peer:
        assert those_that_answer([udp, peer])[0] == [peer]
    assert those_that_answer([]) == ([], "")


def test_of_many_dead_addresses_a_few_are_told():
    dead = [NOBODY.replace("tcp/1/", f"tcp/{port}/") for port in range(1, 13)]
    answering, why = those_that_answer(dead)
    assert not answering
    assert why.count("Connection refused") == MAX_SHOWN
    assert why.endswith(", and 7 more")


def test_a_peers_own_addresses_and_repetitions_are_left_out():
    assert of_others([NOBODY, NAMED, NAMED], own_id=None) == [NOBODY, NAMED]
    relayed = f"{NOBODY}/p2p-circuit/p2p/{OTHER}"
    assert of_others([NOBODY, relayed], own_id=PEER) == [relayed], "a relay's id is not the peer's"
