"""Searches of a run's hash table, which end whatever others answer.

In hivemind 1.1.12 one answer that cannot be read, or that names ever nearer peers, keeps a search from ending, and with
it whoever waits for its result; one with a false time ends it at once, and names of nobody end it with nothing.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Container
from contextvars import ContextVar

from hivemind.dht import DHTID, node
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration

from dalle_lib.swarm import wire
from dalle_lib.swarm.bounded import put

logger = logging.getLogger(__name__)

SEARCH_S = 10.0
"""Seconds after which a search ends with what it has found: enough for three silent peers, one after the other."""
MAX_ASKED = 200
"""Peers that a search asks at most. hivemind keeps the 20 nearest in view, so few more than these are needed."""
MAX_SILENT, NOT_FOLLOWED_S = 3, 300.0
"""Silent peers, beyond those that answered, that another may name before this one asks nobody else whom it alone
names, and seconds for which it does not. For so long each silent peer counts once, against whoever named it first: few
that answer others but not this one, as behind some routers, make nobody else ignored."""
MAX_NAMES = 1000
"""Peers of which it is known who named them, and namers that are judged; the oldest are forgotten first."""
MAX_KEPT = 1000
"""Keys of which it is known who keeps what lies under them."""
KEEPERS_S = 20.0
"""Seconds for which those who keep a peer's record are not looked for again, if they answer. Until then somebody nearer
may come: who searches asks 20, and five keep it."""
unanswered: ContextVar[set[DHTID]] = ContextVar("unanswered")
"""Places of the peers that have not answered to the search in progress."""
as_signed: ContextVar[bool] = ContextVar("as_signed", default=False)
"""Whether a search that begins now hands over the entries of a dictionary as their writers signed them."""


class Namers:
    """Remembers who names peers that do not answer: each costs a search seconds, and names cost nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._namer: dict[PeerID, PeerID] = {}
        """Who has named a peer first since it was last asked."""
        self._silent: dict[PeerID, int] = {}
        """How many more peers that somebody named were silent than have answered; -MAX_SILENT at least."""
        self._counted: dict[PeerID, float] = {}
        """Until when a silent peer counts no more."""
        self._ignored: dict[PeerID, float] = {}
        """Until when nobody whom somebody alone names is asked."""

    def followed(self, namer: PeerID, named: dict[DHTID, PeerID], known: Container[PeerID]) -> dict[DHTID, PeerID]:
        """Return whom of the peers in an answer to ask: all, or those that are known, if too many were silent."""
        if self._clock() < self._ignored.get(namer, 0.0):
            named = {place: peer for place, peer in named.items() if peer in known}
        for peer in named.values():
            put(self._namer, peer, self._namer.get(peer, namer), MAX_NAMES)
        return named

    def note(self, peer: PeerID, has_answered: bool) -> None:
        """Take note of whether a peer has answered, on account of who named it."""
        namer, now = self._namer.pop(peer, None), self._clock()
        if namer is None or (not has_answered and now < self._counted.get(peer, 0.0)):
            return
        if not has_answered:
            put(self._counted, peer, now + NOT_FOLLOWED_S, MAX_NAMES)
        silent = max(-MAX_SILENT, self._silent.get(namer, 0) + (-1 if has_answered else 1))
        if silent < MAX_SILENT:
            put(self._silent, namer, silent, MAX_NAMES)
        else:
            logger.info("%s has named peers that do not answer: others whom it names are not asked", namer)
            put(self._ignored, namer, now + NOT_FOLLOWED_S, MAX_NAMES)
            self._silent.pop(namer, None)


