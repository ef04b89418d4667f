"""Hash tables in processes of their own on 127.0.0.1, which let in members only."""

import asyncio
import contextlib
import logging
import re
import sys
import time
from dataclasses import dataclass
from datetime import timedelta

import hivemind
import pytest
from auth_peers import AUTHORITY, RUN, RUN_KEY, identity, identity_file, issued, members
from hivemind.dht.protocol import DHTProtocol, ValidationError
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import P2PContext
from hivemind.proto import auth_pb2, dht_pb2
from hivemind.utils import get_dht_time

from dalle_lib.auth import (
    AccessToken,
    Authority,
    HeldToken,
    Identity,
    Members,
    Roster,
    TokenValidator,
    clock_offset_s,
    find_token,
    publish_token,
    token_key,
)
from dalle_lib.auth.authority import authority_key
from dalle_lib.auth.members import _message

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

NOBODY = "none of the initial_peers responded"


@dataclass
class Tables:
    """Starts hash tables, each in a process of its own and connected to the first."""

    started: list[hivemind.DHT]

    def start(self, name: str = "", authorizer: Members | None = None, **options) -> hivemind.DHT:
        """Return the table of a new peer, which carries a valid access token if it has a name."""
        if name:
            authorizer = authorizer or members(identity(name), issued(identity(name), name))
            options["identity_path"] = str(identity_file(name))
        table = hivemind.DHT(
            start=True,
            initial_peers=[str(address) for table in self.started[:1] for address in table.get_visible_maddrs()],
            host_maddrs=["/ip4/127.0.0.1/tcp/0"],
            authorizer=authorizer,
            record_validators=[TokenValidator(AUTHORITY.public_key, RUN, RUN_KEY)],
            check_if_identity_free=False,  # a table that was refused keeps its identity for a moment
            wait_timeout=6,
            **options,
        )
        self.started.append(table)
        return table


@pytest.fixture
def tables():
    tables = Tables([])
    yield tables
    for table in reversed(tables.started):
        table.shutdown()
        table.join(60)
    assert not any(table.is_alive() for table in tables.started)


def roster(table: hivemind.DHT) -> Roster:
    return Roster(AUTHORITY.public_key, RUN, RUN_KEY, table)


def test_members_share_a_table_and_find_each_others_access_tokens(tables):
    ada, bob = tables.start("ada"), tables.start("bob", client_mode=True)
    assert str(ada.peer_id) == identity("ada").peer_id
    assert bob.store("word", "good", get_dht_time() + 60)
    assert ada.get("word").value == "good"
    tokens = [table.run_coroutine(carried) for table in (ada, bob)]
    for table, token in zip((ada, bob), tokens, strict=True):
        assert publish_token(table, token, RUN_KEY)
        assert publish_token(table, token, RUN_KEY), "again"
    for table, token in (ada, tokens[1]), (bob, tokens[0]):
        assert asyncio.run(roster(table).member(token.peer_id)) == token
        assert roster(table).fetch(token.peer_id) == token
    assert asyncio.run(roster(ada).member("Qm-nobody")) is None
    assert abs(clock_offset_s(bob)) < 5


class Believing(Members):
    """Believes everybody, so that only the others' view of its access token decides."""

    def is_token_valid(self, access_token) -> bool:
        return True


def test_strangers_stay_outside_while_members_go_on(tables):
    tables.start("ada")
    other, eve = Authority.generate(), identity("eve")
    expired = Believing(eve, issued(eve, valid_for=timedelta(seconds=2)), AUTHORITY.public_key, RUN)
    foreign = Believing(eve, issued(eve, authority=other), other.public_key, RUN)
    elsewhere = Believing(eve, issued(eve, run="org/other"), AUTHORITY.public_key, "org/other")
    time.sleep(2.5)
    for name, authorizer in [("", None), ("eve", foreign), ("eve", elsewhere), ("eve", expired)]:
        with pytest.raises(RuntimeError, match=NOBODY):
            tables.start(name, authorizer)
    bob = tables.start("bob", Believing(identity("bob"), issued(identity("bob")), AUTHORITY.public_key, RUN))
    assert bob.store("word", "good", get_dht_time() + 60)
    assert tables.started[0].get("word").value == "good"


def test_a_member_does_not_believe_a_table_of_strangers(tables):
    other, eve = Authority.generate(), identity("eve")
    tables.start("eve", Believing(eve, issued(eve, authority=other), other.public_key, RUN))
    with pytest.raises(RuntimeError, match=NOBODY):
        tables.start("bob")


class Thief(Believing):
    """Shows an access token of another peer, with that peer's key or its own, and signs with its own."""

    def __init__(self, thief: Identity, stolen: AccessToken, with_own_key: bool) -> None:
        super().__init__(thief, issued(thief, "eve"), AUTHORITY.public_key, RUN)
        self._shown = _message(stolen)
        if with_own_key:
            self._shown.public_key = self.local_public_key.to_bytes()

    async def get_token(self) -> auth_pb2.AccessToken:
        return self._shown

    def does_token_need_refreshing(self, access_token) -> bool:
        return False


def test_a_stolen_access_token_is_worth_nothing_without_its_key(tables):
    tables.start("ada")
    stolen = issued(identity("bob"), "bob")
    for with_own_key in False, True:
        with pytest.raises(RuntimeError, match=NOBODY):
            tables.start("eve", Thief(identity("eve"), stolen, with_own_key))
    assert tables.start("bob", Thief(identity("bob"), stolen, with_own_key=True)).is_alive(), (
        "its owner is let in this way"
    )


