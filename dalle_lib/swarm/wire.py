"""Bytes of other peers, bounded before they are decoded: every MessagePack message passes through here.

hivemind 1.1.12 unpacks tuples within tuples by recursion in C, so that a thousand bytes of a stranger end a process,
and it makes whatever a message claims to hold. `install` replaces its decoder in this process and its forks.

The format: https://github.com/msgpack/msgpack/blob/master/spec.md
"""

import asyncio
import logging
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgpack
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import P2P, PeerID
from hivemind.utils import MSGPackSerializer

logger = logging.getLogger(__name__)

MAX_BYTES = 2**20
"""A longer message is refused unread. The longest that peers send are a dictionary of the hash table, with half a
kilobyte for each peer of a run, and the metadata of a state."""
MAX_RECEIVED_BYTES = 2**21
"""A longer message of a stream is not received. The longest that peers send are parts of tensors, of at most half."""
RECEIVE_S = 60.0
"""Seconds after its beginning in which a message of a stream must have come."""
MAX_ELEMENTS = 20_000
"""Values, keys and containers in one message: ten for each of two thousand peers. Counting them takes 10 ms."""
MAX_DEPTH = 12
"""Containers within containers. hivemind's own messages have at most five."""
PEER_ID_BYTES = 64
"""A longer id is no peer's. hivemind writes each that it is told in base 58: seconds for 50 kB, an hour for 2 MB."""
TUPLE, DICTIONARY = 0x40, 0x50
"""Codes of the extensions that hivemind needs: a tuple, and a dictionary of its hash table. Both hold a message."""

