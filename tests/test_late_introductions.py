"""Nobody times its introduction, or access token, so that what a leader lets in is refused by those who follow it."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import patch

import hivemind
import pytest
from auth_peers import AUTHORITY, RUN, RUN_KEY, identity, issued
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import Matchmaking, MatchmakingException
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time
from test_matchmaking import matchmaking_of, told_by

from dalle_lib.auth import Roster
from dalle_lib.swarm.averaging import introductions
from dalle_lib.swarm.averaging.averagers import RunAverager
from dalle_lib.swarm.averaging.introductions import VALID_S
from dalle_lib.swarm.averaging.matchmaking import MemberMatchmaking
from dalle_lib.swarm.averaging.trust import Trust

ADA, BOB, EVE = map(identity, ("ada", "bob", "eve"))
PEERS = [PeerID.from_base58(each.peer_id) for each in (ADA, BOB, EVE)]


def told_at(time: float, who=EVE, **more) -> bytes:
    """Return what a peer tells whose clock shows this time."""
    with patch.object(introductions, "get_dht_time", lambda: time):
        return told_by(who, **more)


async def taken(self, leader: PeerID, message: averaging_pb2.MessageFromLeader) -> str:
    return "taken"


@pytest.mark.parametrize("sign", [1, -1], ids=["late", "early"])
def test_an_introduction_that_its_leader_has_let_in_is_believed_until_the_round_begins(sign, monkeypatch):
    joined = get_dht_time()
    leader, follower = matchmaking_of(BOB), matchmaking_of(ADA)
    told = [told_by(ADA), told_by(BOB), told_at(joined - sign * (VALID_S - 0.5))]
    request = averaging_pb2.JoinRequest(gather=told[2])
    monkeypatch.setattr(introductions, "get_dht_time", lambda: joined)
    assert asyncio.run(leader.refusal(PEERS[2], request)) is None
    # The group is gathered, and then its round waits for the end of the epoch.
    later = joined + sign * follower.min_matchmaking_time
    monkeypatch.setattr(introductions, "get_dht_time", lambda: later)
    assert "another time" in asyncio.run(leader.refusal(PEERS[2], request))
    monkeypatch.setattr(Matchmaking, "follower_assemble_group", taken)
    follower.step_control = SimpleNamespace(data_for_gather=told[0])
    ids = [peer.to_bytes() for peer in PEERS]
    message = averaging_pb2.MessageFromLeader(group_id=b"group", ordered_peer_ids=ids, gathered=told)
    assert asyncio.run(follower.follower_assemble_group(PEERS[1], message)) == "taken"
    assert not follower.told, "its honest leader was blamed"
    assert not follower.avoided


def test_a_follower_that_has_waited_for_long_blames_no_leader_for_its_own_introduction(monkeypatch):
    now = get_dht_time()
    leader, follower = matchmaking_of(BOB), matchmaking_of(ADA)
    told = [told_at(now - VALID_S + 0.5, ADA), told_by(BOB)]
    monkeypatch.setattr(introductions, "get_dht_time", lambda: now)
    assert asyncio.run(leader.refusal(PEERS[0], averaging_pb2.JoinRequest(gather=told[0]))) is None
    monkeypatch.setattr(introductions, "get_dht_time", lambda: now + follower.min_matchmaking_time)
    monkeypatch.setattr(Matchmaking, "follower_assemble_group", taken)
    follower.step_control = SimpleNamespace(data_for_gather=told[0])
    ids = [peer.to_bytes() for peer in PEERS[:2]]
    message = averaging_pb2.MessageFromLeader(group_id=b"group", ordered_peer_ids=ids, gathered=told)
    assert asyncio.run(follower.follower_assemble_group(PEERS[1], message)) == "taken"
    assert not follower.told
    assert not follower.avoided


def test_a_leader_of_clients_that_says_it_does_not_reduce_is_left_and_named(monkeypatch):
    monkeypatch.setattr(Matchmaking, "follower_assemble_group", taken)
    own = told_by(ADA, is_reducer=False)
    for reduces in True, False:
        follower = matchmaking_of(ADA)
        follower.step_control = SimpleNamespace(data_for_gather=own)
        told = [own, told_by(BOB, is_reducer=False), told_by(EVE, is_reducer=reduces)]
        ids = [peer.to_bytes() for peer in PEERS]
        message = averaging_pb2.MessageFromLeader(group_id=b"group", ordered_peer_ids=ids, gathered=told)
        if reduces:
            assert asyncio.run(follower.follower_assemble_group(PEERS[2], message)) == "taken"
            continue
        with pytest.raises(MatchmakingException, match="nobody in it can reduce"):
            asyncio.run(follower.follower_assemble_group(PEERS[2], message))
        assert PEERS[2] in follower.avoided
        assert [peer for peer, _ in follower.told] == [EVE.peer_id]


def test_a_round_begins_with_those_who_were_let_into_its_group_however_late_that_is(monkeypatch):
    class Begun(Exception):
        pass

    def of_group(self, tokens: dict) -> Trust:
        assert set(tokens) == {str(peer) for peer in PEERS}
        raise Begun

    monkeypatch.setattr(Trust, "of_group", of_group)
    told = (told_by(ADA), told_by(BOB), told_at(get_dht_time() - 2 * VALID_S))
    averager = SimpleNamespace(prefix="run_grad_averager", trust=Trust())
    group = SimpleNamespace(peer_ids=tuple(PEERS), gathered=told)
    with pytest.raises(Begun):
        asyncio.run(RunAverager._aggregate_with_group(averager, group, 0))


def test_who_shows_an_access_token_that_is_about_to_expire_is_not_let_into_a_group():
    def refused(left: timedelta) -> str | None:
        roster = Roster(AUTHORITY.public_key, RUN, RUN_KEY, hivemind.DHT(start=False))
        leader: MemberMatchmaking = matchmaking_of(BOB, roster=roster)
        token = issued(EVE, "eve", valid_for=left).to_bytes()
        return asyncio.run(leader.refusal(PEERS[2], averaging_pb2.JoinRequest(gather=told_by(EVE, token=token))))

    assert "about to expire" in refused(timedelta(seconds=30))
    assert refused(timedelta(minutes=3)) is None, "tokens are renewed when 10 minutes are left"


def test_a_leader_takes_no_more_peers_of_a_user_than_may_take_part_though_they_came_at_once(monkeypatch):
    """Two that ask while it waits for another leader's answer are both let in; one may show a token of another user."""

    async def assembled(self) -> GroupInfo:
        return GroupInfo(b"group", (*self.current_followers, self.peer_id), ())

    monkeypatch.setattr(Matchmaking, "leader_assemble_group", assembled)
    roster = Roster(AUTHORITY.public_key, RUN, RUN_KEY, hivemind.DHT(start=False))
    for users, left in (("ada", "ada", "eve"), 2), (("ada", "eve", "bob"), 3), (("eve", "eve", "eve"), 1):
        leader = matchmaking_of(BOB, roster=roster, max_peers_per_user=1)
        came = [identity(f"{user}{number}") for number, user in enumerate(users)]
        roster.learn(came[0].peer_id, issued(came[0], "mallory", valid_for=timedelta(hours=2)))  # it shows another one
        leader.current_followers = {
            PeerID.from_base58(who.peer_id): averaging_pb2.JoinRequest(
                gather=told_by(who, token=issued(who, user).to_bytes())
            )
            for who, user in zip(came, users, strict=True)
        }
        group = asyncio.run(leader.leader_assemble_group())
        assert len(group.peer_ids) == left + 1
        assert PeerID.from_base58(came[0].peer_id) in group.peer_ids
