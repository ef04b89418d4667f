"""Ban lists: bytes, signature, serial and expiry, and the file in which a peer's processes find the newest."""

import os
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from auth_peers import AUTHORITY, RUN, identity, issued

from dalle_lib.auth import Authority, BanList, Bans, Refused
from dalle_lib.auth.authority import authority_key

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
ROOT = authority_key(AUTHORITY.public_key)
DAY = timedelta(days=1)


def bans_of(serial: int = 1, users=(), peers=(), valid_for=DAY, by: Authority = AUTHORITY, run: str = RUN) -> BanList:
    return by.sign_bans(run, serial, users, peers, valid_for)


@pytest.fixture
def known(tmp_path) -> Bans:
    return Bans(tmp_path / "bans", ROOT, RUN)


def test_a_ban_list_is_these_bytes():
    bans = BanList(RUN, 7, NOON, NOON, frozenset({"bob", "ada"}), frozenset({"Qm"}), b"signature")
    time = b"\0\0\0\x08\0\0\0\0\x6b\x01\x87\xc0"
    assert bans.to_bytes() == (
        b"dalle-lib bans 1\n\0\0\0\7org/run\0\0\0\x08\0\0\0\0\0\0\0\7"
        + 2 * time
        + b"\0\0\0\x0e\0\0\0\3ada\0\0\0\3bob\0\0\0\6\0\0\0\2Qm\0\0\0\0\0\0\0\x09signature"
    )
    assert BanList.from_bytes(bans.to_bytes()) == bans


@pytest.mark.parametrize("by", [AUTHORITY, AUTHORITY.delegate(RUN, 2 * DAY)], ids=["root", "signing key"])
def test_a_list_names_users_however_they_are_written_and_peers(by):
    ada, bob, eve = (issued(identity(name), user) for name, user in [("ada", "Ada"), ("bob", "Bob"), ("eve", "eve")])
    bans = BanList.from_bytes(bans_of(users=["aDA"], peers=[bob.peer_id], by=by).to_bytes())
    bans.check(ROOT, RUN, datetime.now(UTC))
    assert [bans.names(token) for token in (ada, bob, eve)] == [True, True, False]


def test_each_refusal_of_a_list_names_its_reason():
    good, now = bans_of(), datetime.now(UTC)
    for bans, at, reason in [
        (bans_of(by=Authority.generate()), now, "not signed by the authority of 'org/run'"),
        (replace(good, serial=9), now, "or was altered"),
        (bans_of(run="org/other"), now, "for the run 'org/other', not for 'org/run'"),
        (good, good.expires, "the ban list expired at"),
    ]:
        with pytest.raises(Refused, match=reason):
            bans.check(ROOT, RUN, at)


def test_damaged_lists_are_refused(known):
    whole = bans_of(users=["ada", "bob"], peers=["Qm"]).to_bytes()
    draw = random.Random(0)
    damaged = [whole[:size] for size in range(len(whole))] + [whole + b"\0"]
    for _ in range(1000):
        bent = bytearray(whole)
        bent[draw.randrange(len(bent))] ^= 1 << draw.randrange(8)
        damaged.append(bytes(bent))
    for data in damaged:
        with pytest.raises(ValueError):  # noqa: PT011  (each of the reasons will do)
            known.keep(data)
    assert known.current() is None


def test_each_process_sees_the_newest_list_and_nobody_can_bring_back_an_older(known, tmp_path):
    other = Bans(tmp_path / "bans", ROOT, RUN)
    token = issued(identity("ada"), "Ada")
    other.check(token)
    known.keep(bans_of(3, users=["ada"]).to_bytes())
    with pytest.raises(Refused, match="banned from this run"):
        other.check(token)
    for old in bans_of(2), bans_of(0):
        with pytest.raises(Refused, match=f"serial {old.serial} came, but 3 is known"):
            known.keep(old.to_bytes())
    known.keep(bans_of(4).to_bytes())
    other.check(token)


def test_a_list_that_is_gone_expired_or_broken_bans_nobody(known, tmp_path, caplog):
    token = issued(identity("ada"), "ada")
    bans = known.keep(bans_of(users=["ada"]).to_bytes())
    assert known.current(bans.expires - timedelta(seconds=1)) == bans
    assert known.current(bans.expires) is None
    (tmp_path / "bans").write_bytes(b"nonsense")
    os.utime(tmp_path / "bans", (1, 1))
    known.check(token)
    assert "counts as no ban list: expected a ban list, but it is b'nonsense'" in caplog.text
    (tmp_path / "bans").unlink()
    known.check(token)
    known.keep(bans_of(0, users=["ada"]).to_bytes())
    with pytest.raises(Refused):
        known.check(token)


def test_names_that_could_never_match_cannot_be_in_a_list():
    for changes, reason in [
        ({"users": frozenset({"Ada"})}, "lower case"),
        ({"peers": frozenset({""})}, "1 to 200 printable"),
        ({"serial": -1}, "serial"),
        ({"expires": datetime(2026, 11, 21)}, "UTC"),
    ]:
        with pytest.raises(ValueError, match=reason):
            replace(bans_of(), **changes)
