"""Members accept each other's calls, renew their access tokens, and tell whose clock is off."""

import asyncio
import os
import re
import time
from datetime import timedelta

import pytest
from auth_peers import AUTHORITY, RUN, identity, issued, members
from hivemind.proto import auth_pb2, dht_pb2

from dalle_lib.auth import AccessToken, HeldToken, Members, Refused
from dalle_lib.auth.authority import authority_key, write_private
from dalle_lib.auth.clocks import ClockWatch
from dalle_lib.swarm.peer.membership import TOKEN, access_token


def test_a_peer_carries_no_access_token_of_another():
    stolen = issued(identity("ada"))
    with pytest.raises(Refused, match=f"is for peer {identity('ada').peer_id}, but this is"):
        members(identity("eve"), stolen)
    with pytest.raises(Refused, match="expired"):
        members(identity("ada"), issued(identity("ada"), valid_for=timedelta(seconds=-1)))
    with pytest.raises(ValueError, match="in base64"):
        Members(identity("ada"), stolen, "no key", RUN)


def test_an_expired_access_token_is_not_believed(monkeypatch):
    ada, bob = (members(identity(name), issued(identity(name), name)) for name in ("ada", "bob"))
    shown = asyncio.run(ada.get_token())
    for late_s, is_believed in (-1, True), (0, False):
        now = ada.token.expires.timestamp() + late_s
        monkeypatch.setattr("dalle_lib.auth.members.get_dht_time", lambda now=now: now)
        assert bob.is_token_valid(shown) == is_believed


def test_hiveminds_fields_must_say_what_the_authority_signed():
    ada, bob = (members(identity(name), issued(identity(name), name)) for name in ("ada", "bob"))
    shown = asyncio.run(ada.get_token())
    theirs = asyncio.run(bob.get_token())
    assert bob.is_token_valid(shown)
    for field in "username", "public_key", "expiration_time", "signature":
        changed = auth_pb2.AccessToken()
        changed.CopyFrom(shown)
        setattr(changed, field, type(getattr(shown, field))())
        assert not bob.is_token_valid(changed), field
        setattr(changed, field, getattr(theirs, field))
        assert bob.is_token_valid(changed) == (field == "expiration_time" and shown == changed), field


def ping(sender: Members, **auth) -> dht_pb2.PingRequest:
    """Return a ping that `sender` has signed as hivemind does, with these fields of `auth` changed before that."""
    request = dht_pb2.PingRequest()
    return signed(request, sender, **auth)


def signed(request, sender: Members, **auth):
    """Return the request, signed by `sender`, with these fields of `auth` changed before that."""
    asyncio.run(sender.sign_request(request, None))
    request.auth.signature = b""
    for field, value in auth.items():
        setattr(request.auth, field, value)
    request.auth.signature = sender._local_private_key.sign(request.SerializeToString())
    return request


def accepts(receiver: Members, request) -> bool:
    """Return whether `receiver` accepts a copy of the request: validating changes it."""
    copy = type(request)()
    copy.CopyFrom(request)
    return asyncio.run(receiver.validate_request(copy))


def test_a_call_counts_once_and_for_a_minute():
    ada, bob = (members(identity(name), issued(identity(name), name)) for name in ("ada", "bob"))
    find = signed(dht_pb2.FindRequest(keys=[b"key"]), bob)
    assert accepts(ada, find)
    assert not accepts(ada, find), "replayed"
    now = time.time()
    for ahead_s, counts in [(50, True), (-50, True), (70, False), (-70, False), (float("nan"), False)]:
        late = signed(dht_pb2.FindRequest(keys=[b"key"]), bob, time=now + ahead_s)
        assert accepts(ada, late) == counts, ahead_s


def test_a_members_ping_is_answered_whatever_its_clock(monkeypatch):
    ada, bob = (members(identity(name), issued(identity(name), name)) for name in ("ada", "bob"))
    for ahead_s in 70, -70, -1e9:
        assert accepts(ada, ping(bob, time=time.time() + ahead_s))
    assert accepts(ada, ping(bob, time=float("nan")))
    assert ada.clocks.offset_s == pytest.approx(1e9, abs=5), "the last difference that is a number"
    forged = ping(bob, time=time.time() + 70)
    forged.auth.signature = forged.auth.signature[:-8] + b"AAAAAAA="
    assert not accepts(ada, forged)
    unsigned = ping(bob, time=time.time() + 70)
    unsigned.auth.client_access_token.Clear()
    assert not accepts(ada, unsigned)
    tomorrow = time.time() + 86400
    monkeypatch.setattr("dalle_lib.auth.members.get_dht_time", lambda: tomorrow)
    assert not accepts(ada, ping(bob, time=tomorrow + 70)), "the sender's access token has expired"


