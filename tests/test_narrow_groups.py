"""Who leads a peer, again and again, into groups without most of the others is left: such rounds do not fail."""

import asyncio

import pytest
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.p2p import PeerID
from hivemind.utils.crypto import RSAPrivateKey
from test_matchmaking import NOW, matchmaking_of

from dalle_lib.auth import Identity
from dalle_lib.swarm.averaging import matchmaking
from dalle_lib.swarm.averaging.expected import Told

ADA, BOB, CEM, DORA, EVE = (Identity(RSAPrivateKey()) for _ in range(5))


def id_of(identity: Identity) -> PeerID:
    return PeerID.from_base58(identity.peer_id)


@pytest.mark.parametrize(
    ("inside", "is_named"),
    [((), True), ((CEM,), False), ((DORA,), True)],
    ids=["nobody else", "most of the users", "the leader's second id"],
)
@pytest.mark.parametrize("there", ["now", "long ago"])
def test_who_keeps_a_peer_from_most_others_again_and_again_is_named(inside, is_named, there, monkeypatch):
    """Here Ada is led by Bob, and Cem and Eve are there, too."""
    follower, bob = matchmaking_of(ADA), id_of(BOB)
    at = NOW if there == "now" else NOW - follower.patience.longest_s
    told = {id_of(each).to_bytes(): Told(at) for each in (BOB, CEM, EVE)}
    follower.expected.tell(0, told)
    peers = tuple(id_of(each) for each in (ADA, BOB, *inside))

    async def led(self, leader):
        return GroupInfo(b"id", peers, ())

    monkeypatch.setattr(Matchmaking, "_request_join_group", led)
    follower.request_timeout, follower.get_request_expiration_time = 3.0, lambda: NOW + 10
    monkeypatch.setattr(matchmaking, "get_dht_time", lambda: NOW)
    for _ in range(matchmaking.MAX_LED):
        assert asyncio.run(follower._request_join_group(bob)) is not None
    assert not follower.told
    asyncio.run(follower._request_join_group(bob))
    why = "the groups that it led lacked most of those who were there, 5 times in a row"
    assert follower.told == ([(BOB.peer_id, why)] if is_named and there == "now" else [])
    assert (bob in follower.avoided) == bool(follower.told)
