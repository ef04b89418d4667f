"""How peers find their group, as `dalle_lib/swarm/averaging/matchmaking.py` and hivemind do.

Whoever declares first leads: it gathers all that ask it until `matchmaking_s` have passed, then tells each of them what
all have told. The others ask the earliest that they have seen, and a leader that follows another sends its own there.
"""

from dataclasses import dataclass, field

import simpy

from dalle_lib.planning.constants import (
    AVERAGER_BYTES,
    CALL_S,
    CHECK_INTRODUCTION_S,
    INTRODUCTION_BYTES,
    LOOK_EVERY_S,
    LOOK_S_PER_PEER,
)
from dalle_lib.swarm.averaging.matchmaking import AVOID_S
from dalle_lib.swarm.wire import MAX_RECEIVED_BYTES
from scaling.distributions import Population
from scaling.hash_table import HashTable
from scaling.links import Network
from scaling.processors import Processors


@dataclass(eq=False)
class Seeker:
    """A peer that looks for a group."""

    peer: int
    is_client: bool
    searches_until: float
    expires: float = float("inf")
    """When it begins with those who follow it; infinity while it has not declared."""
    leader: "Seeker | None" = None
    followers: "dict[Seeker, simpy.Event]" = field(default_factory=dict)
    """Who follows it, each with the event at which it learns what became of that."""
    group: tuple[int, ...] | None = None
    begins_at: float = float("inf")
    """When it knows its group."""
    tried: set = field(default_factory=set)
    is_over: bool = False

    @property
    def order(self) -> tuple[float, int]:
        """Whoever comes first by this leads."""
        return self.expires, self.peer


