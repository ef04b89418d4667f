"""Whom a group waits for: those who are in its epoch, as their records of progress tell, and those who look for one."""

import multiprocessing
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any

from hivemind.p2p import PeerID

from dalle_lib.swarm.wire import PEER_ID_BYTES

MAX_EXPECTED = 1000
"""Peers that are known to be expected. With more, nobody is: groups then end when their time is up."""
LOCK_S = 1.0
"""Seconds in which the table is free, as it is held for microseconds."""
_HEAD, _ENTRY = struct.Struct("<qi"), struct.Struct(f"<{PEER_ID_BYTES + 1}pd?")
_NONE = -1


@dataclass(frozen=True)
class Told:
    """What a peer's last record of progress says of whether it comes to a round."""

    at: float
    """When the peer made the record, in hivemind's time."""
    counts: bool = True
    """Whether its gradients count; a newcomer comes to rounds of parameters alone."""


class Expected:
    """The other peers of this epoch: one table for all of a peer's processes, made before these are forked."""

    def __init__(self, longest_s: float = 0.0) -> None:
        """Let groups wait for those who are ready for `longest_s`, if that is longer than they wait for anybody."""
        self.longest_s = longest_s
        self._memory = multiprocessing.Array("c", _HEAD.size + MAX_EXPECTED * _ENTRY.size)
        self.tell(_NONE, {})

    def tell(self, epoch: int, others: Mapping[bytes, Told]) -> None:
        """Take in who was there when the records were last read, by the bytes of their ids, by a peer in `epoch`."""
        if len(others) > MAX_EXPECTED:
            epoch, others = _NONE, {}
        entries = b"".join(_ENTRY.pack(peer, *astuple(told)) for peer, told in others.items())
        with self._shared() as shared:
            if shared is not None:
                shared[: _HEAD.size + len(entries)] = _HEAD.pack(epoch, len(others)) + entries

    def of(self, epoch: int) -> dict[PeerID, Told] | None:
        """Return who is expected in the round of an epoch; None if nobody has looked since this peer entered it.

        Rounds of parameters follow the update that ends the epoch, so those who are in the next one come, too.
        """
        with self._shared() as shared:
            if shared is None:
                return None
            looked_in, number = _HEAD.unpack(shared[: _HEAD.size])
            raw = shared[_HEAD.size : _HEAD.size + number * _ENTRY.size]
        if looked_in not in (epoch, epoch + 1):
            return None
        return {PeerID(peer): Told(at, counts) for peer, at, counts in _ENTRY.iter_unpack(raw)}

    @contextmanager
    def _shared(self) -> Iterator[Any]:
        """Hold the table; None if it is not free in time, as where a process was killed that held it."""
        if not (lock := self._memory.get_lock()).acquire(timeout=LOCK_S):
            yield None
            return
        try:
            yield self._memory.get_obj()
        finally:
            lock.release()


@dataclass(frozen=True, kw_only=True)
class GroupPatience:
    """How long a group waits for others."""

    least_s: float
    """Seconds for which it waits for anybody who is missing."""
    longest_s: float
    """Seconds for which it waits for those who are known to be ready, from the same time on."""

    def begins(
        self,
        group: Collection[PeerID],
        expected: Mapping[PeerID, Told] | None,
        looking: Collection[PeerID],
        *,
        is_due: bool,
        now: float,
        waited_s: float,
    ) -> bool:
        """Return whether a group begins its round, as nobody is missing for whom it would wait.

        `looking` are those that were found to look for a group. They are ready, and so is whoever has told of its
        progress within `longest_s`; others may be gone. What is `expected` is None while nobody is known to be there.
        Before `least_s` no group begins unless its round `is_due`: for who goes in between, the round would wait.
        """
        inside, known = set(group), expected or {}
        missing = (known.keys() | set(looking)) - inside
        if waited_s < self.least_s:
            return is_due and expected is not None and not missing
        return not any(peer in looking or now - known[peer].at < self.longest_s for peer in missing)
