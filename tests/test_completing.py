"""When the group that a peer leads begins, by the rules of expected.py; and whom a peer asks to lead it once more."""

import asyncio
import random
import time
from functools import partial
from types import SimpleNamespace

import pytest
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time
from test_matchmaking import ADA, BOB, EVE, matchmaking_of, told_by

from dalle_lib.auth import Identity
from dalle_lib.swarm.averaging import completing, group_keys, matchmaking
from dalle_lib.swarm.averaging.completing import MAX_IN_VAIN
from dalle_lib.swarm.averaging.expected import GroupPatience, Told

EPOCH = 5
OWN, BOBS, EVES = (PeerID.from_base58(each.peer_id) for each in (ADA, BOB, EVE))


@pytest.fixture
def assembled(monkeypatch) -> list[set[PeerID]]:
    """The groups that were assembled."""
    groups = []

    async def assemble(self) -> GroupInfo:
        groups.append({self.peer_id, *self.current_followers})
        group = GroupInfo(b"", (), ())
        self.assembled_group.set_result(group)
        return group

    monkeypatch.setattr(Matchmaking, "leader_assemble_group", assemble)
    return groups


def follower(identity: Identity) -> SimpleNamespace:
    """Return the request of a peer that follows another."""
    return SimpleNamespace(gather=told_by(identity, EPOCH))


def step() -> SimpleNamespace:
    """Return the handle of a round of Ada's, whose epoch has ended."""
    return SimpleNamespace(data_for_gather=told_by(ADA, EPOCH), triggered=True)


def leader(*, is_by_epoch: bool = False, waited_s: float = 0.0, longest_s: float = 60.0, **told: bool):
    """Return the matchmaking of Ada, whom Bob follows, who expects Bob and Eve, and was waiting for so long."""
    made = matchmaking_of(ADA, is_by_epoch=is_by_epoch)
    made.patience, made.min_matchmaking_time = GroupPatience(least_s=5.0, longest_s=longest_s), longest_s
    made.potential_leaders = SimpleNamespace(
        declared_expiration_time=get_dht_time() + longest_s - waited_s, update_triggered=asyncio.Event()
    )
    made.step_control = step()
    made.current_leader, made.lock_request_join_group = None, asyncio.Lock()
    made.assembled_group, made._epoch = asyncio.Future(), EPOCH
    made.current_followers[BOBS] = follower(BOB)
    others = {peer.to_bytes(): Told(get_dht_time(), **told) for peer in (BOBS, EVES)}
    made.expected.tell(EPOCH, others)
    made.group_key_manager.looking = {OWN, BOBS}
    return made


def test_a_group_begins_when_the_last_has_come_and_not_before(assembled):
    async def search() -> None:
        peer = leader()
        peer.step_control = None
        async with peer.looking_for_group(step()):
            assert not peer._is_complete(), "it has not looked for others in this search"
            peer.group_key_manager.looking = {OWN, BOBS}
            assert not peer._is_complete()
            peer.step_control.triggered = False
            peer.current_followers[EVES] = follower(EVE)
            assert not peer._is_complete(), "its epoch has not ended"
            peer.step_control.triggered = True
            await asyncio.wait_for(peer.assembled_group, 30)
            assert not peer._is_complete()

    asyncio.run(search())
    assert assembled == [{OWN, BOBS, EVES}]


def test_who_follows_or_is_about_to_begins_no_group(assembled):
    async def search() -> None:
        peer = leader()
        peer.step_control, peer.current_followers[EVES] = None, follower(EVE)
        async with peer.looking_for_group(step()):
            peer.group_key_manager.looking = {OWN}
            async with peer.lock_request_join_group:  # it asks another peer
                await asyncio.sleep(completing.LOOK_EVERY_S)
                peer.current_leader = EVES
            await asyncio.sleep(completing.LOOK_EVERY_S)

    asyncio.run(search())
    assert assembled == []


async def given(records: dict, *_where) -> dict:
    """Return these records, wherever they are looked for."""
    return records


def in_a_loop(make) -> bool:
    async def made() -> bool:
        return make()._is_complete()

    return asyncio.run(made())


def test_it_waits_for_peers_that_are_there_up_to_the_longest_time():
    assert not in_a_loop(lambda: leader(waited_s=50))
    assert not in_a_loop(lambda: leader(waited_s=4))

    def without_eve():
        peer = leader(waited_s=4)
        peer.expected.tell(EPOCH, {BOBS.to_bytes(): Told(get_dht_time())})
        return peer

    assert in_a_loop(without_eve)


def test_newcomers_come_to_rounds_of_parameters_alone_and_are_not_waited_for_longer():
    assert in_a_loop(lambda: leader(counts=False))
    assert not in_a_loop(lambda: leader(counts=False, is_by_epoch=True))
    assert in_a_loop(lambda: leader(is_by_epoch=True, waited_s=6)), "not all average parameters in each epoch"


def test_who_is_shut_out_is_not_waited_for():
    def shut_out():
        peer = leader()
        peer.shut_out[EVES] = time.monotonic() + 60
        peer.group_key_manager.looking.add(EVES)
        return peer

    assert in_a_loop(shut_out)


