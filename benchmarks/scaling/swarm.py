"""A simulated run: peers compute, look at each other's progress, meet, average, come and go."""

import math
from dataclasses import dataclass, field

import numpy as np
import simpy
from numpy.typing import NDArray

from dalle_lib.planning import Work
from dalle_lib.planning.constants import PROGRESS_BYTES, PROGRESS_EVERY_S, ROUND_START_S
from scaling.distributions import BYTES_PER_MBIT, Distributions, Population
from scaling.hash_table import HashTable
from scaling.links import Network
from scaling.matchmaking import Meeting
from scaling.outcome import Epoch, Outcome
from scaling.processors import Processors
from scaling.rounds import Exchange, exchange, shares_of, with_leavers
from scaling.states import States

PROGRESS_LIVES_S = 60.0
"""Seconds for which a peer's record of its progress lives: hivemind's `metadata_expiration`."""
MAX_GROUPS = 8
"""Groups of an epoch whose rounds are simulated, the largest ones."""
SOONEST_LOOK_S, MORE, MORE_PART = 0.5, 3, 0.2
"""How hivemind's tracker chooses its next look: at least so many seconds later, sooner the more peers may have come."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A run to simulate."""

    peers: int
    work: Work
    of: Distributions = field(default_factory=Distributions)
    batch_size: int = 1
    vouched: int = 2
    """Trainers of the organiser with the fastest links, to whom others can connect, and who stay."""
    first_peers: int = 2
    epochs: int = 3
    without: int = 0
    """First epochs whose bytes and work do not count."""
    seed: int = 0
    grain_s: float = 0.0
    """See `Network`."""
    shared_cores: int | None = None
    """Cores of the one machine on which all peers run; None if each has one."""
    step_s: float | None = None
    """Seconds of a step where all peers take the same, such as those of tests, which sleep."""


