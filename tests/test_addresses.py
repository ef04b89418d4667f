"""Addresses of first peers: which can be some, and whether anybody answers there."""

import socket

import pytest

from dalle_lib.swarm.process.addresses import require_addresses, why_nobody_answers

PEER = "12D3KooWRy6EbDgUAKT1z9GKkD5x4G8yaJEsnhmBGPo3L5qGCY32"
NOBODY = f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}"


@pytest.mark.parametrize(
    "address",
    [
        NOBODY,
        "/ip6/::1/tcp/31337/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",
        f"/dns4/peer.example/tcp/443/wss/p2p/{PEER}",
        f"/ip4/127.0.0.1/udp/4001/quic-v1/p2p/{PEER}",
        f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}/p2p-circuit/p2p/{PEER}",
        f"/dnsaddr/peer.example/p2p/{PEER}",
    ],
)
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


def test_one_first_peer_that_answers_is_enough_and_what_only_p2pd_can_try_is_left_to_it():
    assert "127.0.0.1 port 1: Connection refused" in why_nobody_answers([NOBODY])
    with socket.create_server(("127.0.0.1", 0)) as server:
        answers = NOBODY.replace("tcp/1/", f"tcp/{server.getsockname()[1]}/")
        assert why_nobody_answers([NOBODY, answers]) is None
    assert why_nobody_answers([NOBODY, NOBODY.replace("tcp", "udp")]) is None
    assert why_nobody_answers([NOBODY + f"/p2p-circuit/p2p/{PEER}"]) is None
    assert why_nobody_answers([]) is None
