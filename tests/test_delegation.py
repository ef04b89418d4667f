"""Signing keys: the root delegates for a time, so its own key may lie offline, and a stolen one ends by itself."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from auth_peers import AUTHORITY, RUN, identity, issued

from dalle_lib.auth import AccessToken, Authority, Refused, Role
from dalle_lib.auth.authority import authority_key
from dalle_lib.auth.signing import Delegation

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
ROOT = authority_key(AUTHORITY.public_key)
HOUR = timedelta(hours=1)


def test_a_delegation_is_these_bytes():
    delegation = Delegation(RUN, bytes(range(32)), NOON, b"signature")
    assert delegation.to_bytes() == (
        b"dalle-lib delegation 1\n\0\0\0\7org/run\0\0\0\x20" + bytes(range(32)) + b"\0\0\0\x08\0\0\0\0\x6b\x01\x87\xc0"
        b"\0\0\0\x09signature"
    )
    assert Delegation.from_bytes(delegation.to_bytes()) == delegation


def test_what_a_signing_key_issues_counts_by_the_roots_key_alone():
    signing = AUTHORITY.delegate(RUN, timedelta(days=30))
    token = AccessToken.from_bytes(issued(identity("ada"), authority=signing).to_bytes())
    assert token.delegation == signing.delegation
    token.check(ROOT, RUN, datetime.now(UTC))
    with pytest.raises(Refused, match="has not delegated"):
        token.check(authority_key(Authority.generate().public_key), RUN, datetime.now(UTC))
    with pytest.raises(Refused, match="not signed by the authority"):
        replace(token, delegation=None).check_issued(ROOT, RUN)


def test_an_access_token_ends_with_its_delegation():
    signing = AUTHORITY.delegate(RUN, timedelta(minutes=5), now=NOON)
    token = signing.issue("ada", Role.MEMBER, RUN, identity("ada").public_key, HOUR, now=NOON)
    assert token.expires == signing.delegation.expires == NOON + timedelta(minutes=5)
    longer = replace(token, expires=NOON + HOUR)
    longer = longer.signed(signing._key.sign(longer.signed_bytes()))
    with pytest.raises(Refused, match="longer than its signing key may sign for"):
        longer.check(ROOT, RUN, NOON)
    with pytest.raises(ValueError, match="expired at 2026-11-21 12:05:00 UTC: make a new signing key"):
        signing.issue("ada", Role.MEMBER, RUN, identity("ada").public_key, HOUR, now=NOON + timedelta(minutes=5))


def test_a_signing_key_signs_for_its_run_and_delegates_to_nobody():
    signing = AUTHORITY.delegate("org/other", HOUR)
    with pytest.raises(ValueError, match="for the run 'org/other', not for 'org/run'"):
        issued(identity("ada"), authority=signing)
    with pytest.raises(ValueError, match="cannot delegate"):
        signing.delegate("org/other", HOUR)
    token = AccessToken("ada", Role.VOUCHED, RUN, identity("ada").public_key, NOON, delegation=signing.delegation)
    with pytest.raises(Refused, match="may sign for the run 'org/other', not for 'org/run'"):
        token.signed(signing._key.sign(token.signed_bytes())).check_issued(ROOT, RUN)


def test_a_chain_of_two_signing_keys_counts_nowhere():
    first, thief = AUTHORITY.delegate(RUN, HOUR), Authority.generate()
    second = Delegation(RUN, authority_key(thief.public_key), first.delegation.expires)
    forged = Authority(thief._key, second.signed(first._key.sign(second.signed_bytes())))
    with pytest.raises(Refused, match="has not delegated"):
        issued(identity("ada"), authority=forged).check_issued(ROOT, RUN)


def test_damaged_tokens_of_a_signing_key_are_refused():
    whole = issued(identity("ada"), authority=AUTHORITY.delegate(RUN, HOUR)).to_bytes()
    draw = random.Random(0)
    for _ in range(2000):
        bent = bytearray(whole)
        bent[draw.randrange(len(bent))] ^= 1 << draw.randrange(8)
        with pytest.raises(ValueError):  # noqa: PT011  (each of the reasons will do)
            AccessToken.from_bytes(bytes(bent)).check(ROOT, RUN, datetime.now(UTC))


def test_a_signing_key_is_kept_with_its_delegation_and_replaced_by_another(tmp_path):
    file, first, second = tmp_path / "signing.pem", AUTHORITY.delegate(RUN, HOUR), AUTHORITY.delegate(RUN, HOUR)
    for key in first, second:
        key.save(file)
        assert file.stat().st_mode & 0o777 == 0o600
        assert (Authority.load(file).public_key, Authority.load(file).delegation) == (key.public_key, key.delegation)
    AUTHORITY.save(tmp_path / "root.pem")
    assert Authority.load(tmp_path / "root.pem").delegation is None
    for key, taken in (AUTHORITY, file), (first, tmp_path / "root.pem"):
        with pytest.raises(ValueError, match="only copy of a run's key"):
            key.save(taken)


def test_a_signing_key_with_another_keys_delegation_is_refused(tmp_path):
    first, second = AUTHORITY.delegate(RUN, HOUR), AUTHORITY.delegate(RUN, HOUR)
    Authority(first._key, second.delegation).save(tmp_path / "mixed.pem")
    with pytest.raises(ValueError, match="that is another key's"):
        Authority.load(tmp_path / "mixed.pem")
    text = (tmp_path / "mixed.pem").read_text()
    (tmp_path / "mixed.pem").write_text(text[:-60])
    with pytest.raises(ValueError, match="in PEM"):
        Authority.load(tmp_path / "mixed.pem")
