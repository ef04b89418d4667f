"""Which peers meet, and which groups they take: those whose leader passes on what each has told."""

import asyncio
import itertools
import random
from collections import Counter
from types import SimpleNamespace

import pytest
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.key_manager import is_valid_group
from hivemind.averaging.matchmaking import Matchmaking, MatchmakingException
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time
from hivemind.utils.crypto import RSAPrivateKey

from dalle_lib.auth import Identity
from dalle_lib.swarm.averaging import introductions, matchmaking
from dalle_lib.swarm.averaging.expected import Expected, GroupPatience
from dalle_lib.swarm.averaging.group_keys import SignedKeyManager
from dalle_lib.swarm.averaging.introductions import Introduction, signed
from dalle_lib.swarm.averaging.matchmaking import MemberMatchmaking
from dalle_lib.swarm.averaging.trust import Trust

ADA, BOB, EVE = (Identity(RSAPrivateKey()) for _ in range(3))
ROUNDS = "run_grad_averager"
NOW = get_dht_time()


@pytest.fixture(autouse=True)
def now(monkeypatch):
    """The introductions below were signed when the tests were collected, long ago in a run of all."""
    monkeypatch.setattr(introductions, "get_dht_time", lambda: NOW)


def told_by(identity: Identity, epoch: int = 5, rounds: str = ROUNDS, **more: bool) -> bytes:
    told = Introduction(epoch, **more)
    introduction = MSGPackSerializer.dumps(signed(told, rounds, identity))
    return MSGPackSerializer.dumps([None, 0, introduction])


def matchmaking_of(identity: Identity, *, is_by_epoch: bool = False, **trust) -> MemberMatchmaking:
    """Return the matchmaking of a peer without a network."""
    made = MemberMatchmaking.__new__(MemberMatchmaking)
    made.is_by_epoch, made.step_control, made._prefix = is_by_epoch, None, ROUNDS
    made.trust, made.peer_id, made.avoided, made.told = Trust(**trust), PeerID.from_base58(identity.peer_id), {}, []
    made.asked, made.wasted, made.was_accepted_to_group = {}, Counter(), asyncio.Event()
    made.shut_out, made.failures, made.leader_of = {}, {}, {}
    made.kept, made.searches_since, made.again, made._epoch = Counter(), 0.0, set(), 0
    made.expected, made.patience, made.in_vain = Expected(), GroupPatience(least_s=5.0, longest_s=5.0), {}
    made.refused, made.narrow = {}, {}
    made.client_mode, made._is_client, made.min_matchmaking_time, made.current_followers = False, False, 5.0, {}
    made.tell = lambda peer, what: made.told.append((str(peer), what))
    made.lock_looking_for_group = asyncio.Lock()
    made.group_key_manager = SignedKeyManager(SimpleNamespace(peer_id=None), "run", "", None, identity=identity)
    return made


def test_parameters_are_averaged_within_an_epoch():
    async def keys(is_by_epoch: bool) -> list[str]:
        matchmaking = matchmaking_of(ADA, is_by_epoch=is_by_epoch)
        found = []
        for epoch in 5, 6, 6:
            async with matchmaking.looking_for_group(SimpleNamespace(data_for_gather=told_by(ADA, epoch))):
                found.append(matchmaking.group_key_manager.current_key)
        return found

    one, *two = asyncio.run(keys(is_by_epoch=True))
    assert one != two[0] == two[1]
    assert all(is_valid_group(key) for key in (one, *two))
    assert len(set(asyncio.run(keys(is_by_epoch=False)))) == 1


def test_a_newcomer_leads_no_group_until_it_counts_and_has_averaged_gradients():
    async def follows_only(matchmaking, **told: bool) -> bool:
        async with matchmaking.looking_for_group(SimpleNamespace(data_for_gather=told_by(ADA, **told))):
            return matchmaking.client_mode

    matchmaking = matchmaking_of(ADA)
    assert asyncio.run(follows_only(matchmaking, is_counted=False, is_reducer=False))
    assert asyncio.run(follows_only(matchmaking, is_new=True))
    assert not asyncio.run(follows_only(matchmaking))


