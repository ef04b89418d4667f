"""The hash table: who holds what lies under a key, and what a look at it costs the holders."""

from collections import defaultdict
from dataclasses import dataclass, field

import simpy
from numpy.random import Generator

from dalle_lib.planning.constants import (
    ANSWER_ENTRY_S,
    CALL_S,
    LOOK_ENTRY_S,
    MAX_ASKED,
    NAMED_BYTES,
    TABLE_ASKED_AT_ONCE,
    TABLE_REPLICAS,
)
from dalle_lib.swarm.searches import SEARCH_S
from dalle_lib.swarm.wire import MAX_BYTES
from scaling.distributions import Population
from scaling.links import Network
from scaling.processors import Processors


@dataclass
class Entry:
    """What one peer has written under a key."""

    value: object
    expires: float
    bytes: float


@dataclass
class Key:
    """What lies under a key, and with whom."""

    holders: list[int]
    entries: dict[int, Entry] = field(default_factory=dict)


class HashTable:
    """A hash table of peers that can be reached. Lists of names are counted, and only records take room on links."""

    def __init__(
        self, env: simpy.Environment, people: Population, network: Network, processors: Processors, random: Generator
    ) -> None:
        self.env, self.people, self.network, self.processors, self.random = env, people, network, processors, random
        self.keys: dict[str, Key] = {}
        self.names_sent = defaultdict(float)
        """Bytes of lists of names that each peer has sent, in answers to searches."""
        self.looks, self.vain, self.looks_s = 0, 0, 0.0
        """Looks so far, those that found nothing though something lay there, and the seconds of all."""

    def replace(self, peer: int) -> None:
        """Take note that somebody else is in a peer's place: what it held is with another one."""
        for key in self.keys.values():
            if peer in key.holders:
                key.holders = self._chosen()
            key.entries.pop(peer, None)

    def store(self, peer: int, name: str, value: object, lives_s: float, size: float):
        """Write a peer's record under a key: a process; others see it at its end."""
        expires = self.env.now + lives_s
        yield from self._search(peer)
        yield from self.processors.work(peer, TABLE_REPLICAS * CALL_S)
        yield self.env.timeout(2 * self._trip_s(peer))
        key = self._key(name)
        key.entries[peer] = Entry(value, expires, size)

    def enter(self, first_peer: int) -> None:
        """Take note that a newcomer has asked a first peer for the way in, by a search that it alone answers."""
        self.names_sent[first_peer] += MAX_ASKED * NAMED_BYTES

    def look(self, peer: int, name: str):
        """Read what lies under a key: a process, whose value is {peer: value}, or None if nobody answered in time."""
        began = self.env.now
        self.looks += 1
        yield from self._search(peer)
        key = self._key(name)
        seen = {writer: entry for writer, entry in key.entries.items() if entry.expires > self.env.now}
        size = sum(entry.bytes for entry in seen.values())
        holders = [holder for holder in key.holders if holder != peer]
        answers = [self.env.process(self._answer(holder, peer, size, len(seen))) for holder in holders]
        if answers:
            limit = self.env.timeout(max(0.0, began + SEARCH_S - self.env.now))
            yield self.env.all_of(answers) | limit
            is_answered = any(answer.processed and answer.ok for answer in answers)
            for answer in answers:
                if answer.is_alive:
                    answer.interrupt()
        else:
            is_answered = True
        yield from self.processors.work(peer, LOOK_ENTRY_S * len(seen) * max(1, len(holders)))
        self.looks_s += self.env.now - began
        if (not is_answered or size > MAX_BYTES) and peer not in key.holders:
            self.vain += bool(seen)
            return None
        return {writer: entry.value for writer, entry in seen.items()}

    def _answer(self, holder: int, peer: int, size: float, count: int):
        yield from self.processors.work(holder, ANSWER_ENTRY_S * count)
        transfer = self.network.send(holder, peer, size)
        try:
            yield transfer.done
        except simpy.Interrupt:
            self.network.stop(transfer)

    def _search(self, peer: int):
        """Find those nearest to a key: each that is asked names as many that it knows."""
        reachable = self.people.reachable
        asked = min(MAX_ASKED, max(1, len(reachable) - 1))
        for holder in self.random.choice(reachable, asked, replace=False):
            self.names_sent[int(holder)] += min(MAX_ASKED, len(reachable)) * NAMED_BYTES
        steps = -(-asked // TABLE_ASKED_AT_ONCE)
        yield from self.processors.work(peer, asked * CALL_S)
        yield self.env.timeout(steps * self._trip_s(peer))

    def _trip_s(self, peer: int) -> float:
        return self.people.trip_between(peer, int(self.random.choice(self.people.reachable)))

    def _key(self, name: str) -> Key:
        if name not in self.keys:
            self.keys[name] = Key(self._chosen())
        return self.keys[name]

    def _chosen(self) -> list[int]:
        reachable = self.people.reachable
        return [int(one) for one in self.random.choice(reachable, min(TABLE_REPLICAS, len(reachable)), replace=False)]