@pytest.mark.parametrize("returns", [False, True])
def test_who_looked_for_a_group_and_does_no_more_is_not_waited_for_longer(returns, monkeypatch):
    """It leaves, or averages in another group, though it has just told of its progress."""

    async def begins_after(says: list[bool]) -> list[bool]:
        peer, begun = leader(waited_s=6), []
        keys = peer.group_key_manager
        keys.begin_search()
        for looks in says:
            found = {BOBS: True, EVES: looks}
            records = {who: ValueWithExpiration(value, get_dht_time() + 60) for who, value in found.items()}
            monkeypatch.setattr(group_keys, "records_under", partial(given, records))
            keys._next_look = 0.0
            await keys.get_averagers("key", only_active=True)
            begun.append(peer._is_complete())
        return begun

    assert asyncio.run(begins_after([False])) == [False], "that is of the search before"
    assert asyncio.run(begins_after([True, False, returns, returns])) == [False, True, not returns, not returns]


def test_who_is_expected_in_vain_again_and_again_makes_groups_wait_no_longer(assembled):
    async def epochs() -> list[bool]:
        begun, in_vain = [], {}
        for _ in range(MAX_IN_VAIN + 2):
            peer = leader(waited_s=6)
            peer.group_key_manager.looking.add(EVES)
            peer.in_vain = in_vain
            begun.append(peer._is_complete())
            await peer.leader_assemble_group()
        for _ in range(3):
            peer = leader(waited_s=6)
            peer.in_vain = in_vain
            peer.current_followers[EVES] = follower(EVE)
            await peer.leader_assemble_group()
            begun.append(EVES in peer._given_up())
        return begun

    assert asyncio.run(epochs()) == [*[False] * (MAX_IN_VAIN + 1), True, *[True, False, False]]


def test_who_comes_to_one_of_four_groups_is_waited_for_no_more_either(assembled):
    async def waits() -> list[bool]:
        begun, in_vain = [], {}
        for number in range(16):
            peer = leader(waited_s=6)
            peer.in_vain = in_vain
            if number % 4 == 3:
                peer.current_followers[EVES] = follower(EVE)
            else:
                peer.group_key_manager.looking.add(EVES)
                begun.append(peer._is_complete())
            await peer.leader_assemble_group()
        return begun

    assert asyncio.run(waits()) == [False] * 4 + [True] * 8


@pytest.mark.parametrize("is_led", [True, False])
def test_a_group_that_is_sent_away_before_its_end_tells_who_was_missing_in_vain(is_led):
    async def send_away() -> dict:
        peer = leader()
        peer.current_leader = None if is_led else BOBS
        async with peer.lock_request_join_group:
            await peer.leader_disband_group()
        return peer.in_vain

    assert asyncio.run(send_away()) == ({EVES: 1} if is_led else {})


def test_nobody_waits_for_a_peer_that_was_not_let_in():
    async def refuse() -> list[bool]:
        peer = leader(waited_s=6)
        peer.group_key_manager.looking.add(EVES)
        waits = peer._is_complete()
        problem = await peer.refusal(EVES, SimpleNamespace(gather=told_by(EVE, EPOCH - 2)))
        assert problem == f"it is in epoch {EPOCH - 2}"
        return [waits, peer._is_complete()]

    assert asyncio.run(refuse()) == [False, True]


def test_a_leader_that_does_not_answer_in_time_is_asked_once_more(monkeypatch):
    """On a busy machine an honest one may be late: whoever asked no more led a group of its own."""
    follower, now = matchmaking_of(ADA), [0.0]
    follower.request_timeout, follower.get_request_expiration_time = 3.0, lambda: now[0] + 10
    monkeypatch.setattr(matchmaking, "get_dht_time", lambda: now[0])

    async def silent(self, leader):
        self.potential_leaders.past_attempts.add((leader, 10.0))
        now[0] += 3.1

    async def attempts_of_two_searches() -> list[int]:
        left = []
        for _ in range(2):
            follower.potential_leaders = SimpleNamespace(past_attempts={(follower.peer_id, 5.0)})
            follower.again, follower.searches_since = set(), now[0]
            for _ in range(2):
                assert await follower._request_join_group(BOBS) is None
                left.append(len(follower.potential_leaders.past_attempts))
        return left

    monkeypatch.setattr(Matchmaking, "_request_join_group", silent)
    assert asyncio.run(attempts_of_two_searches()) == [1, 2, 1, 2]
    assert follower.wasted[BOBS] == 2, "it counts once in a search"


def test_groups_that_come_to_no_round_take_no_memory(monkeypatch):
    async def assembled(self) -> GroupInfo:
        return GroupInfo(random.randbytes(20), (self.peer_id,), (b"",))

    monkeypatch.setattr(Matchmaking, "leader_assemble_group", assembled)
    peer = matchmaking_of(ADA)
    for _ in range(100):
        group = asyncio.run(peer.leader_assemble_group())
        assert peer.leader_of[group.group_id] == peer.peer_id
    assert len(peer.leader_of) <= matchmaking.MAX_GROUPS
