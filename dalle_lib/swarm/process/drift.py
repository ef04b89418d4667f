"""How far the parameters of peers are apart, by the sketches that they tell, and whose are off.

All peers apply the same updates, so their parameters differ by what averaging in 8 bits explains and, where a round was
split without anybody's knowing, by unlike updates since parameters were averaged. Whose are further from those of most
users has damaged ones, as by a fault of its memory, or has missed more than it knows.
"""

import base64
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from jaxtyping import Float

from dalle_lib.run import RunCard

DIFFERENCE = 0.02
"""Largest distance of two peers' parameters, relative to their norm, that averaging in 8 bits explains."""
MAX_SPLIT = 5
"""Epochs since parameters were averaged for which unlike updates of two groups explain a distance. After more of them
the groups are to be one again."""
SIZE, MAX_SKETCH = 64, 200
"""Numbers of a sketch, as many as a random word has bits, and letters of its text in a peer's record."""
MAX_SCALE, FAR = 1e9, 100.0
"""Largest number of a sketch, and the distance beyond which all are told alike: who lies may say any."""
MAX_COMPARED = 1000
"""Peers that are compared, at most: each with each, in 50 MB of memory."""
_LEVELS = 2**15 - 1
_TOLD = re.compile(r"([0-9]{1,9}) ([0-9.e+-]{1,12}) ([A-Za-z0-9+/]{171}=)")


def explained(card: RunCard) -> float:
    """Return how far the parameters of two peers of a run may be apart after the same update, relative to their norm.

    LAMB changes each tensor by at most the learning rate, relative to its norm. Local updates are of any number of
    steps, so they explain any distance.
    """
    if card.averaging.strategy == "local":
        return math.inf
    return DIFFERENCE + 2 * min(card.averaging.state_every, MAX_SPLIT) * card.optimizer.lr


@dataclass(frozen=True, eq=False)
class Sketch:
    """What a peer tells of its parameters."""

    epoch: int
    """Updates in them."""
    values: Float[np.ndarray, "64"]
    """The numbers that `swarm.peer.sketch` returns; their text rounds each to a 30,000th of the largest."""

    def __str__(self) -> str:
        largest = float(abs(self.values).max())
        scale = float(f"{max(largest, 1e-30):.6g}")
        levels = np.clip(np.round(self.values / scale * _LEVELS), -_LEVELS, _LEVELS).astype("<i2")
        return f"{self.epoch} {scale:.6g} {base64.b64encode(levels.tobytes()).decode()}"

    @classmethod
    def read(cls, text: str) -> "Sketch | None":
        """Return what a text says; None if it says nothing, or cannot be one."""
        if (match := _TOLD.fullmatch(text)) is None:
            return None
        try:
            scale = float(match[2])
        except ValueError:
            return None
        if not 0 <= scale <= MAX_SCALE:
            return None
        levels = np.frombuffer(base64.b64decode(match[3]), "<i2", SIZE)
        return cls(int(match[1]), levels * (scale / _LEVELS))


@dataclass(frozen=True)
class Spread:
    """How far peers are from the middle one: that which has more than half of the users nearest around it."""

    epoch: int
    """Updates in the parameters that are compared: as many as most users tell of."""
    apart: Mapping[str, float]
    """Distance of each peer, relative to the norm of the middle one and FAR at most, by its id."""
    most: float
    """Distance within which more than half of all users are, FAR at most; infinite where fewer tell that they are."""

    @classmethod
    def of(cls, told: Mapping[str, str], users: Mapping[str, str]) -> "Spread | None":
        """Return how far those are apart that tell these sketches, by their ids; None where nobody tells any.

        `told` names all peers that are there, those that tell "" too: their users count among all, or liars would be
        the most of those that are left. `users` says whose a peer is; one that it does not name is a user of its own.
        A user's peers share one vote, so nobody moves the middle by bringing many. The first MAX_COMPARED peers that
        tell a sketch are compared.
        """
        readable = ((peer, read) for peer, text in told.items() if (read := Sketch.read(text)) is not None)
        sketches = dict(islice(readable, MAX_COMPARED))
        if not sketches:
            return None
        count = Counter(users.get(peer, peer) for peer in sketches)
        votes = {peer: 1 / count[users.get(peer, peer)] for peer in sketches}
        epochs = defaultdict(float)
        for peer, each in sketches.items():
            epochs[each.epoch] += votes[peer]
        epoch = max(epochs, key=lambda number: (epochs[number], number))
        same = {peer: each.values for peer, each in sketches.items() if each.epoch == epoch}
        distances = _distances(np.stack(list(same.values())))
        half = len({users.get(peer, peer) for peer in told}) / 2
        radii = _radii(distances, np.array([votes[peer] for peer in same]), half)
        middle = int(radii.argmin())
        norm = max(float(np.linalg.norm(list(same.values())[middle])), 1e-30)
        apart = dict(zip(same, map(float, np.minimum(distances[middle] / norm, FAR)), strict=True))
        radius = float(radii[middle])
        return cls(epoch, apart, min(radius / norm, FAR) if radius < math.inf else radius)

    @cached_property
    def farthest(self) -> float:
        """Distance of the farthest peer, at most 1."""
        return min(1.0, max(self.apart.values()))

    def off(self, limit: float) -> dict[str, float]:
        """Return the distances of those that are further out than most by more than a limit, by their ids.

        Where most are not within the limit themselves, nobody can say who is right, and nobody is off. Of those within
        `most` one is honest if at least half of the users are, and nobody honest is further than the limit from that
        one: so liars, wherever they put the middle, make nobody honest seem to be off.
        """
        is_known = self.most <= limit
        return {peer: apart for peer, apart in self.apart.items() if is_known and apart > self.most + limit}


def near(told: Mapping[str, str], peer: str, limit: float) -> frozenset[str]:
    """Return whose parameters are within a limit of those of a peer, by their sketches of as many updates.

    The peer is one of them, and must tell a sketch.
    """
    own = Sketch.read(told[peer])
    others = ((other, read) for other, text in told.items() if (read := Sketch.read(text)) is not None)
    reach = limit * float(np.linalg.norm(own.values))
    return frozenset(
        other
        for other, read in others
        if read.epoch == own.epoch and float(np.linalg.norm(read.values - own.values)) <= reach
    )


def _distances(values: Float[np.ndarray, "peer 64"]) -> Float[np.ndarray, "peer peer"]:
    """Return how far each is from each: exactly 0 from itself."""
    squares = (values**2).sum(1)
    apart = np.sqrt(np.maximum(0.0, squares[:, None] + squares - 2 * values @ values.T))
    np.fill_diagonal(apart, 0.0)
    return apart


def _radii(
    distances: Float[np.ndarray, "peer peer"], votes: Float[np.ndarray, " peer"], half: float
) -> Float[np.ndarray, " peer"]:
    """Return for each the distance within which more than half of all votes are; infinite where they are too few."""
    order = distances.argsort(1)
    sums = votes[order].cumsum(1) > half + 1e-9
    nearest = np.take_along_axis(distances, order, 1)
    return np.where(sums.any(1), nearest[np.arange(len(votes)), sums.argmax(1)], math.inf)
