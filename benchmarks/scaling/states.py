"""Newcomers take over the state of a peer, few at a time from each, as `dalle_lib/swarm/averaging/donors.py` has it."""

from dataclasses import dataclass, field

import simpy
from numpy.random import Generator

from dalle_lib.swarm.averaging.donors import MAX_DONORS, MAX_DOWNLOADS, MAX_WAIT_S, MAX_WAITING, SLOWEST_BYTES_PER_S
from scaling.distributions import Population
from scaling.links import Network

PIECES = 16
"""Pieces of a state, between which a donor stops while it averages."""


@dataclass
class States:
    """The downloads of a run."""

    env: simpy.Environment
    people: Population
    network: Network
    random: Generator
    state_bytes: float
    is_averaging: bool = False
    """Whether the peers average now: donors give nothing meanwhile."""
    is_counted: set[int] = field(default_factory=set)
    """Peers that have the state."""
    seconds: list[float] = field(default_factory=list)
    """How long each download took, waiting included, of those that came to an end."""
    failed: int = 0
    """Newcomers that got no state from any of the donors that they asked."""
    given_bytes: float = 0.0
    _lines: dict[int, simpy.Resource] = field(default_factory=dict)
    _resumed: simpy.Event | None = None

    def pause(self, is_averaging: bool) -> None:
        """Begin or end a round, during which nobody gets anything."""
        self.is_averaging = is_averaging
        if not is_averaging and self._resumed is not None:
            self._resumed.succeed()
            self._resumed = None

    def take(self, newcomer: int):
        """Take over a state from one of up to MAX_DONORS peers: a process, whose value is whether one gave it."""
        began = self.env.now
        for _ in range(MAX_DONORS):
            donors = [one for one in self.is_counted if not self.people.is_client[one] and one != newcomer]
            if not donors:
                break
            donor = int(self.random.choice(donors))
            if (yield from self._from(donor, newcomer)):
                self.seconds.append(self.env.now - began)
                return True
        self.failed += 1
        return False

    def _from(self, donor: int, newcomer: int):
        line = self._lines.setdefault(donor, simpy.Resource(self.env, MAX_DOWNLOADS))
        if len(line.queue) >= MAX_WAITING:
            return False
        with line.request() as turn:
            waited = self.env.timeout(MAX_WAIT_S)
            yield turn | waited
            if not turn.processed:
                return False
            left_s = self.state_bytes / SLOWEST_BYTES_PER_S
            for _ in range(PIECES):
                while self.is_averaging:
                    self._resumed = self._resumed or self.env.event()
                    yield self._resumed
                began = self.env.now
                piece = self.state_bytes / PIECES
                transfer = self.network.send(donor, newcomer, piece)
                yield transfer.done | self.env.timeout(left_s)
                left_s -= self.env.now - began
                missing = self.network.stop(transfer)
                self.given_bytes += piece - missing
                if missing or donor not in self.is_counted:
                    return False
        return True