def test_the_newest_access_token_is_sent_unless_it_does_not_count(tmp_path):
    ada = identity("ada")
    old, new = issued(ada, valid_for=timedelta(minutes=9)), issued(ada, valid_for=timedelta(minutes=30))
    held = HeldToken(tmp_path, ada.peer_id, authority_key(AUTHORITY.public_key), RUN)
    peer = members(ada, old, newest=held.now)

    def sent() -> AccessToken:
        request = dht_pb2.PingRequest()
        asyncio.run(peer.sign_request(request, None))
        return AccessToken.from_bytes(request.auth.client_access_token.signature)

    assert sent() == old
    held.keep(new.to_bytes())
    assert sent() == new
    expired, others = issued(ada, valid_for=timedelta(seconds=-1)), issued(identity("eve"))
    for token in expired, others:
        write_private(held.file, token.to_bytes())
        assert sent() == new
        with pytest.raises(Refused, match=r"expired|is for peer"):
            held.keep(token.to_bytes())
    assert held.now() is None
    write_private(held.file, expired.to_bytes())
    assert (held.now(), held.counting()) == (expired, None)


def test_a_clock_that_is_off_is_logged_once(caplog):
    watch = ClockWatch()
    assert watch.offset_s is None
    for _ in range(3):
        watch.hear(b"1", "ada", 45.0)
    assert [record.getMessage().split(".")[0] for record in caplog.records] == [
        "This computer's clock is 45 s behind that of 'ada'"
    ]
    assert watch.offset_s == -45


def test_clocks_within_half_a_minute_are_not_logged(caplog):
    watch = ClockWatch()
    for peer, ahead_s in enumerate((29.9, -29.9, 0, float("nan"), float("inf"))):
        watch.hear(bytes([peer]), "ada", ahead_s)
    assert not caplog.records
    assert watch.offset_s == 0


def test_the_clock_that_differs_from_most_is_the_wrong_one(caplog):
    ours, theirs = ClockWatch(), ClockWatch()
    for peer in range(3):
        theirs.hear(bytes([peer]), f"user {peer}", 0.5)
    for _ in range(2):
        theirs.hear(b"eve", "eve", -4000.0)
    assert [record.getMessage() for record in caplog.records] == [
        "The clock of 'eve' is 4000 s behind ours and most members'."
    ]
    caplog.clear()
    for peer in range(3):
        ours.hear(bytes([peer]), f"user {peer}", 4000.0 + peer)
    assert len(caplog.records) == 1
    ours.hear(b"4", "same trouble", 0.0)
    assert len(caplog.records) == 1
    assert ours.offset_s == -4000.5


def test_a_clock_that_goes_wrong_again_is_logged_again(caplog):
    watch = ClockWatch()
    for ahead_s in 45.0, 0.0, -45.0:
        watch.hear(b"1", "ada", ahead_s)
    assert [re.search("ahead|behind", record.getMessage())[0] for record in caplog.records] == ["behind", "ahead"]


def test_clocks_heard_long_ago_are_forgotten():
    watch = ClockWatch()
    for peer in range(1000):
        watch.hear(peer.to_bytes(2), "ada", float(peer))
    assert watch.offset_s == -(936 + 999) / 2
    assert len(watch._told) <= 65


def test_an_access_token_that_is_none_is_refused_by_its_file(mini, tmp_path):
    card = mini.with_changes(members={"authority": AUTHORITY.public_key})
    file, ada = tmp_path / TOKEN, identity("ada")
    token = issued(ada, run=card.name)
    file.write_bytes(token.to_bytes())
    assert access_token(card, tmp_path, ada) == token
    for data, why in (bytes(2**16 + 1), "it has more than 65,536 bytes"), (b"hello", "expected an access token"):
        file.write_bytes(data)
        with pytest.raises(ValueError, match=rf"{TOKEN} holds no access token \({why}.*names peer {ada.peer_id}"):
            access_token(card, tmp_path, ada)
    for other, why in (identity("bob"), {}), (ada, {"valid_for": timedelta(seconds=-1)}):
        file.write_bytes(issued(other, run=card.name, **why).to_bytes())
        with pytest.raises(Refused, match=rf"{TOKEN} does not count: .*names peer {ada.peer_id}, put it there"):
            access_token(card, tmp_path, ada)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ValueError, match=rf"{TOKEN} holds no access token \(expected a file"):
        access_token(card, tmp_path, ada)
