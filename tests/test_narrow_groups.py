"""Nobody keeps others apart: neither by small groups, in which rounds do not fail, nor by having a leader blamed."""

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


@pytest.mark.parametrize(("passed_s", "asks"), [(4.0, True), (6.0, False)])
@pytest.mark.parametrize("leads", [True, False])
def test_a_leader_sends_nobody_away_late(leads, passed_s, asks, monkeypatch):
    """Its followers would blame it, and not whoever has made it follow."""
    peer, asked = matchmaking_of(ADA), []

    async def ask(self, leader):
        asked.append(leader)

    monkeypatch.setattr(Matchmaking, "_request_join_group", ask)
    monkeypatch.setattr(matchmaking, "get_dht_time", lambda: NOW + passed_s)
    peer.searches_since, peer.request_timeout, peer.get_request_expiration_time = NOW, 3.0, lambda: NOW + 10
    peer.current_followers = {id_of(CEM): None} if leads else {}
    asyncio.run(peer._request_join_group(id_of(BOB)))
    assert asked == ([id_of(BOB)] if asks or not leads else [])