class Keepers:
    """Remembers who keeps what this peer stores: hivemind searches before each time, which asks several times as many.

    A peer writes its progress every second or so, under one key.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[DHTID, tuple[float, dict[DHTID, PeerID]]] = {}
        """The nearest peers to a key, and until when they are taken for that."""

    def of(self, key: DHTID) -> dict[DHTID, PeerID]:
        """Return the nearest peers to a key, nearest first; none if they are to be looked for."""
        until, peers = self._known.get(key, (-math.inf, {}))
        return peers if self._clock() < until else {}

    def note(self, key: DHTID, peers: dict[DHTID, PeerID]) -> None:
        """Remember what a search has found."""
        put(self._known, key, (self._clock() + KEEPERS_S, peers), MAX_KEPT)

    def forget(self, peer: PeerID) -> None:
        """Look again for those who keep what this peer, which does not answer, kept."""
        self._known = {key: known for key, known in self._known.items() if peer not in known[1].values()}


class Search(node._SearchState):
    """hivemind's search for the newest value of one key, which ends by itself, and leaves out what cannot be read."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.as_signed = as_signed.get()
        limit = asyncio.get_running_loop().call_later(SEARCH_S, self.finish_search)
        self.future.add_done_callback(lambda _: limit.cancel())

    def add_candidate(self, candidate: ValueWithExpiration | None, source_node_id: DHTID | None) -> None:
        """Take in an answer. When it expires follows from its entries: hivemind believes whom it asked.

        Of a dictionary it takes a copy: hivemind would add the entries of later answers to the one in its own storage.
        """
        if candidate is not None and isinstance(candidate.value, DictionaryDHTValue):
            entries, times = list(candidate.value.items()), []
            with DictionaryDHTValue().freeze() as copy:
                for subkey, (value, expires) in entries:
                    copy.store(subkey, value, expires)
                    times.append(expires)
            candidate = ValueWithExpiration(copy, max(times)) if times else None
        if candidate is not None and wire.is_time(candidate.expiration_time):
            super().add_candidate(candidate, source_node_id)

    def finish_search(self) -> None:
        """Hand over what was found: of a dictionary, the entries that can be read, or all as they were signed."""
        if self.finished:
            return
        found = None
        if isinstance(self.binary_value, DictionaryDHTValue):
            entries = dict(self.binary_value.items())
            if not self.as_signed:
                read = {subkey: self._read(wire.dumps(subkey), item) for subkey, item in entries.items()}
                entries = {subkey: entry for subkey, entry in read.items() if entry is not None}
            found = ValueWithExpiration(entries, self.expiration_time)
        elif self.found_something:
            item = ValueWithExpiration(self.binary_value, self.expiration_time)
            found = self._read(DHTProtocol.IS_REGULAR_VALUE, item)
        self.future.set_result(found)

    def _read(self, subkey: bytes, item: ValueWithExpiration) -> ValueWithExpiration | None:
        record = DHTRecord(self.key_id.to_bytes(), subkey, item.value, item.expiration_time)
        value = item.value if self.record_validator is None else self.record_validator.strip_value(record)
        try:
            return ValueWithExpiration(wire.loads(value), item.expiration_time)
        except ValueError as error:
            logger.debug("a record of the hash table is left out: %s", error)
            return None


async def traverse(
    queries: Collection[DHTID],
    initial_nodes: Collection[DHTID],
    beam_size: int,
    num_workers: int,
    get_neighbors: Callable,
    found_callback: Callable | None = None,
    **_unused,
) -> tuple[dict[DHTID, list[DHTID]], dict[DHTID, set[DHTID]]]:
    """Return the nearest peers to each query that have answered, and all that were asked; as hivemind's traverse_dht.

    Each search ends after SEARCH_S or MAX_ASKED peers. hivemind counts whoever is named among the nearest, before that
    peer has answered: 20 names of nobody end its search. Kademlia (Maymounkov and Mazieres, 2002, section 2.3) takes
    peers that fail to answer out of consideration, and so does this.
    """

    async def search(query: DHTID) -> tuple[list[DHTID], set[DHTID]]:
        found = await _nearest(query, initial_nodes, beam_size, num_workers, get_neighbors)
        if found_callback is not None:
            await found_callback(query, *found)
        return found

    found = dict(zip(queries, await asyncio.gather(*map(search, queries)), strict=True))
    return {query: near for query, (near, _) in found.items()}, {query: asked for query, (_, asked) in found.items()}


async def _nearest(
    query: DHTID, known: Collection[DHTID], count: int, workers: int, get_neighbors: Callable
) -> tuple[list[DHTID], set[DHTID]]:
    """Return the `count` nearest peers that answer, nearest first, and all that were asked."""
    asked, answered, is_over = set(), set(), False
    named, silent = set(known), set()
    unanswered.set(silent)  # each search runs in a task of its own
    calls: dict[asyncio.Task, DHTID] = {}
    ends = time.monotonic() + SEARCH_S
    try:
        while not is_over and (left_s := ends - time.monotonic()) > 0:
            nearest = sorted(named - silent, key=query.xor_distance)[:count]
            for peer in [peer for peer in nearest if peer not in asked][: workers - len(calls)]:
                if len(asked) < MAX_ASKED:
                    asked.add(peer)
                    calls[asyncio.create_task(get_neighbors(peer, [query]))] = peer
            if not calls:
                break
            done, _ = await asyncio.wait(calls, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            for call in done:
                peer = calls.pop(call)
                if (error := call.exception()) is not None:  # strangers choose what their answer raises
                    logger.debug("an answer to a search is left out: %s: %s", type(error).__name__, error)
                    silent.add(peer)
                    continue
                others, should_end = call.result().get(query, ((), False))
                named.update(others)
                answered.add(peer)
                is_over |= should_end
    finally:
        for call in calls:
            call.cancel()
    return sorted(answered - silent, key=query.xor_distance)[:count], asked
