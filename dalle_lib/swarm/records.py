"""The records of a run in its hash table: each is small, short-lived, under a key of the run, and its writer's own."""

import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from hivemind.dht import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.utils import get_dht_time

from dalle_lib.auth.roster import BEFORE_SIGNATURES
from dalle_lib.peer_keys import check_key, key_bytes, peer_id_of
from dalle_lib.swarm import wire

MAX_MARK_BYTES, MAX_RECORD_BYTES = 1024, 2048
"""Bytes of a peer's mark, packed, and of what it tells, with its signature: enough for an RSA key of 4096 bits."""
MAX_VALUE_BYTES = 9
"""Bytes of the longest number in a message."""
MAX_CLOCK_S = 30.0
"""Seconds by which the clocks of two peers may differ here; those that differ by more than 3 s do not connect."""
storing: ContextVar[str | None] = ContextVar("storing", default=None)
"""The id of the peer that asks this one to store records, while they are checked; set by `hash_table.Protocol`."""
_OWNER = re.compile(rb"\[owner:(ssh-rsa [A-Za-z0-9+/=]+)\]")
_SIGNATURE = b"[signature:"


class Rule(NamedTuple):
    """What records under one key must be, and how long they may stay."""

    holds: Callable[[DHTRecord], bool]
    """Whether subkey and value are as they should be; signatures are checked besides, by hivemind."""
    longest_s: float
    """Seconds after which such a record expires at the latest."""


class RunRecords(RecordValidatorBase):
    """Admits records under the keys of a run, each by its rule, and under no others."""

    priority = BEFORE_SIGNATURES

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._rules = {DHTID.generate(source=key).to_bytes(): rule for key, rule in rules.items()}

    def validate(self, record: DHTRecord) -> bool:
        """Return whether a record may be stored and believed."""
        rule = self._rules.get(record.key)
        return (
            rule is not None
            and len(record.value) <= MAX_RECORD_BYTES
            and wire.is_time(record.expiration_time)
            and record.expiration_time <= get_dht_time() + rule.longest_s + MAX_CLOCK_S
            and rule.holds(record)
        )

    def merge_with(self, other: RecordValidatorBase) -> bool:
        """Take over the keys of another one."""
        if not isinstance(other, RunRecords):
            return False
        self._rules |= other._rules
        return True


def is_own(record: DHTRecord) -> bool:
    """Return whether a record lies under its writer's mark, and nothing else, so that each peer has one under a key.

    hivemind's signatures bind a record to any subkey that holds a mark somewhere. Nobody stores records of others here,
    or one peer could fill a key with those of thousands of identities that it has made.
    """
    writer = _writer(record.subkey) if len(record.subkey) <= MAX_MARK_BYTES else None
    return writer is not None and storing.get() in (None, writer)


def is_an_averagers(record: DHTRecord) -> bool:
    """Return whether a record is the writer's own, and says whether it looks for a group, or how new its state is."""
    value, _, _ = record.value.partition(_SIGNATURE)
    if not is_own(record) or len(value) > MAX_VALUE_BYTES:
        return False
    try:
        return isinstance(wire.loads(value), bool | int | float | None)
    except ValueError:
        return False


def is_checked_elsewhere(record: DHTRecord) -> bool:
    """Return True: another validator knows the key, and looks at each of its records."""
    return True


def writer_of(mark: Any) -> str:
    """Return the id of the peer whose mark this is: hivemind's subkey for what the owner of an RSA key signs.

    Raises ValueError if it is not exactly such a mark, or of a key that a peer may not have.
    """
    if isinstance(mark, bytes) and (found := _OWNER.fullmatch(mark)):
        try:
            key = serialization.load_ssh_public_key(found[1])
        except (ValueError, UnsupportedAlgorithm):
            key = None
        ssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        if key is not None and key.public_bytes(*ssh) == found[1]:
            public_key = key_bytes(key)
            check_key(public_key)
            return peer_id_of(public_key)
    raise ValueError(f"expected the mark of the owner of an RSA key, but got {mark!r:.60}")


@lru_cache(maxsize=10_000)
def _writer(subkey: bytes) -> str | None:
    """Return whose mark a packed subkey is, if it is packed as everybody would, since others pack it again; or None."""
    try:
        mark = wire.loads(subkey)
        return writer_of(mark) if wire.dumps(mark) == subkey else None
    except ValueError:
        return None
