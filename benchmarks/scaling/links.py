"""Links that carry transfers as a fluid: each at the rate that its sender's upload and its receiver's download leave.

All transfers on a full link get the same rate, as connections of TCP do about (max-min fairness).
"""

from dataclasses import dataclass

import numpy as np
import simpy
from numpy.typing import NDArray

EMPTY_BYTES = 1e-3
"""A transfer with no more than this left has arrived: sums of floats do not come to zero."""
TIES = 1e-9
"""Links whose levels differ by less than this part are full at the same time."""


def fair_rates(
    capacity: NDArray,
    links: NDArray,
    weights: NDArray | None = None,
    limits: NDArray | None = None,
    coarse: float = TIES,
) -> NDArray:
    """Return the max-min fair rate of each flow; of shape (flows,).

    `capacity` has each link's bytes a second, `links` of shape (2, flows) the two links that a flow is on. A flow of
    weight `w` is `w` equal flows, and its rate that of one. `limits` are rates that flows cannot exceed by themselves.
    Links whose levels differ by less than the part `coarse` are filled together: fast, and never beyond capacity.
    """
    count, left = links.shape[1], capacity.astype(float).copy()
    weights = np.ones(count) if weights is None else weights
    limits = np.full(count, np.inf) if limits is None else limits
    rates, rest = np.zeros(count), np.arange(count)
    while len(rest):
        load = sum(np.bincount(side, weights, len(capacity)) for side in links)
        levels = np.divide(left, load, out=np.full(len(left), np.inf), where=load > 0)
        level = levels.min()
        given, now = limits, limits <= level
        if not now.any():
            full = levels <= level * (1 + coarse)
            given, now = np.full(len(rest), level), full[links[0]] | full[links[1]]
        rates[rest[now]] = given[now]
        for side in links:
            left -= np.bincount(side[now], weights[now] * given[now], len(capacity))
        left, keep = np.maximum(left, 0.0), ~now
        rest, links, weights, limits = rest[keep], links[:, keep], weights[keep], limits[keep]
    return rates


@dataclass(eq=False)
class Transfer:
    """Bytes on their way from one peer to another."""

    done: simpy.Event
    """Happens when all have arrived."""
    slot: int


class Network:
    """The links of all peers, and what is on them.

    With `grain_s` above 0, rates are shared anew at most once in so many seconds, and arrivals are noticed as late.
    """

    def __init__(self, env: simpy.Environment, up: NDArray, down: NDArray, grain_s: float = 0.0) -> None:
        """Take each peer's bytes a second each way."""
        self.env, self.grain_s, self.peers = env, grain_s, len(up)
        self._capacity = np.concatenate([up, down]).astype(float)
        self.carried = np.zeros(2 * len(up))
        """Bytes that each link has carried: all uploads, then all downloads."""
        self._links, self._left, self._rates = np.zeros((2, 16), int), np.zeros(16), np.zeros(16)
        self._events: list[simpy.Event | None] = [None] * 16
        self._free = list(range(16))
        self._changed, self._shared_at = env.event(), 0.0
        env.process(self._run())

    def replug(self, peer: int, up: float, down: float) -> None:
        """Give a peer other rates: somebody else has come in its place."""
        self._capacity[peer], self._capacity[self.peers + peer] = up, down
        self._change()

    def send(self, source: int, target: int, size: float) -> Transfer:
        """Return a transfer of so many bytes that begins now."""
        if not self._free:
            self._grow()
        slot, done = self._free.pop(), self.env.event()
        self._links[:, slot] = source, self.peers + target
        self._left[slot], self._events[slot] = max(size, EMPTY_BYTES * 2), done
        self._change()
        return Transfer(done, slot)

    def stop(self, transfer: Transfer) -> float:
        """End a transfer, and return the bytes of it that had not arrived; the others stay counted."""
        slot = transfer.slot
        if self._events[slot] is not transfer.done:
            return 0.0
        moved = min(self._left[slot], self._rates[slot] * (self.env.now - self._shared_at))
        self.carried[self._links[:, slot]] += moved
        left = float(self._left[slot] - moved)
        self._drop(slot)
        self._change()
        return left

    def sent(self, peer: int) -> float:
        """Return the bytes that a peer has sent so far."""
        return self.carried[peer]

    def received(self, peer: int) -> float:
        """Return the bytes that a peer has received so far."""
        return self.carried[self.peers + peer]

    def _grow(self) -> None:
        size = len(self._left)
        self._links = np.concatenate([self._links, np.zeros_like(self._links)], axis=1)
        self._left, self._rates = (np.concatenate([old, np.zeros(size)]) for old in (self._left, self._rates))
        self._events += [None] * size
        self._free = list(range(size, 2 * size))

    def _change(self) -> None:
        if not self._changed.triggered:
            self._changed.succeed()

    def _drop(self, slot: int) -> None:
        self._events[slot], self._left[slot], self._rates[slot] = None, 0.0, 0.0
        self._free.append(slot)

    def _settle(self) -> None:
        """Carry what has been carried since the rates were shared."""
        passed, self._shared_at = self.env.now - self._shared_at, self.env.now
        moved = np.minimum(self._left, self._rates * passed)
        self._left -= moved
        for side in self._links:
            self.carried += np.bincount(side, moved, len(self.carried))
        for slot in np.flatnonzero((self._rates > 0) & (self._left <= EMPTY_BYTES)):
            self._events[slot].succeed()
            self._drop(slot)

    def _run(self):
        while True:
            self._settle()
            active = np.flatnonzero(self._left)
            if len(active):
                coarse = 0.05 if self.grain_s else TIES
                self._rates[active] = fair_rates(self._capacity, self._links[:, active], coarse=coarse)
            self._changed = self.env.event()
            if not len(active):
                yield self._changed
            elif self.grain_s:
                yield self.env.timeout(self.grain_s)
            else:
                yield self.env.timeout(float((self._left[active] / self._rates[active]).min())) | self._changed