def test_a_member_cannot_store_a_false_access_token(tables):
    ada, eve = tables.start("ada"), tables.start("eve", client_mode=True)
    bob = identity("bob")
    key = token_key(RUN_KEY, bob.peer_id)
    now = get_dht_time()
    true = issued(bob, "bob")
    for value, expires in [
        (issued(identity("eve"), "eve").to_bytes(), now + 60),
        (issued(bob, authority=Authority.generate()).to_bytes(), now + 60),
        (b"nonsense", now + 60),
        (true.to_bytes(), now + 1e9),
    ]:
        assert not eve.store(key, value, expires, subkey=bob.peer_id, exclude_self=True)
    assert not eve.store(key, true.to_bytes(), now + 1e9, exclude_self=True)
    assert asyncio.run(roster(ada).member(bob.peer_id)) is None
    assert publish_token(eve, true, RUN_KEY), "a true access token is true, whoever stores it"
    assert asyncio.run(roster(ada).member(bob.peer_id)) == true


def test_access_tokens_vanish_from_the_table_when_they_expire(tables):
    ada, bob = tables.start("ada"), tables.start("bob", client_mode=True)
    token = issued(identity("eve"), "eve", valid_for=timedelta(seconds=6))
    assert publish_token(ada, token, RUN_KEY)
    who = roster(bob)
    assert asyncio.run(who.member(token.peer_id)) == token
    time.sleep(max(0.0, token.expires.timestamp() - time.time()))
    assert who.known(token.peer_id) is None
    assert asyncio.run(who.member(token.peer_id)) is None
    assert not publish_token(ada, token, RUN_KEY)


@contextlib.contextmanager
def answers_to_find(change):
    """Let tables that start in this context answer look-ups with what `change` makes of the answer."""
    stock = DHTProtocol.rpc_find

    async def rpc_find(self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        return await change(await stock(self, request, context))

    DHTProtocol.rpc_find = rpc_find
    try:
        yield
    finally:
        DHTProtocol.rpc_find = stock


async def slowly(response):
    await asyncio.sleep(0.5)
    return response


async def says_nobody_for_ever(response):
    for item in response.results:
        item.type, item.expiration_time = dht_pb2.FOUND_DICTIONARY, float("inf")
        item.value = DHTProtocol.serializer.dumps(DictionaryDHTValue())
    return response


def test_one_liar_cannot_hide_a_member(tables):
    with answers_to_find(slowly):
        ada = tables.start("ada")
    with answers_to_find(says_nobody_for_ever):
        tables.start("eve")
    bob = tables.start("bob", client_mode=True)
    token = ada.run_coroutine(carried)
    assert publish_token(ada, token, RUN_KEY)
    assert bob.get(token_key(RUN_KEY, token.peer_id), latest=True).value == {}, (
        "hivemind's look-up is safe now: use it in auth/roster.py"
    )
    assert asyncio.run(roster(bob).member(token.peer_id)) == token


@contextlib.contextmanager
def clock(ahead_s: float):
    """Let the clocks of hash tables that start in this context be that many seconds ahead of ours."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith(("hivemind", "dalle_lib.auth")) and hasattr(module, "get_dht_time"):
                patch.setattr(module, "get_dht_time", lambda: time.time() + ahead_s)
        yield


@pytest.fixture
def log_file(tmp_path):
    """Return the file with what this process and its tables log about access."""
    handler = logging.FileHandler(tmp_path / "log")
    logging.getLogger("dalle_lib.auth").addHandler(handler)
    yield tmp_path / "log"
    logging.getLogger("dalle_lib.auth").removeHandler(handler)
    handler.close()


@pytest.mark.parametrize("ahead_s", [45, -90, 7200])
def test_a_user_whose_clock_is_off_is_told_even_if_they_are_not_let_in(tables, log_file, ahead_s):
    tables.start("ada")
    side = "ahead of" if ahead_s > 0 else "behind"
    with clock(ahead_s):
        bob = members(identity("bob"), issued(identity("bob"), "bob", valid_for=timedelta(hours=9)))
        with pytest.raises((ValidationError, RuntimeError), match=f"local time must be within|{NOBODY}"):
            tables.start("bob", bob, client_mode=True)  # nobody can ping it
    told = re.search(f"This computer's clock is (.*) s {side} that of 'ada'", log_file.read_text())
    assert float(told[1]) == pytest.approx(abs(ahead_s), abs=10)


def test_a_table_carries_its_renewed_access_token(tables, tmp_path):
    ada = identity("ada")
    old, new = issued(ada, valid_for=timedelta(minutes=5)), issued(ada, valid_for=timedelta(hours=5))
    held = HeldToken(tmp_path, ada.peer_id, authority_key(AUTHORITY.public_key), RUN)
    table = tables.start("ada", members(ada, old, newest=held.now))
    bob = tables.start("bob")
    assert bob.store("word", 1, get_dht_time() + 60)
    held.keep(new.to_bytes())
    assert table.get("another word") is None, "this calls bob"
    assert table.run_coroutine(carried) == new
    found = find_token(bob, RUN_KEY, ada.peer_id, AUTHORITY.public_key, RUN)
    assert publish_token(table, new, RUN_KEY)
    assert asyncio.run(found) == new


async def carried(_dht, node) -> AccessToken:
    """Return the access token that a table sends."""
    return node.protocol.authorizer.token
