"""How much each peer of a group reduces: as much as others have measured that it can carry beside its own parts.

All peers of a group compute the shares, from the same signed introductions, and must come to the same: all is integers.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import isqrt

from hivemind.p2p import PeerID

from dalle_lib.swarm.averaging.carried import mark_of, unpacked
from dalle_lib.swarm.averaging.introductions import Introduction
from dalle_lib.swarm.averaging.trust import Trust

WHOLE = 2**16
"""The shares of a group sum to this."""
MAX_MULTIPLE = 4
"""Cap on what one user's peers reduce together, in multiples of an equal share: a peer that reduces can lie about its
parts. Vouched peers may have half of all."""
EQUAL_EVERY = 16
"""Every so many epochs all reduce alike: only who reduces can measure who sends slowly."""
NEAR = 4
"""Levels within this distance of the typical one, a factor of 1.4, count as it: shares that follow the noise of
measurements make rounds of equal links up to a tenth longer."""
FEWEST_VOTES = 2
"""Users who must have measured a peer, or it is taken for a typical one."""


def shares_of(told: Mapping[PeerID, Introduction], trust: Trust) -> list[int]:
    """Return what each peer of a group reduces, relative to the others, in their order; zero for those that may not.

    Peers that spare their upload reduce only where all others that may do so, too, or cannot.
    """
    able = [peer for peer, of in told.items() if of.is_reducer and trust.may_reduce(str(peer))]
    reducers = [peer for peer in able if not told[peer].is_sparing] or able
    epoch = statistics.median_low([of.epoch for of in told.values()])
    levels = levels_of(told, reducers, trust.user_of) if trust.measures and epoch % EQUAL_EVERY else None
    if levels is None or len(told) < 3:  # of two, each sends half of all that it has, whoever reduces
        return [int(peer in reducers) for peer in told]
    filled = dict(zip(reducers, filled_up(levels, caps(reducers, trust), len(told)), strict=True))
    return [filled.get(peer, 0) for peer in told]


def levels_of(
    told: Mapping[PeerID, Introduction], reducers: Sequence[PeerID], user_of: Callable[[str], str]
) -> list[int] | None:
    """Return the level of each reducer's upload, as the users of a group have measured it; None if nobody has.

    It is the median of one vote for each user, in which nobody votes on a peer of their own. Where the number of votes
    is even, the typical level of all votes joins them: so no half of the users decides alone.
    """
    said: dict[bytes, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for peer, introduction in told.items():
        for mark, level in unpacked(introduction.carried).items():
            said[mark][user_of(str(peer))].append(level)
    votes = []
    for reducer in reducers:
        own = user_of(str(reducer))
        by_user = said[mark_of(reducer)].items()
        votes.append([statistics.median_low(levels) for user, levels in by_user if user != own])
    if not (all_votes := list(chain(*votes))):
        return None
    typical = statistics.median_low(all_votes)
    return [_agreed(on_one, typical) for on_one in votes]


def _agreed(votes: list[int], typical: int) -> int:
    if len(votes) < FEWEST_VOTES:
        return typical
    level = statistics.median(votes if len(votes) % 2 else [*votes, typical])
    return typical if abs(level - typical) <= NEAR else level


def caps(reducers: Sequence[PeerID], trust: Trust) -> list[int]:
    """Return the most that each reducer may get; together they may get everything."""
    equal = -(-WHOLE // len(reducers))
    peers_of = Counter(trust.user_of(str(peer)) for peer in reducers)
    most = {peer: MAX_MULTIPLE * equal // peers_of[trust.user_of(str(peer))] for peer in reducers}
    return [max(equal, WHOLE // 2 if trust.is_vouched(str(peer)) else min(WHOLE // 2, most[peer])) for peer in reducers]


def filled_up(levels: Sequence[int], caps: Sequence[int], senders: int) -> list[int]:
    """Return shares that sum to WHOLE, so that the slowest link of the reducers has as little to do as possible.

    A peer sends what others reduce of its own, and to all others the averages of its share `s` of everything: in a
    group of `n` that is `1 - s + (n - 1) s` in all. In the same time each link carries as much as its rate allows; so
    who is too slow for more than its own gets nothing to reduce.
    """
    rates = [rate_of(level) for level in levels]

    def at(moment: int) -> list[int]:
        beside = [((moment * rate >> 64) - WHOLE) // (senders - 2) for rate in rates]
        return [min(cap, max(0, share)) for cap, share in zip(caps, beside, strict=True)]

    enough = 1
    while sum(at(enough)) < WHOLE:
        enough *= 2
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if sum(at(middle)) >= WHOLE else (middle, enough)
    shares = at(too_few)
    for place, share in enumerate(at(enough)):
        shares[place] += min(share - shares[place], WHOLE - sum(shares))
    return shares


def rate_of(level: int) -> int:
    """Return the rate of a level, as a multiple of 1/1024 of that of level 0, rounded down: 1024 * 2 ** (level / 8)."""
    return isqrt(isqrt(isqrt(1 << (level + 80))))
