"""What strangers show and tell before a round counts or is refused: access tokens, calls, requests to join, groups."""

import asyncio
import contextlib
import math
from datetime import UTC, datetime
from types import SimpleNamespace
from unittest.mock import Mock, patch

import hivemind
import pytest
from auth_peers import AUTHORITY, RUN, RUN_KEY, identity, issued, members
from google.protobuf.message import DecodeError, Message
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import MatchmakingException
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2, dht_pb2
from hivemind.utils import get_dht_time
from hypothesis import given
from hypothesis import strategies as st
from mutations import REFUSED, answer_of, mutated, protobuf
from test_matchmaking import ROUNDS, matchmaking_of, told_by

from dalle_lib.auth import AccessToken, Members, Roster
from dalle_lib.auth.authority import authority_key
from dalle_lib.auth.roster import _best
from dalle_lib.swarm import wire
from dalle_lib.swarm.averaging import introductions
from dalle_lib.swarm.averaging.introductions import Introduction, read
from dalle_lib.swarm.averaging.matchmaking import MemberMatchmaking
from dalle_lib.swarm.averaging.trust import Trust

ADA, BOB = identity("ada"), identity("bob")
ADAS_ID, BOBS_ID = (PeerID.from_base58(peer.peer_id) for peer in (ADA, BOB))
TOKEN, BOBS = issued(ADA), issued(BOB, "bob")
KEY = authority_key(AUTHORITY.public_key)

tokens = mutated(TOKEN.to_bytes(), BOBS.to_bytes())


@given(tokens)
def test_access_tokens(data):
    token = answer_of(AccessToken.from_bytes, data)
    if token is not REFUSED:
        assert token.to_bytes() == data
        is_valid = answer_of(token.check, KEY, RUN, datetime.now(UTC)) is not REFUSED
        assert is_valid == (data in (TOKEN.to_bytes(), BOBS.to_bytes()))


@given(st.sets(tokens))
def test_access_tokens_that_the_hash_table_holds(copies):
    found = _best(copies, ADA.peer_id, AUTHORITY.public_key, RUN)
    assert found == (TOKEN if TOKEN.to_bytes() in copies else None)


@given(tokens, tokens)
def test_access_tokens_that_peers_show(shown, later):
    async def ask() -> list[str | None]:
        roster = Roster(AUTHORITY.public_key, RUN, RUN_KEY, hivemind.DHT(start=False))
        roster._missed[ADA.peer_id] = math.inf  # nobody is asked
        trust = Trust(roster=roster)
        return [await trust.refusal(ADA.peer_id, token) for token in (shown, later)]

    refusals = asyncio.run(ask())
    assert (refusals[0] is None) == (shown == TOKEN.to_bytes())
    assert all(refusal is None or refusal for refusal in refusals)


@given(st.text() | mutated(AUTHORITY.public_key.encode()).map(lambda key: key.decode("latin-1")))
def test_an_authoritys_key(text):
    answer_of(authority_key, text)


REQUESTS = [dht_pb2.PingRequest(), dht_pb2.FindRequest(keys=[bytes(20)]), dht_pb2.StoreRequest(keys=[bytes(20)])]
RESPONSES = [dht_pb2.PingResponse(), dht_pb2.FindResponse(results=[dht_pb2.FindResult()])]


async def signed_by(peer: Members, call: Message, is_answer: bool) -> Message:
    await (peer.sign_response(call, REQUESTS[0]) if is_answer else peer.sign_request(call, None))
    return call


def unsigned(call: Message) -> bytes:
    """Return the bytes of a call that are signed: the signature's own can be written in several ways."""
    copy = type(call)()
    copy.CopyFrom(call)
    copy.auth.signature = b""
    return copy.SerializeToString()


SIGNED = [asyncio.run(signed_by(members(BOB, BOBS), call, is_answer=False)) for call in REQUESTS]
ANSWERS = [asyncio.run(signed_by(members(BOB, BOBS), call, is_answer=True)) for call in RESPONSES]


@given(st.one_of(map(protobuf, SIGNED)), st.one_of(map(protobuf, ANSWERS)))
def test_calls_of_the_hash_table_between_members(request, answer):
    async def ask() -> tuple[bool, bool]:
        ours = members(ADA, TOKEN)
        return await ours.validate_request(request), await ours.validate_response(answer, REQUESTS[0])

    for is_valid, call, real in zip(asyncio.run(ask()), (request, answer), (SIGNED, ANSWERS), strict=True):
        assert not is_valid or unsigned(call) in map(unsigned, real)


def test_a_call_with_a_long_nonce_is_none():
    """hivemind remembers each for three minutes: a member's calls of 2 MB would fill the memory."""

    async def ask(nonce: bytes) -> bool:
        bob = members(BOB, BOBS)
        request = await signed_by(bob, dht_pb2.FindRequest(), is_answer=False)
        request.auth.nonce, request.auth.signature = nonce, b""
        request.auth.signature = BOB.private_key.sign(request.SerializeToString())
        return await members(ADA, TOKEN).validate_request(request)

    assert asyncio.run(ask(bytes(8)))
    assert not asyncio.run(ask(bytes(2000)))


