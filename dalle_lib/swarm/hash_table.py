"""A run's hash table: searches that end whatever others answer, and records that are their writer's own.

In hivemind 1.1.12 one answer that cannot be read, or that names ever nearer peers, keeps a search from ending, and with
it whoever waits for its result; one with a false time ends it at once. `install` replaces its searches in this process
and its forks. A run adds `OwnRecords` to its validators.
"""

import asyncio
import logging
import re
import time
from collections.abc import Collection, Mapping
from functools import lru_cache

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from hivemind.dht import DHTID, node
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.utils import ValueWithExpiration, get_dht_time

from dalle_lib.auth.tokens import key_bytes, peer_id_of
from dalle_lib.swarm import wire

logger = logging.getLogger(__name__)

SEARCH_S = 10.0
"""Seconds after which a search ends with what it has found: enough for three silent peers, one after the other."""
MAX_ASKED = 200
"""Peers that a search asks at most. hivemind keeps the 20 nearest in view, so few more than these are needed."""
MAX_CLOCK_S = 30.0
"""Seconds by which the clocks of two peers may differ here; those that differ by more than 3 s do not connect."""
_OWNER = re.compile(rb"\[owner:(ssh-rsa [A-Za-z0-9+/=]+)\]")
_stock_search, _stock_traverse = node._SearchState, node.traverse_dht


def install() -> None:
    """Make hivemind decode messages by `wire.loads`, and search by `Search`, in this process and its forks."""
    wire.install()
    node._SearchState = Search
    node.traverse_dht = traverse


class Search(_stock_search):
    """hivemind's search for the newest value of one key, which ends by itself, and leaves out what cannot be read."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        limit = asyncio.get_running_loop().call_later(SEARCH_S, self.finish_search)
        self.future.add_done_callback(lambda _: limit.cancel())

    def add_candidate(self, candidate: ValueWithExpiration | None, source_node_id: DHTID | None) -> None:
        """Take in an answer. When it expires follows from its entries: hivemind believes whom it asked."""
        if candidate is not None and isinstance(candidate.value, DictionaryDHTValue):
            times = [entry.expiration_time for _, entry in candidate.value.items()]
            candidate = ValueWithExpiration(candidate.value, max(times)) if times else None
        if candidate is not None and wire.is_time(candidate.expiration_time):
            super().add_candidate(candidate, source_node_id)

    def finish_search(self) -> None:
        """Hand over what was found: of a dictionary, the entries that can be read."""
        if self.finished:
            return
        found = None
        if isinstance(self.binary_value, DictionaryDHTValue):
            read = {subkey: self._read(wire.dumps(subkey), item) for subkey, item in self.binary_value.items()}
            entries = {subkey: entry for subkey, entry in read.items() if entry is not None}
            found = ValueWithExpiration(entries, self.expiration_time)
        elif self.found_something:
            item = ValueWithExpiration(self.binary_value, self.expiration_time)
            found = self._read(DHTProtocol.IS_REGULAR_VALUE, item)
        self.future.set_result(found)

    def _read(self, subkey: bytes, item: ValueWithExpiration) -> ValueWithExpiration | None:
        record = DHTRecord(self.key_id.to_bytes(), subkey, item.value, item.expiration_time)
        value = item.value if self.record_validator is None else self.record_validator.strip_value(record)
        try:
            return ValueWithExpiration(wire.loads(value), item.expiration_time)
        except ValueError as error:
            logger.debug("a record of the hash table is left out: %s", error)
            return None


async def traverse(queries: Collection[DHTID], *, get_neighbors, **kwargs):
    """Return what hivemind's traverse_dht does, after at most SEARCH_S and MAX_ASKED peers.

    A peer whose answer is none, whatever it is, counts as one that knows nobody.
    """
    asked, ends = 0, time.monotonic() + SEARCH_S

    async def ask(peer: DHTID, wanted: Collection[DHTID]) -> dict[DHTID, tuple[tuple[DHTID, ...], bool]]:
        nonlocal asked
        asked += 1
        if asked > MAX_ASKED or time.monotonic() > ends:
            return dict.fromkeys(wanted, ((), True))
        try:
            return await get_neighbors(peer, wanted)
        except Exception as error:  # strangers choose what their answer raises
            logger.debug("an answer to a search is left out: %s: %s", type(error).__name__, error)
            return dict.fromkeys(wanted, ((), False))

    return await _stock_traverse(queries, get_neighbors=ask, **kwargs)


class OwnRecords(RecordValidatorBase):
    """Lets each peer keep one record under each of some keys, its own; and none anywhere that never goes away.

    hivemind's signatures, which are checked besides, bind a record to any subkey that holds its writer's mark
    somewhere, so that one peer could write as many as it likes. Under other keys, only that there is a time is checked.
    """

    def __init__(self, longest_s: Mapping[str, float]) -> None:
        """Guard these keys; each holds records for at most so many seconds."""
        self._longest_s = {DHTID.generate(source=key).to_bytes(): longest for key, longest in longest_s.items()}

    def validate(self, record: DHTRecord) -> bool:
        """Return whether a record may be stored and believed."""
        if not wire.is_time(record.expiration_time):
            return False
        if (longest_s := self._longest_s.get(record.key)) is None:
            return True
        return record.expiration_time <= get_dht_time() + longest_s + MAX_CLOCK_S and _is_mark(record.subkey)

    def merge_with(self, other: RecordValidatorBase) -> bool:
        """Take over the keys of another one."""
        if not isinstance(other, OwnRecords):
            return False
        self._longest_s |= other._longest_s
        return True


def writer_of(mark: bytes) -> str:
    """Return the id of the peer whose mark this is: hivemind's subkey for what the owner of an RSA key signs.

    Raises ValueError if it is not exactly such a mark.
    """
    if found := _OWNER.fullmatch(mark):
        try:
            key = serialization.load_ssh_public_key(found[1])
        except (ValueError, UnsupportedAlgorithm):
            key = None
        ssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        if key is not None and key.public_bytes(*ssh) == found[1]:
            return peer_id_of(key_bytes(key))
    raise ValueError(f"expected the mark of the owner of an RSA key, but got {mark!r:.60}")


@lru_cache(maxsize=10_000)
def _is_mark(subkey: bytes) -> bool:
    """Return whether a packed subkey is a peer's mark, packed as everybody would: others pack it again."""
    try:
        mark = wire.loads(subkey)
        return isinstance(mark, bytes) and wire.dumps(mark) == subkey and bool(writer_of(mark))
    except ValueError:
        return False