OWN, BOBS = told_by(ADA), told_by(BOB)
IDS = [PeerID.from_base58(identity.peer_id).to_bytes() for identity in (ADA, BOB)]


@pytest.mark.parametrize(
    ("ids", "gathered", "why"),
    [
        (IDS, [OWN, told_by(EVE)], "signed by somebody else"),
        (IDS, [OWN, told_by(BOB, rounds="run_state_averager")], "other rounds"),
        (IDS, [OWN, BOBS.replace(b"run_grad", b"RUN_grad")], "changed after it had signed it"),
        (IDS, [told_by(ADA), BOBS], "changed or left out what this peer told"),
        (IDS[1:], [BOBS], "changed or left out what this peer told"),
        (IDS[1:] * 2, [BOBS] * 2, "names a peer twice"),
        (IDS, [OWN], "names 2 peers, and tells of 1"),
        ([IDS[0], b"x" * 10**6], [OWN, BOBS], "an id that is none"),
        (IDS, [OWN, b""], "ends within"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_leader_that_forges_a_group_is_left_named_and_avoided(ids, gathered, why, monkeypatch):
    follower, leader = matchmaking_of(ADA), PeerID.from_base58(EVE.peer_id)
    follower.step_control = SimpleNamespace(data_for_gather=OWN)
    message = averaging_pb2.MessageFromLeader(ordered_peer_ids=ids, gathered=gathered)
    with pytest.raises(MatchmakingException, match=why):
        asyncio.run(follower.follower_assemble_group(leader, message))
    ((named, what),) = follower.told
    assert named == EVE.peer_id
    assert why in what
    asked = []
    monkeypatch.setattr(Matchmaking, "_request_join_group", lambda self, leader: asked.append(leader))
    assert asyncio.run(follower._request_join_group(leader)) is None
    assert not asked


def test_a_group_with_the_id_of_another_is_refused_and_its_leader_named():
    """Otherwise its failures would be counted against the leader or the followers of the other."""
    follower, leader = matchmaking_of(ADA), PeerID.from_base58(BOB.peer_id)
    follower.step_control = SimpleNamespace(data_for_gather=OWN)
    follower.leader_of[b"group"] = follower.peer_id
    message = averaging_pb2.MessageFromLeader(group_id=b"group", ordered_peer_ids=IDS[::-1], gathered=[BOBS, OWN])
    with pytest.raises(MatchmakingException, match="is that of another group"):
        asyncio.run(follower.follower_assemble_group(leader, message))
    assert [peer for peer, _ in follower.told] == [BOB.peer_id]
    assert follower.leader_of == {b"group": follower.peer_id}


def test_a_leader_of_groups_with_a_stranger_is_named_after_three():
    class WithoutBob(Trust):
        async def refusal(self, peer_id, token=b""):
            return "it has no valid access token" if peer_id == BOB.peer_id else None

    follower, leader = matchmaking_of(ADA), PeerID.from_base58(EVE.peer_id)
    follower.trust, follower.step_control = WithoutBob(), SimpleNamespace(data_for_gather=OWN)
    message = averaging_pb2.MessageFromLeader(ordered_peer_ids=IDS[::-1], gathered=[BOBS, OWN])
    for _ in range(matchmaking.MAX_WASTED + 1):
        assert not follower.told
        with pytest.raises(MatchmakingException, match=f"{BOB.peer_id} may not take part"):
            asyncio.run(follower.follower_assemble_group(leader, message))
    assert follower.told == [(EVE.peer_id, "it led a group with a peer that may not take part, 3 times in a row")]
    assert leader in follower.avoided


def test_a_group_that_is_passed_on_as_each_has_told_is_taken(monkeypatch):
    async def taken(self, leader: PeerID, message: averaging_pb2.MessageFromLeader) -> str:
        return "taken"

    monkeypatch.setattr(Matchmaking, "follower_assemble_group", taken)
    follower, leader = matchmaking_of(ADA), PeerID.from_base58(BOB.peer_id)
    follower.step_control = SimpleNamespace(data_for_gather=OWN)
    message = averaging_pb2.MessageFromLeader(ordered_peer_ids=IDS[::-1], gathered=[BOBS, OWN])
    assert asyncio.run(follower.follower_assemble_group(leader, message)) == "taken"
    assert not follower.told


SENT_AWAY, REFUSED = "it gathered a group and sent it away late", "it answered late that it leads none"


@pytest.mark.parametrize(
    ("is_kept", "took_s", "why"), [(True, 9, SENT_AWAY), (True, 2.7, None), (False, 2.7, REFUSED), (False, 1, None)]
)
def test_a_leader_that_wastes_its_followers_time_again_and_again_is_named(is_kept, took_s, why, monkeypatch):
    follower, leader, now = matchmaking_of(ADA), PeerID.from_base58(BOB.peer_id), [0.0]
    follower.request_timeout, follower.get_request_expiration_time = 3.0, lambda: now[0] + 10
    monkeypatch.setattr(matchmaking, "get_dht_time", lambda: now[0])

    async def sent_away(self, leader):
        if is_kept:
            self.was_accepted_to_group.set()
        await asyncio.sleep(0)
        self.was_accepted_to_group.clear()
        now[0] += took_s

    async def rounds(number: int) -> None:
        for _ in range(number):
            follower.kept, follower.searches_since = Counter(), now[0]
            assert await follower._request_join_group(leader) is None

    monkeypatch.setattr(Matchmaking, "_request_join_group", sent_away)
    asyncio.run(rounds(matchmaking.MAX_WASTED + 3))
    assert follower.told == ([] if why is None else [(BOB.peer_id, f"{why}, 3 times in a row")])
    assert now[0] == pytest.approx(took_s * (matchmaking.MAX_WASTED + (3 if why is None else 1))), "it is asked no more"


def test_a_leader_that_keeps_its_followers_for_short_times_again_and_again_is_named(monkeypatch):
    follower, leader, now = matchmaking_of(ADA), PeerID.from_base58(BOB.peer_id), [0.0]
    monkeypatch.setattr(matchmaking, "get_dht_time", lambda: now[0])

    async def sent_away(self, leader):
        self.was_accepted_to_group.set()
        await asyncio.sleep(0)
        self.was_accepted_to_group.clear()
        now[0] += 0.35 * (self.get_request_expiration_time() - now[0])

    monkeypatch.setattr(Matchmaking, "_request_join_group", sent_away)
    for search in range(1, matchmaking.MAX_WASTED + 2):
        assert not follower.told
        ends = now[0] + 10
        follower.kept, follower.searches_since = Counter(), now[0]
        follower.get_request_expiration_time = lambda ends=ends: ends
        follower.request_timeout = 3.0
        for _ in range(5):
            assert asyncio.run(follower._request_join_group(leader)) is None
        assert follower.wasted[leader] == search % (matchmaking.MAX_WASTED + 1), "once in each search"
    assert follower.told == [(BOB.peer_id, f"{SENT_AWAY}, 3 times in a row")]


@pytest.mark.parametrize(("sent_on_at", "to_blame"), [(11.8, [BOB]), (1.0, [EVE])], ids=["too late", "in time"])
def test_who_is_sent_on_too_late_blames_the_leader_that_did_it_and_nobody_else(sent_on_at, to_blame, monkeypatch):
    """Blamed once, a peer is not followed for minutes: one leader could make all others avoid each other."""
    follower, bob, eve = matchmaking_of(ADA), *(PeerID.from_base58(each.peer_id) for each in (BOB, EVE))
    now, due = [0.0], 10.0
    follower.request_timeout, follower.get_request_expiration_time = 3.0, lambda: due
    monkeypatch.setattr(matchmaking, "get_dht_time", lambda: now[0])

    async def asked(self, leader):
        self.was_accepted_to_group.set()
        await asyncio.sleep(0)
        now[0] = sent_on_at if leader == bob else now[0] + 15.0
        return await self._request_join_group(eve) if leader == bob else None

    monkeypatch.setattr(Matchmaking, "_request_join_group", asked)
    assert asyncio.run(follower._request_join_group(bob)) is None
    assert [peer for peer, _ in follower.told] == [each.peer_id for each in to_blame]
    assert not follower.asked
    assert eve not in follower.wasted


def rounds_of(peer: MemberMatchmaking, leader: Identity, *failed: str, slow="", heard="") -> None:
    """Have a peer take note of rounds of Ada, Bob and Eve with this leader; in each of them these failed."""
    ids = {name: PeerID.from_base58(each.peer_id) for name, each in zip("abe", (ADA, BOB, EVE), strict=True)}
    for names in failed:
        group = GroupInfo(random.randbytes(20), tuple(ids.values()), (b"", b"", b""))
        peer.leader_of[group.group_id] = PeerID.from_base58(leader.peer_id)
        peer.note_round(group, *({ids[name] for name in some} for some in (names, "", slow, "", heard)))


def test_who_fails_more_rounds_than_not_is_named_and_let_into_no_group():
    peer, eve = matchmaking_of(ADA), PeerID.from_base58(EVE.peer_id)
    rounds_of(peer, ADA, "e", "e", "", "e", "b", "e")
    assert not any([peer.told, peer.shut_out])
    rounds_of(peer, ADA, "e")
    assert peer.told == [(EVE.peer_id, "it did not do its part in 3 rounds")]
    assert "not done its part" in asyncio.run(peer.refusal(eve, None))
    assert peer.shut_out.keys() == peer.avoided.keys() == {eve}
    assert not peer.failures


def test_a_leader_that_hears_nothing_of_all_others_blames_none_of_them():
    """When its network is back, it would let none of them in for minutes."""
    peer = matchmaking_of(ADA)
    rounds_of(peer, ADA, *["be"] * matchmaking.MAX_LED)
    rounds_of(peer, ADA, "be", heard="b")  # they reduce nothing, but one sends
    assert set(peer.failures.values()) == {1}
    rounds_of(peer, ADA, *["be"] * (matchmaking.MAX_LED + 2))  # two who keep silent come again and again
    assert {told for told, _ in peer.told} == {BOB.peer_id, EVE.peer_id}


def test_a_leader_cannot_have_its_followers_blame_each_other():
    """It tells each of them another group, in which the others then do not do their part."""
    peer = matchmaking_of(ADA)
    rounds_of(peer, EVE, "b", "b", "b", "b")
    assert not peer.told
    rounds_of(peer, BOB, "")  # whoever leads whole rounds is not blamed for those of others
    rounds_of(peer, EVE, "b")
    assert peer.told == [(EVE.peer_id, "5 rounds that it led failed")]
    assert peer.shut_out.keys() == {PeerID.from_base58(EVE.peer_id)}


def test_whose_tensors_are_refused_costs_no_time_but_leads_no_more():
    peer, eve = matchmaking_of(ADA), PeerID.from_base58(EVE.peer_id)
    group = GroupInfo(b"group", (peer.peer_id, eve), (b"", b""))
    for leader in peer.peer_id, eve:
        assert not peer.told
        for _ in range(matchmaking.MAX_LED + 1):
            peer.leader_of[group.group_id] = leader
            peer.note_round(group, set(), {eve})
    assert peer.told == [(EVE.peer_id, "5 rounds that it led failed")]


def test_a_leader_is_to_blame_for_no_slow_peer_but_itself():
    peer = matchmaking_of(ADA)
    rounds_of(peer, EVE, *"b" * 9, slow="b")
    rounds_of(peer, EVE, *"e" * 5, slow="e")
    assert peer.told == [(EVE.peer_id, "5 rounds that it led failed")]


def test_a_leader_is_judged_by_its_round_also_while_the_next_groups_are_found():
    """Who is taken for the leader of another's group judges its followers, and shuts out whoever was kept from it."""
    peer, eve, bob = matchmaking_of(ADA), *(PeerID.from_base58(each.peer_id) for each in (EVE, BOB))
    groups = [GroupInfo(bytes([number]) * 20, (peer.peer_id, eve, bob), (b"", b"", b"")) for number in range(6)]
    peer.leader_of[groups[0].group_id] = eve
    for group, next_group in itertools.pairwise(groups):
        peer.leader_of[next_group.group_id] = eve
        peer.note_round(group, {bob}, set())
    assert peer.told == [(EVE.peer_id, "5 rounds that it led failed")]