_stock_name = PeerID.__init__
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_FIXED |= {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
"""Bytes after the first of None, booleans and numbers."""
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Bytes of the length of byte strings and texts."""
_CONTAINERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Bytes of the length of arrays and maps, and how many values each of their entries has."""
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
"""Bytes of the length of extensions; 0xD4 to 0xD8 have 1, 2, 4, 8 and 16 bytes."""


def loads(message: bytes) -> Any:
    """Return what a message of another peer holds. Raises ValueError if it is malformed or beyond the limits."""
    check(message)
    try:
        return _unpacked(message)
    except Exception as error:  # msgpack raises many kinds
        raise ValueError(f"a message that cannot be read: {type(error).__name__}: {error}") from error


dumps: Callable[[Any], bytes] = MSGPackSerializer.dumps
"""Return the bytes of a message."""


def install() -> None:
    """Make hivemind receive by `receive`, decode by `loads`, and refuse what is no peer's id, here and in forks."""
    MSGPackSerializer.loads = staticmethod(loads)
    P2P.receive_raw_data = staticmethod(receive)
    PeerID.__init__ = name_peer


def name_peer(peer: PeerID, peer_id: bytes) -> None:
    """Make the id of a peer, as hivemind does. Raises ValueError for bytes that are too long to be one."""
    if len(peer_id) > PEER_ID_BYTES:
        raise ValueError(f"expected the id of a peer, of at most {PEER_ID_BYTES} bytes, but got {len(peer_id):,}")
    vars(peer).update(_named(peer_id))


@lru_cache(maxsize=10_000)
def _named(peer_id: bytes) -> dict[str, object]:
    """Return what hivemind makes of an id: it also writes it in base 58. An answer to a search has dozens of ids."""
    peer = object.__new__(PeerID)
    _stock_name(peer, peer_id)
    return vars(peer)


async def receive(reader: asyncio.StreamReader) -> bytes:
    """Return the next message of a stream. Raises IncompleteReadError at its end, and for one that is too long or slow.

    hivemind 1.1.12 takes in whatever a message claims to be: hundreds of megabytes in seconds, which stay in memory.
    """
    length = int.from_bytes(await reader.readexactly(P2P.HEADER_LEN), P2P.BYTEORDER)
    if length > MAX_RECEIVED_BYTES:
        logger.info("a message of %d bytes is not received: expected at most %d", length, MAX_RECEIVED_BYTES)
        raise asyncio.IncompleteReadError(b"", length)
    try:
        async with asyncio.timeout(RECEIVE_S):
            return await reader.readexactly(length)
    except TimeoutError as error:
        logger.info("a message of %d bytes has not come within %.0f s", length, RECEIVE_S)
        raise asyncio.IncompleteReadError(b"", length) from error


def check(message: bytes) -> None:
    """Raise ValueError unless a message has the form of MessagePack, and no more of anything than the limits allow.

    It reads each value's first bytes once, makes nothing, and does not recurse.
    """
    if len(message) > MAX_BYTES:
        raise ValueError(f"a message of {len(message):,} bytes: expected at most {MAX_BYTES:,}")
    place, elements = 0, 0
    # For each container that is open: values still to come, and where it must end, which arrays and maps do not say.
    open_: list[tuple[int, int | None]] = [(1, len(message))]
    while open_:
        left, end = open_.pop()
        if left == 0:
            if end not in (None, place):
                raise ValueError(f"a message that has {end - place} bytes after its value, where none is expected")
            continue
        open_.append((left - 1, end))
        elements += 1
        if elements > MAX_ELEMENTS:
            raise ValueError(f"a message of more than {MAX_ELEMENTS:,} values")
        place, inside, ends = _after_head(message, place)
        if place > len(message):
            raise ValueError("a message that ends within a value")
        if inside:
            if len(open_) > MAX_DEPTH:
                raise ValueError(f"a message with more than {MAX_DEPTH} containers within each other")
            open_.append((inside, ends))


def _unpacked(message: bytes) -> Any:
    """Return what a checked message holds. What is within its extensions has been checked with it."""
    return msgpack.unpackb(message, ext_hook=_extension, raw=False)


def _extension(code: int, data: bytes) -> tuple | DictionaryDHTValue:
    """Return a tuple or a dictionary of the hash table.

    Of a dictionary, hivemind also believes the size that it may have and when its last entry expires, which decides
    whose answer counts in a search. Here both follow from the entries.
    """
    if code == TUPLE:
        return tuple(_unpacked(data))
    _size, _expires, entries = _unpacked(data)
    with DictionaryDHTValue().freeze() as dictionary:
        for key, value, expires in entries:
            if not (isinstance(key, str | bytes) and isinstance(value, bytes) and is_time(expires)):
                raise ValueError(f"expected a key, bytes and a time, but got {(key, value, expires)!r:.80}")
            dictionary.store(key, value, expires)
        return dictionary


def is_time(value: Any) -> bool:
    """Return whether a value is a time in seconds: NaN and infinity would never come, and never go."""
    return isinstance(value, float) and math.isfinite(value)


def _after_head(message: bytes, place: int) -> tuple[int, int, int | None]:
    """Return where the value at `place` ends, or begins to hold others; how many it holds; and where those must end."""
    first, place = _number(message, place, 1), place + 1
    if first < 0x80 or first >= 0xE0:  # a small number
        return place, 0, None
    if first < 0x90:
        return place, 2 * (first & 15), None
    if first < 0xA0:
        return place, first & 15, None
    if first < 0xC0:
        return place + (first & 31), 0, None
    if first in _FIXED:
        return place + _FIXED[first], 0, None
    if first in _BYTES:
        width = _BYTES[first]
        return place + width + _number(message, place, width), 0, None
    if first in _CONTAINERS:
        width, each = _CONTAINERS[first]
        return place + width, each * _number(message, place, width), None
    if first in _EXTENSIONS:
        width = _EXTENSIONS[first]
        size, place = _number(message, place, width), place + width
    elif 0xD4 <= first <= 0xD8:
        size = 1 << (first - 0xD4)
    else:
        raise ValueError("a message with a value of no known type")
    code, place = _number(message, place, 1), place + 1
    if code not in (TUPLE, DICTIONARY):
        raise ValueError(f"a message with an extension of code {code}, which no run uses")
    if place + size > len(message):
        raise ValueError("a message that ends within a value")
    return place, 1, place + size


def _number(message: bytes, place: int, width: int) -> int:
    if place + width > len(message):
        raise ValueError("a message that ends within a value")
    return int.from_bytes(message[place : place + width], "big")
