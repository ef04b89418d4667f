"""A round of averaging as a fluid: parts flow to reducers, and answers flow back no sooner than all have sent theirs.

Large groups are simulated by kinds of peers: those with about the same links count as one, so that thousands of peers
take no longer than dozens.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dalle_lib.planning import Work
from dalle_lib.planning.constants import (
    CODEBOOK_BYTES,
    MESSAGE_BYTES,
    MESSAGE_S,
    ROUND_SLOWDOWN,
    VALUE_S,
    WEIGHT_BYTES,
)
from dalle_lib.swarm.averaging.carried import MAX_TOLD, level_of
from dalle_lib.swarm.averaging.patience import REDUCER_PATIENCE
from dalle_lib.swarm.averaging.shares import NEAR, WHOLE, filled_up
from scaling.distributions import Population
from scaling.links import fair_rates

EXACT_UP_TO = 32
"""Peers of a group up to which each is a kind of its own."""
KIND = 1.3
"""Peers whose uploads differ by less than this factor may be of one kind; all of it get the geometric mean."""
STEPS = 100
"""Steps of time in which a round would end if only its fullest link mattered."""
SETTLES = 3
"""Times that rates are computed in each step: answers that wait for parts leave room to other transfers."""


@dataclass(frozen=True)
class Kind:
    """Some peers of a group whose links are about the same."""

    members: NDArray
    up: float
    """Bytes a second of each."""
    down: float
    share: float
    """Part of everything that each of them reduces."""


@dataclass(frozen=True)
class Exchange:
    """What a round came to."""

    seconds: float
    links_s: float
    """Seconds that the links alone need."""
    work_s: NDArray
    """Seconds of the processor of each peer of the group, in its order."""
    sent: NDArray
    """Bytes that each has sent."""
    received: NDArray
    lost_share: float = 0.0
    """Part of everything whose reducer has left, so that each keeps its own values there."""

    @property
    def is_whole(self) -> bool:
        """Whether every part of the average came back."""
        return self.lost_share == 0.0


def shares_of(group: NDArray, people: Population, vouched: NDArray, answer_size: int = 1) -> NDArray:
    """Return the part of everything that each peer of a group reduces, as `parts="measured"` has it.

    `vouched` are the numbers of peers whose measurements count; with fewer than two of them in the group, all that can
    be reached reduce alike. They know the rates of the first MAX_TOLD reducers as they are.
    """
    can = np.flatnonzero(~people.is_client[group])
    shares = np.zeros(len(group))
    is_vouched = np.isin(group[can], vouched)
    if len(group) < 3 or is_vouched.sum() < 2:
        shares[can] = 1 / len(can)
        return shares
    levels = [round(level_of(rate)) for rate in people.up[group[can]]]
    typical = sorted(levels[:MAX_TOLD])[(min(len(levels), MAX_TOLD) - 1) // 2]
    levels = [
        typical if place >= MAX_TOLD or abs(level - typical) <= NEAR else level for place, level in enumerate(levels)
    ]
    equal = -(-WHOLE // len(can))
    caps = [max(equal, WHOLE // 2) if one else equal for one in is_vouched]
    shares[can] = np.array(filled_up(levels, caps, len(group), answer_size)) / WHOLE
    return shares


def kinds_of(group: NDArray, people: Population, shares: NDArray) -> list[Kind]:
    """Return the peers of a group by kinds; in a small group, each by itself."""
    marks: dict[tuple, list[int]] = {}
    for place, peer in enumerate(group):
        step = place if len(group) <= EXACT_UP_TO else math.floor(math.log(people.up[peer]) / math.log(KIND))
        marks.setdefault((step, round(shares[place] * WHOLE)), []).append(place)
    return [
        Kind(
            np.array(places),
            float(np.exp(np.log(people.up[group[places]]).mean())),
            float(np.exp(np.log(people.down[group[places]]).mean())),
            float(shares[places].mean()),
        )
        for places in marks.values()
    ]


def exchange(
    group: NDArray, people: Population, shares: NDArray, work: Work, up_bytes: float | None = None,
    cores: int | None = None,
) -> Exchange:  # fmt: skip
    """Return what it takes a group to average, where nobody leaves; `up_bytes` of parts a peer has, by default work's.

    Seconds are the longer of the links' and of the busiest processor's, or of the `cores` that all share.
    """
    kinds, count = kinds_of(group, people, shares), len(group)
    up_bytes = work.up_bytes if up_bytes is None else up_bytes
    messages = np.array([_messages(work, kind.share) for kind in kinds])
    extra = np.maximum(0.0, messages - work.messages * np.array([kind.share for kind in kinds]))
    extra = extra * (MESSAGE_BYTES + CODEBOOK_BYTES)
    parts = np.array([kind.share for kind in kinds]) * up_bytes + extra
    answers = np.array([kind.share for kind in kinds]) * work.answer_bytes + extra
    answers = np.where(messages > 0, answers + WEIGHT_BYTES * count * messages, 0.0)
    links_s, moved = _flow(kinds, parts, answers)
    by_place = np.zeros((2, count))
    for index, kind in enumerate(kinds):
        by_place[:, kind.members] = moved[:, index, None]
    by_place += _audits(shares, work, up_bytes)
    total_messages = float(sum(len(kind.members) * number for kind, number in zip(kinds, messages, strict=True)))
    own = np.array([_messages(work, share) for share in shares])
    values = 2 * work.parameters * (1 + (count - 1) * shares) - 2 * work.parameters * shares
    work_s = VALUE_S * values + MESSAGE_S * 2 * (total_messages - own + (count - 1) * own)
    busy_s = float(work_s.max()) if cores is None else float(work_s.sum()) / cores
    return Exchange(max(ROUND_SLOWDOWN * links_s, busy_s), links_s, work_s, *by_place)


def with_leavers(done: Exchange, shares: NDArray, leaves_s: NDArray, vanishes: NDArray, timeout_s: float) -> Exchange:
    """Return the same round where peers leave `leaves_s` after its beginning, some without ending their connections.

    What a reducer has not answered when it leaves is lost. One that vanishes is waited for: as a sender for half of
    `timeout_s`, after which averages come without its parts, and as a reducer for REDUCER_PATIENCE as long.
    """
    is_gone = leaves_s < done.seconds
    left = np.where(is_gone, 1 - leaves_s / done.seconds, 0.0)
    patience_s, seconds = timeout_s / 2, done.seconds
    for place in np.flatnonzero(is_gone & vanishes):
        seconds = max(seconds, patience_s + left[place] * done.seconds)
        if shares[place] > 0:
            seconds = max(seconds, REDUCER_PATIENCE * patience_s)
    return Exchange(
        seconds, done.links_s, done.work_s, done.sent * (1 - left), done.received * (1 - left),
        float((shares * left).sum()),
    )  # fmt: skip


def _audits(shares: NDArray, work: Work, up_bytes: float) -> NDArray:
    """Return the bytes that each peer sends for others to average again, and receives for that; of shape (2, peers)."""
    count, reducers = len(shares), int((shares > 0).sum())
    if count < 3 or reducers < 2:
        return np.zeros((2, count))
    checked = work.audits * up_bytes / work.messages * (count - 1) / count
    return np.stack([np.full(count, checked), np.where(shares > 0, checked * count / reducers, 0.0)])


def _messages(work: Work, share: float) -> float:
    """Return the messages of a reducer's part: it begins and ends somewhere within a tensor."""
    return 0.0 if share == 0 else max(1.0, work.messages * share + (share < 1))


