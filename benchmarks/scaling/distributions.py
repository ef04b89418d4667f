"""Who takes part in a simulated run: speeds, links and stays, drawn from distributions that are stated here."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

BYTES_PER_MBIT = 1e6 / 8


@dataclass(frozen=True, kw_only=True)
class Distributions:
    """What peers are drawn from; all draws are independent."""

    mbps: tuple[float, float] = (10.0, 1000.0)
    """Least and largest rate of a link's upload, log-uniform."""
    down_factor: float = 4.0
    """Rate of the download as a multiple of the upload's, up to the largest rate."""
    behind_nat: float = 0.3
    """Share of peers to whom nobody can connect: they reduce nothing, lead nobody and hold none of the hash table."""
    leave_per_minute: float = 0.02
    """Share of peers that leave in a minute; each is replaced at once by a newcomer."""
    vanish: float = 0.2
    """Share of those that leave without ending their connections, so that the others wait for them."""
    samples_per_s: tuple[float, float] = (0.125, 2.0)
    """Least and largest speed, log-uniform, so that half compute less than half a sample a second: what the planner
    assumes of a GPU with the paper's model (`GPU_OPERATIONS_PER_S`)."""
    trip_ms: tuple[float, float] = (5.0, 100.0)
    """A peer's part of each round trip, log-uniform; the other peer's comes to it."""

    @classmethod
    def equal(cls, mbps: float, samples_per_s: float, trip_ms: float = 0.1) -> "Distributions":
        """Return those of peers that are all alike, can all be reached, and stay."""
        return cls(
            mbps=(mbps, mbps), down_factor=1.0, behind_nat=0.0, leave_per_minute=0.0,
            samples_per_s=(samples_per_s, samples_per_s), trip_ms=(trip_ms, trip_ms),
        )  # fmt: skip

    def without_churn(self) -> "Distributions":
        """Return the same where everybody stays."""
        return replace(self, leave_per_minute=0.0)


@dataclass
class Population:
    """The peers of a run, by number; the first `first_peers` are the organiser's, train nothing, and never leave."""

    up: NDArray
    """Bytes a second that each sends at most."""
    down: NDArray
    """Bytes a second that each receives at most."""
    is_client: NDArray
    """Whether nobody can connect to it."""
    samples_per_s: NDArray
    trip_s: NDArray
    """Its part of a round trip, in seconds."""
    first_peers: int

    @classmethod
    def drawn(cls, count: int, of: Distributions, random: Generator, first_peers: int = 2) -> "Population":
        """Return so many peers that train, and the first peers, which have the fastest links."""
        total = count + first_peers
        made = cls(
            up=np.zeros(total), down=np.zeros(total), is_client=np.zeros(total, bool), samples_per_s=np.zeros(total),
            trip_s=np.zeros(total), first_peers=first_peers,
        )  # fmt: skip
        for peer in range(total):
            made.redraw(peer, of, random)
        made.up[:first_peers] = made.down[:first_peers] = of.mbps[1] * BYTES_PER_MBIT
        made.is_client[:first_peers], made.samples_per_s[:first_peers] = False, 0.0
        trainers = range(first_peers, total)
        if count and made.is_client[first_peers:].all():  # somebody has to reduce
            made.is_client[trainers[0]] = False
        return made

    def redraw(self, peer: int, of: Distributions, random: Generator) -> None:
        """Put another peer in the place of one that has left."""
        up = _log_uniform(of.mbps, random)
        self.up[peer], self.down[peer] = up * BYTES_PER_MBIT, min(up * of.down_factor, of.mbps[1]) * BYTES_PER_MBIT
        self.is_client[peer] = random.random() < of.behind_nat
        self.samples_per_s[peer] = _log_uniform(of.samples_per_s, random)
        self.trip_s[peer] = _log_uniform(of.trip_ms, random) / 1000

    @property
    def trainers(self) -> range:
        """Numbers of the peers that train."""
        return range(self.first_peers, len(self.up))

    @property
    def reachable(self) -> NDArray:
        """Numbers of the peers to whom others can connect, first peers included: they hold the hash table."""
        return np.flatnonzero(~self.is_client)

    def trip_between(self, one: int, other: int) -> float:
        """Return the seconds of a round trip between two peers."""
        return float(self.trip_s[one] + self.trip_s[other])


def _log_uniform(bounds: tuple[float, float], random: Generator) -> float:
    low, high = bounds
    return float(low * (high / low) ** random.random())
