"""Only access tokens are stored among access tokens, and only their peers are members."""

import asyncio
import threading
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import hivemind
import pytest
from auth_peers import AUTHORITY, RUN, RUN_KEY, identity, issued
from hivemind.averaging.matchmaking import MatchmakingException
from hivemind.dht import DHTID
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MPFuture
from test_matchmaking import matchmaking_of, told_by

from dalle_lib.auth import AccessToken, Authority, Refused, Role, Roster, TokenValidator, token_key


def record(token: AccessToken, **changes) -> DHTRecord:
    """Return the record of an access token in the hash table, with these fields changed."""
    dumps = DHTProtocol.serializer.dumps
    fields = {
        "key": DHTID.generate(token_key(RUN_KEY, token.peer_id)).to_bytes(),
        "subkey": dumps(token.peer_id),
        "value": dumps(token.to_bytes()),
        "expiration_time": token.expires.timestamp(),
    }
    return DHTRecord(**{**fields, **changes})


def test_only_access_tokens_are_stored_each_under_its_peer_until_it_expires():
    validator = TokenValidator(AUTHORITY.public_key, RUN, RUN_KEY)
    ada, bob = identity("ada"), identity("bob")
    token = issued(ada)
    dumps = DHTProtocol.serializer.dumps
    assert validator.validate(record(token))
    assert validator.validate(record(issued(ada, valid_for=timedelta(seconds=-5)))), "clocks are not compared"
    bobs_key = DHTID.generate(token_key(RUN_KEY, bob.peer_id)).to_bytes()
    assert bobs_key != record(token).key
    for changed in [
        record(token, subkey=dumps(bob.peer_id)),
        record(token, key=bobs_key),
        record(token, key=bobs_key, subkey=dumps(bob.peer_id)),
        record(token, subkey=DHTProtocol.IS_REGULAR_VALUE),
        record(token, expiration_time=token.expires.timestamp() + 1),
        record(token, expiration_time=token.expires.timestamp() - 1),
        record(token, expiration_time=float("inf")),
        record(token, value=token.to_bytes()),
        record(token, value=dumps(token.to_bytes().decode("latin-1"))),
        record(token, value=record(token).value + b"\0"),
        record(token, value=b"\xda" + record(token).value[1:]),
        record(token, value=b""),
        record(token, value=dumps({"a": 1})),
        record(issued(ada, authority=Authority.generate())),
        record(issued(ada, run="org/other")),
        record(replace(token, role=Role.VOUCHED)),
    ]:
        assert not validator.validate(changed), changed
    for other in record(token, key=DHTID.generate("other").to_bytes()), record(token, key=b"", value=b"\xc1"):
        assert validator.validate(other)


def test_a_thousand_peers_are_spread_over_small_dictionaries():
    keys = [token_key(RUN_KEY, f"peer {number}") for number in range(1000)]
    assert max(map(keys.count, keys)) < 20
    validator = TokenValidator(AUTHORITY.public_key, RUN, RUN_KEY)
    assert {DHTID.generate(key).to_bytes() for key in keys} <= validator._keys


class StandInTable(hivemind.DHT):
    """A hash table that answers each look-up from `held`, after a moment."""

    def __init__(self, **held: AccessToken) -> None:
        self.held, self.lookups = {token.peer_id: {token.to_bytes()} for token in held.values()}, []
        self._parent_pid = None

    def run_coroutine(self, coro, return_future: bool = False):
        self.lookups.append(coro.keywords["peer_id"])
        answer = MPFuture()
        threading.Timer(0.05, answer.set_result, [self.held.get(self.lookups[-1], set())]).start()
        return answer if return_future else answer.result()


def roster(table: hivemind.DHT) -> Roster:
    return Roster(AUTHORITY.public_key, RUN, RUN_KEY, table)


def test_a_member_is_looked_up_once():
    token = issued(identity("ada"))

    async def meet() -> None:
        assert who.known(token.peer_id) is None
        assert await asyncio.gather(*(who.member(token.peer_id) for _ in range(5))) == 5 * [token]
        assert await who.member(token.peer_id) == who.known(token.peer_id) == token

    table = StandInTable(ada=token)
    who = roster(table)
    asyncio.run(meet())
    assert len(table.lookups) == 1


