"""How fast the others of a round were, as the parts and averages that came from them show: what a peer can witness.

A link is measured only while it is waited for: a sender that has to wait for slower ones sends no faster than they do.
So a round gives two bounds of what a peer can upload, which lie close together for those that kept the others waiting.
"""

import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from hivemind.p2p import PeerID

SHORTEST_S, FEWEST_PARTS = 1.0, 4
"""A stream that took less time, or had fewer parts after its first, tells nothing about a link."""


@dataclass(frozen=True)
class Bounds:
    """What a peer can upload lies between these, in bytes a second."""

    low: float
    """It carried that much."""
    high: float = math.inf
    """It carried that much while it was waited for; infinity if it was not."""

    def both(self, other: "Bounds | None") -> "Bounds":
        """Return the bounds that follow from this and another measurement of the same round."""
        return self if other is None else Bounds(max(self.low, other.low), min(self.high, other.high))


@dataclass
class _Stream:
    """What came from one peer after the first message."""

    began: float
    ended: float
    bytes: int = 0
    messages: int = 0
    waited_s: float = 0.0


@dataclass
class Paces:
    """Times of one round, as this peer sees it."""

    answer_size: int = 1
    """How long an average is on the wire, in multiples of a part on its way to a reducer."""
    senders: dict[PeerID, _Stream] = field(default_factory=dict)
    """What came from senders, if this peer reduces."""
    reducers: dict[PeerID, _Stream] = field(default_factory=dict)
    """The averages that came from reducers."""

    async def timed(
        self, sender: PeerID, parts: AsyncIterator, owes: Callable[[], bool] = lambda: False
    ) -> AsyncIterator:
        """Iterate over a sender's parts, and note how long each was waited for after the first.

        Where this peer still `owes` the sender answers when a part comes, the sender may have waited for these.
        """
        stream = None
        async with aclosing(parts):
            while True:
                asked = time.monotonic()
                try:
                    part = await anext(parts, None)
                except BaseException:
                    if stream is not None:  # it is being waited for in vain
                        stream.ended = time.monotonic()
                        stream.waited_s += stream.ended - asked
                    raise
                if part is None:
                    return
                since = time.monotonic() if owes() else asked
                stream = self._came(self.senders, sender, part.tensor_part.ByteSize(), since)
                yield part

    def answered(self, reducer: PeerID, size_bytes: int) -> None:
        """Note that an average has come from a reducer."""
        self._came(self.reducers, reducer, size_bytes, time.monotonic())

    def _came(self, streams: dict[PeerID, _Stream], peer: PeerID, size_bytes: int, asked: float) -> _Stream:
        now = time.monotonic()
        if (stream := streams.get(peer)) is None:
            stream = streams[peer] = _Stream(now, now)
            return stream
        stream.bytes += size_bytes
        stream.messages += 1
        stream.waited_s += now - asked
        stream.ended = now
        return stream

    def bounds(self, peers: Sequence[PeerID], shares: Sequence[float], own: PeerID) -> dict[PeerID, Bounds]:
        """Return bounds of what the other peers of the round can upload, for those of whom it tells anything.

        `shares` are the parts that each of `peers` reduces, relative to each other.
        """
        total = sum(shares)
        share_of = {peer: share / total for peer, share in zip(peers, shares, strict=True)}
        sent, given = self._of_senders(share_of, share_of[own]), self._of_reducers(share_of)
        both = {peer: bound.both(given.get(peer)) for peer, bound in sent.items()}
        return {peer: bound for peer, bound in (given | both).items() if peer != own}

    def _of_senders(self, share_of: Mapping[PeerID, float], own_share: float) -> dict[PeerID, Bounds]:
        found = {}
        for peer, stream in self.senders.items():
            if not (own_share and _tells(stream)):  # somebody may send parts to a peer that reduces none
                continue
            # Its streams to other reducers, and the averages that it gives, share its link with the one to this peer.
            sends = sum(min(share, own_share) for other, share in share_of.items() if other != peer)
            gives = self.answer_size * (len(share_of) - 1) * min(share_of[peer], own_share)
            carried = stream.bytes * (sends + gives) / own_share
            took_s = stream.ended - stream.began
            found[peer] = Bounds(carried / took_s, carried / max(stream.waited_s, 1e-6))
        return found

    def _of_reducers(self, share_of: Mapping[PeerID, float]) -> dict[PeerID, Bounds]:
        streams = {peer: stream for peer, stream in self.reducers.items() if share_of[peer] and _tells(stream)}
        if not streams:
            return {}
        began, found = min(stream.began for stream in self.reducers.values()), {}
        for peer, stream in streams.items():
            share = share_of[peer]
            sent = (1 - share) / share / self.answer_size
            low = stream.bytes * (len(share_of) - 1 + sent) / (stream.ended - began)
            found[peer] = Bounds(low)  # its averages wait for all senders, who may be slow to it alone
        return found


def _tells(stream: _Stream) -> bool:
    return stream.messages >= FEWEST_PARTS and stream.ended - stream.began >= SHORTEST_S
