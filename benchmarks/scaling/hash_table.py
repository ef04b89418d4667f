"""The hash table: who holds what lies under a key, and what a look at it costs the holders."""

from dataclasses import dataclass

import numpy as np
import simpy
from numpy.random import Generator
from numpy.typing import NDArray

from dalle_lib.planning.constants import (
    ANSWER_ENTRY_S,
    CALL_S,
    FIND_S,
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
class Key:
    """What lies under a key, and with whom."""

    holders: list[int]
    expires: NDArray
    """When each peer's record expires; 0 where it has none."""
    entry_bytes: float = 0.0


class HashTable:
    """A hash table of peers that can be reached. Lists of names are counted, and only records take room on links."""

    def __init__(
        self, env: simpy.Environment, people: Population, network: Network, processors: Processors, random: Generator
    ) -> None:
        self.env, self.people, self.network, self.processors, self.random = env, people, network, processors, random
        self.keys: dict[str, Key] = {}
        self.names_sent, self.records_sent = np.zeros((2, len(people.up)))
        """Bytes of lists of names that each peer has sent, in answers to searches, and of records."""
        self.looks, self.vain, self.looks_s = 0, 0, 0.0
        """Looks so far, those that found nothing though something lay there, and the seconds of all."""

    def replace(self, peer: int) -> None:
        """Take note that somebody else is in a peer's place: what it held is with another one."""
        for key in self.keys.values():
            if peer in key.holders:
                key.holders = self._chosen()
            key.expires[peer] = 0.0

    def store(self, peer: int, name: str, lives_s: float, size: float, times: float = 1.0):
        """Write a peer's record under a key, the last of so many `times`: a process; others see it at its end."""
        expires = self.env.now + lives_s
        key = self._key(name)
        yield from self._search(peer, times)
        yield from self.processors.work(peer, times * TABLE_REPLICAS * (CALL_S + LOOK_ENTRY_S))
        yield self.env.timeout(self._trip_s(peer))
        key.expires[peer], key.entry_bytes = expires, size

    def enter(self, first_peer: int) -> None:
        """Take note that a newcomer has asked a first peer for the way in, by a search that it alone answers."""
        self.names_sent[first_peer] += MAX_ASKED * NAMED_BYTES

    def look(self, peer: int, name: str):
        """Read what lies under a key: a process, whose value is the numbers of those that have written there.

        They are none if nobody has answered in time, or answers are longer than a message may be.
        """
        began, key = self.env.now, self._key(name)
        seen, is_answered = yield from self._read(peer, key)
        self.looks += 1
        self.looks_s += self.env.now - began
        if peer in key.holders or (is_answered and len(seen) * key.entry_bytes <= MAX_BYTES):
            return seen
        self.vain += len(seen) > 0
        return seen[:0]

    def _search(self, peer: int, times: float = 1.0):
        """Find those who are nearest to a key so many times."""
        reachable = self.people.reachable
        asked = min(MAX_ASKED, max(1, len(reachable) - 1))
        named = reachable[self.random.integers(len(reachable), size=asked)]
        np.add.at(self.names_sent, named, times * min(MAX_ASKED, len(reachable)) * NAMED_BYTES)
        yield from self.processors.work(peer, times * asked * FIND_S)
        yield self.env.timeout(-(-asked // TABLE_ASKED_AT_ONCE) * self._trip_s(peer))

    def _read(self, peer: int, key: Key):
        """Search for a key, and read what its holders have: who has written, and whether any answered."""
        began = self.env.now
        yield from self._search(peer)
        seen = np.flatnonzero(key.expires > self.env.now)
        holders = [holder for holder in key.holders if holder != peer]
        if len(seen) == 0 or not holders:
            return seen, True
        size = len(seen) * key.entry_bytes
        answers = [self.env.process(self._answer(holder, peer, size, len(seen))) for holder in holders]
        yield self.env.all_of(answers) | self.env.timeout(max(0.0, began + SEARCH_S - self.env.now))
        is_answered = any(answer.processed for answer in answers)
        for answer in answers:
            if answer.is_alive:
                answer.interrupt()
        yield from self.processors.work(peer, LOOK_ENTRY_S * len(seen) * len(holders))
        return seen, is_answered

    def _answer(self, holder: int, peer: int, size: float, count: float):
        transfer = None
        try:
            yield from self.processors.work(holder, ANSWER_ENTRY_S * count)
            transfer = self.network.send(holder, peer, size)
            yield transfer.done
        except simpy.Interrupt:  # the search is over
            size = 0.0 if transfer is None else size - self.network.stop(transfer)
        self.records_sent[holder] += size

    def _trip_s(self, peer: int) -> float:
        reachable = self.people.reachable
        return self.people.trip_between(peer, int(reachable[self.random.integers(len(reachable))]))

    def _key(self, name: str) -> Key:
        if name not in self.keys:
            self.keys[name] = Key(self._chosen(), np.zeros(len(self.people.up)))
        return self.keys[name]

    def _chosen(self) -> list[int]:
        reachable = self.people.reachable
        return [int(one) for one in self.random.choice(reachable, min(TABLE_REPLICAS, len(reachable)), replace=False)]
