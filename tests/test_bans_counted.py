"""A ban counts in calls, in the roster and in what is looked up, as soon as the file in the folder changes."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from auth_peers import AUTHORITY, RUN, RUN_KEY, identity, issued, members
from hivemind.proto import dht_pb2
from test_auth_members import accepts, ping
from test_auth_roster import StandInTable

from dalle_lib.auth import Bans, Refused, Roster
from dalle_lib.auth.authority import authority_key
from dalle_lib.auth.bans import BANS


def write(folder: Path, serial: int, users: tuple[str, ...] = (), peers: tuple[str, ...] = ()) -> None:
    bans = AUTHORITY.sign_bans(RUN, serial, users, peers, timedelta(hours=1))
    (folder / BANS).write_bytes(bans.to_bytes())


def bans_in(folder: Path) -> Bans:
    return Bans(folder / BANS, authority_key(AUTHORITY.public_key), RUN)


def test_members_take_no_call_of_a_banned_user_or_peer(tmp_path):
    ada = members(identity("ada"), issued(identity("ada")), bans=bans_in(tmp_path))
    bob = members(identity("bob"), issued(identity("bob"), "Bob"))
    find = dht_pb2.FindRequest(keys=[b"key"])
    asyncio.run(bob.sign_request(find, None))
    assert accepts(ada, find)
    for serial, banned in (1, {"users": ["bob"]}), (3, {"peers": [identity("bob").peer_id]}):
        write(tmp_path, serial, **banned)
        assert not accepts(ada, ping(bob))
        assert not ada.is_token_valid(asyncio.run(bob.get_token()))
        write(tmp_path, serial + 1, users=("others",))
        assert accepts(ada, ping(bob))


def test_a_roster_forgets_who_is_banned_and_looks_up_nobody_who_is(tmp_path):
    token = issued(identity("bob"), "bob")
    table = StandInTable(bob=token)
    roster = Roster(AUTHORITY.public_key, RUN, RUN_KEY, table, bans_in(tmp_path))
    assert roster.fetch(token.peer_id) == token
    write(tmp_path, 1, users=("bob",))
    assert roster.known(token.peer_id) is None
    assert roster.fetch(token.peer_id) is None
    assert asyncio.run(roster.member(token.peer_id)) is None
    with pytest.raises(Refused, match="banned"):
        roster.learn(token.peer_id, token)
