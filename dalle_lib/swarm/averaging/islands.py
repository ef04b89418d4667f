"""Whose parameters go on where a run was split: one rule, with the same answer for all who hear the same reports.

While a network is cut, the peers on each side train on from the same parameters, and each side counts its own epochs.
When they hear of each other again, the side of most users goes on. Of sides with as many users it is the one that has
computed more samples since the split: the one in the later epoch, as each epoch has the same number. An epoch counts as
far as a second user reports it or a later one, as anybody could claim any.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from dalle_lib.swarm.averaging.earned import Claim, votes_of
from dalle_lib.swarm.averaging.introductions import MAX_APART
from dalle_lib.swarm.bounded import put

MAX_REMEMBERED = 1024
"""Peers of which it is remembered when they were last in step with this one."""


@dataclass(frozen=True)
class Island:
    """Peers that train together and apart from others."""

    epoch: int
    """The later of the two epochs, one after the other, in which they are."""
    users: frozenset[str]
    peers: frozenset[str]
    beside: frozenset[str] = frozenset()
    """The users that have no peer of it."""


def islands_in(claims: Collection[Claim]) -> list[Island]:
    """Return the peers of each two epochs, one after the other, of which the later has any.

    Peers that train together end an epoch at moments of their own. Each is thus in one or two of the islands.
    """
    found = []
    for epoch in sorted({claim.epoch for claim in claims}):
        some = [claim for claim in claims if epoch - 1 <= claim.epoch <= epoch]
        users, peers = ({getattr(claim, name) for claim in some} for name in ("user", "peer"))
        found.append(Island(epoch, frozenset(users), frozenset(peers)))
    return found


def goes_on(claims: Collection[Claim]) -> Island:
    """Return the island whose parameters go on, of at least one claim.

    One user is never preferred to more of them, with whatever claims of any number of peers.
    """
    latest = sorted(votes_of((claim.user, claim.epoch) for claim in claims).values(), reverse=True)
    believed = latest[1] if len(latest) > 2 else latest[0]  # of two, neither has another to confirm it
    found = max(islands_in(claims), key=lambda island: (len(island.users), min(island.epoch, believed), -island.epoch))
    return replace(found, beside=frozenset(claim.user for claim in claims) - found.users)


class Parted:
    """Follows who trains apart from this peer, by the claims in one look after another.

    Two epochs or more lie between the two. A peer counts elsewhere once it has gone on to another epoch there: records
    of the dead live on for a minute. One that is behind does so only if its record was gone meanwhile, as in a network
    that is cut: that of a slow peer, which lags, never is.
    """

    def __init__(self, shortest_epoch_s: float) -> None:
        self.shortest_epoch_s = shortest_epoch_s
        self.others: Island | None = None
        """Those whose parameters go on, if this peer is not one of them, as the last two looks have found."""
        self.apart: frozenset[str] = frozenset()
        """The peers that train apart from this one."""
        self.near: frozenset[str] = frozenset()
        """The peers that were in step with this one in the last look."""
        self._first_seen: dict[str, int] = {}
        """The epoch in which each peer was that is apart when a look first found it so."""
        self._in_step: dict[str, tuple[int, float]] = {}
        """The last epoch in which each peer was in step with this one, and when the last look found it so."""
        self._claimed: dict[str, int] = {}
        """The epoch that each peer claimed in the last look."""
        self._found: Island | None = None
        """What the last look has found."""
        self._gone: set[str] = set()
        """Peers whose record was gone in a look since they were last in step with this one."""

    def look(self, own: Claim | None, claims: Iterable[Claim], possible: int, now: float) -> None:
        """Take note of the claims of all other peers that count. `own` is this peer's; None while it does not count.

        Claims are passed over that are beyond `possible` and beyond what their peers can have computed since they were
        in step with this one.
        """
        claims = list(claims)
        self._claimed = {claim.peer: claim.epoch for claim in claims}
        if own is None:
            self.others = self._found = None
            self.apart, self.near, self._first_seen = frozenset(), frozenset(), {}
            return
        near, far = [], []
        for claim in claims:
            if abs(claim.epoch - own.epoch) <= MAX_APART:
                near.append(claim)
            elif claim.epoch <= max(possible, self._possible_for(claim.peer, now)):
                far.append(claim)
        for claim in near:
            put(self._in_step, claim.peer, (min(own.epoch, claim.epoch), now), MAX_REMEMBERED)
        known, self.near = self._in_step.keys(), frozenset(claim.peer for claim in near)
        self._gone = ((self._gone | (known - self._claimed.keys())) - self.near) & known
        far = [claim for claim in far if claim.epoch > own.epoch or claim.peer in self._gone or claim.peer not in known]
        self._first_seen = {claim.peer: self._first_seen.get(claim.peer, claim.epoch) for claim in far}
        moved = [claim for claim in far if claim.epoch != self._first_seen[claim.peer]]
        island = goes_on([own, *near, *moved])
        found = None if island.epoch - 2 <= own.epoch <= island.epoch + 1 else island
        self.others = found if self._found is not None else None
        self.apart, self._found = frozenset(claim.peer for claim in moved), found

    @property
    def parted_from(self) -> frozenset[str]:
        """The peers that train apart from this one and were in step with it before."""
        return self.apart.intersection(self._in_step)

    @property
    def left_aside(self) -> frozenset[str]:
        """The peers that train apart from this one, but for those whose parameters go on; nobody for a newcomer."""
        if not self._in_step:
            return frozenset()
        return self.apart if self.others is None else self.apart - self.others.peers

    def _possible_for(self, peer: str, now: float) -> int:
        epoch, at = self._in_step.get(peer, (0, now))
        return epoch + int((now - at) / self.shortest_epoch_s)

    def together_until(self, epoch: int, donor: str | None) -> int | None:
        """Return the last epoch in which a donor was in step with this peer; None if it never was.

        Of one that came later, or without any, those tell that were about in `epoch` in the last look.
        """
        about = [peer for peer, claimed in self._claimed.items() if abs(claimed - epoch) <= MAX_APART]
        peers = [donor] if donor in self._in_step else about
        return max((self._in_step[peer][0] for peer in peers if peer in self._in_step), default=None)