@pytest.fixture(scope="module", autouse=True)
def _ids_are_made_as_in_a_peer():
    with patch.object(PeerID, "__init__", wire.name_peer):
        yield


@pytest.fixture(scope="module", autouse=True)
def _introductions_count_as_long_as_the_tests_last():
    """They are made when pytest reads this file; on a busy machine that is more than VALID_S before the tests."""
    with patch.object(introductions, "VALID_S", 86_400.0):
        yield


JOIN = averaging_pb2.JoinRequest(
    schema_hash=b"schema", expiration=get_dht_time() + 9, gather=told_by(BOB), group_key="run_grad_averager.0b"
)


@given(protobuf(JOIN))
def test_matchmaking_refusal(request):
    leader = matchmaking_of(ADA, is_by_epoch=True)
    leader.step_control, leader.current_followers = SimpleNamespace(data_for_gather=told_by(ADA)), {}
    if asyncio.run(leader.refusal(BOBS_ID, request)) is None:
        assert read(request.gather, BOBS_ID, ROUNDS) == read(JOIN.gather, BOBS_ID, ROUNDS)


OWN, BOBS_OWN = told_by(ADA), told_by(BOB)
ACCEPTED = averaging_pb2.MessageFromLeader(code=averaging_pb2.ACCEPTED)
BEGUN = averaging_pb2.MessageFromLeader(
    code=averaging_pb2.BEGIN_ALLREDUCE,
    group_id=bytes(20),
    ordered_peer_ids=[ADAS_ID.to_bytes(), BOBS_ID.to_bytes()],
    gathered=[OWN, BOBS_OWN],
)
DISBANDED = averaging_pb2.MessageFromLeader(
    code=averaging_pb2.GROUP_DISBANDED, suggested_leader=BOBS_ID.to_bytes(), ordered_peer_ids=[b"x" * 65]
)
OTHERS = [averaging_pb2.MessageFromLeader(code=code) for code in (99, averaging_pb2.NOT_A_LEADER)]


def asked_of(leader: PeerID, answers: list[Message | Exception]) -> tuple[GroupInfo | None, MemberMatchmaking]:
    """Return the group that a follower finds which asks a leader that answers so, and the follower."""

    async def told():
        for each in answers:
            if isinstance(each, Exception):
                raise each
            yield each

    async def rpc_join_group(_request: averaging_pb2.JoinRequest):
        return told()

    async def ask() -> tuple[GroupInfo | None, MemberMatchmaking]:
        follower = matchmaking_of(ADA)
        follower.step_control, follower.current_followers = SimpleNamespace(data_for_gather=OWN), {}
        follower.lock_request_join_group, follower.was_accepted_to_group = asyncio.Lock(), asyncio.Event()
        follower.group_key_manager.peer_id = ADAS_ID
        follower.current_leader, follower.assembled_group = None, asyncio.Future()
        follower.request_timeout, follower.schema_hash, follower.client_mode = 5.0, b"schema", False
        follower._p2p, follower._servicer_type = None, Mock()
        follower._servicer_type.get_stub.return_value = SimpleNamespace(rpc_join_group=rpc_join_group)
        follower.potential_leaders = Mock(pause_search=contextlib.AsyncExitStack)
        follower.potential_leaders.declared_expiration_time = get_dht_time() + 10
        async with follower.lock_looking_for_group:
            try:
                return await follower._request_join_group(leader), follower
            except MatchmakingException:
                return None, follower

    return asyncio.run(ask())


def test_the_group_of_an_honest_leader_is_found():
    group, follower = asked_of(BOBS_ID, [ACCEPTED, BEGUN])
    assert group.peer_ids == (ADAS_ID, BOBS_ID)
    assert not follower.told


@given(
    st.lists(protobuf(ACCEPTED, BEGUN, DISBANDED, *OTHERS), max_size=3) | protobuf(BEGUN).map(lambda m: [ACCEPTED, m])
)
def test_matchmaking_request_join_group(answers):
    group, _ = asked_of(BOBS_ID, answers)
    if group is not None:
        told = {peer: read(each, peer, ROUNDS) for peer, each in zip(group.peer_ids, group.gathered, strict=True)}
        assert told.keys() <= {ADAS_ID, BOBS_ID}
        assert set(told.values()) == {Introduction(5)}


@pytest.mark.parametrize(
    "answers",
    [
        [OTHERS[0]],
        [ACCEPTED, OTHERS[0]],
        [DecodeError("Error parsing message")],
        [TypeError("Invalid Protobuf message type")],
        [ACCEPTED, averaging_pb2.MessageFromLeader(code=17, suggested_leader=bytes(10**5))],
        [ACCEPTED, averaging_pb2.MessageFromLeader(code=3, group_id=bytes(10**5), ordered_peer_ids=[b"x"])],
    ],
)
def test_a_leader_whose_answer_is_none_costs_no_round_and_is_avoided(answers):
    """hivemind gave up the round of whoever asked it, and wrote an id of megabytes in base 58 for an hour."""
    group, follower = asked_of(BOBS_ID, answers)
    assert group is None
    assert [who for who, _ in follower.told] == [BOB.peer_id]
    assert BOBS_ID in follower.avoided
