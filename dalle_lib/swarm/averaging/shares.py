"""How much each peer of a group reduces: as much as vouched peers have measured that it can carry beside its own parts.

All peers of a group compute the shares, from the same signed introductions and the access tokens in them, and must come
to the same: all is integers. Strangers have no say, and none reduces more than if all reduced alike; where others
spare their uploads, that is at most twice as much.
"""

import statistics
from collections.abc import Mapping, Sequence
from math import isqrt

from hivemind.p2p import PeerID

from dalle_lib.swarm.averaging.carried import mark_of, unpacked
from dalle_lib.swarm.averaging.introductions import Introduction
from dalle_lib.swarm.averaging.trust import Trust

WHOLE = 2**16
"""The shares of a group sum to this."""
EQUAL_EVERY = 16
"""Every so many epochs the vouched peers reduce alike: only who reduces can measure who sends slowly, and what others
measure counts for nothing."""
NEAR = 4
"""Levels within this distance of the typical one, a factor of 1.4, count as it: shares that follow the noise of
measurements make rounds of equal links up to a tenth longer."""


def shares_of(told: Mapping[PeerID, Introduction], trust: Trust) -> list[int]:
    """Return what each peer of a group reduces, relative to the others, in their order; zero for those that may not.

    Peers that spare their upload reduce only where they are more than half of those that can, and none of the others is
    vouched for: vouched ones then do all of it. `trust` is that of the group, `Trust.of_group`, the same for all of its
    peers.
    """
    able = [peer for peer, of in told.items() if of.is_reducer and trust.may_reduce(str(peer))]
    others = [peer for peer in able if not told[peer].is_sparing]
    if 2 * len(others) < len(able):  # few strangers shall not reduce everything because the others spare their uploads
        others = [peer for peer in others if trust.is_vouched(str(peer))]
    reducers = others or able
    epoch = statistics.median_low([of.epoch for of in told.values()])
    levels = levels_of(told, reducers, trust)
    if levels is None or len(told) < 3:  # of two, each sends half of all that it has, whoever reduces
        return [int(peer in reducers) for peer in told]
    heard = [peer for peer in reducers if trust.is_heard(str(peer))]
    if epoch % EQUAL_EVERY == 0 and len(heard) > 1:  # who reduces nothing measures nobody
        return [int(peer in heard) for peer in told]
    shares = filled_up(levels, caps(reducers, trust), len(told), trust.answer_size)
    filled = dict(zip(reducers, shares, strict=True))
    return [filled.get(peer, 0) for peer in told]


def levels_of(told: Mapping[PeerID, Introduction], reducers: Sequence[PeerID], trust: Trust) -> list[int] | None:
    """Return the level of each reducer's upload, as the vouched peers of a group have measured it; None if none has.

    Where several have, it is the median of what they tell. Nobody's word about themselves counts, and who was measured
    by nobody is taken for a typical one.
    """
    said = {peer: unpacked(of.carried) for peer, of in told.items() if trust.is_heard(str(peer))}
    votes = [
        [levels[mark_of(reducer)] for peer, levels in said.items() if peer != reducer and mark_of(reducer) in levels]
        for reducer in reducers
    ]
    measured = [statistics.median_low(on_one) if on_one else None for on_one in votes]
    if not (known := [level for level in measured if level is not None]):
        return None
    typical = statistics.median_low(known)
    return [typical if level is None or abs(level - typical) <= NEAR else level for level in measured]


def caps(reducers: Sequence[PeerID], trust: Trust) -> list[int]:
    """Return the most that each reducer may get; together they may get everything.

    A peer that reduces can lie about its parts. So a vouched one may get half of all, and any other as much as if all
    reduced alike.
    """
    equal = -(-WHOLE // len(reducers))
    return [max(equal, WHOLE // 2) if trust.is_vouched(str(peer)) else equal for peer in reducers]


def filled_up(levels: Sequence[int], caps: Sequence[int], senders: int, answer_size: int = 1) -> list[int]:
    """Return shares that sum to WHOLE, so that the slowest link of the reducers has as little to do as possible.

    A peer sends what others reduce of its own, and to all others the averages of its share `s` of everything, which
    are `answer_size` times as long as parts: in a group of `n` that is `1 - s + answer_size (n - 1) s` in all. In the
    same time each link carries as much as its rate allows; so who is too slow for more than its own reduces nothing.
    """
    rates, per_share = [rate_of(level) for level in levels], answer_size * (senders - 1) - 1

    def at(moment: int) -> list[int]:
        beside = [((moment * rate >> 64) - WHOLE) // per_share for rate in rates]
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