class Swarm:
    """The peers of a scenario, and what they do."""

    def __init__(self, scenario: Scenario, people: Population | None = None) -> None:
        """Take the peers themselves in place of those that the scenario's distributions give."""
        self.scenario, self.work = scenario, scenario.work
        self.random = np.random.default_rng(scenario.seed)
        self.env = simpy.Environment()
        people = people or Population.drawn(scenario.peers, scenario.of, self.random, scenario.first_peers)
        self.people, self.vouched = people, np.arange(people.first_peers, people.first_peers + scenario.vouched)
        people.up[self.vouched] = people.down[self.vouched] = scenario.of.mbps[1] * BYTES_PER_MBIT
        people.is_client[self.vouched] = False
        total = len(people.up)
        self.network = Network(self.env, people.up, people.down, scenario.grain_s)
        self.processors = Processors(self.env, total, scenario.shared_cores)
        self.table = HashTable(self.env, people, self.network, self.processors, self.random)
        self.states = States(self.env, people, self.network, self.random, self.work.state_bytes)
        self.states.is_counted = set(people.trainers)
        self.leaves_at = np.full(total, np.inf)
        self.vanishes = np.zeros(total, bool)
        self.avoided: dict[tuple[int, int], float] = {}
        """Until when a peer does not follow a leader that never began."""
        self.gone: dict[int, bool] = {}
        """Peers that have left in this epoch, each with whether it vanished."""
        self.outcome = Outcome()
        self.beside = np.zeros((2, total))
        """Bytes sent and received in rounds, which do not pass the network."""
        self._before, self.moved = np.zeros((2, 3, total))
        """What each had sent, received and worked before the first epoch that counts, and the same of an epoch."""
        self.meeting: Meeting | None = None
        self.ends_at, self.next_epoch = math.inf, self.env.event()
        """When the epoch in progress is full, and what happens when the next one begins."""
        self._parameters_s = 0.0
        """Seconds from an epoch's beginning until its round of parameters is over, which all wait for."""
        for peer in people.trainers:
            self._stay(peer)
            self.env.process(self._watch(peer))

    def run(self) -> Outcome:
        """Simulate all epochs, and return what they came to."""
        self.env.run(self.env.process(self._epochs()))
        return self._summed_up()

    def _stay(self, peer: int) -> None:
        rate = self.scenario.of.leave_per_minute / 60
        if rate and peer not in self.vouched:
            self.leaves_at[peer] = self.env.now + self.random.exponential(1 / rate)
            self.vanishes[peer] = self.random.random() < self.scenario.of.vanish
            self.env.process(self._leave(peer))

    def _leave(self, peer: int):
        """Leave when it is time; somebody else joins in this peer's place, and takes over the state."""
        yield self.env.timeout(self.leaves_at[peer] - self.env.now)
        self.states.is_counted.discard(peer)
        self.gone[peer] = bool(self.vanishes[peer])
        if self.meeting is not None:
            self.meeting.leave(peer)
        self.table.replace(peer)
        self.people.redraw(peer, self.scenario.of, self.random)
        self.network.replug(peer, self.people.up[peer], self.people.down[peer])
        self.outcome.joins += 1
        if self.people.first_peers:
            self.table.enter(int(self.random.integers(self.people.first_peers)))
        self._stay(peer)
        leaves_at = self.leaves_at[peer]
        while not (yield from self.states.take(peer)) and self.leaves_at[peer] == leaves_at:
            yield self.env.timeout(self.work.timeout_s)
        if self.leaves_at[peer] == leaves_at:  # it has not left meanwhile
            self.states.is_counted.add(peer)

    def _watch(self, peer: int):
        """Tell the others of this peer's progress after each batch, and look at theirs, as its tracker does."""
        told_at = self.env.now
        yield self.env.timeout(self.random.random() * min(PROGRESS_EVERY_S, self.work.matchmaking_s))
        while True:
            if self.env.now >= self.ends_at:  # while it averages, it neither computes nor looks
                yield self.next_epoch
                told_at = self.env.now
            batches = max(1.0, (self.env.now - told_at) / self._batch_s(peer))
            told_at = self.env.now
            yield from self.table.store(peer, "progress", PROGRESS_LIVES_S, PROGRESS_BYTES, batches)
            found = yield from self.table.look(peer, "progress")
            count, left_s = max(1, len(found)), max(0.0, self.ends_at - self.env.now)
            sooner = left_s * count / max(count + MORE, count * (1 + MORE_PART))
            yield self.env.timeout(min(max(sooner, SOONEST_LOOK_S), PROGRESS_EVERY_S, self.work.matchmaking_s))

    def _batch_s(self, peer: int) -> float:
        if self.scenario.step_s is not None:
            return self.scenario.step_s
        return self.scenario.batch_size / self.people.samples_per_s[peer]

    def _epochs(self):
        for number in range(self.scenario.epochs):
            began, present = self.env.now, np.array(sorted(self.states.is_counted))
            speeds = self.scenario.batch_size / np.array([self._batch_s(peer) for peer in present])
            computing_s = self.work.target_batch_size / speeds.sum()
            self.ends_at, self.gone = began + computing_s, {}
            self.next_epoch.succeed()
            self.next_epoch = self.env.event()
            meeting = self.meeting = Meeting(
                self.env, self.people, self.network, self.table, self.processors, f"epoch {number}",
                self.work.matchmaking_s, self.work.timeout_s, self.avoided,
            )  # fmt: skip
            searches = []
            for peer in present:
                # It notices between two batches that the end is near, and later that it has come.
                starts_at = max(began, self.ends_at - self.work.matchmaking_s)
                starts_at += self.random.random() * self._batch_s(peer)
                searches.append(self.env.process(meeting.seek(int(peer), starts_at)))
            if len(present) > 1:
                yield self.env.all_of(searches) | self.env.process(meeting.settle())
            else:  # it knows that it is alone
                yield self.env.timeout(computing_s)
            meeting.close()
            yield from self._average(meeting, present, began, computing_s)
            self.meeting = None
            if number + 1 == self.scenario.without:
                self._before = self._totals()

    def _average(self, meeting: Meeting, present: NDArray, began: float, computing_s: float):
        """Have each group average; the epoch is over when the largest one has."""
        groups = sorted(meeting.groups, key=len, reverse=True) or [(int(present[0]),)]
        rounds = [self._round(meeting, group, began) for group in groups[:MAX_GROUPS]]
        largest, came, told, begins_at = rounds[0]
        self.states.pause(True)
        over_at = max(begins_at + came.seconds, self.env.now)
        yield self.env.timeout(over_at - self.env.now)
        self.states.pause(False)
        is_whole = came.is_whole and bool(told.all())
        self._parameters_s = 0.0
        if len(largest) > 1 and (not is_whole or (len(self.outcome.epochs) + 1) % self.work.state_every == 0):
            averaged = exchange(largest, self.people, self._shares(largest), self.work, self.work.answer_bytes)
            self._count(largest, averaged)
            self._parameters_s = self.work.matchmaking_s + averaged.seconds
        self.outcome.epochs.append(
            Epoch(
                computing_s,
                begins_at - began - computing_s,
                came.seconds,
                over_at - began,
                len(present),
                len(largest),
                len(groups),
                float(told.mean()),
                is_whole,
            )
        )
        self.outcome.too_long |= meeting.too_long
        self.outcome.parts["groups"] = self.outcome.parts.get("groups", 0.0) + meeting.told_bytes

    def _round(
        self, meeting: Meeting, members: tuple[int, ...], began: float
    ) -> tuple[NDArray, Exchange, NDArray, float]:
        """Return a group, its round, which of it knew in time, and when it began.

        All wait for the last batch of the slowest, and for a round of parameters that still runs.
        """
        group = np.array(members)
        knew_at = np.array([meeting.knew_at(peer, members) for peer in members])
        told = np.isfinite(knew_at)
        last_s = max(self.random.random() * self._batch_s(int(peer)) for peer in group)
        start_s = ROUND_START_S if len(group) > 1 else 0.0
        begins_at = max([self.ends_at + last_s + start_s, began + self._parameters_s, *knew_at[told]])
        shares = self._shares(group)
        if len(group) < 2:
            return group, Exchange(0.0, 0.0, np.zeros(1), np.zeros(1), np.zeros(1)), told, begins_at
        came = exchange(group, self.people, shares, self.work, cores=self.scenario.shared_cores)
        is_here = told & ~np.isin(group, list(self.gone))
        leaves_s = np.where(is_here, np.maximum(0.0, self.leaves_at[group] - begins_at), 0.0)
        vanishes = np.where(is_here, self.vanishes[group], [self.gone.get(peer, True) for peer in members])
        came = with_leavers(came, shares, leaves_s, vanishes, self.work.timeout_s)
        self._count(group, came)
        return group, came, told, begins_at

    def _shares(self, group: NDArray) -> NDArray:
        return shares_of(group, self.people, self.vouched, 2 if self.work.up_bits < 8 else 1)

    def _count(self, group: NDArray, came: Exchange) -> None:
        """Note a round's bytes and work, which pass neither the network nor the processors."""
        self.beside[:, group] += came.sent, came.received
        for peer, seconds in zip(group, came.work_s, strict=True):
            self.processors.used_s[peer] += seconds

    def _totals(self) -> NDArray:
        """Return what each peer has sent, received and worked so far; of shape (3, peers)."""
        total, names = len(self.people.up), self.table.names_sent
        sent = self.network.carried[:total] + self.beside[0] + names
        received = self.network.carried[total:] + self.beside[1] + names.sum() / total
        return np.stack([sent, received, self.processors.used_s])

    def _summed_up(self) -> Outcome:
        outcome, count, total = self.outcome, len(self.outcome.epochs), len(self.people.up)
        self.moved = (self._totals() - self._before) / (count - self.scenario.without)
        first, trainers = np.arange(self.people.first_peers), np.array(self.people.trainers)
        clients = self.people.is_client[trainers]
        roles = {"first peer": first, "reducer": trainers[~clients], "client": trainers[clients]}
        names = self.table.names_sent
        for role, peers in roles.items():
            if len(peers):
                outcome.sent[role], outcome.received[role], _ = map(float, self.moved[:, peers].mean(1))
        records = float(self.network.carried[:total].sum()) - outcome.parts["groups"] - self.states.given_bytes
        outcome.parts = {
            "rounds": float(self.beside[0].sum()), "hash table": records + float(names.sum()),
            "states": self.states.given_bytes, **outcome.parts,
        }  # fmt: skip
        outcome.parts = {name: size / count for name, size in outcome.parts.items()}
        busiest = int(self.table.records_sent.argmax())
        outcome.busiest_holder_mbps = float(self.table.records_sent[busiest] / self.env.now / BYTES_PER_MBIT)
        outcome.busiest_holder_of_mbps = float(self.people.up[busiest] / BYTES_PER_MBIT)
        outcome.looks_vain = self.table.vain / max(1, self.table.looks)
        outcome.look_s = self.table.looks_s / max(1, self.table.looks)
        outcome.state_s = float(np.mean(self.states.seconds)) if self.states.seconds else None
        outcome.states_failed = self.states.failed
        outcome.work_s = float(self.moved[2, trainers].mean())
        return outcome