def _flow(kinds: list[Kind], parts: NDArray, answers: NDArray) -> tuple[float, NDArray]:
    """Return the seconds until all answers have come, and the bytes that one of each kind sends and receives.

    `parts` and `answers` are the bytes between a peer and a reducer of each kind.
    """
    members = np.array([len(kind.members) for kind in kinds])
    reducing = [index for index, kind in enumerate(kinds) if kind.share > 0]
    pairs = [(one, other) for one in range(len(kinds)) for other in reducing if one != other or members[one] > 1]
    one, other = np.array(pairs).T
    weights = (members[one] * (members[other] - (one == other))).astype(float)
    count, there, back = len(kinds), parts[other], answers[other]
    # An upload for each kind, then a download: those of all of its members together.
    links = np.stack([np.concatenate([one, other]), count + np.concatenate([other, one])])
    weights = np.concatenate([weights, weights])
    capacity = np.concatenate([members * [kind.up for kind in kinds], members * [kind.down for kind in kinds]])
    size = np.concatenate([there, back])
    used = sum(np.bincount(side, weights * size, 2 * count) for side in links)
    step_s, seconds = float((used / capacity).max()) / STEPS, 0.0
    left, flows = size.copy(), len(one)
    while left.max() > 1e-9 * size.max():
        rates = _rates(capacity, links, weights, left, size, other, flows, step_s)
        left = np.maximum(0.0, left - rates * step_s)
        seconds += step_s
    moved = np.zeros((2, count))
    for row, side in enumerate(links):
        moved[row] = np.bincount(side - row * count, weights * size, count) / members
    return seconds, moved


def _rates(
    capacity: NDArray, links: NDArray, weights: NDArray, left: NDArray, size: NDArray, other: NDArray, flows: int,
    step_s: float,
) -> NDArray:  # fmt: skip
    """Return the rates of all flows in a step: answers do not overtake the slowest sender's parts."""
    limits = np.where(left > 0, left / step_s, 0.0)
    rates, own = np.zeros(2 * flows), limits[flows:].copy()
    for _ in range(SETTLES):
        rates = fair_rates(capacity, links, weights, limits, 0.02)
        there = 1 - np.maximum(0.0, left[:flows] - rates[:flows] * step_s) / size[:flows]
        slowest = np.full(other.max() + 1, np.inf)
        np.minimum.at(slowest, other, there)
        back = 1 - left[flows:] / size[flows:]
        limits[flows:] = np.minimum(own, np.maximum(0.0, slowest[other] - back) * size[flows:] / step_s)
    return np.minimum(rates, limits)