def test_those_who_cannot_await_a_member_fetch_it_once():
    token = issued(identity("ada"))
    table = StandInTable(ada=token)
    who = roster(table)
    for _ in range(3):
        assert who.fetch(token.peer_id) == who.known(token.peer_id) == token
        assert who.fetch("nobody") is None
    assert asyncio.run(who.member("nobody")) is None
    assert table.lookups == [token.peer_id, "nobody"]


def test_a_caller_who_gives_up_does_not_spoil_the_look_up_of_others():
    token = issued(identity("ada"))

    async def meet() -> None:
        first, second = (asyncio.create_task(who.member(token.peer_id)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == token

    who = roster(StandInTable(ada=token))
    asyncio.run(meet())


def test_a_missing_peer_is_looked_up_again_after_a_second():
    token = issued(identity("ada"))

    async def meet() -> None:
        for _ in range(5):
            assert await who.member(token.peer_id) is None
        table.held[token.peer_id] = {token.to_bytes()}
        await asyncio.sleep(1.0)
        assert await who.member(token.peer_id) == token

    table = StandInTable()
    who = roster(table)
    asyncio.run(meet())
    assert len(table.lookups) == 2


def test_only_a_valid_access_token_of_that_peer_is_believed():
    ada = identity("ada")
    bad = {
        issued(ada, authority=Authority.generate()).to_bytes(),
        issued(ada, run="org/other").to_bytes(),
        issued(ada, valid_for=timedelta(seconds=-1)).to_bytes(),
        issued(identity("eve")).to_bytes(),
        b"",
        b"nonsense",
    }
    older, newer = issued(ada), issued(ada, valid_for=timedelta(hours=2))
    table = StandInTable()
    table.held[ada.peer_id] = bad
    assert asyncio.run(roster(table).member(ada.peer_id)) is None
    table.held[ada.peer_id] = bad | {older.to_bytes(), newer.to_bytes()}
    assert asyncio.run(roster(table).member(ada.peer_id)) == newer


def test_a_member_is_known_until_its_access_token_expires(monkeypatch):
    token = issued(identity("ada"))
    table = StandInTable(ada=token)
    who = roster(table)
    assert asyncio.run(who.member(token.peer_id)) == token
    monkeypatch.setattr("dalle_lib.auth.roster.get_dht_time", lambda: token.expires.timestamp())
    assert who.known(token.peer_id) is None
    assert asyncio.run(who.member(token.peer_id)) is None
    assert len(table.lookups) == 2


def test_a_shown_access_token_is_learnt_if_it_is_that_peers():
    ada, eve = identity("ada"), identity("eve")
    who = roster(StandInTable())
    token, newer = issued(ada), issued(ada, valid_for=timedelta(hours=2), role=Role.VOUCHED)
    for peer, shown, reason in [
        (eve.peer_id, token, "is for peer"),
        (ada.peer_id, issued(ada, authority=Authority.generate()), "not signed"),
        (ada.peer_id, issued(ada, valid_for=timedelta(0)), "expired"),
    ]:
        with pytest.raises(Refused, match=reason):
            who.learn(peer, shown)
        assert who.known(peer) is None
    for shown, known in (token, token), (newer, newer), (token, newer):
        who.learn(ada.peer_id, shown)
        assert who.known(ada.peer_id) == known
    who.learn(eve.peer_id, issued(eve, "eve"))
    assert who.known(ada.peer_id) == newer
    assert who.known(eve.peer_id).user == "eve"


def test_a_users_peers_are_counted_also_in_the_round_in_which_they_are_met_first():
    roster = Roster(AUTHORITY.public_key, RUN, RUN_KEY, hivemind.DHT(start=False))
    follower = matchmaking_of(identity("eve"), roster=roster, max_peers_per_user=1)
    told = {
        PeerID.from_base58(peer.peer_id): told_by(peer, token=issued(peer, user).to_bytes())
        for peer, user in ((identity("eve"), "eve"), (identity("ada"), "ada"), (identity("bob"), "ada"))
    }
    follower.step_control = SimpleNamespace(data_for_gather=told[follower.peer_id])
    ids = [peer.to_bytes() for peer in told]
    group = averaging_pb2.MessageFromLeader(ordered_peer_ids=ids, gathered=list(told.values()))
    with pytest.raises(MatchmakingException, match="'ada' has 2 peers in it, but at most 1 may take part"):
        asyncio.run(follower.follower_assemble_group(PeerID.from_base58(identity("bob").peer_id), group))
