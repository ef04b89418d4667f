"""What a peer has measured that others can upload: kept over rounds, told in a few bytes, signed with the introduction.

Levels are in eighths of an octave above 1 kB/s, so that one byte holds any.
"""

import math
import multiprocessing
import struct
from collections.abc import Mapping

from hivemind.p2p import PeerID

from dalle_lib.swarm.averaging.paces import Bounds
from dalle_lib.swarm.bounded import put

STEPS, MAX_LEVEL = 8, 255
"""Levels of an octave, and the highest level: 4 TB/s."""
MAX_TOLD = 64
"""Peers of which a peer remembers what they can upload, and tells it."""
MARK_BYTES = 8
"""Bytes by which a peer is named there: the last ones of its id, which is a hash."""
ENTRY_BYTES = MARK_BYTES + 1
KEPT_ROUNDS = 48
"""Rounds with any measurement, after which a peer's is forgotten that was in none of them."""
WIDEST = 4 * STEPS
"""A peer that was hardly waited for is taken to upload at most 16 times what it carried."""
DOUBT, PROBE = STEPS, STEPS // 2
"""Where the bounds of a round are further apart than `DOUBT`, the peer was hardly waited for, and may carry more. Its
level rises by half of `PROBE`: given more parts, it is waited for at last, and so measured."""
_ROUND, _ENTRY = struct.Struct("<I"), struct.Struct(f"<{MARK_BYTES}sfI")


def mark_of(peer: PeerID) -> bytes:
    """Return the bytes that name a peer in what others tell of it."""
    return peer.to_bytes()[-MARK_BYTES:]


def level_of(bytes_per_s: float) -> float:
    """Return the level of a rate."""
    return min(max(STEPS * math.log2(max(bytes_per_s, 1.0) / 1000), 0.0), float(MAX_LEVEL))


def updated(level: float | None, bounds: Bounds) -> float | None:
    """Return a peer's level after a round that gave these bounds; None while nothing is known of it."""
    low, is_bounded = level_of(bounds.low), math.isfinite(bounds.high)
    high = max(low, level_of(bounds.high)) if is_bounded else MAX_LEVEL
    if level is None:
        return (low + min(high, low + WIDEST)) / 2 if is_bounded else None
    aim = max(level, low)
    if is_bounded and high - low > DOUBT:
        aim = max(aim, min(aim + PROBE, low + WIDEST))
    return level + (min(aim, high) - level) / 2


def unpacked(told: bytes) -> dict[bytes, int]:
    """Return the levels that a peer tells of others, by their marks.

    Raises ValueError for more peers than it may tell of, a peer named twice, and an entry that is not whole.
    """
    if len(told) % ENTRY_BYTES or len(told) > MAX_TOLD * ENTRY_BYTES:
        raise ValueError(f"expected {ENTRY_BYTES} bytes for each of at most {MAX_TOLD} peers, but got {len(told):,}")
    entries = [told[place : place + ENTRY_BYTES] for place in range(0, len(told), ENTRY_BYTES)]
    levels = {entry[:MARK_BYTES]: entry[MARK_BYTES] for entry in entries}
    if len(levels) < len(entries):
        raise ValueError("it tells of a peer twice")
    return levels


class Carried:
    """What a peer knows of others' uploads: one table for all of its processes, made before these are forked."""

    def __init__(self) -> None:
        self._memory = multiprocessing.Array("c", _ROUND.size + MAX_TOLD * _ENTRY.size)

    def note(self, measured: Mapping[PeerID, Bounds]) -> None:
        """Take in what a round showed."""
        if not measured:
            return
        with self._memory.get_lock():
            now, table = self._read()
            now += 1
            for peer, bounds in measured.items():
                mark = mark_of(peer)
                if (level := updated(table.pop(mark, (None, 0))[0], bounds)) is not None:
                    put(table, mark, (level, now), MAX_TOLD)
            self._write(now, table)

    def told(self) -> bytes:
        """Return what this peer tells of others, as `unpacked` reads it."""
        with self._memory.get_lock():
            now, table = self._read()
        known = {mark: level for mark, (level, seen) in table.items() if now - seen < KEPT_ROUNDS}
        return b"".join(mark + bytes([round(level)]) for mark, level in known.items())

    def _read(self) -> tuple[int, dict[bytes, tuple[float, int]]]:
        """Return the number of rounds, and levels with the last round of each, the longest unseen first."""
        raw = self._memory.get_obj().raw
        entries = _ENTRY.iter_unpack(raw[_ROUND.size :])
        return _ROUND.unpack_from(raw)[0], {mark: (level, seen) for mark, level, seen in entries if seen}

    def _write(self, now: int, table: Mapping[bytes, tuple[float, int]]) -> None:
        entries = b"".join(_ENTRY.pack(mark, *entry) for mark, entry in table.items())
        raw = _ROUND.pack(now) + entries
        self._memory.get_obj().raw = raw.ljust(len(self._memory), b"\0")