class Meeting:
    """One epoch's search for groups."""

    def __init__(
        self, env: simpy.Environment, people: Population, network: Network, table: HashTable, processors: Processors,
        key: str, matchmaking_s: float, timeout_s: float, avoided: dict[tuple[int, int], float] | None = None,
    ) -> None:  # fmt: skip
        """Take `avoided` of the epochs before: until when a peer does not follow a leader that never began."""
        self.env, self.people, self.network, self.table, self.processors = env, people, network, table, processors
        self.key, self.matchmaking_s, self.timeout_s = key, matchmaking_s, timeout_s
        self.avoided = {} if avoided is None else avoided
        self.request_s = min(3.0, matchmaking_s / 2)
        """Seconds in which a leader has to answer: `RunOptimizer._request_timeout_s`."""
        self.seekers: dict[int, Seeker] = {}
        self.groups: list[tuple[int, ...]] = []
        self.first_begun = env.event()
        """Happens when the first group begins."""
        self.told_bytes = 0.0
        """Bytes in which leaders have told their followers of the group."""
        self.too_long = False
        """Whether what a leader tells is longer than a message may be."""

    def seek(self, peer: int, starts_at: float):
        """Look for a group from a time on: a process, at whose end the seeker has its group, or none was found."""
        yield self.env.timeout(max(0.0, starts_at - self.env.now))
        is_client = bool(self.people.is_client[peer])
        own = self.seekers[peer] = Seeker(peer, is_client, self.env.now + self.timeout_s)
        if not is_client:
            self._declare(own)
        found, looking, next_look = [], None, self.env.now
        while own.group is None and not own.is_over and self.env.now < own.searches_until:
            if looking is None and self.env.now >= next_look:
                looking = self.env.process(self.table.look(peer, self.key))
            if (leader := self._earliest(own, found)) is not None:
                own.tried.add((leader, leader.expires))
                yield from self._ask(own, leader)
            else:
                ends_at = min(own.expires, own.searches_until)
                yield self.env.timeout(max(0.0, ends_at - self.env.now)) | (
                    looking or self.env.timeout(max(0.0, next_look - self.env.now))
                )
            if looking is not None and looking.processed:
                found, looking = [self.seekers[one] for one in looking.value if one in self.seekers], None
                next_look = self.env.now + max(LOOK_EVERY_S, LOOK_S_PER_PEER * len(found))
            if own.group is None and not own.is_over and self.env.now >= own.expires:
                if own.followers:
                    yield from self._begin(own)
                else:
                    self._declare(own)
        own.is_over = True
        self._send_away(own)

    def settle(self):
        """Wait until, some time after the first group has begun, nobody waits for word of a leader any more.

        Whoever looks on after that is left out: the others begin without it.
        """
        yield self.first_begun
        yield self.env.timeout(self.request_s)
        while any(one.leader is not None and one.group is None for one in self.seekers.values()):
            yield self.env.timeout(LOOK_EVERY_S)

    def knew_at(self, peer: int, group: tuple[int, ...]) -> float:
        """Return when a peer knew that it is in this group; infinity if it never did."""
        seeker = self.seekers.get(peer)
        return float("inf") if seeker is None or seeker.group != group else seeker.begins_at

    def close(self) -> None:
        """End the search of all who have no group."""
        for seeker in self.seekers.values():
            seeker.is_over = True

    def leave(self, peer: int) -> None:
        """Take note that a peer is gone; those that follow it notice."""
        if (seeker := self.seekers.get(peer)) is not None and seeker.group is None:
            seeker.is_over = True
            self._send_away(seeker)

    def _declare(self, own: Seeker) -> None:
        own.expires = self.env.now + self.matchmaking_s
        self.env.process(self.table.store(own.peer, self.key, self.matchmaking_s, AVERAGER_BYTES))

    def _earliest(self, own: Seeker, found: list[Seeker]) -> Seeker | None:
        """Return whom a peer asks next: the first that comes before it and that it has not asked; None if nobody."""
        before = [
            one
            for one in found
            if one.order < own.order
            and one.group is None
            and not one.is_over
            and (one, one.expires) not in own.tried
            and self.avoided.get((own.peer, one.peer), 0.0) <= self.env.now
        ]
        return min(before, key=lambda one: one.order, default=None)

    def _ask(self, own: Seeker, leader: Seeker):
        """Ask a peer to lead, and wait for what becomes of that if it agrees."""
        asked = self.env.now
        yield self.env.timeout(self.people.trip_between(own.peer, leader.peer))
        yield from self.processors.work(leader.peer, CALL_S + CHECK_INTRODUCTION_S)
        if self.env.now - asked > self.request_s or not self._may_lead(leader, own):
            return
        own.leader, news = leader, self.env.event()
        leader.followers[own] = news
        self._send_away(own)
        due = min(own.expires, self.env.now + self.matchmaking_s)
        yield news | self.env.timeout(due + self.request_s - self.env.now)
        own.leader = None
        if not news.triggered:
            leader.followers.pop(own, None)
            self.avoided[own.peer, leader.peer] = self.env.now + AVOID_S
            return
        what, of = news.value
        if what == "group":
            yield from self.processors.work(own.peer, CHECK_INTRODUCTION_S * len(of))
            own.group, own.begins_at = of, self.env.now
        elif of is not None and of is not own and not own.is_over:
            yield from self._ask(own, of)

    def _may_lead(self, leader: Seeker, own: Seeker) -> bool:
        is_free = leader.group is None and not leader.is_over and leader.leader is None
        return is_free and leader.expires <= own.expires and leader.expires > self.env.now

    def _send_away(self, own: Seeker) -> None:
        """Send a peer's followers to whom it follows itself."""
        for news in own.followers.values():
            if not news.triggered:
                news.succeed(("sent on", own.leader))
        own.followers = {}

    def _begin(self, own: Seeker):
        """Tell all followers of the group, which is as many messages of as many introductions."""
        own.group = (own.peer, *(follower.peer for follower in own.followers))
        self.groups.append(own.group)
        if not self.first_begun.triggered:
            self.first_begun.succeed()
        size = len(own.group) * INTRODUCTION_BYTES
        self.too_long |= size > MAX_RECEIVED_BYTES
        followers, own.followers = own.followers, {}
        for follower, news in followers.items():
            self.env.process(self._tell(own, follower.peer, news, size))
        yield from self.processors.work(own.peer, CHECK_INTRODUCTION_S * len(own.group))
        own.begins_at = self.env.now

    def _tell(self, own: Seeker, follower: int, news: simpy.Event, size: float):
        self.told_bytes += size
        yield self.network.send(own.peer, follower, size).done
        yield self.env.timeout(self.people.trip_between(own.peer, follower) / 2)
        if size <= MAX_RECEIVED_BYTES and not news.triggered:
            news.succeed(("group", own.group))
